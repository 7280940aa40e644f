"""From names to policies and collators, or the ones that are passed.

Place in the flow: Loader, DataModule and the command ask here. Reads: names. Makes: policies,
collators.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from seqdata.default_host import default_host
from seqdata.errors import ConfigError, PluginError, did_you_mean
from seqdata.host import PluginHost
from seqdata.protocols import Collator, Policy
from seqdata.required_members import POLICY_MEMBERS, missing

CollatorLike = Collator | Callable[[list[dict[str, Any]]], Any]
"""A collator, or a torch ``collate_fn``."""


def resolve_policy(
    policy: str | Policy,
    options: Mapping[str, Any] | None = None,
    *,
    host: PluginHost | None = None,
) -> Policy:
    """Give a policy by its name, or the one that is passed.

    Args:
        policy: A policy, or the name of one.
        options: Keyword arguments of a policy that is named.
        host: Where names are looked up.

    Raises:
        ConfigError: If an argument is missing or unknown, or this is no policy.
        PluginError: If the name is unknown, or what its plugin makes is no policy.
    """
    if isinstance(policy, str):
        factory = (host or default_host()).policy(policy)
        made = _make("policy", policy, factory, options or {})
        if lacking := missing(made, POLICY_MEMBERS):
            raise PluginError(
                f"policy {policy!r}: its factory gave a {type(made).__name__} without "
                f"{', '.join(lacking)}, must give a Policy; tell its author"
            )
        return cast(Policy, made)
    if options:
        raise ConfigError(
            f"policy {policy!r}: options {dict(options)!r} go with a name only; give them to the "
            "policy itself"
        )
    if isinstance(policy, type) or missing(policy, POLICY_MEMBERS):
        raise ConfigError(
            f"`batching` is {policy!r}, must be a policy or the name of one; e.g. Bucketed(64)"
        )
    return policy


def resolve_collator(collator: str | CollatorLike, *, host: PluginHost | None = None) -> Collator:
    """Give a collator by its name, or the one that is passed.

    A function of one argument is a ``collate_fn`` as torch knows them: it gets a list of samples.

    Raises:
        ConfigError: If this is no collator.
        PluginError: If the name is unknown, or what its plugin makes is no collator.
    """
    if isinstance(collator, str):
        made = _make("collator", collator, (host or default_host()).collator(collator), {})
        if not callable(made):
            raise PluginError(
                f"collator {collator!r}: its factory gave a {type(made).__name__}, must give a "
                "callable; tell its author"
            )
        return cast(Collator, made)
    if isinstance(collator, type) or not callable(collator):
        raise ConfigError(
            f"`collator` is {collator!r}, must be a collator or the name of one; e.g. 'padded'"
        )
    if not _takes_one(collator):
        return cast(Collator, collator)
    from seqdata.collators.collate_fn import Samples  # torch is imported only where it is needed

    return Samples(cast(Callable[..., Any], collator))


def _takes_one(function: Callable[..., Any]) -> bool:
    """Tell whether a function must be given exactly one argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    due = [one for one in parameters if one.kind in places and one.default is one.empty]
    many = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return len(due) == 1 and not many


def _make(kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    takes = inspect.signature(factory)
    try:
        takes.bind(**options)
    except TypeError as error:
        told = re.sub(r"required argument: '(\w+)'", r"required argument: `\1`", str(error))
        unknown = [option for option in options if option not in takes.parameters]
        hint = did_you_mean(unknown[0], takes.parameters) if unknown else ""
        raise ConfigError(
            f"{kind} {name!r}: {told}, must have what it needs and no more; it takes "
            f"{', '.join(takes.parameters) or 'nothing'}{'; ' if hint else ''}{hint}"
        ) from error
    return factory(**options)

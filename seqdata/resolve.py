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
from seqdata.required_members import POLICY_MEMBERS, missing_members

CollatorLike = Collator | Callable[[list[dict[str, Any]]], Any]
"""A collator, or a torch ``collate_fn``."""


def resolve_policy(
    policy: str | Policy,
    options: Mapping[str, Any] | None = None,
    *,
    host: PluginHost | None = None,
) -> Policy:
    """Return a policy by its name, or the one that is passed.

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
        resolved = _call_factory("policy", policy, factory, options or {})
        if missing_names := missing_members(resolved, POLICY_MEMBERS):
            raise PluginError(
                f"policy {policy!r}: its factory gave a {type(resolved).__name__} without "
                f"{', '.join(missing_names)}, must give a Policy; tell its author"
            )
        return cast(Policy, resolved)
    if options:
        raise ConfigError(
            f"policy {policy!r}: options {dict(options)!r} go with a name only; give them to the "
            "policy itself"
        )
    if isinstance(policy, type) or missing_members(policy, POLICY_MEMBERS):
        raise ConfigError(
            f"`batching` is {policy!r}, must be a policy or the name of one; e.g. Bucketed(64)"
        )
    return policy


def resolve_collator(collator: str | CollatorLike, *, host: PluginHost | None = None) -> Collator:
    """Return a collator by its name, or the one that is passed.

    A function of one argument is a ``collate_fn`` as torch knows them: it gets a list of samples.

    Raises:
        ConfigError: If this is no collator.
        PluginError: If the name is unknown, or what its plugin makes is no collator.
    """
    if isinstance(collator, str):
        resolved = _call_factory(
            "collator", collator, (host or default_host()).collator(collator), {}
        )
        if not callable(resolved):
            raise PluginError(
                f"collator {collator!r}: its factory gave a {type(resolved).__name__}, must give a "
                "callable; tell its author"
            )
        return cast(Collator, resolved)
    if isinstance(collator, type) or not callable(collator):
        raise ConfigError(
            f"`collator` is {collator!r}, must be a collator or the name of one; e.g. 'padded'"
        )
    if not _takes_one_argument(collator):
        return cast(Collator, collator)
    from seqdata.collators.collate_fn import Samples  # torch is imported only where it is needed

    return Samples(cast(Callable[..., Any], collator))


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    """Return whether a function must be given exactly one argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is parameter.empty
    ]
    is_variadic = any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    )
    return len(required) == 1 and not is_variadic


def _call_factory(
    kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> Any:
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        message = re.sub(r"required argument: '(\w+)'", r"required argument: `\1`", str(error))
        unknown = [option for option in options if option not in signature.parameters]
        hint = did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise ConfigError(
            f"{kind} {name!r}: {message}, must have what it needs and no more; it takes "
            f"{', '.join(signature.parameters) or 'nothing'}{'; ' if hint else ''}{hint}"
        ) from error
    return factory(**options)

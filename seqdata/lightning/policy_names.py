"""Short names of policies for LightningCLI: ``--data.batching token-budget``, ``TokenBudget``.

LightningCLI's parser, jsonargparse, takes import paths. This module registers a conversion to them
from registered names and from the names of built-in classes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

from seqdata.builtin import POLICIES
from seqdata.errors import SeqDataError
from seqdata.host import default_host

_PARSER = "jsonargparse"
_CLASS = "class_path"


class PolicyName(str):
    """Type for the parser: the registered name of a policy, or the name of its class."""

    __slots__ = ()


def register_policy_names() -> None:
    """Register ``PolicyName`` in jsonargparse, if it is installed."""
    if importlib.util.find_spec(_PARSER) is not None:
        typing: Any = importlib.import_module(f"{_PARSER}.typing")
        typing.register_type(PolicyName, str, parse_policy)


def parse_policy(value: object) -> Any:
    """Return the parser's value for a policy: its import path, and options if there are any.

    Args:
        value: A name, or a mapping of a name under ``class_path`` and options under ``init_args``.

    Raises:
        ValueError: If the value does not name a policy; the parser then tries other types.
    """
    namespace: Any = importlib.import_module(_PARSER).Namespace
    if isinstance(value, str):
        return namespace(class_path=find_import_path(value))
    options = vars(value) if isinstance(value, namespace) else value
    if not isinstance(options, Mapping) or not isinstance(options.get(_CLASS), str):
        raise ValueError("is not the name of a policy")
    expanded, is_changed = _expand_names(options, namespace)
    if not is_changed:
        raise ValueError(f"{options[_CLASS]!r} is not the name of a policy")
    return namespace(expanded)


def _expand_names(value: Any, namespace: type) -> tuple[Any, bool]:
    """Replace the names of policies, also of nested ones, by import paths.

    Returns:
        The value, and whether it has changed.
    """
    options = vars(value) if isinstance(value, namespace) else value
    if not isinstance(options, Mapping):
        return value, False
    inner = {key: _expand_names(item, namespace) for key, item in options.items()}
    expanded = {key: item for key, (item, _) in inner.items()}
    is_changed = any(is_inner_changed for _, is_inner_changed in inner.values())
    if isinstance(expanded.get(_CLASS), str):
        with contextlib.suppress(ValueError):  # raised for an import path
            expanded[_CLASS] = find_import_path(expanded[_CLASS])
            is_changed = True
    return (expanded, True) if is_changed else (value, False)


def find_import_path(name: str) -> str:
    """Return the import path of a policy's class.

    Args:
        name: A registered name, such as ``token-budget``, or a built-in class, such as
            ``TokenBudget``.

    Raises:
        ValueError: If there is no such policy, or the name is an import path.
    """
    for path in POLICIES.values():
        if path.rpartition(":")[2] == name:
            return path.replace(":", ".")
    try:
        factory = default_host().find("policy", name) if "." not in name else None
    except SeqDataError as error:
        raise ValueError(str(error)) from error
    if not inspect.isclass(factory):
        raise ValueError(f"{name!r} is not the name of a policy")
    return f"{factory.__module__}.{factory.__qualname__}"

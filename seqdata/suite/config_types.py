"""The arguments of a class, as the parser of the command line knows them, and types in words."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.lightning.policy_names import PolicyName

_WORDS: dict[Any, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a string",
    type(None): "null", Any: "any value", Path: "a path",
}  # fmt: skip
_LITERALS = 12  # values that are all listed


@dataclass(frozen=True)
class Argument:
    """An argument of a class.

    Args:
        type: Its type; None if it is not known.
        is_required: Whether it has no default.
    """

    type: Any
    is_required: bool


@functools.cache
def list_arguments(found: type) -> dict[str, Argument]:
    """Return the arguments of a class by their names."""
    parser = _make_parser()
    added = parser.add_class_arguments(found, "it", fail_untyped=False)
    types, required = list_types(parser), inspect.signature(found).parameters
    return {
        name: Argument(types.get(f"it.{name}"), _is_required(required.get(name)))
        for name in dict.fromkeys(key.split(".")[1] for key in added)
    }


def list_types(parser: Any) -> dict[str, Any]:
    """Return the types of a parser's keys."""
    known = {each.dest: getattr(each, "_typehint", None) for each in parser._actions}
    return {key: each for key, each in known.items() if each is not None}


def _is_required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _make_parser() -> Any:
    jsonargparse: Any = importlib.import_module("jsonargparse")
    return jsonargparse.ArgumentParser(exit_on_error=False)


def is_accepted(value: Any, hint: Any) -> bool:
    """Return whether the parser accepts a value of a file for a type; True if it is not known."""
    parser = _make_parser()
    try:
        parser.add_argument("--it", type=hint)
    except ValueError:  # a type that the parser does not support
        return True
    try:
        parser.parse_object({"it": value})
    except (importlib.import_module("argparse").ArgumentError, TypeError):
        return False
    return True


def list_bases(hint: Any) -> list[type]:
    """Return the classes of a type whose objects are written as class and arguments."""
    return [
        each
        for each in _iter_members(hint)
        if inspect.isclass(each)
        and typing.get_origin(each) is None
        and each not in _WORDS
        and each is not PolicyName
        and not issubclass(each, Collection)
    ]


def _iter_members(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, and those of the items of its lists."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _iter_members(each)
        return
    yield hint
    if inspect.isclass(origin) and issubclass(origin, Collection):
        for each in typing.get_args(hint)[:1]:
            yield from _iter_members(each)


def describe_type(hint: Any) -> str:
    """Return a type in words.

    Examples:
        >>> describe_type(int | None)
        'an integer or null'
        >>> describe_type(typing.Literal["a", "b"] | list[str])
        "'a', 'b' or a list"
    """
    *first, last = dict.fromkeys(_iter_words(hint))
    return f"{', '.join(first)} or {last}" if first else last


def _iter_words(hint: Any) -> Iterator[str]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for each in inner:
            if each is not PolicyName:  # beside the string that it is
                yield from _iter_words(each)
    elif origin is typing.Literal:
        yield from map(repr, inner[:_LITERALS])
        if len(inner) > _LITERALS:
            yield "another name"
    elif hint in _WORDS:
        yield _WORDS[hint]
    elif origin is tuple and Ellipsis not in inner:
        yield f"a list of {len(inner)} items"
    elif origin is Callable or hint is Callable:
        yield "the import path of a function"
    elif inspect.isclass(origin or hint) and issubclass(origin or hint, Mapping):
        yield "a dict"
    elif inspect.isclass(origin or hint) and issubclass(origin or hint, Collection):
        yield "a list"
    elif inspect.isclass(hint):
        yield f"a {hint.__name__} (class_path, init_args)"
    else:
        yield str(hint).removeprefix("typing.")

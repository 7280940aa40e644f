"""A digest of what a function does, so that results kept on disk are found again, or not.

It is made of bytecode, constants, defaults, what a closure or object holds, and functions and plain
values of the same module that are named in it. It errs towards "changed"; whoever uses it checks
what was kept. Place in the flow: below measuring. Reads: functions. Makes: digests.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def code_digest(thing: object) -> str:
    """Give a digest of a function or callable object (32 hex digits).

    Examples:
        >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 2)
        False
    """
    made = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for part in _parts(thing, set()):
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()[:32]


def _parts(thing: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(thing, _PLAIN):
        yield repr(thing).encode()
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, CodeType):
        yield thing.co_code
        yield repr(thing.co_names).encode()
        for constant in thing.co_consts:
            yield from _parts(constant, seen)
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing, seen)
    elif isinstance(thing, MethodType):
        yield from _parts(thing.__func__, seen)
        yield from _parts(thing.__self__, seen)
    elif isinstance(thing, functools.partial):
        for part in (thing.func, thing.args, thing.keywords):
            yield from _parts(part, seen)
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from _parts(one, seen)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield repr(key).encode()
            yield from _parts(value, seen)
    elif isinstance(thing, set | frozenset):
        yield repr(sorted(map(repr, thing))).encode()
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}".encode()
    else:
        yield from _of_object(thing, seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    yield from _parts(function.__code__, seen)
    yield from _parts(function.__defaults__, seen)
    yield from _parts(function.__kwdefaults__, seen)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # empty so far
            continue
        yield from _parts(content, seen)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        own = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if own or isinstance(value, _PLAIN):
            yield from _parts(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Give the names in a function and in the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _of_object(thing: Any, seen: set[int]) -> Iterator[bytes]:
    kind = type(thing)
    yield from _parts(kind, seen)
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            yield from _of_function(function, seen)
    try:
        state = pickle.dumps(thing, protocol=5)
    except Exception as error:  # whatever its own code raises: it has no state to see
        state = type(error).__name__.encode()
    yield state

"""Digests of functions, which decide whether results cached on disk are still valid.

It is made of bytecode, constants, defaults, what a closure or object holds, and functions and plain
values of the same module that are named in it. It errs towards "changed"; the caller checks what
was cached.
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


def code_digest(obj: object) -> str:
    """Return a digest of a function or callable object (32 hex digits).

    Examples:
        >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 2)
        False
    """
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for part in _iter_parts(obj, set()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def _iter_parts(obj: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(obj, _PLAIN):
        yield repr(obj).encode()
        return
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, CodeType):
        yield obj.co_code
        yield repr(obj.co_names).encode()
        for constant in obj.co_consts:
            yield from _iter_parts(constant, seen)
    elif isinstance(obj, FunctionType):
        yield from _iter_function_parts(obj, seen)
    elif isinstance(obj, MethodType):
        yield from _iter_parts(obj.__func__, seen)
        yield from _iter_parts(obj.__self__, seen)
    elif isinstance(obj, functools.partial):
        for part in (obj.func, obj.args, obj.keywords):
            yield from _iter_parts(part, seen)
    elif isinstance(obj, list | tuple):
        for element in obj:
            yield from _iter_parts(element, seen)
    elif isinstance(obj, dict):
        for key, value in obj.items():
            yield repr(key).encode()
            yield from _iter_parts(value, seen)
    elif isinstance(obj, set | frozenset):
        yield repr(sorted(map(repr, obj))).encode()
    elif isinstance(obj, type):
        yield f"{obj.__module__}.{obj.__qualname__}".encode()
    else:
        yield from _iter_object_parts(obj, seen)


def _iter_function_parts(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    yield from _iter_parts(function.__code__, seen)
    yield from _iter_parts(function.__defaults__, seen)
    yield from _iter_parts(function.__kwdefaults__, seen)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # still empty
            continue
        yield from _iter_parts(content, seen)
    for name in _iter_names(function.__code__):
        value = function.__globals__.get(name)
        own = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if own or isinstance(value, _PLAIN):
            yield from _iter_parts(value, seen)


def _iter_names(code: CodeType) -> Iterator[str]:
    """Yield the names in a function and in its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_names(constant)


def _iter_object_parts(obj: Any, seen: set[int]) -> Iterator[bytes]:
    kind = type(obj)
    yield from _iter_parts(kind, seen)
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            yield from _iter_function_parts(function, seen)
    try:
        state = pickle.dumps(obj, protocol=5)
    except Exception as error:  # whatever its own code raises: it has no visible state
        state = type(error).__name__.encode()
    yield state

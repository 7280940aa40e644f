"""Digests of functions: for results cached on disk, and for the comparison of processes.

``code_digest`` decides whether cached results are still valid. It is made of bytecode, constants,
defaults, the values of a closure or object, and functions and plain values of the same module that
are named in it. It errs towards "changed". ``describe_code`` errs towards "equal": processes with
the same callable must agree.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_PLAIN_TYPES = frozenset(_PLAIN)
_OWN_NAMES = frozenset({"rank", "local_rank", "global_rank", "node_rank", "pid", "device"})
_OWN_STRING = re.compile(r"(/|~|[A-Za-z]:[\\/]|(cpu|cuda|mps|xpu|hpu|npu|xla)(:\d+)?$)")
_LIBRARIES = sys.stdlib_module_names | {"lightning", "numpy", "pytorch_lightning", "torch"}
_MAX_NAME, _MAX_SHOWN, _DIGITS = 120, 40, 8


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


class Description(NamedTuple):
    """Description of a callable, by name, that processes compare.

    Attributes:
        fixed: The code, and the values that it holds, such as numbers, strings, arrays and lists.
        changing: The content of dicts and sets, which may be caches of a process.
    """

    fixed: dict[str, str | float | None]
    changing: dict[str, str | float | None]


def describe_code(name: str, obj: Any) -> Description:
    """Return a description of a callable that is equal in processes with the same callable.

    Equal values have equal descriptions, independent of identity, order in a set or device. Values
    that may differ between processes are omitted: paths, devices, random generators, values that
    are called a rank, and those that a class leaves out of its ``__getstate__``.

    Args:
        name: Name of the callable, which precedes the names of its values.
        obj: The callable.

    Examples:
        >>> describe_code("scale", functools.partial(pow, 2)).fixed
        {'scale': 'builtins.pow', 'scale[0]': '2'}
    """
    description = Description({}, {})
    _add_values(description, name, obj)
    return description


def _add_values(description: Description, name: str, obj: Any) -> None:
    values: list[tuple[str, Any]]
    if not isinstance(obj, FunctionType) and isinstance(
        wrapped := getattr(obj, "__wrapped__", None), FunctionType
    ):  # such as by `functools.lru_cache`
        obj = wrapped
    if isinstance(obj, functools.partial):
        _add_values(description, name, obj.func)
        values = [(f"[{number}]", value) for number, value in enumerate(obj.args)]
        values += [(f".{key}", value) for key, value in obj.keywords.items()]
    elif isinstance(obj, MethodType):
        _add_values(description, name, obj.__func__)
        values = [(f".{key}", value) for key, value in _iter_state(obj.__self__)]
    elif isinstance(obj, FunctionType):
        description.fixed[name] = _name_code(obj, _Contents().digest_code(obj))
        values = [(f".{key}", value) for key, value in _iter_bound(obj)]
    else:
        kind = obj if isinstance(obj, type) or hasattr(obj, "__qualname__") else type(obj)
        contents = _Contents().digest(kind) if isinstance(kind, type) else b""
        description.fixed[name] = _name_code(kind, contents)
        values = [] if kind is obj else [(f".{key}", value) for key, value in _iter_state(obj)]
    for suffix, value in values:
        if _is_own_value(value) or _is_own_name(suffix):
            continue
        text = repr(value) if isinstance(value, _PLAIN) else ""
        if text and len(text) <= _MAX_SHOWN:
            description.fixed[name + suffix] = text
            continue
        fixed, all_of_it = (_Contents(has_changing=flag).digest(value) for flag in (False, True))
        description.fixed[name + suffix] = f"{type(value).__name__} {fixed.hex()[:_DIGITS]}"
        if all_of_it != fixed:
            label = f"{type(value).__name__} {all_of_it.hex()[:_DIGITS]}"
            description.changing[name + suffix] = label


def _name_code(obj: Any, digest: bytes) -> str:
    name = f"{getattr(obj, '__module__', None)}.{obj.__qualname__}"[-_MAX_NAME:]
    return f"{name} ({digest.hex()[:_DIGITS]})" if digest else name


def _iter_bound(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a function's closure and defaults."""
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield key, cell.cell_contents
        except ValueError:  # still empty
            continue


def _iter_state(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the state of an object, as it would be pickled if possible."""
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception as error:  # whatever its own code raises
        yield "error", type(error).__name__
        yield from getattr(obj, "__dict__", {}).items()
        return
    if isinstance(reduced, str):
        yield "name", reduced
        return
    function, arguments, state, elements, items = (*reduced, *(None,) * 5)[:5]
    made_by = getattr(function, "__qualname__", type(function).__name__)
    if not made_by.startswith("__newobj"):
        yield "made_by", made_by
    for number, argument in enumerate(arguments):
        if argument is not type(obj):
            yield f"arguments[{number}]", argument
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((str(key), value) for key, value in part.items())
        elif part is not None:
            yield "state", part
    if elements is not None:
        yield "elements", list(elements)
    if items is not None:
        yield "items", dict(items)


class _Contents:
    """Maker of digests of values by their content.

    Args:
        has_changing: Whether to include dicts and sets, which may be caches.
    """

    def __init__(self, *, has_changing: bool = False) -> None:
        self._has_changing = has_changing
        self._digests: dict[int, bytes] = {}
        self._kept: list[Any] = []  # while an object lives, no other one has its id

    def digest(self, obj: Any) -> bytes:
        """Return the digest of a value."""
        found = self._digests.get(id(obj))
        if found is None:
            self._kept.append(obj)
            self._digests[id(obj)] = b"within"  # for a value that holds itself
            found = self._digests[id(obj)] = _combine(self._iter_contents(obj))
        return found

    def digest_code(self, function: FunctionType) -> bytes:
        """Return the digest of a function without its closure and defaults."""
        return _combine(self._iter_code(function))

    def _iter_contents(self, obj: Any) -> Iterator[bytes]:
        yield type(obj).__qualname__.encode()
        if _is_own_value(obj):
            return
        torch = sys.modules.get("torch")
        if isinstance(obj, _PLAIN):
            yield repr(obj).encode()
        elif isinstance(obj, list | tuple):
            yield from self._iter_all(obj)
        elif isinstance(obj, dict):
            if self._has_changing:
                yield from sorted(_combine(map(self.digest, item)) for item in obj.items())
        elif isinstance(obj, set | frozenset):
            if self._has_changing or isinstance(obj, frozenset):
                yield from sorted(map(self.digest, obj))
        elif isinstance(obj, np.ndarray | np.generic):
            yield from self._iter_array(np.asarray(obj))
        elif torch is not None and isinstance(obj, torch.Tensor):
            yield from self._iter_tensor(torch, obj)
        elif isinstance(obj, CodeType):
            yield from (obj.co_code, repr(obj.co_names).encode())
            yield from map(self.digest, obj.co_consts)
        elif isinstance(obj, FunctionType):
            yield self.digest_code(obj)
            yield from self._iter_named(_iter_bound(obj))
        elif isinstance(obj, type):
            yield from self._iter_class(obj)
        elif isinstance(obj, ModuleType):
            yield obj.__name__.encode()
        elif isinstance(wrapped := getattr(obj, "__wrapped__", None), FunctionType):
            yield self.digest(wrapped)
        elif isinstance(obj, functools.partial):
            yield from map(self.digest, (obj.func, obj.args))
            yield from self._iter_named(obj.keywords.items())
        else:
            yield self.digest(type(obj))
            yield from self._iter_named(_iter_state(obj))

    def _iter_all(self, elements: Any) -> Iterator[bytes]:
        if all(type(element) in _PLAIN_TYPES for element in elements):
            yield repr(
                [None if _is_own_value(element) else element for element in elements]
            ).encode()
        else:
            yield from map(self.digest, elements)

    def _iter_named(self, items: Any) -> Iterator[bytes]:
        named = ((key, value) for key, value in items if not _is_own_name(f".{key}"))
        yield from sorted(key.encode() + self.digest(value) for key, value in named)

    def _iter_array(self, array: Any) -> Iterator[bytes]:
        yield f"{array.dtype.str} {array.shape}".encode()
        if array.dtype.hasobject:
            yield self.digest(array.tolist())
        else:
            yield array.tobytes()

    def _iter_tensor(self, torch: Any, tensor: Any) -> Iterator[bytes]:
        yield f"{tensor.dtype} {tuple(tensor.shape)}".encode()
        try:
            values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            yield values.numpy().tobytes()
        except (RuntimeError, NotImplementedError, TypeError):  # sparse, meta and the like
            return

    def _iter_class(self, kind: type) -> Iterator[bytes]:
        """Yield the name, methods and constants of a class, and those of its bases in user code."""
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in _LIBRARIES:
                continue
            for name, value in vars(base).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(function, FunctionType):
                    yield name.encode() + self.digest(function)
                elif isinstance(value, _PLAIN) and not name.startswith("__"):
                    yield name.encode() + (b"" if _is_own_name(f".{name}") else self.digest(value))

    def _iter_code(self, function: FunctionType) -> Iterator[bytes]:
        """Yield the code of a function, and the constants and functions that it uses."""
        yield self.digest(function.__code__)
        for name in _iter_names(function.__code__):
            value = function.__globals__.get(name)
            is_own = getattr(value, "__module__", None) == function.__module__
            is_constant = isinstance(value, (*_PLAIN, tuple, frozenset, np.ndarray, np.generic))
            is_code = is_own and isinstance(value, FunctionType | type)
            if (is_code or is_constant) and not _is_own_name(f".{name}"):
                yield name.encode() + self.digest(value)


def _combine(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _is_own_name(suffix: str) -> bool:
    """Return whether a name is that of a value of this process, such as its rank."""
    return suffix[1:].strip("_").lower() in _OWN_NAMES


def _is_own_value(value: Any) -> bool:
    """Return whether a value may differ between processes: a path, a device, a generator."""
    if isinstance(value, str):
        return _OWN_STRING.match(value) is not None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.device | torch.Generator):
        return True
    return isinstance(
        value,
        PurePath | random.Random | np.random.Generator | np.random.RandomState
        | np.random.BitGenerator | np.random.SeedSequence,
    )  # fmt: skip

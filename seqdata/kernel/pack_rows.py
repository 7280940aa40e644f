"""Packing of rows into buffers: the description of a field for ``pack``, and ``pack`` in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_KEY_BYTES = 1024
"""Maximum number of bytes of an id; as in ``_pack.h``."""


class FieldKind(IntEnum):
    """The kind of a field's values; as in ``_pack.c``."""

    RAGGED = 0
    FIXED = 1
    NUMBER = 2
    TEXT = 3
    KEY = 4
    BYTES = 5


class FieldBuffer(NamedTuple):
    """The buffer for the values of one field.

    Attributes:
        name: Name of the field.
        kind: Kind of its values.
        type: Python's type of a number, or NumPy's scalar type; None: values are not numbers.
        dtype: Dtype of arrays, or NumPy's scalar type of numbers; None: values are strings.
        shape: Shape of one timestep, or of the whole value.
        width: Number of bytes of that shape.
        values: Buffer of values, writable and C-contiguous.
        used: Number of used bytes of ``values``.
        ends: int64, end of each value in timesteps; None: all have one size.
    """

    name: str
    kind: FieldKind
    type: Any
    dtype: Any
    shape: tuple[int, ...]
    width: int
    values: NDArray[Any]
    used: int
    ends: NDArray[np.int64] | None


PackResult = tuple[int, int, tuple[int, ...], tuple[Any, ...] | None]


def pack(
    rows: Iterator[Any],
    buffers: tuple[FieldBuffer, ...],
    array: type[Any],
    max_rows: int,
    stop: int,
    /,
) -> PackResult:
    """Copy rows as long as they are plain; the same as ``pack_rows`` in C."""
    if not isinstance(buffers, tuple) or not isinstance(rows, Iterator):
        raise TypeError(
            "pack: `rows` must be an iterator and `buffers` a tuple, but they are "
            f"{type(rows).__name__} and {type(buffers).__name__}"
        )
    targets = [_as_bytes(buffer.values) for buffer in buffers]
    for buffer, target in zip(buffers, targets, strict=True):
        _check_buffer(buffer, target, max_rows)
    used = [buffer.used for buffer in buffers]
    count = size = 0
    for row in rows if max_rows > 0 and stop > 0 else ():
        values = _plain_values(buffers, row, array, targets, used)
        if values is None:
            return count, size, tuple(used), (row,)
        for number, (buffer, value) in enumerate(zip(buffers, values, strict=True)):
            targets[number][used[number] : used[number] + len(value)] = value
            used[number] += len(value)
            size += len(value)
            if buffer.ends is not None:
                buffer.ends[count] = used[number] // buffer.width
                size += 8
        count += 1
        if count >= max_rows or size >= stop:
            break
    else:
        if max_rows > 0 and stop > 0:
            return count, size, tuple(used), None
    return count, size, tuple(used), ()


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _check_buffer(buffer: FieldBuffer, target: NDArray[np.uint8], max_rows: int) -> None:
    if buffer.kind not in tuple(FieldKind) or buffer.width < 1:
        raise ValueError("pack: no such field")
    has_ends = buffer.kind not in (FieldKind.FIXED, FieldKind.NUMBER)
    if not 0 <= buffer.used <= len(target) or has_ends != (buffer.ends is not None):
        raise ValueError("pack: a buffer is too short")
    if buffer.ends is not None and len(buffer.ends) < max_rows:
        raise ValueError("pack: a buffer is too short")


def _plain_values(
    buffers: tuple[FieldBuffer, ...],
    row: Any,
    array: type[Any],
    targets: list[NDArray[np.uint8]],
    used: list[int],
) -> list[NDArray[np.uint8]] | None:
    """Return the bytes of a row's values if it is plain and there is room."""
    if type(row) is not dict or len(row) != len(buffers):
        return None
    values = []
    for buffer, target, used_bytes in zip(buffers, targets, used, strict=True):
        if buffer.name not in row:
            return None
        value = _value_bytes(buffer, row[buffer.name], array)
        if value is None or len(value) > len(target) - used_bytes:
            return None
        values.append(value)
    return values


def _value_bytes(buffer: FieldBuffer, value: Any, array: type[Any]) -> NDArray[np.uint8] | None:
    """Return the bytes of a plain value."""
    if buffer.kind in (FieldKind.RAGGED, FieldKind.FIXED):
        return _array_bytes(buffer, value) if type(value) is array else None
    if buffer.kind != FieldKind.NUMBER:
        return _text_bytes(buffer.kind, value)
    if type(value) not in (buffer.type, buffer.dtype):
        return None
    try:
        return np.asarray(value, dtype=buffer.dtype).reshape(1).view(np.uint8)
    except OverflowError:  # said elsewhere
        return None


def _array_bytes(buffer: FieldBuffer, value: NDArray[Any]) -> NDArray[np.uint8] | None:
    extra_dims = buffer.kind == FieldKind.RAGGED
    shape = value.shape[extra_dims:]
    if (
        value.dtype != buffer.dtype
        or value.ndim != extra_dims + len(buffer.shape)
        or shape != buffer.shape
    ):
        return None
    return _as_bytes(value) if value.flags.c_contiguous else None


def _text_bytes(kind: FieldKind, value: Any) -> NDArray[np.uint8] | None:
    if type(value) is not (bytes if kind == FieldKind.BYTES else str):
        return None
    try:
        content: bytes = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:  # said elsewhere
        return None
    if kind == FieldKind.KEY and (len(content) > MAX_KEY_BYTES or b"\0" in content):
        return None
    return np.frombuffer(content, dtype=np.uint8)

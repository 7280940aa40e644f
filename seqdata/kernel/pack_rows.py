"""Rows into buffers: what ``pack`` is told of a field, and the NumPy twin of it.

Place in the flow: below the packers of a writer. Reads: rows. Makes: packed values.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_KEY = 1024
"""Bytes of an id; as in ``_pack.h``."""


class Kind(IntEnum):
    """What a field holds; as in ``_pack.c``."""

    RAGGED = 0
    FIXED = 1
    NUMBER = 2
    TEXT = 3
    KEY = 4
    BYTES = 5


class Loan(NamedTuple):
    """Room for the values of one field.

    Attributes:
        name: Of the field.
        kind: What it holds.
        type: Python's own type of a number, or NumPy's scalar type; None where it is no number.
        dtype: Of arrays; of numbers NumPy's scalar type; None where it is text.
        shape: Of one timestep, or of the whole value.
        width: Bytes of the same.
        values: Where values go; writable, C-contiguous.
        used: Bytes of ``values`` that are taken.
        ends: int64, where the end of each value is noted, in timesteps; None: all have one size.
    """

    name: str
    kind: Kind
    type: Any
    dtype: Any
    shape: tuple[int, ...]
    width: int
    values: NDArray[Any]
    used: int
    ends: NDArray[np.int64] | None


Packed = tuple[int, int, tuple[int, ...], tuple[Any, ...] | None]


def pack(
    rows: Iterator[Any], loans: tuple[Loan, ...], array: type[Any], most: int, stop: int, /
) -> Packed:
    """Copy rows while they are plain; the same as ``pack_rows`` in C."""
    if not isinstance(loans, tuple) or not isinstance(rows, Iterator):
        raise TypeError("pack(rows, fields, array, most, stop)")
    places = [_bytes(loan.values) for loan in loans]
    for loan, place in zip(loans, places, strict=True):
        _check(loan, place, most)
    used = [loan.used for loan in loans]
    count = size = 0
    for row in rows if most > 0 and stop > 0 else ():
        looked = _look(loans, row, array, places, used)
        if looked is None:
            return count, size, tuple(used), (row,)
        for number, (loan, value) in enumerate(zip(loans, looked, strict=True)):
            places[number][used[number] : used[number] + len(value)] = value
            used[number] += len(value)
            size += len(value)
            if loan.ends is not None:
                loan.ends[count] = used[number] // loan.width
                size += 8
        count += 1
        if count >= most or size >= stop:
            break
    else:
        if most > 0 and stop > 0:
            return count, size, tuple(used), None
    return count, size, tuple(used), ()


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _check(loan: Loan, place: NDArray[np.uint8], most: int) -> None:
    if loan.kind not in tuple(Kind) or loan.width < 1:
        raise ValueError("pack: no such field")
    ended = loan.kind not in (Kind.FIXED, Kind.NUMBER)
    if not 0 <= loan.used <= len(place) or ended != (loan.ends is not None):
        raise ValueError("pack: a buffer is too short")
    if loan.ends is not None and len(loan.ends) < most:
        raise ValueError("pack: a buffer is too short")


def _look(
    loans: tuple[Loan, ...],
    row: Any,
    array: type[Any],
    places: list[NDArray[np.uint8]],
    used: list[int],
) -> list[NDArray[np.uint8]] | None:
    """Give the bytes of a row's values where it is plain and there is room."""
    if type(row) is not dict or len(row) != len(loans):
        return None
    found = []
    for loan, place, taken in zip(loans, places, used, strict=True):
        if loan.name not in row:
            return None
        value = _value(loan, row[loan.name], array)
        if value is None or len(value) > len(place) - taken:
            return None
        found.append(value)
    return found


def _value(loan: Loan, value: Any, array: type[Any]) -> NDArray[np.uint8] | None:
    """Give the bytes of a plain value."""
    if loan.kind in (Kind.RAGGED, Kind.FIXED):
        return _array(loan, value) if type(value) is array else None
    if loan.kind != Kind.NUMBER:
        return _text(loan.kind, value)
    if type(value) not in (loan.type, loan.dtype):
        return None
    try:
        return np.asarray(value, dtype=loan.dtype).reshape(1).view(np.uint8)
    except OverflowError:  # said elsewhere
        return None


def _array(loan: Loan, value: NDArray[Any]) -> NDArray[np.uint8] | None:
    more = loan.kind == Kind.RAGGED
    shape = value.shape[more:]
    if value.dtype != loan.dtype or value.ndim != more + len(loan.shape) or shape != loan.shape:
        return None
    return _bytes(value) if value.flags.c_contiguous else None


def _text(kind: Kind, value: Any) -> NDArray[np.uint8] | None:
    if type(value) is not (bytes if kind == Kind.BYTES else str):
        return None
    try:
        content: bytes = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:  # said elsewhere
        return None
    if kind == Kind.KEY and (len(content) > MOST_KEY or b"\0" in content):
        return None
    return np.frombuffer(content, dtype=np.uint8)

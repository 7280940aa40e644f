"""Passes over all sequences of a store or a view, a chunk at a time: repeats, values of a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, did_you_mean
from seqdata.protocols import Column, Store

SCAN_CHUNK = 1 << 16
"""Number of sequences that are examined together."""

DEFAULT_AXIS = "time"

NumberMap = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Indices of sequences -> other indices, int64 (n,) each."""


def count_earlier(bases: NumberMap, count: int) -> NDArray[np.int64] | None:
    """Return the number of earlier positions of the same sequence, int64 (count,).

    Args:
        bases: Position -> index of the sequence in the data.
        count: Number of positions.

    Returns:
        None if each occurs once; if indices are increasing, nothing is sorted or stored.
    """
    if _is_rising(bases, count):
        return None
    numbers = bases(np.arange(count, dtype=np.int64))
    order = np.argsort(numbers, kind="stable")
    ranked = numbers[order]
    is_first = np.ones(count, dtype=bool)
    is_first[1:] = ranked[1:] != ranked[:-1]
    if is_first.all():
        return None
    positions = np.arange(count)
    firsts = np.maximum.accumulate(np.where(is_first, positions, 0))
    earlier = np.empty(count, dtype=np.int64)
    earlier[order] = positions - firsts
    return earlier


def has_repeats(bases: NumberMap, count: int) -> bool:
    """Return whether several positions are of the same sequence.

    Args:
        bases: Position -> index of the sequence in the data.
        count: Number of positions.
    """
    last = -1
    for first in range(0, count, SCAN_CHUNK):
        numbers = bases(chunk_numbers(first, count))
        steps = np.diff(numbers, prepend=last)
        if (steps < 0).any():  # in no order: it takes all of them
            numbers = np.sort(bases(np.arange(count, dtype=np.int64)))
            return bool((numbers[1:] == numbers[:-1]).any())
        if not steps.all():
            return True
        last = int(numbers[-1])
    return False


def _is_rising(bases: NumberMap, count: int) -> bool:
    last = -1
    for first in range(0, count, SCAN_CHUNK):
        numbers = bases(chunk_numbers(first, count))
        if numbers[0] <= last or (np.diff(numbers) <= 0).any():
            return False
        last = int(numbers[-1])
    return True


def read_values(store: Store, name: str) -> NDArray[Any]:
    """Return the values of a per-sequence field of all sequences, (n,).

    Raises:
        ConfigError: If there is no such field, or it has many values for a sequence.
    """
    field_info = store.fields.get(name)
    if field_info is None:
        hint = did_you_mean(name, store.fields) or "pass the name of a per-sequence field."
        raise ConfigError(f"index: no field {name!r}; {hint} Fields: {', '.join(store.fields)}.")
    if field_info.axis is not None or field_info.shape:
        raise ConfigError(
            f"index: field {name!r} must have one value for each sequence, but has many. Pass the "
            "name of another field, or an array."
        )
    axis = DEFAULT_AXIS if DEFAULT_AXIS in store.lengths_of else next(iter(store.lengths_of))
    chunks = [np.empty(0)]
    for first in range(0, len(store), SCAN_CHUNK):
        numbers = chunk_numbers(first, len(store))
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        column = store.read(spans, [name], axis=axis)[name]
        if isinstance(column, Column):
            chunk = np.empty(len(numbers), dtype=column.dtype)
            column.fill(chunk, np.arange(len(numbers) + 1), None)
        else:
            chunk = np.asarray(column)
        chunks.append(chunk)
    return np.concatenate(chunks[1:] or chunks)


def chunk_numbers(first: int, count: int) -> NDArray[np.int64]:
    """Return the indices of the chunk of ``count`` sequences that begins with ``first``."""
    return np.arange(first, min(first + SCAN_CHUNK, count), dtype=np.int64)

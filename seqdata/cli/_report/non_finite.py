"""The numbers of NaN and infinite values in a store, by field, for ``seqdata stats``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Store
from seqdata.storage.fields import default_axis

MAX_BYTES_UNASKED = 1 << 30  # that are read without ``--values``
_CHUNK_TIMESTEPS = 1 << 18  # timesteps that are read together
_CHUNK_SEQUENCES = 1 << 12  # sequences that are read together


@dataclass(slots=True)
class ValueCounts:
    """Values of one field that are not finite.

    Attributes:
        nan: Number of NaN values.
        inf: Number of infinite values, of either sign.
        sequences: Number of sequences with such a value; a sequence that is read in parts may be
            counted more than once.
    """

    nan: int = 0
    inf: int = 0
    sequences: int = 0


def count_float_bytes(store: Store) -> int:
    """Return the number of bytes of all floating fields."""
    total = 0
    for field in store.fields.values():
        if _is_float(field.dtype):
            along = None if field.axis is None else store.lengths_of[field.axis]
            steps = len(store) if along is None else int(along.sum(dtype=np.int64))
            total += steps * np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=int))
    return total


def count_values(store: Store) -> dict[str, ValueCounts]:
    """Return the counts of values that are not finite, by floating field.

    Raises:
        DataError: If stored data is damaged.
    """
    floats = {
        name: float_field
        for name, float_field in store.fields.items()
        if _is_float(float_field.dtype)
    }
    counts = {name: ValueCounts() for name in floats}
    for axis in store.lengths_of:
        names = [name for name, field in floats.items() if field.axis == axis]
        for spans in _iter_spans(store.lengths_of[axis], with_values=True) if names else ():
            _count_columns(counts, store.read(spans, names, axis=axis))
    names = [name for name, field in floats.items() if field.axis is None]
    axis = default_axis(store.lengths_of)
    for spans in _iter_spans(store.lengths_of[axis], with_values=False) if names else ():
        _count_columns(counts, store.read(spans, names, axis=axis))
    return counts


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "complex"))


def _iter_spans(lengths: NDArray[Any], *, with_values: bool) -> Iterator[NDArray[np.int64]]:
    """Yield spans of all sequences: whole, in parts, or (not ``with_values``) empty."""
    spans: list[tuple[int, int, int]] = []
    timesteps = 0
    for number, length in enumerate(lengths.tolist() if with_values else [0] * len(lengths)):
        for start in range(0, max(length, 1), _CHUNK_TIMESTEPS):
            stop = min(start + _CHUNK_TIMESTEPS, length)
            spans.append((number, start, stop))
            timesteps += stop - start
            if timesteps >= _CHUNK_TIMESTEPS or len(spans) >= _CHUNK_SEQUENCES:
                yield np.array(spans, dtype=np.int64)
                spans, timesteps = [], 0
    if spans:
        yield np.array(spans, dtype=np.int64)


def _count_columns(counts: dict[str, ValueCounts], columns: dict[str, Any]) -> None:
    for name, column in columns.items():
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(column.lengths, out=offsets[1:])
        values = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
        column.fill(values, offsets, None)
        flat = values.reshape(len(values), -1)
        is_bad = ~np.isfinite(flat)
        if is_bad.any():
            counts[name].nan += int(np.isnan(flat).sum())
            counts[name].inf += int(np.isinf(flat).sum())
            steps = np.flatnonzero(is_bad.any(axis=1))
            counts[name].sequences += len(np.unique(np.searchsorted(offsets, steps, side="right")))

"""What tells the sequences of a part from those of another: hashes of contents, ids and groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Store
from seqdata.storage.fields import kind_of
from seqdata.storage.hashing import hash_numbers, hash_texts
from seqdata.storage.row_chunks import flatten_column
from seqdata.storage.span_store import SpanStore
from seqdata.storage.splitting import hash_sequences
from seqdata.storage.store_rows import has_ids
from seqdata.storage.text_bytes import concat_texts
from seqdata.storage.views import View

Hashes = NDArray[np.uint64]
_BYTES_AT_ONCE = 32 << 20
_SAMPLE_ROWS = 1 << 16  # rows of a field that are looked at to see how many values differ
_MIN_TEXT_BYTES = 32  # of a text whose copies are no accident


@dataclass(frozen=True, eq=False)
class PartContents:
    """A part, and what is known of its sequences; computed when it is asked for.

    Attributes:
        name: Of the part.
        store: Its sequences.
    """

    name: str
    store: Store

    @property
    def base(self) -> Store:
        """The store that views of it select from."""
        return self.store.base if isinstance(self.store, View) else self.store

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The base's number of each sequence, int64 (n,)."""
        return self.store.base_numbers(np.arange(len(self.store), dtype=np.int64))

    @cached_property
    def spans(self) -> tuple[str, NDArray[np.int64]] | None:
        """Of a part in time: the base's fingerprint, and of each piece number, start and stop.

        Its context is left out.
        """
        base = self.base
        if not isinstance(base, SpanStore):
            return None
        spans = base.spans[self.numbers]
        spans[:, 1] += base.contexts[self.numbers]
        return base.base.fingerprint, spans

    @cached_property
    def ids(self) -> Hashes | None:
        """Hashes of ids, uint64 (n,); None if sequences are only numbered."""
        return hash_sequences("leaks", self.store, 0, None) if has_ids(self.store) else None

    def hash_groups(self, by: str) -> Hashes:
        """Return the hashes of the values of a field, uint64 (n,)."""
        return hash_sequences("leaks", self.store, 0, by)

    @cached_property
    def contents(self) -> dict[str, tuple[Hashes, NDArray[np.float64]]]:
        """What -> hashes of it, and about how many bits each holds; 0 if it is constant."""
        store, found = self.store, {}
        for axis in dict.fromkeys(field.axis for field in store.fields.values() if field.axis):
            names = [name for name, field in store.fields.items() if field.axis == axis]
            found[", ".join(names)] = _hash_axis(store, axis, names)
        for name, field in store.fields.items():
            if not kind_of(field).is_array:
                found[name] = _hash_texts(store, name)
        return found

    def find_times(self, name: str, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the first and the last timestamp of each sequence; NaN of an empty one."""
        count = len(self.store)
        lengths = np.asarray(self.store.lengths_of[axis]).astype(np.int64)
        times = np.full((2, count), np.nan)
        numbers = np.flatnonzero(lengths > 0)
        for place, at in enumerate((0 * lengths, lengths - 1)):
            spans = np.stack([numbers, at[numbers], at[numbers] + 1], axis=1)
            for first in range(0, len(spans), 1 << 16):
                run = spans[first : first + (1 << 16)]
                column = self.store.read(run, [name], axis=axis)[name]
                times[place, run[:, 0]] = flatten_column(column).astype(np.float64)
        return times[0], times[1]


def _iter_runs(store: Store, axis: str, names: list[str]) -> Iterator[NDArray[np.int64]]:
    """Yield spans of whole sequences, which are read at once."""
    lengths = np.asarray(store.lengths_of[axis]).astype(np.int64)
    width = sum(
        np.dtype(store.fields[name].dtype).itemsize * math.prod(store.fields[name].shape)
        for name in names
    )
    ends = np.cumsum(lengths * width)
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _BYTES_AT_ONCE, side="right")))
        numbers = np.arange(first, stop)
        yield np.stack([numbers, 0 * numbers, lengths[first:stop]], axis=1)
        first = stop


def _hash_axis(store: Store, axis: str, names: list[str]) -> tuple[Hashes, NDArray[np.float64]]:
    hashes = np.zeros(len(store), dtype=np.uint64)
    changes = np.zeros(len(store), dtype=np.int64)
    distinct = dict.fromkeys(names, 1)
    for spans in _iter_runs(store, axis, names):
        run = slice(int(spans[0, 0]), int(spans[-1, 0]) + 1)
        columns = store.read(spans, names, axis=axis)
        offsets = np.zeros(len(spans) + 1, dtype=np.int64)
        np.cumsum(spans[:, 2], out=offsets[1:])
        for name in names:
            values = flatten_column(columns[name])
            rows = values.reshape(len(values), math.prod(values.shape[1:]))  # there may be none
            raw = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
            width = len(raw) // max(1, len(rows))
            found = hash_texts(raw, offsets * width)
            hashes[run] = hash_numbers(hashes[run] ^ found)
            changes[run] = np.maximum(changes[run], _count_changes(rows, offsets))
            if distinct[name] == 1 and len(rows):
                distinct[name] = len(np.unique(rows[:_SAMPLE_ROWS]))
    bits = sum(
        math.prod(store.fields[name].shape) * math.log2(count) for name, count in distinct.items()
    )
    return hashes, np.where(changes > 0, (changes + 1) * bits, 0.0)


def _count_changes(rows: NDArray[np.generic], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many rows of each sequence differ from the row before, int64 (n,)."""
    differs = np.zeros(len(rows) + 1, dtype=np.int64)
    if len(rows) > 1:
        differs[1:-1] = (rows[1:] != rows[:-1]).any(axis=1)
    starts = offsets[:-1][offsets[:-1] < len(rows)]
    differs[starts] = 0
    totals = np.concatenate([[0], np.cumsum(differs)])
    return np.asarray(totals[offsets[1:]] - totals[offsets[:-1]])


def _hash_texts(store: Store, name: str) -> tuple[Hashes, NDArray[np.float64]]:
    hashes = hash_sequences("leaks", store, 0, name)
    sizes = np.zeros(len(store), dtype=np.int64)
    for first in range(0, len(store), 1 << 12):
        spans = np.zeros((min(1 << 12, len(store) - first), 3), dtype=np.int64)
        spans[:, 0] = np.arange(first, first + len(spans))
        axis = next(iter(store.lengths_of))
        _, offsets = concat_texts(store.read(spans, [name], axis=axis)[name])
        sizes[first : first + len(spans)] = np.diff(offsets)
    return hashes, np.where(sizes >= _MIN_TEXT_BYTES, 4.0 * sizes, 0.0)

"""What tells the sequences of a part from those of another: hashes of contents, ids and groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.protocols import Store
from seqdata.storage.concat import ConcatStore
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
_SAMPLE_IDS = 64  # of the first and the last ones
_SAMPLE_ROWS = 1 << 16  # rows of a field that are looked at to see how many values differ
_MIN_TEXT_BYTES = 32  # of a text whose copies are no accident


@dataclass(frozen=True, slots=True, eq=False)
class StorePieces:
    """What a part has of a store.

    Attributes:
        store: It selects from no other store.
        rows: The part's number of each piece, int64 (n,).
        spans: The store's number, the start and the stop of each piece, int64 (n, 3). What is
            context is left out.
        are_cut: Whether some were cut in time.
    """

    store: Store
    rows: NDArray[np.int64]
    spans: NDArray[np.int64]
    are_cut: bool

    def join(self, other: StorePieces) -> StorePieces:
        """Return these pieces and others of the same store."""
        return StorePieces(
            self.store,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.spans, other.spans]),
            self.are_cut or other.are_cut,
        )


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

    @cached_property
    def pieces(self) -> dict[str, StorePieces]:
        """Fingerprint of each store that it has sequences of -> what it has of it."""
        found: dict[str, StorePieces] = {}
        for pieces in _iter_pieces(self.store, np.arange(len(self.store), dtype=np.int64)):
            key = pieces.store.fingerprint
            found[key] = pieces if key not in found else found[key].join(pieces)
        return found

    def is_cut_as(self, other: PartContents) -> bool:
        """Return whether both are pieces in time of the same stores."""
        pieces = [*self.pieces.values(), *other.pieces.values()]
        return self.pieces.keys() == other.pieces.keys() and all(each.are_cut for each in pieces)

    def find_rows_apart(self, other: PartContents) -> NDArray[np.int64]:
        """Return the sequences that are of no store of the other part, int64 (n,)."""
        rows = [own.rows for key, own in self.pieces.items() if key not in other.pieces]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def read_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of some of its sequences."""
        return get_base_keys(self.store, self.store.base_numbers(rows))

    @cached_property
    def has_names(self) -> bool:
        """Whether ids are more than plain numbers, judged by the first and the last ones."""
        last = len(self.store)
        rows = np.unique(np.r_[0:_SAMPLE_IDS, last - _SAMPLE_IDS : last])
        rows = rows[(rows >= 0) & (rows < last)].astype(np.int64)
        return not all(map(str.isdecimal, self.read_ids(rows)))

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


def _iter_pieces(store: Store, numbers: NDArray[np.int64]) -> Iterator[StorePieces]:
    """Yield what sequences are of the stores that a store selects from, joins or cuts."""
    rows = np.arange(len(numbers), dtype=np.int64)
    if isinstance(store, View):
        yield from _iter_pieces(store.base, store.base_numbers(numbers))
    elif isinstance(store, ConcatStore):
        offsets = np.cumsum([0, *map(len, store.stores)], dtype=np.int64)
        owners = np.searchsorted(offsets, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            own = rows[owners == owner]
            for pieces in _iter_pieces(store.stores[owner], numbers[own] - offsets[owner]):
                yield replace(pieces, rows=own[pieces.rows])
    elif isinstance(store, SpanStore):
        cuts = store.spans[numbers]
        contexts = store.contexts[numbers]
        for pieces in _iter_pieces(store.base, cuts[:, 0]):
            starts, stops = (pieces.spans[:, 1] + cuts[pieces.rows, at] for at in (1, 2))
            starts = starts + contexts[pieces.rows]
            spans = np.stack([pieces.spans[:, 0], starts, stops], axis=1)
            yield replace(pieces, spans=spans, are_cut=True)
    else:
        lengths = [np.asarray(each)[numbers] for each in store.lengths_of.values()]
        stops = np.max([0 * rows, *lengths], axis=0).astype(np.int64)  # cut stores have one axis
        yield StorePieces(store, rows, np.stack([numbers, 0 * rows, stops], axis=1), False)


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

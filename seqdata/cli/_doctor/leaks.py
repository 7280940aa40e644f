"""Checks of ``seqdata doctor --leaks`` for leaks between parts of the data.

Leaks are the same sequence, group or timesteps in two parts, copies under other ids, and statistics
that were fitted over more than the training part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.leak_sources import LeakSources
from seqdata.errors import ConfigError, must_be
from seqdata.fitting.fit import describe_view
from seqdata.fitting.statistics import Statistics
from seqdata.protocols import Store
from seqdata.storage.concat import ConcatStore, concat_stores
from seqdata.storage.fields import kind_of
from seqdata.storage.hashing import hash_numbers, hash_texts, is_among
from seqdata.storage.row_chunks import flatten_column
from seqdata.storage.span_store import SpanStore
from seqdata.storage.splitting import hash_sequences
from seqdata.storage.store_rows import has_ids
from seqdata.storage.text_bytes import concat_texts
from seqdata.storage.views import View

Hashes = NDArray[np.uint64]
_BYTES_AT_ONCE = 32 << 20
_SAMPLE_IDS = 64  # ids that are sampled at the beginning and at the end
_SAMPLE_ROWS = 1 << 16  # rows of a field in which distinct values are counted
_MIN_TEXT_BYTES = 32  # shortest string whose copies are significant


@dataclass(frozen=True, slots=True, eq=False)
class StorePieces:
    """Pieces of a store that a part selects.

    Attributes:
        store: The store, which is not a view.
        rows: Index of each piece in the part, int64 (n,).
        spans: Index in the store, start and stop of each piece, without context, int64 (n, 3).
        are_cut: Whether some pieces were cut in time.
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
    """A part and properties of its sequences, which are computed when needed.

    Attributes:
        name: Name of the part.
        store: Store of its sequences.
    """

    name: str
    store: Store

    @property
    def base(self) -> Store:
        """Base of the store if it is a view, else the store."""
        return self.store.base if isinstance(self.store, View) else self.store

    @cached_property
    def pieces(self) -> dict[str, StorePieces]:
        """Fingerprint of each store that the part selects from -> the selected pieces."""
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
        """Return the sequences whose store is not a store of the other part, int64 (n,)."""
        rows = [own.rows for key, own in self.pieces.items() if key not in other.pieces]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def read_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of some sequences."""
        return get_base_keys(self.store, self.store.base_numbers(rows))

    @cached_property
    def has_names(self) -> bool:
        """Whether ids are not only numbers, judged by the first and the last ones."""
        last = len(self.store)
        rows = np.unique(np.r_[0:_SAMPLE_IDS, last - _SAMPLE_IDS : last])
        rows = rows[(rows >= 0) & (rows < last)].astype(np.int64)
        return not all(map(str.isdecimal, self.read_ids(rows)))

    @cached_property
    def ids(self) -> Hashes | None:
        """Hashes of ids, uint64 (n,); None if sequences have no ids."""
        return hash_sequences("leaks", self.store, 0, None) if has_ids(self.store) else None

    def hash_groups(self, by: str) -> Hashes:
        """Return the hashes of the values of a field, uint64 (n,)."""
        return hash_sequences("leaks", self.store, 0, by)

    @cached_property
    def contents(self) -> dict[str, tuple[Hashes, NDArray[np.float64]]]:
        """Names of fields -> hashes of their values, and the approximate bits of information.

        Both have an entry for each sequence; constant values and short strings have 0 bits.
        """
        store, found = self.store, {}
        for axis in dict.fromkeys(field.axis for field in store.fields.values() if field.axis):
            names = [name for name, field in store.fields.items() if field.axis == axis]
            found[", ".join(names)] = _hash_axis(store, axis, names)
        for name, field in store.fields.items():
            if not kind_of(field).is_array:
                found[name] = _hash_texts(store, name)
        return found

    def find_times(self, name: str, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the first and the last timestamp of each sequence; NaN for an empty one."""
        count = len(self.store)
        lengths = np.asarray(self.store.lengths_of[axis]).astype(np.int64)
        times = np.full((2, count), np.nan)
        numbers = np.flatnonzero(lengths > 0)
        for end, at in enumerate((0 * lengths, lengths - 1)):
            spans = np.stack([numbers, at[numbers], at[numbers] + 1], axis=1)
            for first in range(0, len(spans), 1 << 16):
                run = spans[first : first + (1 << 16)]
                column = self.store.read(run, [name], axis=axis)[name]
                times[end, run[:, 0]] = flatten_column(column).astype(np.float64)
        return times[0], times[1]


def _iter_pieces(store: Store, numbers: NDArray[np.int64]) -> Iterator[StorePieces]:
    """Yield, per underlying store, the pieces that hold the sequences ``numbers`` of a store."""
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
    """Yield spans of whole sequences to read together."""
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
    """Return the number of rows of each sequence that differ from the row before, int64 (n,)."""
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


GROUP_NAMES = frozenset(
    name + ending
    for name in (
        "author", "customer", "doc", "document", "patient", "recording", "series", "session",
        "speaker", "subject", "user",
    )
    for ending in ("", "_id")
)  # fmt: skip
"""Fields that are groups if no fields are named."""

TIME_NAMES = frozenset(("date", "datetime", "time", "timestamp", "timestamps", "when"))
"""Fields that are timestamps if no field is named."""

_MAX_SHOWN = 3
_IDS_AT_ONCE = 1 << 16
_MAX_CHANCE = 0.01  # most pairs of equal contents that are expected by chance


def check_leaks(sources: LeakSources) -> Iterator[DoctorFinding]:
    """Yield findings about leaks between parts, and the checks that found none.

    Raises:
        ConfigError: If a named field does not exist or has values of another kind.
        DataError: If stored data is damaged.
    """
    parts = [PartContents(name, store) for name, store in sources.parts.items()]
    for first, second in itertools.combinations(parts, 2):
        if first.name.partition(".")[0] != second.name.partition(".")[0]:
            yield from _check_pair(first, second, sources)
    for name, statistics in sources.statistics.items():
        yield _check_statistics(name, statistics, sources.parts)


def _check_pair(
    first: PartContents, second: PartContents, sources: LeakSources
) -> Iterator[DoctorFinding]:
    subject = f"{first.name} and {second.name}"
    looked, found = _check_same_sequences(first, second)
    groups: list[str] = []
    time = None
    if not first.is_cut_as(second):  # otherwise spans were compared
        time = _find_time(sources, first.store, second.store)
        groups = _find_groups(sources, first.store, second.store)
        found += _check_groups(first, second, groups, time)
    if time is not None and not found and sources.time is not None and not sources.by:
        found += _check_whole_time(first, second, time)
    have_ids, same_ids = _check_ids(first, second, time)
    if not found:
        found += _check_copies(first, second)
    for name, seen, fix in found:
        yield DoctorFinding(subject, name, "bad", seen, fix)
    for name, seen, fix in same_ids:
        yield DoctorFinding(subject, name, "warn", seen, fix)
    looked += ["ids"] * (have_ids and not same_ids) + groups
    if not found:  # contents are read only then
        looked += ["contents"] * (not first.contents.keys().isdisjoint(second.contents))
    looked += ["time"] * (time is not None)
    if not found and looked:
        yield DoctorFinding(subject, "leaks", "ok", f"none found ({', '.join(looked)})")
    elif not found and not same_ids:
        seen = "nothing to compare: no store, ids, groups or fields in common"
        yield DoctorFinding(subject, "leaks", "note", seen)


Leak = tuple[str, str, str]
"""Title, finding and advice."""


def _check_same_sequences(
    first: PartContents, second: PartContents
) -> tuple[list[str], list[Leak]]:
    """Look for sequences, or timesteps of them, that both parts select.

    Returns:
        Kinds that were compared, and the leaks.
    """
    counts: dict[str, int] = {}
    keys: list[str] = []
    for fingerprint, own in first.pieces.items():
        other = second.pieces.get(fingerprint)
        if other is None:
            continue
        if own.are_cut or other.are_cut:
            shared_timesteps = _count_shared_timesteps(own.spans, other.spans)
            counts["timesteps"] = counts.get("timesteps", 0) + shared_timesteps
        else:
            shared = np.intersect1d(own.spans[:, 0], other.spans[:, 0])
            counts["sequences"] = counts.get("sequences", 0) + len(shared)
            keys += get_base_keys(own.store, shared[:_MAX_SHOWN])
    leaks: list[Leak] = []
    if count := counts.get("timesteps"):
        leaks.append((
            "overlap in time",
            f"{count:,} timesteps are in both: windows of one see targets of the other",
            "split once with `split(..., along=...)`, and pass parts of that split",
        ))  # fmt: skip
    if count := counts.get("sequences"):
        leaks.append((
            "same sequences",
            f"{count:,} sequences are in both: {_show(keys, count)}",
            "take both parts from one `split`",
        ))  # fmt: skip
    return list(counts), leaks


def _check_ids(
    first: PartContents, second: PartContents, time: tuple[str, str] | None
) -> tuple[bool, list[Leak]]:
    """Look for ids that are in both parts, in sequences of different stores.

    With a field of time equal ids are allowed, and ``_check_groups`` compares their times.

    Returns:
        Whether there are ids to compare, and the leaks.
    """
    if first.ids is None or second.ids is None:
        return False, []
    if time is not None:
        return True, []
    apart = first.find_rows_apart(second), second.find_rows_apart(first)
    if not (len(apart[0]) or len(apart[1])) or not (first.has_names and second.has_names):
        return False, []
    shared = is_among(first.ids, second.ids[apart[1]])
    shared[apart[0]] = is_among(first.ids[apart[0]], second.ids)
    rows, count, names = np.flatnonzero(shared), 0, list[str]()
    for start in range(0, len(rows), _IDS_AT_ONCE):
        ids = first.read_ids(rows[start : start + _IDS_AT_ONCE])
        found = [name for name in ids if not name.isdecimal()]
        count += len(found)
        names += found[:_MAX_SHOWN]
    if not count:
        return True, []
    fix = "leave duplicates out of one part; give different sequences different ids"
    return True, [("same ids", f"{count:,} ids are in both: {_show(names, count)}", fix)]


def _count_shared_timesteps(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return the number of timesteps in spans of both; the spans of each are disjoint."""
    longest = 1 + max(int(first[:, 2].max(initial=0)), int(second[:, 2].max(initial=0)))
    events = []
    for spans in (first, second):
        starts, stops = spans[:, 0] * longest + spans[:, 1], spans[:, 0] * longest + spans[:, 2]
        used = stops > starts
        events.append((np.sort(starts[used]), np.sort(stops[used])))
    points = np.unique(np.concatenate([bound for pair in events for bound in pair]))
    inside = [
        np.searchsorted(starts, points, side="right") - np.searchsorted(stops, points, side="right")
        for starts, stops in events
    ]
    both = (inside[0] > 0) & (inside[1] > 0)
    return int(np.diff(points, append=points[-1:])[both].sum())


def _check_groups(
    first: PartContents, second: PartContents, groups: list[str], time: tuple[str, str] | None
) -> list[Leak]:
    """Look for groups that are in both parts, unless they are apart in time."""
    leaks: list[Leak] = []
    for by in groups:
        hashes = (first.hash_groups(by), second.hash_groups(by))
        shared = np.intersect1d(*hashes)
        if not len(shared):
            continue
        overlapping = shared
        if time is not None:
            overlapping = _find_overlapping(first, second, hashes, time)
        if len(overlapping):
            values = _read_values(first, by, is_among(hashes[0], overlapping[:_MAX_SHOWN]))
            name = f"same {by}" if time is None else f"same {by} at the same time"
            leaks.append((
                name,
                f"{len(overlapping):,} values of {by!r} are in both: "
                f"{_show(values, len(overlapping))}",
                f"split with by={by!r}" if time is None else "split with `split(..., along=...)`",
            ))  # fmt: skip
    if time is not None and not leaks and first.ids is not None and second.ids is not None:
        overlapping = _find_overlapping(first, second, (first.ids, second.ids), time)
        if len(overlapping):
            numbers = np.flatnonzero(is_among(first.ids, overlapping[:_MAX_SHOWN]))
            keys = first.read_ids(numbers)
            leaks.append((
                "overlap in time",
                f"{len(overlapping):,} sequences have timesteps of the same time in both: "
                f"{_show(keys, len(overlapping))}",
                "split with `split(..., along=...)`",
            ))  # fmt: skip
    return leaks


def _check_whole_time(
    first: PartContents, second: PartContents, time: tuple[str, str]
) -> list[Leak]:
    """Check that one part lies before the other in time, as a named field of time demands."""
    ranges = []
    for part in (first, second):
        starts, stops = part.find_times(*time)
        ranges.append((float(np.nanmin(starts)), float(np.nanmax(stops))))
    if ranges[0][0] > ranges[1][1] or ranges[1][0] > ranges[0][1]:
        return []
    seen = f"{time[0]!r} goes from {ranges[0][0]:g} to {ranges[0][1]:g} in {first.name}, and from "
    seen += f"{ranges[1][0]:g} to {ranges[1][1]:g} in {second.name}"
    return [("overlap in time", seen, "split with `split(..., along=...)`")]


def _find_overlapping(
    first: PartContents, second: PartContents, groups: tuple[Hashes, Hashes], time: tuple[str, str]
) -> Hashes:
    """Return the groups whose timestamps in both parts overlap in time."""
    ranges = []
    for part, hashes in zip((first, second), groups, strict=True):
        starts, stops = part.find_times(*time)
        known, inverse = np.unique(hashes, return_inverse=True)
        low, high = np.full(len(known), np.inf), np.full(len(known), -np.inf)
        np.fmin.at(low, inverse, starts)
        np.fmax.at(high, inverse, stops)
        ranges.append((known, low, high))
    shared, at_first, at_second = np.intersect1d(ranges[0][0], ranges[1][0], return_indices=True)
    later = np.maximum(ranges[0][1][at_first], ranges[1][1][at_second])
    earlier = np.minimum(ranges[0][2][at_first], ranges[1][2][at_second])
    return np.asarray(shared[later <= earlier])


def _check_copies(first: PartContents, second: PartContents) -> Iterator[Leak]:
    """Look for equal contents that are not equal by chance."""
    for name, (hashes, bits) in first.contents.items():
        if name not in second.contents:
            continue
        chance = len(hashes) * len(second.contents[name][0]) * np.exp2(-np.minimum(bits, 1000))
        is_significant = (bits > 0) & (chance < _MAX_CHANCE)
        copies = np.flatnonzero(is_significant & is_among(hashes, second.contents[name][0]))
        if len(copies):
            keys = first.read_ids(copies[:_MAX_SHOWN])
            yield (
                "duplicates",
                f"{len(copies):,} sequences of {first.name} are in {second.name}, too, with equal "
                f"{name}: {_show(keys, len(copies))}",
                "leave them out of one part with `where`, or split by a field that they share",
            )


def _check_statistics(
    subject: str, statistics: Statistics, parts: Mapping[str, Store]
) -> DoctorFinding:
    """Check that statistics were fitted on the training part alone."""
    fitted = dict(statistics.fitted_on)
    training = {name: store for name, store in parts.items() if name.partition(".")[0] == "train"}
    train = concat_stores(list(training.values()))
    own = describe_view(train)
    fingerprints = {own["fingerprint"], *(store.fingerprint for store in training.values())}
    fix = "fit on the training part alone: fit(parts['train'], ...)"
    if fitted.get("fingerprint") in fingerprints:
        return DoctorFinding(subject, "statistics", "ok", "fitted on the training part")
    for name, store in parts.items():
        if name not in training and store.fingerprint == fitted.get("fingerprint"):
            return DoctorFinding(subject, "statistics", "bad", f"fitted on {name}", fix)
    for kind in ("sequences", "timesteps"):
        more = int(fitted.get(kind, 0))
        if more > own[kind]:
            seen = f"fitted over {more:,} {kind}, but the training part has {own[kind]:,}"
            return DoctorFinding(subject, "statistics", "bad", seen, fix)
    hashes = hash_sequences("leaks", train, 0, None)
    lowest = np.array(fitted.get("lowest_hashes", []), dtype=np.uint64)
    outside = int(np.count_nonzero(~is_among(lowest, hashes)))
    if outside:
        seen = f"fitted over other sequences than the training part has: {outside} of {len(lowest)}"
        return DoctorFinding(subject, "statistics", "bad", f"{seen} that were looked at", fix)
    seen = "fitted on other data than the training part, or on a part of it"
    return DoctorFinding(subject, "statistics", "warn", seen, fix)


def _find_groups(sources: LeakSources, *stores: Store) -> list[str]:
    """Return the fields of groups: named ones, else fields with usual names of groups."""
    if sources.by:
        for by in sources.by:
            if any(by not in store.fields for store in stores):
                needed = f"a field of every part ({', '.join(stores[0].fields)})"
                raise ConfigError(must_be("leaks: `by`", needed, repr(by)))
        return list(sources.by)
    return [
        name
        for name, field in stores[0].fields.items()
        if name in GROUP_NAMES
        and field.axis is None
        and not field.shape
        and all(name in store.fields for store in stores)
    ]


def _find_time(sources: LeakSources, *stores: Store) -> tuple[str, str] | None:
    """Return the field of timestamps and its axis, if there is one."""
    names = [sources.time] if sources.time is not None else sorted(TIME_NAMES)
    for name in names:
        fields = [store.fields.get(name) for store in stores]
        fits = [
            field is not None
            and field.axis is not None
            and not field.shape
            and kind_of(field).is_array
            for field in fields
        ]
        if all(fits) and fields[0] is not None and fields[0].axis is not None:
            return name, fields[0].axis
    if sources.time is not None:
        needed = "a field of every part with one number per timestep"
        raise ConfigError(must_be("leaks: `time`", needed, repr(sources.time)))
    return None


def _read_values(part: PartContents, by: str, chosen: NDArray[np.bool_]) -> list[str]:
    """Return the distinct values of a field in chosen sequences, as strings."""
    store = part.store
    spans = np.zeros((int(np.count_nonzero(chosen)), 3), dtype=np.int64)
    spans[:, 0] = np.flatnonzero(chosen)
    column = store.read(spans, [by], axis=next(iter(store.lengths_of)))[by]
    values = column if isinstance(column, list) else [column[i][0] for i in range(len(column))]
    return list(dict.fromkeys(map(str, values)))


def _show(names: list[str], count: int) -> str:
    shown = ", ".join(map(repr, names[:_MAX_SHOWN]))
    return shown if count <= _MAX_SHOWN else f"{shown}, ..."

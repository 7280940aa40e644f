"""Does something of one part of the data get into another? ``seqdata doctor --leaks`` asks.

Looked for are the same sequence, group or timesteps in two parts, copies under other ids, and
statistics that were fitted over more than the training part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.leak_sources import LeakSources
from seqdata.cli._doctor.part_contents import Hashes, PartContents
from seqdata.errors import ConfigError, must_be
from seqdata.fitting.fit import describe_view
from seqdata.fitting.statistics import Statistics
from seqdata.protocols import Store
from seqdata.storage.concat import concat_stores
from seqdata.storage.fields import kind_of
from seqdata.storage.hashing import is_among
from seqdata.storage.splitting import hash_sequences

GROUP_NAMES = frozenset(
    name + ending
    for name in (
        "author", "customer", "doc", "document", "patient", "recording", "series", "session",
        "speaker", "subject", "user",
    )
    for ending in ("", "_id")
)  # fmt: skip
"""Fields whose values are taken for groups where none are named."""

TIME_NAMES = frozenset(("date", "datetime", "time", "timestamp", "timestamps", "when"))
"""Fields that are taken for timestamps where none is named."""

_MAX_SHOWN = 3
_IDS_AT_ONCE = 1 << 16
_MAX_CHANCE = 0.01  # expected pairs of equal contents by chance, below which a pair is a copy


def check_leaks(sources: LeakSources) -> Iterator[DoctorFinding]:
    """Yield what leaks from one part into another, and what was looked at.

    Raises:
        ConfigError: If a named field is not there or does not fit.
        DataError: If what is stored is damaged.
    """
    parts = [PartContents(name, store) for name, store in sources.parts.items()]
    for first, second in itertools.combinations(parts, 2):
        if first.name.partition(".")[0] != second.name.partition(".")[0]:
            yield from _check_pair(first, second, sources)
    for place, statistics in sources.statistics.items():
        yield _check_statistics(place, statistics, sources.parts)


def _check_pair(
    first: PartContents, second: PartContents, sources: LeakSources
) -> Iterator[DoctorFinding]:
    place = f"{first.name} and {second.name}"
    looked, found = _check_same_sequences(first, second)
    groups: list[str] = []
    time = None
    if not first.is_cut_as(second):  # else the spans say what is shared
        time = _find_time(sources, first.store, second.store)
        groups = _find_groups(sources, first.store, second.store)
        found += _check_groups(first, second, groups, time)
    if time is not None and not found and sources.time is not None and not sources.by:
        found += _check_whole_time(first, second, time)
    have_ids, same_ids = _check_ids(first, second, time)
    if not found:
        found += _check_copies(first, second)
    for name, seen, fix in found:
        yield DoctorFinding(place, name, "bad", seen, fix)
    for name, seen, fix in same_ids:
        yield DoctorFinding(place, name, "warn", seen, fix)
    looked += ["ids"] * (have_ids and not same_ids) + groups
    if not found:  # contents are read for it
        looked += ["contents"] * (not first.contents.keys().isdisjoint(second.contents))
    looked += ["time"] * (time is not None)
    if not found and looked:
        yield DoctorFinding(place, "leaks", "ok", f"none found ({', '.join(looked)})")
    elif not found and not same_ids:
        seen = "nothing to compare: no store, ids, groups or fields in common"
        yield DoctorFinding(place, "leaks", "note", seen)


Leak = tuple[str, str, str]
"""What it is called, what was seen, and what to do."""


def _check_same_sequences(
    first: PartContents, second: PartContents
) -> tuple[list[str], list[Leak]]:
    """Look for sequences, or timesteps of them, that are selected by both parts.

    Returns:
        What was looked at, and what was found.
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

    With a field of time they may be: `_check_groups` compares when.

    Returns:
        Whether there are ids to compare, and what was found.
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
    fix = "leave what is the same out of one part; give ids that differ to what is not"
    return True, [("same ids", f"{count:,} ids are in both: {_show(names, count)}", fix)]


def _count_shared_timesteps(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return how many timesteps lie in spans of both, where each has disjoint spans."""
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
                f"split with by={by!r}" if time is None else "leave a gap between the parts",
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
    """Look whether all of one part lies before the other, as a named field of time asks for."""
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
    """Return the groups of which both parts have timestamps from the same stretch of time."""
    ranges = []
    for part, hashes in zip((first, second), groups, strict=True):
        starts, stops = part.find_times(*time)
        known, places = np.unique(hashes, return_inverse=True)
        low, high = np.full(len(known), np.inf), np.full(len(known), -np.inf)
        np.fmin.at(low, places, starts)
        np.fmax.at(high, places, stops)
        ranges.append((known, low, high))
    shared, at_first, at_second = np.intersect1d(ranges[0][0], ranges[1][0], return_indices=True)
    later = np.maximum(ranges[0][1][at_first], ranges[1][1][at_second])
    earlier = np.minimum(ranges[0][2][at_first], ranges[1][2][at_second])
    return np.asarray(shared[later <= earlier])


def _check_copies(first: PartContents, second: PartContents) -> Iterator[Leak]:
    """Look for equal contents, other than by chance."""
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
    place: str, statistics: Statistics, parts: Mapping[str, Store]
) -> DoctorFinding:
    """Look whether statistics were fitted on the training part, and on no other."""
    fitted = dict(statistics.fitted_on)
    training = {name: store for name, store in parts.items() if name.partition(".")[0] == "train"}
    train = concat_stores(list(training.values()))
    own = describe_view(train)
    fingerprints = {own["fingerprint"], *(store.fingerprint for store in training.values())}
    fix = "fit on the training part alone: fit(parts['train'], ...)"
    if fitted.get("fingerprint") in fingerprints:
        return DoctorFinding(place, "statistics", "ok", "fitted on the training part")
    for name, store in parts.items():
        if name not in training and store.fingerprint == fitted.get("fingerprint"):
            return DoctorFinding(place, "statistics", "bad", f"fitted on {name}", fix)
    for unit in ("sequences", "timesteps"):
        more = int(fitted.get(unit, 0))
        if more > own[unit]:
            seen = f"fitted over {more:,} {unit}, but the training part has {own[unit]:,}"
            return DoctorFinding(place, "statistics", "bad", seen, fix)
    hashes = hash_sequences("leaks", train, 0, None)
    lowest = np.array(fitted.get("lowest_hashes", []), dtype=np.uint64)
    outside = int(np.count_nonzero(~is_among(lowest, hashes)))
    if outside:
        seen = f"fitted over other sequences than the training part has: {outside} of {len(lowest)}"
        return DoctorFinding(place, "statistics", "bad", f"{seen} that were looked at", fix)
    seen = "fitted on other data than the training part, or on a part of it"
    return DoctorFinding(place, "statistics", "warn", seen, fix)


def _find_groups(sources: LeakSources, *stores: Store) -> list[str]:
    """Return the fields that make groups: those that are named, else those whose names tell."""
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
    """Return the distinct values of a field in chosen sequences, as text."""
    store = part.store
    spans = np.zeros((int(np.count_nonzero(chosen)), 3), dtype=np.int64)
    spans[:, 0] = np.flatnonzero(chosen)
    column = store.read(spans, [by], axis=next(iter(store.lengths_of)))[by]
    values = column if isinstance(column, list) else [column[i][0] for i in range(len(column))]
    return list(dict.fromkeys(map(str, values)))


def _show(names: list[str], count: int) -> str:
    shown = ", ".join(map(repr, names[:_MAX_SHOWN]))
    return shown if count <= _MAX_SHOWN else f"{shown}, ..."

"""The kernel in NumPy: the same functions, checks and results as ``_fill.c``, slower.

Used where there is no compiler, and by the tests to say what the compiled kernel must do. Place in
the
flow: below every store. Reads: buffers. Makes: filled output.
"""

from __future__ import annotations

import itertools
import mmap
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.checksum_functions import algorithms as algorithms
from seqdata.kernel.checksum_functions import checksums as checksums
from seqdata.kernel.numpy_checksums import TwinChecks, checks_of
from seqdata.kernel.pack_rows import pack as pack

POPULATE_READ = 22  # MADV_POPULATE_READ, which the mmap module does not name
_NOTHING = np.zeros(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class TwinSource:
    """The buffers of one field as arrays."""

    values: tuple[NDArray[np.uint8], ...]
    extents: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] | None
    starts: list[int]
    width: int
    unit: int
    checks: TwinChecks | None


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where a span lies: its part of all bytes of its sequence."""

    shard: int
    at: int
    number: int
    whole: NDArray[np.uint8]
    span: slice


def _flat(buffer: Any, dtype: type) -> NDArray[Any]:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("ndarray is not C-contiguous")
    if not view.nbytes:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(view, dtype=dtype, count=view.nbytes // np.dtype(dtype).itemsize)


def source(
    values: tuple[Any, ...],
    extents: tuple[tuple[Any, Any], ...] | None,
    starts: Any,
    width: int,
    checks: Any = None,
    unit: int | None = None,
) -> TwinSource:
    """Hold the buffers of one field; see ``choose.Kernel.source``."""
    optional = all(one is None or isinstance(one, tuple) for one in (extents, checks))
    if not isinstance(values, tuple) or not optional:
        raise TypeError(
            "source: takes (values, extents or None, starts, width, checks or None, unit)"
        )
    unit = width if unit is None else unit
    if width < 1 or unit < 1 or (extents is not None and len(extents) != len(values)):
        raise ValueError("source: needs `width` and `unit` >= 1, and one `extents` per shard")
    first = _flat(starts, np.int64).tolist()
    if len(first) != len(values) + 1 or first[0] != 0 or first != sorted(first):
        raise ValueError("source: `starts` must rise from 0, one more than shards")
    all_values, all_extents = [], []
    for shard, buffer in enumerate(values):
        count = first[shard + 1] - first[shard]
        all_values.append(_flat(buffer, np.uint8))
        if extents is None:
            if len(all_values[shard]) // width < count:
                raise ValueError(f"source: `values` of shard {shard} are too short")
            continue
        all_extents.append(_extents(extents[shard], shard, count))
    ragged = extents is not None
    return TwinSource(
        tuple(all_values), tuple(all_extents) if ragged else None, first, width, unit,
        None if checks is None else checks_of(checks, first, width, ragged=ragged),
    )  # fmt: skip


def _extents(both: Any, shard: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not isinstance(both, tuple) or len(both) != 2:
        raise ValueError(f"source: `extents` of shard {shard} must be (begins, ends)")
    begins, ends = _flat(both[0], np.int64), _flat(both[1], np.int64)
    if min(len(begins), len(ends)) < count:
        raise ValueError(f"source: `extents` of shard {shard} are too short")
    return begins, ends


def fill(source: TwinSource, spans: Any, bounds: Any, out: Any, padding: bytes | None) -> int:
    """Copy spans into place and pad; see ``choose.Kernel.fill``."""
    if not isinstance(source, TwinSource):
        raise TypeError("fill: takes (source, spans, bounds, out, padding)")
    pattern = _NOTHING if padding is None else np.frombuffer(padding, dtype=np.uint8)
    table, edges = _flat(spans, np.int64), _flat(bounds, np.int64).tolist()
    if memoryview(spans).nbytes != 24 * (len(edges) - 1) or memoryview(bounds).nbytes % 8:
        raise ValueError("fill: needs `spans` int64 (n, 3), `bounds` int64 (n+1)")
    if len(pattern) < 1 or source.width % len(pattern):
        raise ValueError("fill: `padding` must be one element of the field")
    target = _flat(out, np.uint8)
    if not target.flags.writeable:
        raise ValueError("fill: `out` is read-only")
    places = _places(source, table)
    if isinstance(places, int):
        return places
    width = source.width
    lengths = [(place.span.stop - place.span.start) // width for place in places]
    rooms = [stop - start for start, stop in itertools.pairwise(edges)]
    fits = edges[0] >= 0 and edges[-1] <= len(target) // width and edges == sorted(edges)
    if not fits or any(length > room for length, room in zip(lengths, rooms, strict=True)):
        raise ValueError("fill: `bounds` must rise inside `out` and hold every span")
    wrong = _first_wrong(source, places)
    for number, place in enumerate(places[: None if wrong < 0 else wrong]):
        start, stop = edges[number] * width, edges[number + 1] * width
        piece = place.whole[place.span]
        target[start : start + len(piece)] = piece
        target[start + len(piece) : stop].reshape(-1, len(pattern))[:] = pattern
    return -1 if wrong < 0 else -2 - wrong


def verify(source: TwinSource, spans: Any) -> int:
    """Look at spans as ``fill`` does, and give what it gives; nothing is copied."""
    if not isinstance(source, TwinSource):
        raise TypeError("verify: takes (source, spans)")
    if memoryview(spans).nbytes % 24:
        raise ValueError("fill: needs `spans` int64 (n, 3), `bounds` int64 (n+1)")
    places = _places(source, _flat(spans, np.int64))
    if isinstance(places, int):
        return places
    wrong = _first_wrong(source, places)
    return -1 if wrong < 0 else -2 - wrong


def _first_wrong(source: TwinSource, places: list[_Place]) -> int:
    """Give the number of the first span whose checksum is another; -1: there is none."""
    checks = source.checks
    if checks is None:
        return -1
    for number, place in enumerate(places):
        if not checks.good(place.shard, place.at, place.number, place.whole, place.span):
            return number
    return -1


def _places(source: TwinSource, table: NDArray[np.int64]) -> list[_Place] | int:
    """Give where every span lies; or the number of the first that is not there."""
    places: list[_Place] = []
    width = source.width
    for number, start, stop in table.reshape(-1, 3).tolist():
        if not 0 <= number < source.starts[-1]:
            return len(places)
        shard = bisect_right(source.starts, number) - 1
        values = source.values[shard]
        at = number - source.starts[shard]
        first, last, unit = at, at + 1, width
        if source.extents is not None:
            begins, ends = source.extents[shard]
            first, last, unit = int(begins[at]), int(ends[at]), source.unit
        inside = 0 <= first <= last <= len(values) // unit
        if not inside or not 0 <= start <= stop or stop * width > (last - first) * unit:
            return len(places)
        whole = values[first * unit : last * unit]
        places.append(_Place(shard, at, number, whole, slice(start * width, stop * width)))
    return places


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map the first ``size`` bytes of a file for reading; keeps a descriptor of its own."""
    if size < 1:
        raise ValueError("map_file: `bytes` must be at least 1")
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def populate(mapping: Any, first: int, stop: int) -> bool:
    """Read bytes ``first:stop`` of a mapping ahead into memory; whether that worked."""
    first, stop = max(0, first) // mmap.PAGESIZE * mmap.PAGESIZE, min(stop, len(mapping))
    if first >= stop:
        return True
    for advice in (POPULATE_READ, mmap.MADV_WILLNEED):
        try:
            mapping.madvise(advice, first, stop - first)
        except OSError:
            continue
        return True
    return False

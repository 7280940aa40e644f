"""The kernel in NumPy: the same functions, checks and results as ``_fill.c``, but slower.

It is used without a compiler, and by the tests as the reference of the compiled kernel. Place in
the flow: below every store.
"""

from __future__ import annotations

import itertools
import mmap
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.numpy_checksums import NumpyChecksums, make_checksums
from seqdata.kernel.numpy_checksums import algorithms as algorithms
from seqdata.kernel.numpy_checksums import checksums as checksums
from seqdata.kernel.pack_rows import pack as pack

MADV_POPULATE_READ = 22  # MADV_POPULATE_READ, which the mmap module does not name
_ZERO_BYTE = np.zeros(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class NumpySource:
    """The buffers of one field, as arrays."""

    values: tuple[NDArray[np.uint8], ...]
    extents: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] | None
    starts: list[int]
    width: int
    unit: int
    checks: NumpyChecksums | None


@dataclass(frozen=True, slots=True, eq=False)
class _SpanLocation:
    """The location of a span: its part of all bytes of its sequence."""

    shard: int
    index: int
    number: int
    content: NDArray[np.uint8]
    span: slice


def _as_array(buffer: Any, dtype: type) -> NDArray[Any]:
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
) -> NumpySource:
    """Return a source over the buffers of one field; see ``dispatch.Kernel.source``."""
    optional = all(
        argument is None or isinstance(argument, tuple) for argument in (extents, checks)
    )
    if not isinstance(values, tuple) or not optional:
        raise TypeError(
            "source: takes (values, extents or None, starts, width, checks or None, unit)"
        )
    unit = width if unit is None else unit
    if width < 1 or unit < 1 or (extents is not None and len(extents) != len(values)):
        raise ValueError("source: needs `width` and `unit` >= 1, and one `extents` per shard")
    first_sequences = _as_array(starts, np.int64).tolist()
    if (
        len(first_sequences) != len(values) + 1
        or first_sequences[0] != 0
        or first_sequences != sorted(first_sequences)
    ):
        raise ValueError("source: `starts` must rise from 0, one more than shards")
    all_values, all_extents = [], []
    for shard, buffer in enumerate(values):
        count = first_sequences[shard + 1] - first_sequences[shard]
        all_values.append(_as_array(buffer, np.uint8))
        if extents is None:
            if len(all_values[shard]) // width < count:
                raise ValueError(f"source: `values` of shard {shard} are too short")
            continue
        all_extents.append(_extents(extents[shard], shard, count))
    is_ragged = extents is not None
    return NumpySource(
        tuple(all_values),
        tuple(all_extents) if is_ragged else None,
        first_sequences,
        width,
        unit,
        None
        if checks is None
        else make_checksums(checks, first_sequences, width, ragged=is_ragged),
    )


def _extents(both: Any, shard: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not isinstance(both, tuple) or len(both) != 2:
        raise ValueError(f"source: `extents` of shard {shard} must be (begins, ends)")
    begins, ends = _as_array(both[0], np.int64), _as_array(both[1], np.int64)
    if min(len(begins), len(ends)) < count:
        raise ValueError(f"source: `extents` of shard {shard} are too short")
    return begins, ends


def fill(source: NumpySource, spans: Any, bounds: Any, out: Any, padding: bytes | None) -> int:
    """Copy spans and pad; see ``dispatch.Kernel.fill``."""
    if not isinstance(source, NumpySource):
        raise TypeError(
            f"fill: `source` must be made by `source()`, but is of type {type(source).__name__}"
        )
    pattern = _ZERO_BYTE if padding is None else np.frombuffer(padding, dtype=np.uint8)
    table, offsets = _as_array(spans, np.int64), _as_array(bounds, np.int64).tolist()
    if memoryview(spans).nbytes != 24 * (len(offsets) - 1) or memoryview(bounds).nbytes % 8:
        raise ValueError("fill: needs `spans` int64 (n, 3), `bounds` int64 (n+1)")
    if len(pattern) < 1 or source.width % len(pattern):
        raise ValueError("fill: `padding` must be one element of the field")
    target = _as_array(out, np.uint8)
    if not target.flags.writeable:
        raise ValueError("fill: `out` is read-only")
    locations = _locate_spans(source, table)
    if isinstance(locations, int):
        return locations
    width = source.width
    lengths = [(location.span.stop - location.span.start) // width for location in locations]
    capacities = [stop - start for start, stop in itertools.pairwise(offsets)]
    is_valid = (
        offsets[0] >= 0 and offsets[-1] <= len(target) // width and offsets == sorted(offsets)
    )
    if not is_valid or any(
        length > capacity for length, capacity in zip(lengths, capacities, strict=True)
    ):
        raise ValueError("fill: `bounds` must rise inside `out` and hold every span")
    mismatch = _find_mismatch(source, locations)
    for number, location in enumerate(locations[: None if mismatch < 0 else mismatch]):
        start, stop = offsets[number] * width, offsets[number + 1] * width
        piece = location.content[location.span]
        target[start : start + len(piece)] = piece
        target[start + len(piece) : stop].reshape(-1, len(pattern))[:] = pattern
    return -1 if mismatch < 0 else -2 - mismatch


def verify(source: NumpySource, spans: Any) -> int:
    """Check spans as ``fill`` does and return what it returns, without copying."""
    if not isinstance(source, NumpySource):
        raise TypeError(
            f"verify: `source` must be made by `source()`, but is of type {type(source).__name__}"
        )
    if memoryview(spans).nbytes % 24:
        raise ValueError("verify: `spans` must be int64 (n, 3)")
    locations = _locate_spans(source, _as_array(spans, np.int64))
    if isinstance(locations, int):
        return locations
    mismatch = _find_mismatch(source, locations)
    return -1 if mismatch < 0 else -2 - mismatch


def _find_mismatch(source: NumpySource, locations: list[_SpanLocation]) -> int:
    """Return the index of the first span whose checksum differs; -1 without one."""
    checks = source.checks
    if checks is None:
        return -1
    for number, location in enumerate(locations):
        if not checks.check_span(
            location.shard, location.index, location.number, location.content, location.span
        ):
            return number
    return -1


def _locate_spans(source: NumpySource, table: NDArray[np.int64]) -> list[_SpanLocation] | int:
    """Return the location of every span, or the index of the first that does not exist."""
    locations: list[_SpanLocation] = []
    width = source.width
    for number, start, stop in table.reshape(-1, 3).tolist():
        if not 0 <= number < source.starts[-1]:
            return len(locations)
        shard = bisect_right(source.starts, number) - 1
        values = source.values[shard]
        index = number - source.starts[shard]
        first, last, unit = index, index + 1, width
        if source.extents is not None:
            begins, ends = source.extents[shard]
            first, last, unit = int(begins[index]), int(ends[index]), source.unit
        is_inside = 0 <= first <= last <= len(values) // unit
        if not is_inside or not 0 <= start <= stop or stop * width > (last - first) * unit:
            return len(locations)
        content = values[first * unit : last * unit]
        locations.append(
            _SpanLocation(shard, index, number, content, slice(start * width, stop * width))
        )
    return locations


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map the first ``size`` bytes of a file for reading; the mapping keeps its own descriptor."""
    if size < 1:
        raise ValueError("map_file: `bytes` must be at least 1")
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def populate(mapping: Any, first: int, stop: int) -> bool:
    """Read bytes ``first:stop`` of a mapping ahead into memory; return whether that worked."""
    first, stop = max(0, first) // mmap.PAGESIZE * mmap.PAGESIZE, min(stop, len(mapping))
    if first >= stop:
        return True
    for advice in (MADV_POPULATE_READ, mmap.MADV_WILLNEED):
        try:
            mapping.madvise(advice, first, stop - first)
        except OSError:
            continue
        return True
    return False

"""The kernel in NumPy: the same functions, checks and results as ``_fill.c``, slower.

Used where there is no compiler, and by the tests to say what the compiled kernel must do. Place in
the
flow: below every store. Reads: buffers. Makes: filled output.
"""

from __future__ import annotations

import itertools
import mmap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.sums import algorithms as algorithms
from seqdata.kernel.sums import checksums as checksums

POPULATE_READ = 22  # MADV_POPULATE_READ, which the mmap module does not name
_NOTHING = np.zeros(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class TwinSource:
    """The buffers of one field as arrays."""

    values: tuple[NDArray[np.uint8], ...]
    offsets: tuple[NDArray[np.int64], ...] | None
    starts: list[int]
    width: int


def _flat(buffer: Any, dtype: type) -> NDArray[Any]:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("ndarray is not C-contiguous")
    if not view.nbytes:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(view, dtype=dtype, count=view.nbytes // np.dtype(dtype).itemsize)


def source(
    values: tuple[Any, ...], offsets: tuple[Any, ...] | None, starts: Any, width: int
) -> TwinSource:
    """Hold the buffers of one field; see ``choose.Kernel.source``."""
    if not isinstance(values, tuple) or not (offsets is None or isinstance(offsets, tuple)):
        raise TypeError("source: takes (values, offsets or None, starts, width)")
    if width < 1 or (offsets is not None and len(offsets) != len(values)):
        raise ValueError("source: needs `width` >= 1 and one `offsets` per shard")
    first = _flat(starts, np.int64).tolist()
    if len(first) != len(values) + 1 or first[0] != 0 or first != sorted(first):
        raise ValueError("source: `starts` must rise from 0, one more than shards")
    all_values = []
    all_offsets = []
    for shard, buffer in enumerate(values):
        count = first[shard + 1] - first[shard]
        all_values.append(_flat(buffer, np.uint8))
        if offsets is None:
            if len(all_values[shard]) // width < count:
                raise ValueError(f"source: `values` of shard {shard} are too short")
            continue
        all_offsets.append(_flat(offsets[shard], np.int64))
        if len(all_offsets[shard]) <= count:
            raise ValueError(f"source: `offsets` of shard {shard} are too short")
    return TwinSource(
        tuple(all_values), None if offsets is None else tuple(all_offsets), first, width
    )


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
    pieces: list[NDArray[np.uint8]] = []
    for piece in _pieces(source, table.reshape(-1, 3).tolist()):
        if piece is None:
            return len(pieces)
        pieces.append(piece)
    width = source.width
    lengths = [len(piece) // width for piece in pieces]
    rooms = [stop - start for start, stop in itertools.pairwise(edges)]
    fits = edges[0] >= 0 and edges[-1] <= len(target) // width and edges == sorted(edges)
    if not fits or any(length > room for length, room in zip(lengths, rooms, strict=True)):
        raise ValueError("fill: `bounds` must rise inside `out` and hold every span")
    for number, piece in enumerate(pieces):
        start, stop = edges[number] * width, edges[number + 1] * width
        target[start : start + len(piece)] = piece
        target[start + len(piece) : stop].reshape(-1, len(pattern))[:] = pattern
    return -1


def _pieces(source: TwinSource, spans: list[list[int]]) -> Iterator[NDArray[np.uint8] | None]:
    """Give the bytes of every span; None, and no more, at the first that is not there."""
    for number, start, stop in spans:
        if not 0 <= number < source.starts[-1]:
            yield None
            return
        shard = bisect_right(source.starts, number) - 1
        values = source.values[shard]
        first = number - source.starts[shard]
        last = first + 1
        if source.offsets is not None:
            first, last = source.offsets[shard][first : first + 2].tolist()
        inside = 0 <= first <= last <= len(values) // source.width
        if not inside or not 0 <= start <= stop <= last - first:
            yield None
            return
        yield values[(first + start) * source.width : (first + stop) * source.width]


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

"""Downloads of byte ranges into memory that is laid out like the remote file.

Neighbouring ranges are one request, long ones are several, and the requests of a batch run in
parallel. Place in the flow: between remote files and stores that read ranges of them. Reads:
ranges. Makes: memory.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.download import REQUEST_BYTES
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import RemoteFiles

_MAP_NORESERVE = (
    0x4000 if sys.platform == "linux" else 0
)  # memory is allocated when it is written to


@dataclass(frozen=True, slots=True, eq=False)
class RangeDownload:
    """Ranges to download from one file.

    Attributes:
        files: The folder of the file.
        name: Its name in the folder.
        content: Memory of its size, from ``allocate_sparse``.
        ranges: int64 (n, 2), first byte and one past the last, from ``union_ranges``.
        location: The file, for errors.
    """

    files: RemoteFiles
    name: str
    content: Any
    ranges: NDArray[np.int64]
    location: DataLocation


def allocate_sparse(size: int) -> Any:
    """Return memory of a size in bytes; pages are allocated when they are written to."""
    return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def download_ranges(downloads: Sequence[RangeDownload], thread_pool: ForkSafeThreadPool) -> None:
    """Download ranges of files.

    Args:
        downloads: The files and ranges; files may be in several folders.
        thread_pool: Threads.

    Raises:
        MissingShardError: If a file is not there.
        RemoteReadError: If one cannot be read.
    """
    byte_ranges = [
        (download, low, high)
        for download in downloads
        for low, high in coalesce_ranges(download.ranges, download.files.remote.gap)
    ]

    def fetch(byte_range: tuple[RangeDownload, int, int]) -> None:
        download, low, high = byte_range
        body = memoryview(download.files.read(download.name, low, high, download.location))
        memory = memoryview(download.content)
        for first, stop in _clip_ranges(
            download.ranges, low, high
        ):  # bytes between the ranges are dropped
            memory[first:stop] = body[first - low : stop - low]

    thread_pool.map(fetch, byte_ranges)


def _clip_ranges(ranges: NDArray[np.int64], low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of ascending ranges that are inside of ``low:high``."""
    first = np.searchsorted(ranges[:, 1], low, side="right")
    stop = np.searchsorted(ranges[:, 0], high, side="left")
    inside: list[tuple[int, int]] = np.clip(ranges[first:stop], low, high).tolist()
    return inside


def union_ranges(ranges: Sequence[NDArray[np.int64]], gap: int = 0) -> NDArray[np.int64]:
    """Return the union of ranges, int64 (n, 2), ascending; empty ones are left out.

    Args:
        ranges: int64 (n, 2) each: first byte and one past the last.
        gap: Ranges with at most this many bytes between them become one.

    Examples:
        >>> union_ranges([np.array([[50, 60], [0, 10], [8, 20]])]).tolist() [[0, 20], [50, 60]]
    """
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int64), *ranges])
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    firsts = np.flatnonzero(np.append(True, pairs[1:, 0] - reach[:-1] > gap))
    ends = reach[np.append(firsts[1:] - 1, len(pairs) - 1)]
    return np.stack([pairs[firsts, 0], ends], axis=1)


def coalesce_ranges(ranges: NDArray[np.int64], gap: int) -> list[tuple[int, int]]:
    """Return the requests for ranges: neighbours as one, long ones in pieces.

    Args:
        ranges: int64 (n, 2), first byte and one past the last.
        gap: Ranges with at most this many bytes between them become one request.

    Examples:
        >>> coalesce_ranges(np.array([[0, 10], [12, 20], [50, 60]]), gap=5) [(0, 20), (50, 60)]
    """
    return [
        (low, min(low + REQUEST_BYTES, high))
        for begin, high in union_ranges([ranges], gap).tolist()
        for low in range(begin, high, REQUEST_BYTES)
    ]

"""Byte ranges of remote files: requests for them, and a cache of them in memory.

Ranges are downloaded into memory that is laid out like the remote file. Neighbouring ranges are one
request, long ones are several, and the requests of a batch run in parallel. Lanes read a long
sequence slice by slice, and slices share blocks: a range is downloaded once while there is room.
Present bytes are never overwritten, since columns may be views of them. Place in the flow: stores
that read by ranges build their sources over it. Reads: ranges. Makes: memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.file_cache import REQUEST_BYTES
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool

# memory is allocated when it is written to
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True, slots=True, eq=False)
class RangeDownload:
    """Ranges to download from one file.

    Attributes:
        files: The folder of the file.
        name: Its name in the folder.
        content: Memory of its size, from ``allocate_sparse``.
        ranges: int64 (n, 2), first byte and one past the last, from ``union_ranges``.
        location: The file, for errors.
        gap: Ranges with at most this many bytes between them become one request; None: as the
            options say.
    """

    files: RemoteFiles
    name: str
    content: Any
    ranges: NDArray[np.int64]
    location: DataLocation
    gap: int | None = None


def allocate_sparse(size: int) -> Any:
    """Return memory of a size in bytes; pages are allocated when they are written to."""
    return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def download_ranges(downloads: Sequence[RangeDownload], thread_pool: ForkSafeThreadPool) -> None:
    """Download ranges of files.

    Args:
        downloads: The files and ranges; files may be in several folders.
        thread_pool: Threads.

    Raises:
        MissingShardError: If a file is missing.
        RemoteReadError: If one cannot be read.
    """
    byte_ranges = [
        (download, low, high)
        for download in downloads
        for gap in [download.files.remote.gap if download.gap is None else download.gap]
        for low, high in coalesce_ranges(download.ranges, gap)
    ]

    def fetch(byte_range: tuple[RangeDownload, int, int]) -> None:
        download, low, high = byte_range
        body = memoryview(download.files.read(download.name, low, high, download.location))
        memory = memoryview(download.content)
        # bytes between the ranges are dropped
        for first, stop in _clip_ranges(download.ranges, low, high):
            memory[first:stop] = body[first - low : stop - low]

    thread_pool.map(fetch, byte_ranges)


def _clip_ranges(ranges: NDArray[np.int64], low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of ascending ranges that are inside of ``low:high``."""
    first = np.searchsorted(ranges[:, 1], low, side="right")
    stop = np.searchsorted(ranges[:, 0], high, side="left")
    inside: list[tuple[int, int]] = np.clip(ranges[first:stop], low, high).tolist()
    return inside


def union_ranges(ranges: Sequence[NDArray[np.int64]], gap: int = 0) -> NDArray[np.int64]:
    """Return the union of ranges, int64 (n, 2), ascending; empty ones are omitted.

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


def _no_ranges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(slots=True, eq=False)
class SparseFile:
    """Memory of a file's size, with the ranges that were downloaded.

    Attributes:
        content: Memory of the file's size.
        present: int64 (n, 2), first byte and one past the last, ascending: the present ranges.
        overlay: The sources that the reader built over the content.
    """

    content: Any
    present: NDArray[np.int64] = field(default_factory=_no_ranges)
    overlay: Any = None

    def find_missing(self, ranges: Sequence[NDArray[np.int64]], gap: int = 0) -> NDArray[np.int64]:
        """Return the missing parts of ranges, int64 (n, 2).

        Args:
            ranges: int64 (n, 2) each: first byte, one past the last.
            gap: Maximum number of bytes between two missing ranges at which missing ones between
                them are added.
        """
        if gap:
            ranges = [union_ranges([self.find_missing(ranges)], gap)]
        requested = union_ranges(ranges)
        breaks = np.unique(np.concatenate([requested.reshape(-1), self.present.reshape(-1)]))
        low = breaks[:-1]
        fresh = _is_covered(requested, low) & ~_is_covered(self.present, low)
        return union_ranges([np.stack([low[fresh], breaks[1:][fresh]], axis=1)])

    def mark_present(self, ranges: NDArray[np.int64]) -> None:
        """Record downloaded ranges."""
        self.present = union_ranges([self.present, ranges])


def download_missing(
    files: Mapping[int, SparseFile],
    ranges: Mapping[int, Sequence[NDArray[np.int64]]],
    make_download: Callable[[int, SparseFile, NDArray[np.int64]], RangeDownload],
    check_unchanged: Callable[[int], None],
    thread_pool: ForkSafeThreadPool,
    *,
    gap: int = 0,
) -> None:
    """Download missing ranges of files; they count once all are known to be of one version.

    Args:
        files: Files by index.
        ranges: Number -> requested ranges, int64 (n, 2) each: first byte, one past the last.
        make_download: Creates the download of ranges of a file.
        check_unchanged: Raises if a file was replaced.
        thread_pool: Threads.
        gap: Bytes between two ranges are kept, too, if there are at most this many.

    Raises:
        MissingShardError: If a file is missing.
        RemoteReadError: If one cannot be read.
        FingerprintMismatch: If one was replaced.
    """
    gaps = {
        number: files[number].find_missing(file_ranges, gap)
        for number, file_ranges in ranges.items()
    }
    missing = {number: file_ranges for number, file_ranges in gaps.items() if len(file_ranges)}
    if not missing:
        return
    download_ranges(
        [
            make_download(number, files[number], missing_ranges)
            for number, missing_ranges in missing.items()
        ],
        thread_pool,
    )
    thread_pool.map(check_unchanged, list(missing))
    for number, file_ranges in missing.items():
        files[number].mark_present(file_ranges)


class RangeCache:
    """Cache of the ranges downloaded from files, by file number; for one reader at a time.

    The least recently used files are dropped first.

    Args:
        max_bytes: Maximum bytes to keep of all files, in addition to those of the current batch.
    """

    __slots__ = ("_files", "_lock", "_max_bytes", "_pid")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files: OrderedDict[int, SparseFile] = OrderedDict()  # most recently used last
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @contextmanager
    def files(self, sizes: Mapping[int, int]) -> Iterator[dict[int, SparseFile]]:
        """Yield files for one read; a file that already holds its share starts empty.

        Args:
            sizes: Number -> size of the file in bytes.
        """
        if self._pid != os.getpid():  # the lock may be held by a thread of the parent process
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            yield {
                number: self._get_file(number, size, len(sizes)) for number, size in sizes.items()
            }
            self._evict(len(sizes))

    def drop(self, number: int, file: SparseFile) -> None:
        """Forget the ranges of a file: the next read downloads them again."""
        with self._lock:
            if self._files.get(number) is file:
                del self._files[number]

    def _get_file(self, number: int, size: int, count: int) -> SparseFile:
        file = self._files.get(number)
        if file is None or _count_bytes(file.present) * count >= self._max_bytes:
            file = self._files[number] = SparseFile(allocate_sparse(size))
        self._files.move_to_end(number)
        return file

    def _evict(self, used: int) -> None:
        bytes_of_files = {
            number: _count_bytes(file.present) for number, file in self._files.items()
        }
        total = sum(bytes_of_files.values())
        for number in list(bytes_of_files)[: len(bytes_of_files) - used]:
            if total <= self._max_bytes:
                return
            total -= bytes_of_files[number]
            del self._files[number]


def _count_bytes(ranges: NDArray[np.int64]) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def _is_covered(ranges: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which bytes are inside of ascending ranges."""
    if not len(ranges):
        return np.zeros(len(at), dtype=np.bool_)
    before = np.searchsorted(ranges[:, 0], at, side="right") - 1
    covered: NDArray[np.bool_] = (before >= 0) & (at < ranges[before, 1])
    return covered

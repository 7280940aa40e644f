"""A cache in memory of byte ranges of remote files, reused by later batches of the process.

Lanes read a long sequence slice by slice, and slices share blocks: a range is downloaded once while
there is room. Present bytes are never overwritten, since columns may be views of them. Place in the
flow: stores that read by ranges build their sources over it. Reads: ranges. Makes: memory.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.remote.range_requests import (
    RangeDownload,
    allocate_sparse,
    download_ranges,
    union_ranges,
)
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool


def _no_ranges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(slots=True, eq=False)
class SparseFile:
    """Memory of a file's size, with the ranges that were downloaded.

    Attributes:
        content: Memory of the file's size.
        present: int64 (n, 2), first byte and one past the last, ascending: the present ranges.
        overlay: The sources that its reader built over it.
    """

    content: Any
    present: NDArray[np.int64] = field(default_factory=_no_ranges)
    overlay: Any = None

    def find_missing(self, ranges: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the missing parts of ranges, int64 (n, 2)."""
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
) -> None:
    """Download missing ranges of files; they count once all are known to be of one version.

    Args:
        files: Files by number.
        ranges: Number -> requested ranges, int64 (n, 2) each: first byte, one past the last.
        make_download: Creates the download of ranges of a file.
        check_unchanged: Raises if a file was replaced.
        thread_pool: Threads.

    Raises:
        MissingShardError: If a file is not there.
        RemoteReadError: If one cannot be read.
        FingerprintMismatch: If one was replaced.
    """
    gaps = {
        number: files[number].find_missing(file_ranges) for number, file_ranges in ranges.items()
    }
    missing = {number: file_ranges for number, file_ranges in gaps.items() if len(file_ranges)}
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
    """The most recently used files by number; for one reader at a time.

    Args:
        max_bytes: Bytes to keep of all files, in addition to the current batch.
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

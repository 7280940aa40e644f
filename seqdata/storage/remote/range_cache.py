"""What came of remote files by ranges, kept in memory for the batches that need it next.

Lanes read a long sequence piece by piece, and pieces share blocks: what came once does not come
again while there is room. Bytes that are there are never written over, since columns may look at
them. Place in the flow: stores that read ranges lay their sources over this. Makes: memory.
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
    """Memory laid out as a file, with those of its bytes that came.

    Attributes:
        content: Memory of the file's size.
        present: int64 (n, 2), first byte and one past the last, rising: what is there.
        overlay: What its reader has laid over it.
    """

    content: Any
    present: NDArray[np.int64] = field(default_factory=_no_ranges)
    overlay: Any = None

    def missing(self, ranges: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return what is not there of some ranges, int64 (n, 2)."""
        wanted = union_ranges(ranges)
        breaks = np.unique(np.concatenate([wanted.reshape(-1), self.present.reshape(-1)]))
        low = breaks[:-1]
        fresh = _is_covered(wanted, low) & ~_is_covered(self.present, low)
        return union_ranges([np.stack([low[fresh], breaks[1:][fresh]], axis=1)])

    def mark_present(self, ranges: NDArray[np.int64]) -> None:
        """Take note that bytes have come."""
        self.present = union_ranges([self.present, ranges])


def download_missing(
    files: Mapping[int, SparseFile],
    ranges: Mapping[int, Sequence[NDArray[np.int64]]],
    make_download: Callable[[int, SparseFile, NDArray[np.int64]], RangeDownload],
    check_unchanged: Callable[[int], None],
    thread_pool: ForkSafeThreadPool,
) -> None:
    """Bring what is not there of files; it counts as there once all is known to be of one version.

    Args:
        files: Files by number.
        ranges: Number -> what is wanted of it, int64 (n, 2) each: first byte, one past the last.
        make_download: Says how bytes of a file come.
        check_unchanged: Looks whether a file is still what it was.
        thread_pool: Threads.

    Raises:
        MissingShardError: If a file is not there.
        RemoteReadError: If one cannot be read.
        FingerprintMismatch: If one was replaced.
    """
    wanted = {number: files[number].missing(file_ranges) for number, file_ranges in ranges.items()}
    missing = {number: file_ranges for number, file_ranges in wanted.items() if len(file_ranges)}
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
    """Files by number, those that were used last; for one reader at a time.

    Args:
        max_bytes: Bytes that are there of all of them, beside what a batch needs.
    """

    __slots__ = ("_files", "_lock", "_max_bytes", "_pid")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files: OrderedDict[int, SparseFile] = OrderedDict()  # last used last
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @contextmanager
    def files(self, sizes: Mapping[int, int]) -> Iterator[dict[int, SparseFile]]:
        """Lend files; one that holds its share already begins anew.

        Args:
            sizes: Number -> bytes of the file.
        """
        if self._pid != os.getpid():  # the lock may be held by a thread that is not here
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
        bytes_of_files = {number: _count_bytes(one.present) for number, one in self._files.items()}
        total = sum(bytes_of_files.values())
        for number in list(bytes_of_files)[: len(bytes_of_files) - used]:
            if total <= self._max_bytes:
                return
            total -= bytes_of_files[number]
            del self._files[number]


def _count_bytes(ranges: NDArray[np.int64]) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def _is_covered(ranges: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which bytes lie in ranges that rise."""
    if not len(ranges):
        return np.zeros(len(at), dtype=np.bool_)
    before = np.searchsorted(ranges[:, 0], at, side="right") - 1
    covered: NDArray[np.bool_] = (before >= 0) & (at < ranges[before, 1])
    return covered

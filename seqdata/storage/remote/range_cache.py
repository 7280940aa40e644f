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

from seqdata.storage.remote.range_requests import Filling, empty, fill, joined
from seqdata.storage.remote.thread_pool import Fetchers


def _none() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(slots=True, eq=False)
class SparseFile:
    """Memory laid out as a file, with those of its bytes that came.

    Attributes:
        content: Memory of the file's size.
        there: int64 (n, 2), first byte and one past the last, rising: what is there.
        made: What its reader has laid over it.
    """

    content: Any
    there: NDArray[np.int64] = field(default_factory=_none)
    made: Any = None

    def missing(self, ranges: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Give what is not there of some ranges, int64 (n, 2)."""
        wanted = joined(ranges)
        edges = np.unique(np.concatenate([wanted.reshape(-1), self.there.reshape(-1)]))
        low = edges[:-1]
        fresh = _covers(wanted, low) & ~_covers(self.there, low)
        return joined([np.stack([low[fresh], edges[1:][fresh]], axis=1)])

    def add(self, ranges: NDArray[np.int64]) -> None:
        """Take note that bytes have come."""
        self.there = joined([self.there, ranges])


def bring(
    held: Mapping[int, SparseFile],
    ranges: Mapping[int, Sequence[NDArray[np.int64]]],
    filling_of: Callable[[int, SparseFile, NDArray[np.int64]], Filling],
    same: Callable[[int], None],
    fetchers: Fetchers,
) -> None:
    """Bring what is not there of files; it counts as there once all is known to be of one version.

    Args:
        held: Files by number.
        ranges: Number -> what is wanted of it, int64 (n, 2) each: first byte, one past the last.
        filling_of: Says how bytes of a file come.
        same: Looks whether a file is still what it was.
        fetchers: Threads.

    Raises:
        MissingShardError: If a file is not there.
        RemoteReadError: If one cannot be read.
        FingerprintMismatch: If one was replaced.
    """
    wanted = {number: held[number].missing(several) for number, several in ranges.items()}
    missing = {number: several for number, several in wanted.items() if len(several)}
    fill([filling_of(number, held[number], one) for number, one in missing.items()], fetchers)
    fetchers.each(same, list(missing))
    for number, several in missing.items():
        held[number].add(several)


class Kept:
    """Files by number, those that were used last; for one reader at a time.

    Args:
        most: Bytes that are there of all of them, beside what a batch needs.
    """

    __slots__ = ("_held", "_lock", "_most", "_pid")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[int, SparseFile] = OrderedDict()  # last used last
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
            yield {number: self._file(number, size, len(sizes)) for number, size in sizes.items()}
            self._drop(len(sizes))

    def _file(self, number: int, size: int, among: int) -> SparseFile:
        one = self._held.get(number)
        if one is None or _count(one.there) * among >= self._most:
            one = self._held[number] = SparseFile(empty(size))
        self._held.move_to_end(number)
        return one

    def _drop(self, used: int) -> None:
        held = {number: _count(one.there) for number, one in self._held.items()}
        total = sum(held.values())
        for number in list(held)[: len(held) - used]:
            if total <= self._most:
                return
            total -= held[number]
            del self._held[number]


def _count(ranges: NDArray[np.int64]) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def _covers(ranges: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which bytes lie in ranges that rise."""
    if not len(ranges):
        return np.zeros(len(at), dtype=np.bool_)
    before = np.searchsorted(ranges[:, 0], at, side="right") - 1
    covered: NDArray[np.bool_] = (before >= 0) & (at < ranges[before, 1])
    return covered

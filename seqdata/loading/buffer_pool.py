"""Recycled memory for big outputs: fresh memory costs two to five times as much, in page faults.

A block is leased to the array that is made of it until the last view dies: of the array, of a
tensor over it, of ``numpy()``, ``detach()`` or a graph. The owner is an ndarray subclass with
``__del__``, since a finalizer on a tensor would run while views of its storage live. ``__del__``
may run in any thread and in the middle of anything, so it only appends to a deque; blocks are taken
back in the next ``allocate``. Place in the flow: the Player lends it to collators. Makes: arrays.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

SMALLEST = 512 << 10
"""Bytes above which an output is worth recycling."""
CAPACITY = 512 << 20
"""Bytes that a pool holds at most, leased or free."""
_ROOMIER = 64  # how much larger than needed a free block may be: touched memory beats fresh memory


class BlockPool:
    """Blocks of memory of power-of-two sizes, lent again and again.

    Args:
        capacity: Bytes that the pool holds at most; beyond it outputs are ordinary arrays.
        smallest: Bytes up to which outputs are ordinary arrays.
    """

    def __init__(self, capacity: int = CAPACITY, smallest: int = SMALLEST) -> None:
        self._capacity = capacity
        self._smallest = smallest
        self._free: dict[int, list[mmap.mmap]] = {}  # size -> blocks, last in first out
        self._returned: deque[mmap.mmap] = deque()
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of all blocks, leased and free."""
        return self._held

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Give an array of any content, C-contiguous and writable."""
        kind = np.dtype(dtype)
        needed = math.prod(shape) * kind.itemsize
        if needed <= self._smallest:
            return np.empty(shape, dtype=kind)
        block = self._take(1 << (needed - 1).bit_length())
        if block is None:
            return np.empty(shape, dtype=kind)
        lease: _Lease = np.ndarray.__new__(_Lease, (len(block),), dtype=np.uint8, buffer=block)
        lease.block, lease.returned = block, self._returned
        return np.ndarray(shape, dtype=kind, buffer=lease)

    def clear(self) -> None:
        """Give the free blocks back to the system; leased ones follow in later calls."""
        with self._lock:
            self._take_back()
            for size in list(self._free):
                self._drop(size)

    def _take(self, size: int) -> mmap.mmap | None:
        with self._lock:
            self._take_back()
            for other in sorted(self._free):
                if size <= other <= size * _ROOMIER and self._free[other]:
                    return self._free[other].pop()
            for other in sorted(self._free, reverse=True):
                if self._held + size <= self._capacity:
                    break
                self._drop(other)
            if self._held + size > self._capacity:
                return None
            self._held += size
        return _fresh(size)

    def _take_back(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._free.setdefault(len(block), []).append(block)

    def _drop(self, size: int) -> None:
        self._held -= size * len(self._free.pop(size))


def _fresh(size: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # an advice: some kernels know no huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


class _Lease(np.ndarray):
    """All bytes of one block; when the last array over them dies, the block goes back."""

    block: mmap.mmap | None = None
    returned: deque[mmap.mmap] | None = None

    def __del__(self) -> None:
        if self.block is not None and self.returned is not None:
            self.returned.append(self.block)

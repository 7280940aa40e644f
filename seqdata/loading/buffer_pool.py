"""Recycled memory for large outputs: fresh memory costs two to five times as much, in page faults.

A block is leased to an array until its last view is freed: of the array, of a tensor over it, of
``numpy()``, ``detach()`` or an autograd graph. The owner is an ndarray subclass with ``__del__``,
since a finalizer on a tensor would run while views of its storage live. ``__del__`` may run in any
thread at any time, so it only appends to a deque; blocks return to the pool in the next
``allocate``. Place in the flow: the engine passes it to collators.
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

MIN_BUFFER_BYTES = 512 << 10
"""Smallest output, in bytes, that is recycled."""
MAX_POOL_BYTES = 512 << 20
"""Most bytes that a pool holds, leased or free."""
_MAX_OVERSIZE = (
    64  # a free block may be this many times larger than needed: reuse is faster than fresh memory
)


class BufferPool:
    """A pool of reusable memory blocks of power-of-two sizes.

    Args:
        capacity: Most bytes that the pool holds; beyond it outputs are ordinary arrays.
        min_bytes: Outputs up to this size are ordinary arrays.
    """

    def __init__(self, capacity: int = MAX_POOL_BYTES, min_bytes: int = MIN_BUFFER_BYTES) -> None:
        self._capacity = capacity
        self._min_bytes = min_bytes
        self._free: dict[int, list[mmap.mmap]] = {}  # size -> blocks, last in first out
        self._returned: deque[mmap.mmap] = deque()
        self._total_bytes = 0
        self._lock = threading.Lock()

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks, leased and free."""
        return self._total_bytes

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of any content, C-contiguous and writable."""
        element_dtype = np.dtype(dtype)
        needed = math.prod(shape) * element_dtype.itemsize
        if needed <= self._min_bytes:
            return np.empty(shape, dtype=element_dtype)
        buffer = self._lease_buffer(1 << (needed - 1).bit_length())
        if buffer is None:
            return np.empty(shape, dtype=element_dtype)
        lease: _Lease = np.ndarray.__new__(_Lease, (len(buffer),), dtype=np.uint8, buffer=buffer)
        lease.buffer, lease.returned = buffer, self._returned
        return np.ndarray(shape, dtype=element_dtype, buffer=lease)

    def clear(self) -> None:
        """Return the free blocks to the system; leased ones follow in later calls."""
        with self._lock:
            self._reclaim()
            for size in list(self._free):
                self._drop_free(size)

    def _lease_buffer(self, size: int) -> mmap.mmap | None:
        with self._lock:
            self._reclaim()
            for free_size in sorted(self._free):
                if size <= free_size <= size * _MAX_OVERSIZE and self._free[free_size]:
                    return self._free[free_size].pop()
            for free_size in sorted(self._free, reverse=True):
                if self._total_bytes + size <= self._capacity:
                    break
                self._drop_free(free_size)
            if self._total_bytes + size > self._capacity:
                return None
            self._total_bytes += size
        return _map_buffer(size)

    def _reclaim(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._free.setdefault(len(buffer), []).append(buffer)

    def _drop_free(self, size: int) -> None:
        self._total_bytes -= size * len(self._free.pop(size))


def _map_buffer(size: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # only advice: some kernels have no huge pages
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


class _Lease(np.ndarray):
    """All bytes of one block; when the last array over them dies, the block goes back."""

    buffer: mmap.mmap | None = None
    returned: deque[mmap.mmap] | None = None

    def __del__(self) -> None:
        if self.buffer is not None and self.returned is not None:
            self.returned.append(self.buffer)

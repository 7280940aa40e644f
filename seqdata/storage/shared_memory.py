"""Anonymous memory that processes share: a descriptor without a name, and its mapping.

It is freed when the last process that holds it ends, however it ends; no limit of ``/dev/shm``
applies. A rank and its workers share the bits of verified checksums in such memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any


class AnonymousMemory:
    """Memory behind a descriptor. It can be passed to a process that is being started.

    Args:
        size: Bytes; pages are allocated when they are written to.
        descriptor: The descriptor of existing memory, owned from now on; None: create new memory.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _allocate(size) if descriptor is None else descriptor
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)
        self.mapping = mmap.mmap(self._descriptor, size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the descriptor to a process that is being started; other pickling fails."""
        duplicate: Any = reduction.DupFd(self._descriptor)
        return _receive, (self.size, duplicate)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; the mapping stays while views of it exist."""
        self._finalizer()


def _allocate(size: int) -> int:
    if sys.platform == "linux":
        descriptor = os.memfd_create("seqdata", os.MFD_CLOEXEC)
    else:  # a temporary file is unlinked at once
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _receive(size: int, duplicate: Any) -> AnonymousMemory:
    return AnonymousMemory(size, duplicate.detach())


class SharedBits:
    """One bit per checksum, initially 0; pages are allocated when bits are set.

    A forked process shares them, and so does a process that is being started with a store among its
    arguments. Other pickles get new bits, all 0.

    Args:
        count: Number of bits.
        fingerprint: The store's fingerprint.
        memory: The memory of the bits; None: new memory.
    """

    __slots__ = ("_memory", "count", "fingerprint")

    def __init__(self, count: int, fingerprint: str, memory: AnonymousMemory | None = None) -> None:
        self.count = count
        self.fingerprint = fingerprint
        self._memory = AnonymousMemory(max(1, -(-count // 8))) if memory is None else memory

    @classmethod
    def reuse(cls, bits: SharedBits | None, count: int, fingerprint: str) -> SharedBits:
        """Return bits of another process if they are of this store, else new ones."""
        if bits is not None and (bits.count, bits.fingerprint) == (count, fingerprint):
            return bits
        return cls(count, fingerprint)

    @property
    def buffer(self) -> mmap.mmap:
        """The writable bytes of the bits, the lowest bit of a byte first."""
        return self._memory.mapping

    def __reduce__(self) -> tuple[Any, ...]:
        starting = get_spawning_popen() is not None
        return SharedBits, (self.count, self.fingerprint, self._memory if starting else None)

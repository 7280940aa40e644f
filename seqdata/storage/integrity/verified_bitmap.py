"""A bitmap of verified checksums, shared by a rank and its worker processes."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

from seqdata.storage.shared_memory import AnonymousMemory


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

    @property
    def buffer(self) -> mmap.mmap:
        """The writable bytes of the bits, the lowest bit of a byte first."""
        return self._memory.mapping

    def __reduce__(self) -> tuple[Any, ...]:
        starting = get_spawning_popen() is not None
        return SharedBits, (self.count, self.fingerprint, self._memory if starting else None)

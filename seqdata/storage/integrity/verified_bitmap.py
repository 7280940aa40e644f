"""Bits that say which checksums were found right, shared by a rank and its worker processes."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

from seqdata.storage.shared_memory import AnonymousMemory


class SharedBits:
    """One bit per checksum, 0 at first; memory is taken where bits are set.

    A process that is forked has the same ones, and so has one that is being started with a store
    among its arguments. Pickled in any other way they are new ones, all 0.

    Args:
        count: How many.
        fingerprint: What they are about: the store's fingerprint.
        memory: Where they lie; None: makes it.
    """

    __slots__ = ("_memory", "count", "fingerprint")

    def __init__(self, count: int, fingerprint: str, memory: AnonymousMemory | None = None) -> None:
        self.count = count
        self.fingerprint = fingerprint
        self._memory = AnonymousMemory(max(1, -(-count // 8))) if memory is None else memory

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes that hold them, the lowest bit of a byte first; writable."""
        return self._memory.mapping

    def __reduce__(self) -> tuple[Any, ...]:
        starting = get_spawning_popen() is not None
        return SharedBits, (self.count, self.fingerprint, self._memory if starting else None)

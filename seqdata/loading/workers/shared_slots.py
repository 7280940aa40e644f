"""Where a rank and its worker processes meet: a line of status per worker, and slots for batches.

A slot holds the requests of one task on their way out and the columns on their way back; what is
finished is counted inside of it, so that it can be taken even of a worker that was killed. Place in
the flow: made by the crew, inherited by its workers. Makes: views of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.shared_memory import Anonymous

STATUS = 8  # int64 per worker
PROGRESS, SEQUENCE, MEMORY = 0, 1, 2  # columns of the status: a count, a base number, KiB
GROUP = 16  # requests of a task at most
HEAD = 512  # bytes of a slot before its data: how many are done, and where each lies
_PAGE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """Shared memory, cut into lines and slots.

    Attributes:
        memory: All of it.
        workers: How many lines of status.
        slots: How many slots.
        slot_bytes: Of each; no memory is taken before something is written there.
    """

    memory: Anonymous
    workers: int
    slots: int
    slot_bytes: int

    @classmethod
    def of(cls, workers: int, slots: int, slot_bytes: int) -> Arena:
        """Make one.

        Raises:
            OSError: If the system gives no memory or descriptor.
        """
        status = -(-workers * STATUS * 8 // _PAGE) * _PAGE
        return cls(Anonymous(status + slots * slot_bytes), workers, slots, slot_bytes)

    def status(self) -> NDArray[np.int64]:
        """Give the lines of all workers, int64 (workers, 8)."""
        flat = np.frombuffer(self.memory.mapping, dtype=np.int64, count=self.workers * STATUS)
        return flat.reshape(self.workers, STATUS)

    def slot(self, number: int) -> memoryview:
        """Give the bytes of a slot."""
        first = self.memory.size - (self.slots - number) * self.slot_bytes
        return memoryview(self.memory.mapping)[first : first + self.slot_bytes]


def done(slot: memoryview) -> NDArray[np.int64]:
    """Give the head of a slot, int64 (1,): how many of its requests are done."""
    return np.frombuffer(slot, dtype=np.int64, count=1)


def table(slot: memoryview) -> NDArray[np.int64]:
    """Give where answers lie, int64 (16, 3): place, bytes, bytes of a head.

    A place of -1 is memory of its own; bytes of -1 an error.
    """
    flat = np.frombuffer(slot, dtype=np.int64, count=3 * GROUP, offset=8)
    return flat.reshape(GROUP, 3)

"""Where a rank and its worker processes meet: a line of status per worker, and slots for batches.

A slot holds the requests of one task on their way out and the columns on their way back; what is
finished is counted inside of it, so that it can be taken even of a worker that was killed.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import LimitError
from seqdata.storage.shared_memory import AnonymousMemory

STATUS_WIDTH = 8  # int64 per worker
PROGRESS, SEQUENCE, MEMORY = 0, 1, 2  # columns of the status: a count, a base number, KiB
MAX_REQUESTS = 16  # requests of a task at most
SLOT_HEADER = 512  # bytes of a slot before its data: how many are done, and where each lies
_PAGE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SharedSlots:
    """Shared memory, cut into lines and slots.

    Attributes:
        memory: All of it.
        num_workers: How many lines of status.
        num_slots: How many slots.
        slot_bytes: Of each; no memory is taken before something is written there.
    """

    memory: AnonymousMemory
    num_workers: int
    num_slots: int
    slot_bytes: int

    @classmethod
    def allocate(cls, num_workers: int, num_slots: int, slot_bytes: int) -> SharedSlots:
        """Make one.

        Raises:
            OSError: If the system gives no memory or descriptor.
        """
        status_bytes = -(-num_workers * STATUS_WIDTH * 8 // _PAGE) * _PAGE
        return cls(
            AnonymousMemory(status_bytes + num_slots * slot_bytes),
            num_workers,
            num_slots,
            slot_bytes,
        )

    def view_status(self) -> NDArray[np.int64]:
        """Return the lines of all workers, int64 (workers, 8)."""
        flat = np.frombuffer(
            self.memory.mapping, dtype=np.int64, count=self.num_workers * STATUS_WIDTH
        )
        return flat.reshape(self.num_workers, STATUS_WIDTH)

    def view_slot(self, number: int) -> memoryview:
        """Return the bytes of a slot."""
        first = self.memory.size - (self.num_slots - number) * self.slot_bytes
        return memoryview(self.memory.mapping)[first : first + self.slot_bytes]


def view_num_done(slot: memoryview) -> NDArray[np.int64]:
    """Return the head of a slot, int64 (1,): how many of its requests are done."""
    return np.frombuffer(slot, dtype=np.int64, count=1)


def view_answer_table(slot: memoryview) -> NDArray[np.int64]:
    """Return where answers lie, int64 (16, 3): place, bytes, bytes of a head.

    A place of -1 is memory of its own; bytes of -1 an error.
    """
    flat = np.frombuffer(slot, dtype=np.int64, count=3 * MAX_REQUESTS, offset=8)
    return flat.reshape(MAX_REQUESTS, 3)


def receive_overflow(connection: Connection, size: int, *, timeout: float) -> AnonymousMemory:
    """Receive the memory that was announced.

    Args:
        connection: To the worker.
        size: Bytes of the memory.
        timeout: Seconds that its descriptor may take.

    Raises:
        EOFError: If the worker is gone, or its descriptor does not come.
        LimitError: If this process can have no more descriptors, or no more memory.
    """
    try:
        if not connection.poll(timeout):
            raise EOFError
        memory = AnonymousMemory(size, reduction.recv_handle(connection))
    except ConnectionError as error:
        raise EOFError from error
    except (OSError, RuntimeError) as error:  # RuntimeError: it came without its descriptor
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise LimitError(
            f"loader: one batch takes {size} bytes, which need memory of their own; it cannot be "
            f"had ({error}), must be; make batches smaller, or raise `ulimit -n` (now {files})"
        ) from error
    memory.close()
    return memory

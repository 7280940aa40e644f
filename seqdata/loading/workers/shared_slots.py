"""The shared memory of a rank and its workers: a status line per worker, and slots for batches.

A slot holds the requests of a task, and then its answers. The number of finished answers is counted
inside of it, so that they can be taken even if the worker was killed.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import LimitError
from seqdata.storage.local_files import describe_limit
from seqdata.storage.shared_memory import AnonymousMemory

STATUS_WIDTH = 8  # int64 per worker
PROGRESS, SEQUENCE, MEMORY = 0, 1, 2  # columns of the status: a count, a base number, KiB
MAX_REQUESTS = 16  # most requests of a task
SLOT_HEADER = 512  # bytes of a slot before its data: number of answers, and the place of each
_PAGE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SharedSlots:
    """Shared memory, divided into status lines and slots.

    Attributes:
        memory: The whole memory.
        num_workers: Number of status lines.
        num_slots: Number of slots.
        slot_bytes: Size of a slot; memory is only taken when it is written.
    """

    memory: AnonymousMemory
    num_workers: int
    num_slots: int
    slot_bytes: int

    @classmethod
    def allocate(cls, num_workers: int, num_slots: int, slot_bytes: int) -> SharedSlots:
        """Return new shared memory.

        Raises:
            OSError: If the system has no memory or descriptor left.
        """
        status_bytes = -(-num_workers * STATUS_WIDTH * 8 // _PAGE) * _PAGE
        return cls(
            AnonymousMemory(status_bytes + num_slots * slot_bytes),
            num_workers,
            num_slots,
            slot_bytes,
        )

    def view_status(self) -> NDArray[np.int64]:
        """Return the status lines of all workers, int64 (workers, 8)."""
        flat = np.frombuffer(
            self.memory.mapping, dtype=np.int64, count=self.num_workers * STATUS_WIDTH
        )
        return flat.reshape(self.num_workers, STATUS_WIDTH)

    def view_slot(self, number: int) -> memoryview:
        """Return the bytes of a slot."""
        first = self.memory.size - (self.num_slots - number) * self.slot_bytes
        return memoryview(self.memory.mapping)[first : first + self.slot_bytes]


def view_num_done(slot: memoryview) -> NDArray[np.int64]:
    """Return the number of finished requests of a slot, int64 (1,)."""
    return np.frombuffer(slot, dtype=np.int64, count=1)


def view_answer_table(slot: memoryview) -> NDArray[np.int64]:
    """Return the places of answers, int64 (16, 3): position, bytes, bytes of the header.

    A position of -1 is separate memory; bytes of -1 an error.
    """
    flat = np.frombuffer(slot, dtype=np.int64, count=3 * MAX_REQUESTS, offset=8)
    return flat.reshape(MAX_REQUESTS, 3)


def receive_overflow(connection: Connection, size: int, *, timeout: float) -> AnonymousMemory:
    """Return the announced memory of a large answer.

    Args:
        connection: The connection to the worker.
        size: Size of the memory in bytes.
        timeout: Most seconds until its descriptor arrives.

    Raises:
        EOFError: If the worker has ended, or the descriptor does not arrive.
        LimitError: If this process has no descriptor or memory left.
    """
    try:
        if not connection.poll(timeout):
            raise EOFError
        memory = AnonymousMemory(size, reduction.recv_handle(connection))
    except ConnectionError as error:
        raise EOFError from error
    except (OSError, RuntimeError) as error:  # RuntimeError: the message had no descriptor
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise LimitError(
            f"loader: a batch of {size} bytes does not fit its slot, and separate memory could "
            f"not be received ({error}). Use smaller batches, or raise {describe_limit(full)}."
        ) from error
    memory.close()
    return memory

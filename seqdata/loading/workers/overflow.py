"""Memory of an answer that is too large for its slot: a worker makes it and hands it over.

Place in the flow: beside the slots. Makes: shared memory.
"""

from __future__ import annotations

import resource
from multiprocessing import reduction
from multiprocessing.connection import Connection

from seqdata.errors import LimitError
from seqdata.storage.shared_memory import AnonymousMemory


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

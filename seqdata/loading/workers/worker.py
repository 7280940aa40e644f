"""The worker process: it receives requests, returns columns, and ends with its parent.

It imports no torch unless the transform or the dataset does, has no position, and ignores the
signals of a job and a terminal: the training process decides when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import pickle
import random
import resource
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import parent_process, reduction
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from seqdata.errors import (
    CacheError,
    ConfigError,
    DataError,
    RemoteReadError,
    SeqDataError,
)
from seqdata.loading.fetcher import Fetcher, WorkerFetcher
from seqdata.loading.workers import messages as slots
from seqdata.loading.workers.forkserver import STACK_SIGNAL, end_with_parent, ignore_signals
from seqdata.loading.workers.messages import (
    ColumnsMessage,
    ObjectMessage,
    OnSequence,
    SharedSlots,
    read_requests,
    reduce_tensor,
)
from seqdata.protocols import Store, SupportsBase, SupportsCopy, SupportsObserver, SupportsStores
from seqdata.storage.data_location import DataLocation, SupportsLocation
from seqdata.storage.local_files import check_fingerprint
from seqdata.storage.shared_memory import AnonymousMemory
from seqdata.storage.views import format_title

MESSAGE = struct.Struct("<qqq")
DONE, OVERFLOW = 0, 1  # types of messages: a task is done, memory of an answer that is too large
STOP = -1  # in place of a task
_PARENT_POLL_SECONDS = 0.25  # seconds between two checks of the parent
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # constants of glibc's mallopt
_POLL_SECONDS = 1.0  # timeout of every wait, in seconds


class DeferredPickle:
    """An object for a worker, unpickled by the worker itself so that it can report errors.

    It goes in shared memory: a process that ends while it is started would leave the training
    process waiting for the end of a pipe.

    Args:
        content: Any picklable object; a forked process has it unchanged.
        memory: Memory with the pickle, in a started process.
    """

    def __init__(self, content: Any, memory: AnonymousMemory | None = None) -> None:
        self._content = content
        self._memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        _DeferredPickler(file, 5).dump(self._content)
        self._memory = AnonymousMemory(file.tell())  # kept until the process is started
        self._memory.mapping[:] = file.getbuffer()
        return DeferredPickle, (None, self._memory)

    def load(self) -> Any:
        """Return the content, which is unpickled once."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._content = pickle.loads(memory.mapping)
            memory.close()
        return self._content


class _DeferredPickler(reduction.ForkingPickler):
    """Pickles objects for a process that is being started.

    Tensors that are not shared go by value: torch would move them to ``/dev/shm``, which may be
    small.
    """

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        reduced = reduce_tensor(value)
        return NotImplemented if reduced is NotImplemented or value.is_shared() else reduced


@dataclass(frozen=True, slots=True, eq=False)
class WorkerContext:
    """The arguments of a worker.

    Attributes:
        number: Index of the worker in its rank.
        connection: The connection to the pool.
        slots: The shared memory of requests and answers.
        stacks: Memory for its stack, written when it crashes or on request.
        seed: Seed of the global random generators, which a Dataset may use.
        is_started_by_main: Whether the main thread of the training process, or a fork server,
            starts it.
        fetcher: Fetcher of the columns.
        fingerprints: Fingerprints of the stores that it reopens.
    """

    number: int
    connection: Connection
    slots: SharedSlots
    stacks: AnonymousMemory
    seed: int
    is_started_by_main: bool
    fetcher: DeferredPickle
    fingerprints: list[str]


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of its error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_worker(context: WorkerContext) -> None:
    """Answer tasks until the pool closes the connection or the parent ends."""
    _set_up_process(context)
    status = context.slots.view_status()[context.number]
    status[slots.SEQUENCE] = -1

    def on_sequence(sequence: int) -> None:
        status[slots.SEQUENCE] = sequence
        status[slots.PROGRESS] += 1

    fetcher: WorkerFetcher | Exception
    try:
        fetcher = _observe_dataset(
            _check_reopened(context.fetcher.load(), context.fingerprints), on_sequence
        )
    except Exception as error:  # reported in place of every answer
        fetcher = _make_unpickle_error(error)
    _seed_generators(context)
    while (received := _receive_task(context.connection)) is not None:
        task, slot = received
        status[slots.PROGRESS] += 1
        message = _answer(context, fetcher, task, context.slots.view_slot(slot), on_sequence)
        status[slots.SEQUENCE] = -1
        with contextlib.suppress(OSError):  # the pool has closed the connection
            context.connection.send_bytes(message)


def collect_fingerprints(fetcher: WorkerFetcher) -> list[str]:
    """Return the fingerprints of the stores that a worker reopens."""
    return [store.fingerprint for store in _iterate_reopened(fetcher.reader.store)]


def _iterate_reopened(store: Store) -> Iterator[Store]:
    """Yield the stores that are sent by location and reopened."""
    if isinstance(store, SupportsBase):
        yield from _iterate_reopened(store.base)
    elif isinstance(store, SupportsStores):
        for joined_store in store.stores:
            yield from _iterate_reopened(joined_store)
    elif not (isinstance(store, SupportsCopy) and store.is_copied_to_workers):
        yield store


def _check_reopened(fetcher: WorkerFetcher, fingerprints: list[str]) -> WorkerFetcher:
    """Return the fetcher, if the reopened stores have the same data.

    Raises:
        FingerprintMismatch: If the data of a store differs.
    """
    stores = _iterate_reopened(fetcher.reader.store)
    for store, fingerprint in zip(stores, fingerprints, strict=True):
        location = (
            store.locate(-1)
            if isinstance(store, SupportsLocation)
            else DataLocation(dataset=format_title(store))
        )
        check_fingerprint(location, store.fingerprint, fingerprint)
    return fetcher


def _make_unpickle_error(error: Exception) -> SeqDataError:
    """Return the error about content that cannot be unpickled here, such as a notebook's function.

    It is not a ``DataError`` if data was damaged after the training process opened it, since
    ``on_error`` must not skip it. Errors of a server or of the cache stay as they are.
    """
    if isinstance(error, RemoteReadError | CacheError):
        return error
    if isinstance(error, DataError):
        config_error = ConfigError(
            f"loader: a worker process cannot open the data ({type(error).__name__}: {error}), "
            "which the training process could. Restore it."
        ).with_details(**error.details)
    else:
        config_error = ConfigError(
            f"loader: a worker process cannot unpickle its work ({type(error).__name__}: {error}). "
            "Define functions in a module, or pass "
            "start_method='fork'."
        )
    config_error.__cause__ = error
    return config_error


def _receive_task(connection: Connection) -> tuple[int, int] | None:
    """Wait for a task, and return it with its slot; None if there are no more."""
    with contextlib.suppress(EOFError, OSError):  # the pool has closed the connection
        while not connection.poll(_POLL_SECONDS):
            continue
        task, slot, _ = MESSAGE.unpack(connection.recv_bytes())
        return None if task == STOP else (task, slot)
    return None


def _answer(
    context: WorkerContext,
    fetcher: WorkerFetcher | Exception,
    task: int,
    slot: memoryview,
    on_sequence: OnSequence,
) -> bytes:
    """Write the answers of a task, including errors, and return the message about it."""
    started_at = time.monotonic()
    writer = _ResultWriter(context, task, slot)
    for request in read_requests(slot, on_sequence):
        try:
            if isinstance(fetcher, Exception):
                raise fetcher
            columns, axes = fetcher.fetch(request)
            if fetcher.collate is None:
                writer.write(
                    ColumnsMessage(columns, axes if axes is not fetcher.reader.axes else None)
                )
            else:
                collated = fetcher.collate(columns, axes, len(request.ids))
                writer.write(ObjectMessage(collated))
        except Exception as error:
            writer.write_error(_pack_error(error))
        on_sequence(-1)
    microseconds = int(1e6 * (time.monotonic() - started_at))
    return MESSAGE.pack(DONE, task, microseconds)


class _ResultWriter:
    """Writes the answers of a task into its slot, or into separate memory if it is full."""

    def __init__(self, context: WorkerContext, task: int, slot: memoryview) -> None:
        self._context = context
        self._task = task
        self._slot = slot
        self._offset = slots.SLOT_HEADER
        self._num_done = slots.view_num_done(slot)
        self._num_done[0] = 0
        self._table = slots.view_answer_table(slot)

    def write(self, message: ColumnsMessage | ObjectMessage) -> None:
        """Write an answer."""
        self._write_result(message.size, message.header, message.write)

    def write_error(self, packed: bytes) -> None:
        """Write an error in place of an answer."""

        def write(to: memoryview) -> None:
            to[: len(packed)] = packed

        self._write_result(-1, packed, write)

    def _write_result(self, size: int, header: bytes, write: Callable[[memoryview], None]) -> None:
        needed = max(0, size) + len(header)
        if self._offset + needed <= len(self._slot):
            write(self._slot[self._offset : self._offset + needed])
            offset = self._offset
            self._offset = -(-(self._offset + needed) // slots.SLOT_HEADER) * slots.SLOT_HEADER
        else:
            self._send_overflow(needed, write)
            offset = -1
        number = int(self._num_done[0])
        self._table[number] = offset, size, len(header)
        self._num_done[0] = number + 1

    def _send_overflow(self, size: int, write: Callable[[memoryview], None]) -> None:
        """Write into separate memory, whose descriptor is sent to the pool."""
        memory = AnonymousMemory(max(1, size))
        write(memoryview(memory.mapping))
        connection, parent = self._context.connection, parent_process()
        connection.send_bytes(MESSAGE.pack(OVERFLOW, self._task, memory.size))
        reduction.send_handle(connection, memory.fileno(), parent.pid if parent else None)
        memory.close()


def _pack_error(error: Exception) -> bytes:
    """Return an exception and its traceback as bytes; its text if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    class_path = f"{type(error).__module__}.{type(error).__qualname__}"
    message = f"{class_path}: {error}", list(getattr(error, "__notes__", ()))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception as pickle_error:  # pickling may raise anything
        pickled, message = (
            b"",
            (f"{message[0]} (it cannot be pickled: {pickle_error})", message[1]),
        )
    return pickle.dumps((pickled, message, text))


def _set_up_process(context: WorkerContext) -> None:
    """Ignore signals, write stacks to memory that the parent reads, and end with the parent."""
    _tune_malloc()
    faulthandler.disable()  # if enabled before, it would leave a later handler in place
    faulthandler.enable(context.stacks.fileno(), all_threads=False)
    faulthandler.register(STACK_SIGNAL, context.stacks.fileno(), all_threads=False)
    ignore_signals()
    if context.is_started_by_main:
        end_with_parent()
    thread = threading.Thread(target=_exit_with_parent, args=(context,), name="seqdata-parent")
    thread.daemon = True
    thread.start()


def _exit_with_parent(context: WorkerContext) -> None:
    """Record the memory use until the parent has ended; then exit."""
    parent_pid = os.getppid()
    status = context.slots.view_status()[context.number]
    with contextlib.suppress(ProcessLookupError):  # it ended before this process was ready
        sentinels = _open_parent_sentinels()
        while os.getppid() == parent_pid:
            status[slots.MEMORY] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if wait(sentinels, timeout=_PARENT_POLL_SECONDS):
                break
    os._exit(1)


def _open_parent_sentinels() -> list[int]:
    """Return descriptors that become ready when the parent ends, even if others hold its pipes.

    Raises:
        ProcessLookupError: If it has ended.
    """
    parent = parent_process()
    if parent is None or parent.pid is None:
        return []
    sentinels = [parent.sentinel]
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not allowed here, or it has ended
            sentinels.append(os.pidfd_open(parent.pid))
    with contextlib.suppress(PermissionError):  # it is there, and must not be signalled
        os.kill(parent.pid, 0)
    return sentinels


def _tune_malloc() -> None:
    """Make malloc recycle large arrays, which a transform makes and drops for every batch.

    By default each is mapped and unmapped, which costs a page fault per 4 KiB, several times the
    cost of using them. Only glibc has this option.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)


def _seed_generators(context: WorkerContext) -> None:
    """Seed the global generators of this worker, and limit torch to one thread, if imported."""
    random.seed(context.seed)
    np.random.seed(context.seed % (1 << 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(context.seed)
        torch.set_num_threads(1)


def _observe_dataset(fetcher: WorkerFetcher, on_sequence: OnSequence) -> WorkerFetcher:
    """Return the fetcher, which reports each item of a Dataset before it is read."""
    store, reader = fetcher.reader.store, fetcher.reader
    if isinstance(store, SupportsObserver):
        store = store.observe(on_sequence)
    if store is reader.store or not isinstance(fetcher, Fetcher):
        return fetcher
    reader = replace(reader, store=store)
    transform_applier = fetcher.transform_applier
    if transform_applier is not None:
        transform_applier = replace(transform_applier, reader=reader)
    return replace(fetcher, reader=reader, transform_applier=transform_applier)

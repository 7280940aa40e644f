"""A worker process: takes requests, gives columns, and leaves when its parent does.

It imports no torch unless the transform or the data set does, holds no position, and ignores
Ctrl-C and SIGTERM: the training process decides when it ends. Place in the flow: the other side of
the crew. Reads: a store. Makes: answers in shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import io
import os
import pickle
import random
import resource
import signal
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

from seqdata.errors import CacheError, ConfigError, DataError, RemoteReadError, SeqDataError
from seqdata.loading.fetcher import Fetching, Work
from seqdata.loading.workers import shared_slots as slots
from seqdata.loading.workers.forkserver import end_with_parent, leave_to_parent
from seqdata.loading.workers.messages import Parcel, Tell, get_requests
from seqdata.loading.workers.object_messages import ObjectParcel, reduced_tensor
from seqdata.loading.workers.shared_slots import Arena
from seqdata.protocols import Store, Watched
from seqdata.storage.concat import JoinedStore
from seqdata.storage.data_location import Place, Placing
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.local_files import check_same
from seqdata.storage.memory import MemoryStore
from seqdata.storage.shared_memory import Anonymous
from seqdata.storage.views import View, title_of

MESSAGE = struct.Struct("<qqq")
DONE, OWN = 0, 1  # kinds of messages: a task is done, memory of an answer that is too large
STOP = -1  # in place of a task
_LOOK = 0.25  # seconds between two looks at the parent
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # numbers of glibc's mallopt
_WAKE_UP = 1.0  # seconds after which every wait looks again


class Sealed:
    """What a worker needs, unpickled by itself, so that it can tell what goes wrong there.

    Args:
        content: Anything that pickles; a forked process has it as it is.
    """

    def __init__(self, content: Any, *, pickled: bool = False) -> None:
        self._content = content
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled:
            return functools.partial(Sealed, pickled=True), (self._content,)
        file = io.BytesIO()
        _Sealer(file, 5).dump(self._content)
        return functools.partial(Sealed, pickled=True), (file.getvalue(),)

    def open(self) -> Any:
        """Give the content."""
        return pickle.loads(self._content) if self._pickled else self._content


class _Sealer(reduction.ForkingPickler):
    """Pickles for a process that is being started.

    Tensors go by value where nobody has shared them: torch would move them to ``/dev/shm``, which
    may be small.
    """

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        made = reduced_tensor(value)
        return NotImplemented if made is NotImplemented or value.is_shared() else made


@dataclass(frozen=True, slots=True, eq=False)
class Desk:
    """What one worker is given.

    Attributes:
        number: Among the workers of its rank.
        connection: To the crew.
        arena: Where requests and answers lie.
        stacks: Where its stack is written when it crashes or is asked for it.
        seed: Of the global generators of random numbers, which a Dataset may use.
        by_main: Whether the main thread of the training process starts it, or a fork server.
        fetching: Makes the columns.
        data: Fingerprints of the stores that it opens again.
    """

    number: int
    connection: Connection
    arena: Arena
    stacks: Anonymous
    seed: int
    by_main: bool
    fetching: Sealed
    data: list[str]


class Failure(Exception):
    """The traceback of a worker, as the cause of what it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def work(desk: Desk) -> None:
    """Answer until the crew closes the connection or the parent is gone."""
    _behave(desk)
    status = desk.arena.status()[desk.number]
    status[slots.SEQUENCE] = -1

    def tell(sequence: int) -> None:
        status[slots.SEQUENCE] = sequence
        status[slots.PROGRESS] += 1

    fetching: Work | Exception
    try:
        fetching = _watched(_same(desk.fetching.open(), desk.data), tell)
    except Exception as error:  # told in place of every answer
        fetching = _unmakeable(error)
    _seed(desk)
    while (given := _next_task(desk.connection)) is not None:
        task, slot = given
        status[slots.PROGRESS] += 1
        answered = _answer(desk, fetching, task, desk.arena.slot(slot), tell)
        status[slots.SEQUENCE] = -1
        with contextlib.suppress(OSError):  # the crew has closed the connection
            desk.connection.send_bytes(answered)


def data_of(fetching: Work) -> list[str]:
    """Return the fingerprints of the stores that a worker opens again."""
    return [one.fingerprint for one in _opened_again(fetching.reading.store)]


def _opened_again(store: Store) -> Iterator[Store]:
    """Return the stores that are not sent as they are, but by where they lie."""
    if isinstance(store, View):
        yield from _opened_again(store.base)
    elif isinstance(store, JoinedStore):
        for part in store.parts:
            yield from _opened_again(part)
    elif not isinstance(store, DatasetStore | MemoryStore):
        yield store


def _same(fetching: Work, data: list[str]) -> Work:
    """Return what was sent, if the stores that were opened again hold the same data.

    Raises:
        FingerprintMismatch: If one does not, whatever backend it is of.
    """
    stores = _opened_again(fetching.reading.store)
    for store, fingerprint in zip(stores, data, strict=True):
        place = store.place(-1) if isinstance(store, Placing) else Place(dataset=title_of(store))
        check_same(place, store.fingerprint, fingerprint)
    return fetching


def _unmakeable(error: Exception) -> SeqDataError:
    """Say that what was sent cannot be made here, as a function of a notebook cannot.

    It is no ``DataError`` where data was damaged after the training process opened it: that process
    must not read on to leave out (``on_error``) what it cannot know. What a server or the cache
    refuses is told as it is.
    """
    if isinstance(error, RemoteReadError | CacheError):
        return error
    if isinstance(error, DataError):
        made = ConfigError(
            f"loader: a worker process cannot open the data ({type(error).__name__}: {error}), "
            "must find it as the training process did; restore it"
        ).with_facts(**error.facts)
    else:
        made = ConfigError(
            "loader: what was sent to a worker process cannot be made there "
            f"({type(error).__name__}: {error}), must be; write functions in a module, or pass "
            "start_method='fork'"
        )
    made.__cause__ = error
    return made


def _next_task(connection: Connection) -> tuple[int, int] | None:
    """Wait for a task and its slot; None: there will be none."""
    with contextlib.suppress(EOFError, OSError):  # the crew has closed the connection
        while not connection.poll(_WAKE_UP):
            continue
        task, slot, _ = MESSAGE.unpack(connection.recv_bytes())
        return None if task == STOP else (task, slot)
    return None


def _answer(
    desk: Desk, fetching: Work | Exception, task: int, slot: memoryview, tell: Tell
) -> bytes:
    """Make the answers of one task, errors among them. Gives the message about it."""
    began = time.monotonic()
    outbox = _Outbox(desk, task, slot)
    for request in get_requests(slot, tell):
        try:
            if isinstance(fetching, Exception):
                raise fetching
            columns, axes = fetching.columns(request)
            if fetching.collate is None:
                outbox.put(Parcel(columns, axes if axes is not fetching.reading.axes else None))
            else:
                made = fetching.collate(columns, axes, len(request.ids))
                outbox.put(ObjectParcel(made))
        except Exception as error:
            outbox.put_error(_told(error))
        tell(-1)
    spent = int(1e6 * (time.monotonic() - began))
    return MESSAGE.pack(DONE, task, spent)


class _Outbox:
    """Puts the answers of a task into its slot, or into memory of their own where it is full."""

    def __init__(self, desk: Desk, task: int, slot: memoryview) -> None:
        self._desk = desk
        self._task = task
        self._slot = slot
        self._at = slots.HEAD
        self._done = slots.done(slot)
        self._done[0] = 0
        self._table = slots.table(slot)

    def put(self, parcel: Parcel | ObjectParcel) -> None:
        """Write one answer."""
        self._place(parcel.size, parcel.head, parcel.write)

    def put_error(self, told: bytes) -> None:
        """Write what an answer cannot be had for."""

        def write(to: memoryview) -> None:
            to[: len(told)] = told

        self._place(-1, told, write)

    def _place(self, size: int, head: bytes, write: Callable[[memoryview], None]) -> None:
        needed = max(0, size) + len(head)
        if self._at + needed <= len(self._slot):
            write(self._slot[self._at : self._at + needed])
            place = self._at
            self._at = -(-(self._at + needed) // slots.HEAD) * slots.HEAD
        else:
            self._send_apart(needed, write)
            place = -1
        number = int(self._done[0])
        self._table[number] = place, size, len(head)
        self._done[0] = number + 1

    def _send_apart(self, size: int, write: Callable[[memoryview], None]) -> None:
        """Write into memory that the crew gets the descriptor of."""
        memory = Anonymous(max(1, size))
        write(memoryview(memory.mapping))
        connection, parent = self._desk.connection, parent_process()
        connection.send_bytes(MESSAGE.pack(OWN, self._task, memory.size))
        reduction.send_handle(connection, memory.fileno(), parent.pid if parent else None)
        memory.close()


def _told(error: Exception) -> bytes:
    """Give an exception with its traceback as bytes, as itself where it can be sent."""
    text = "".join(traceback.format_exception(error))
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    words = f"{kind}: {error}", list(getattr(error, "__notes__", ()))
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)
    except Exception as other:  # pickling runs anybody's code
        sent, words = b"", (f"{words[0]} (it cannot be sent as it is: {other})", words[1])
    return pickle.dumps((sent, words, text))


def _behave(desk: Desk) -> None:
    """Leave signals to the parent, write stacks where it can read them, and leave when it does."""
    _keep_memory()
    leave_to_parent()
    if desk.by_main:
        end_with_parent()
    faulthandler.disable()  # enabled before, it would leave a handler that came after it
    faulthandler.enable(desk.stacks.fileno(), all_threads=False)
    faulthandler.register(signal.SIGUSR1, desk.stacks.fileno(), all_threads=False)
    watch = threading.Thread(target=_leave_with_parent, args=(desk,), name="seqdata-parent")
    watch.daemon = True
    watch.start()


def _leave_with_parent(desk: Desk) -> None:
    """Note how much memory is taken, until the parent is gone; then leave."""
    above, signs = os.getppid(), _signs_of_parent()
    status = desk.arena.status()[desk.number]
    while os.getppid() == above:
        status[slots.MEMORY] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if wait(signs, timeout=_LOOK):
            break
    os._exit(1)


def _signs_of_parent() -> list[int]:
    """Give descriptors that are ready once the parent is gone, whoever else holds its pipes."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        return []
    signs = [parent.sentinel]
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not allowed here, or it is gone: the pipe says so
            signs.append(os.pidfd_open(parent.pid))
    return signs


def _keep_memory() -> None:
    """Let malloc recycle large arrays: a transform makes and drops them for every batch.

    By default each is mapped and given back, which costs a page fault per 4 KiB, several times what
    is done with them. Only glibc has this.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)


def _seed(desk: Desk) -> None:
    """Give each worker other global random numbers, and one thread of torch, where it is there."""
    random.seed(desk.seed)
    np.random.seed(desk.seed % (1 << 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(desk.seed)
        torch.set_num_threads(1)


def _watched(fetching: Work, tell: Tell) -> Work:
    """Give the same, where a Dataset tells of each item before it reads it."""
    store, reading = fetching.reading.store, fetching.reading
    if isinstance(store, Watched):
        store = store.watched(tell)
    if store is reading.store or not isinstance(fetching, Fetching):
        return fetching
    reading = replace(reading, store=store)
    transforming = fetching.transforming
    if transforming is not None:
        transforming = replace(transforming, reading=reading)
    return replace(fetching, reading=reading, transforming=transforming)

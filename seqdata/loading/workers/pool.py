"""The worker processes of a loader, and the slots of shared memory for their answers.

The pool owns all slots and sends one with each task; a worker has no position. Answers are taken in
the order of the plan, independent of the worker.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import logging
import os
import pickle
import resource
import threading
import time
import weakref
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from typing import Any

from seqdata.batch.axes import Axes
from seqdata.errors import (
    ConfigError,
    IncompleteEpochError,
    LimitError,
    SeqDataError,
    find_interruption,
)
from seqdata.kernel.dispatch import get_kernel
from seqdata.loading.fetcher import WorkerFetcher
from seqdata.loading.options import EngineOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.workers import handle as handles
from seqdata.loading.workers import messages as slots
from seqdata.loading.workers.handle import WorkerHandle, WorkerTask, needs_script, start_worker
from seqdata.loading.workers.messages import (
    SharedSlots,
    receive_overflow,
    unpack_columns,
    unpack_object,
    write_requests,
)
from seqdata.loading.workers.worker import MESSAGE, OVERFLOW, STOP, WorkerTraceback
from seqdata.storage.local_files import describe_limit

LOG = logging.getLogger("seqdata")
SLOT_BYTES = 64 << 20  # bytes of a slot, allocated by the system when written
TASKS_AHEAD = 2  # maximum number of tasks that wait at a worker
_SPARE_TASKS = 1  # maximum number of answered tasks per worker that were not taken
TASK_SECONDS = 0.05  # target seconds of a task: it has as many requests as take that long
_WARN_SECONDS = 10.0  # seconds without progress after which a line is logged
_POLL_SECONDS = 0.2  # timeout of every wait, in seconds
_LIMIT_ERRNOS = (errno.EAGAIN, errno.ENOMEM)  # of processes and memory, which limits bound
_DESCRIPTORS_OF_WORKER = 5  # that this process has open for each: pipes, its memory, its sentinel
_DESCRIPTORS_TO_START = 12  # and while they are started
_MAX_PROGRESS_GAP = 1.0  # seconds that count per check, as this process may have been stopped
_EXIT_TIMEOUT = 1.0  # seconds for workers to end by themselves


class WorkerPool:
    """A pool of worker processes, used by one epoch at a time.

    Args:
        fetcher: Fetcher that the workers run.
        options: The number of workers, and their start method.

    Raises:
        ConfigError: If workers cannot be started, or the fetcher cannot be pickled.
    """

    def __init__(self, fetcher: WorkerFetcher, options: EngineOptions) -> None:
        self._fetcher = fetcher
        self._options = options
        self._pid = os.getpid()
        self._kernel = get_kernel()
        self._workers: list[WorkerHandle] = []
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self))
        self._before_joining: util.Finalize | None = None
        self._lock = threading.RLock()  # held while receiving and closing
        self.is_cancelled = False
        self._checked_at = 0.0
        self.request_bytes, self.request_seconds = 0.0, 0.0
        count = options.num_workers
        try:
            self._slots = SharedSlots.allocate(
                count, (TASKS_AHEAD + _SPARE_TASKS) * count + 1, SLOT_BYTES
            )
            self._free_slots = list(range(self._slots.num_slots))
            has_script = needs_script(fetcher, options)
            for number in range(count):
                self._workers.append(
                    start_worker(number, self._slots, fetcher, options, has_script=has_script)
                )
        except (OSError, EOFError) as error:
            self.close(kill=True)
            if find_interruption(error) is not None:
                raise
            raise _make_start_error(error, count) from error
        except BaseException:
            self.close(kill=True)
            raise
        self._status = self._slots.view_status()
        self._slots.memory.close()
        atexit.register(self._at_exit)
        # multiprocessing joins its children before functions of atexit run
        self._before_joining = util.Finalize(None, self._at_exit, exitpriority=10)
        weakref.finalize(self, _end_workers, self._workers, self._pid, kill=True).atexit = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    @property
    def error(self) -> SeqDataError | None:
        """The error after which no more tasks are sent; None if there was none."""
        return next((worker.error for worker in self._workers if worker.error is not None), None)

    @property
    def is_alive(self) -> bool:
        """Whether all workers are alive, and belong to this process."""
        return self._pid == os.getpid() and all(
            worker.process.is_alive() for worker in self._workers
        )

    @property
    def has_room(self) -> bool:
        """Whether there is a free slot, and a worker that can take a task."""
        if self.is_cancelled or not self._free_slots or self.error is not None:
            return False
        return len(self._find_least_busy().tasks) < TASKS_AHEAD

    def _find_least_busy(self) -> WorkerHandle:
        return min(self._workers, key=lambda worker: len(worker.tasks))

    def submit(self, requests: list[StepRequest]) -> WorkerTask:
        """Send a task to the worker with the fewest tasks."""
        worker = self._find_least_busy()
        slot = self._slots.view_slot(self._free_slots[-1])
        write_requests(slot, requests)
        slots.view_num_done(slot)[0] = 0
        task = WorkerTask(self._free_slots.pop(), slot, requests, worker)
        if not worker.tasks:
            worker.idle_seconds, worker.has_warned = 0.0, False
            if not any(other.tasks for other in self._workers):
                self._checked_at = time.monotonic()  # nothing was expected of them before
        worker.tasks.append(task)
        try:
            worker.connection.send_bytes(MESSAGE.pack(len(worker.tasks), task.slot, 0))
        except OSError as error:  # it has ended, which is noticed when its answers are awaited
            if find_interruption(error) is not None:
                raise
            LOG.debug("worker %d has ended", worker.number)
        return task

    def take_answer(self, task: WorkerTask) -> tuple[Any, Axes]:
        """Return the next answer of a task: columns, or the result of collating.

        Raises:
            Exception: The error that the worker raised.
        """
        slot, (offset, size, header_bytes) = task.slot_view, task.answer_table[task.num_taken]
        task.num_taken += 1
        if offset < 0:
            if not task.overflow and task.error is not None:
                raise task.error
            offset, slot = 0, memoryview(task.overflow.popleft().mapping)
        has_failed, size = size < 0, max(0, size)
        content = slot[offset : offset + size + header_bytes]
        if has_failed:
            _raise_worker_error(content, task.worker)
        reader_axes = self._fetcher.reader.axes
        if self._fetcher.collate is not None:
            return unpack_object(content, content[size:]), reader_axes
        columns, axes = unpack_columns(content, content[size:], self._kernel)
        return columns, axes or reader_axes

    def release(self, task: WorkerTask) -> None:
        """Free the slot of a task; if the task is not answered yet, once it is."""
        task.is_abandoned = True
        if task.is_finished:
            task.overflow.clear()
            self._free_slots.append(task.slot)

    def receive(self) -> None:
        """Wait a short time for answers of any worker.

        Raises:
            IncompleteEpochError: If the pool is being closed.
        """
        with self._lock:
            if self.is_cancelled:
                raise IncompleteEpochError(
                    "loader: its worker processes were shut down during the iteration. Iterate "
                    "again."
                )
            worker_of: dict[Any, WorkerHandle] = {}
            for worker in self._workers:
                if worker.error is None:
                    worker_of[worker.connection] = worker_of[worker.process.sentinel] = worker
            for ready in wait(list(worker_of), timeout=_POLL_SECONDS):
                worker = worker_of[ready]
                if ready is not worker.connection or not self._read_message(worker):
                    self._handle_exit(worker)
            self._check_progress()

    def _read_message(self, worker: WorkerHandle) -> bool:
        """Read one message; return False if no more will follow."""
        try:
            message_type, _, value = MESSAGE.unpack(worker.connection.recv_bytes())
            task = worker.tasks[0]
            if message_type == OVERFLOW:
                task.overflow.append(
                    receive_overflow(worker.connection, value, timeout=_EXIT_TIMEOUT)
                )
                return True
        except (EOFError, OSError) as error:
            if find_interruption(error) is not None:
                raise
            return False
        except LimitError as error:
            if find_interruption(error) is not None:
                raise
            self._fail_worker(worker, error)
            return True
        worker.tasks.popleft()
        worker.idle_seconds, worker.has_warned = 0.0, False
        self._finish_task(task)
        self._update_costs(task, value / 1e6)
        return True

    def _finish_task(self, task: WorkerTask, error: SeqDataError | None = None) -> None:
        """Make the finished answers of a task available; the others are missing."""
        num_done = int(slots.view_num_done(task.slot_view)[0])
        task.answer_table = slots.view_answer_table(task.slot_view)[:num_done].tolist()
        task.is_finished, task.error = True, error
        if task.is_abandoned:
            self.release(task)

    def _update_costs(self, task: WorkerTask, seconds: float) -> None:
        """Update the estimated cost of a request, weighting recent requests more."""
        count = len(task.requests)
        request_bytes = (
            sum(size + header_bytes for _, size, header_bytes in task.answer_table) / count
        )
        is_known = self.request_seconds > 0
        seconds = max(1e-6, seconds / count)
        self.request_bytes += (request_bytes - self.request_bytes) * (0.25 if is_known else 1)
        self.request_seconds += (seconds - self.request_seconds) * (0.25 if is_known else 1)

    def _handle_exit(self, worker: WorkerHandle) -> None:
        """Take the finished answers of a worker that has ended; the rest of its tasks is lost."""
        if worker.error is not None:
            return
        while _has_message(worker.connection) and self._read_message(worker):
            pass
        worker.process.join(timeout=_EXIT_TIMEOUT)
        stack = handles.read_stack(worker.stacks)
        store = self._fetcher.reader.store
        self._fail_worker(
            worker,
            handles.make_died_error(
                self._take_snapshot(worker), worker.process.exitcode, stack, store
            ),
        )

    def _fail_worker(self, worker: WorkerHandle, error: SeqDataError) -> None:
        """Mark a worker as failed: its finished answers can be taken, the others are lost."""
        worker.error = error
        while worker.tasks:
            self._finish_task(worker.tasks.popleft(), error)

    def _check_progress(self) -> None:
        """Warn about workers without progress, and fail those that stall."""
        now = time.monotonic()
        elapsed, self._checked_at = min(now - self._checked_at, _MAX_PROGRESS_GAP), now
        for worker in self._workers:
            if worker.tasks:
                self._check_worker(worker, elapsed)

    def _check_worker(self, worker: WorkerHandle, elapsed: float) -> None:
        progress = int(self._status[worker.number, slots.PROGRESS])
        if progress != worker.last_progress:
            worker.last_progress, worker.idle_seconds, worker.has_warned = progress, 0.0, False
            return
        worker.idle_seconds += elapsed
        seconds, limit = worker.idle_seconds, self._options.stall_timeout
        store = self._fetcher.reader.store
        if seconds >= limit:
            stack = handles.dump_stack(worker.pid, worker.stacks)
            snapshot = self._take_snapshot(worker)
            remedy = handles.choose_remedy(self._fetcher, "raise `stall_timeout`")
            self._fail_worker(
                worker, handles.make_stalled_error(snapshot, seconds, stack, store, remedy)
            )
        elif seconds >= min(_WARN_SECONDS, limit / 2) and not worker.has_warned:
            worker.has_warned = True
            LOG.warning(
                "loader: %s", handles.describe_slow(self._take_snapshot(worker), seconds, store)
            )

    def _take_snapshot(self, worker: WorkerHandle) -> handles.WorkerSnapshot:
        """Return the state of a worker and its last work."""
        status = self._status[worker.number].tolist()
        is_ready, batch_sequences = status[slots.PROGRESS] > 0, tuple[int, ...]()
        if is_ready and worker.tasks:
            task = worker.tasks[0]
            num_done = int(slots.view_num_done(task.slot_view)[0])
            if num_done < len(task.requests):
                batch_sequences = tuple(task.requests[num_done].ids.tolist())
        sequence = status[slots.SEQUENCE] if status[slots.SEQUENCE] in batch_sequences else None
        return handles.WorkerSnapshot(
            worker=worker.number, pid=worker.pid, is_ready=is_ready, sequence=sequence,
            batch_sequences=batch_sequences, peak_kib=status[slots.MEMORY],
        )  # fmt: skip

    def close(self, *, kill: bool = False) -> None:
        """End the processes; those that do not end within a second are killed."""
        self.is_cancelled = True
        if os.getpid() != self._pid:  # in a forked process, which does not own them
            return
        with self._lock:
            _end_workers(self._workers, self._pid, kill=kill)
        atexit.unregister(self._at_exit)
        before_joining, self._before_joining = self._before_joining, None
        if before_joining is not None:  # once: at the exit, multiprocessing can be gone
            before_joining.cancel()


def _end_workers(workers: list[WorkerHandle], pid: int, *, kill: bool) -> None:
    """End the workers of a pool."""
    if os.getpid() != pid:
        return
    ending = workers[:]
    workers.clear()
    for worker in ending:
        if kill:
            worker.process.kill()
        with contextlib.suppress(OSError):  # it has ended already
            worker.connection.send_bytes(MESSAGE.pack(STOP, 0, 0))
        worker.connection.close()
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for worker in ending:
        worker.process.join(timeout=max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(timeout=_EXIT_TIMEOUT)
        worker.stacks.close()
        if worker.process.exitcode is not None:
            worker.process.close()


def _make_start_error(error: OSError | EOFError, count: int) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    where = f"loader: cannot start {count} worker processes"
    if isinstance(error, BrokenPipeError | ConnectionResetError | EOFError):  # it has ended
        return ConfigError(
            f"{where}: one ended while it was sent its work ({reason}); {handles.SCRIPT_REMEDY}."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        needed = _DESCRIPTORS_TO_START + _DESCRIPTORS_OF_WORKER * count
        return ConfigError(
            f"{where} ({reason}). Raise {describe_limit(error, needed)}; or use fewer "
            "`num_workers`."
        )
    if error.errno not in _LIMIT_ERRNOS:
        return ConfigError(
            f"{where} ({reason}). Change what the error names, or use num_workers=0."
        )
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return ConfigError(
        f"{where} ({reason}). Raise `ulimit -u` (now {processes}) or the limits of the container, "
        "or use fewer `num_workers`."
    )


def _has_message(connection: Connection) -> bool:
    try:
        return connection.poll(0)
    except OSError as error:
        if find_interruption(error) is not None:
            raise
        return False


def _raise_worker_error(header: memoryview, worker: WorkerHandle) -> None:
    """Raise the error of a worker, with its traceback as the cause."""
    pickled, message, trace = pickle.loads(header)  # our own worker wrote it
    error = _unpack_error(pickled, *message)
    if isinstance(error, SeqDataError):
        details = {**error.details, "worker": worker.number}
        raise error.with_details(**details) from WorkerTraceback(trace)
    error.add_note(f"in worker {worker.number} (pid {worker.pid})")
    raise error from WorkerTraceback(trace)


def _unpack_error(pickled: bytes, message: str, notes: list[str]) -> Exception:
    """Return the worker's exception, or its text if it cannot be unpickled here."""
    if pickled:
        try:
            error: Exception = pickle.loads(pickled)
        except Exception as unpickle_error:  # unpickling may raise anything
            message = f"{message} (it cannot be unpickled here: {unpickle_error})"
        else:
            return error
    substitute = RuntimeError(message)
    for note in notes:
        substitute.add_note(note)
    return substitute


def _close_at_exit(pool_reference: weakref.ref[WorkerPool]) -> None:
    pool = pool_reference()
    if pool is not None:
        pool.close(kill=True)

"""One epoch over a worker pool: requests are sent ahead, columns are taken in order.

A loader keeps its pool from epoch to epoch, since starting processes takes long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seqdata.batch.axes import Axes
from seqdata.errors import IncompleteEpochError, LimitError, find_interruption
from seqdata.loading.fetcher import WorkerFetcher
from seqdata.loading.options import EngineOptions
from seqdata.loading.prefetch import HANDOVER_BYTES
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.workers.handle import WorkerTask
from seqdata.loading.workers.messages import MAX_REQUESTS, SLOT_HEADER, count_request_bytes
from seqdata.loading.workers.pool import SLOT_BYTES, TASK_SECONDS, WorkerPool

_END_TIMEOUT = 5.0  # seconds that ``end`` waits for a thread that takes


class PoolSession:
    """The use of a worker pool by one epoch: columns are taken in the order of the requests.

    Args:
        pool: The workers, used by no other session until the end.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._requests: Iterator[StepRequest] = iter(())
        self._take_lock = threading.Lock()
        self._is_ended = False
        self._is_inconsistent = False  # the pool's state may be incomplete
        self._tasks: deque[WorkerTask] = deque()
        self._open_task: WorkerTask | None = None  # its last answer is in use
        self._failure: Exception | None = None  # of preparing or sending the next request
        self._pending_request: StepRequest | None = None  # prepared, but not sent
        self._is_exhausted = False

    def begin(self, requests: Iterator[StepRequest]) -> None:
        """Set the requests to take, in order; they are sent ahead while there is room."""
        self._requests = requests

    def take(self) -> tuple[Any, Axes]:
        """Return the columns of the next request, which are valid until the next call.

        Raises:
            Exception: The error of a worker, after all answers before it were taken.
            WorkerDiedError: If a worker has ended.
            StallError: If a worker makes no progress.
            IncompleteEpochError: If the pool is shut down.
        """
        with self._take_lock:
            try:
                return self._take_next()
            except BaseException as error:  # what interrupts may do so at any statement
                self._is_inconsistent |= find_interruption(error) is not None
                raise

    def end(self) -> bool:
        """Free all slots; answers that were not taken are discarded.

        Returns:
            Whether no thread takes any more, so that the pool can be used again.
        """
        self._is_ended = True
        # they refer to the epoch's share, and to this session
        self._requests, self._pending_request = iter(()), None
        if self._is_inconsistent or not self._take_lock.acquire(timeout=_END_TIMEOUT):
            return False
        self._release_open_task()
        for task in self._tasks:
            self._pool.release(task)
        self._tasks.clear()
        self._take_lock.release()
        return True

    def _take_next(self) -> tuple[Any, Axes]:
        if self._open_task is not None or not self._tasks:
            self._release_open_task()
            self._submit_tasks()
        while not self._tasks or self._tasks[0].num_taken == len(self._tasks[0].answer_table):
            self._wait_for_answer()
        task = self._tasks[0]
        try:
            return self._pool.take_answer(task)
        finally:  # an error counts as an answer
            if task.num_taken == len(task.requests):
                self._open_task = self._tasks.popleft()

    def _wait_for_answer(self) -> None:
        """Wait a short time for the oldest task, or raise the error for which it is missing."""
        if self._is_ended:  # another session uses the pool and its slots
            raise IncompleteEpochError(
                "loader: the iteration was interrupted while it made a batch. Iterate again."
            )
        task = self._tasks[0] if self._tasks else None
        failure = (self._pool.error or self._failure) if task is None else task.error
        if failure is not None:
            raise failure
        if task is None and self._is_exhausted:
            raise IncompleteEpochError("loader: no requested batch is left. Iterate again.")
        self._pool.receive()
        self._submit_tasks()

    def _release_open_task(self) -> None:
        if self._open_task is not None:
            self._pool.release(self._open_task)
            self._open_task = None

    def _submit_tasks(self) -> None:
        while not self._is_exhausted and self._pool.has_room:
            requests = self._next_requests()
            try:
                if requests:
                    self._tasks.append(self._pool.submit(requests))
            except LimitError as error:  # raised after all answers before it
                self._failure, self._is_exhausted = error, True

    def _next_requests(self) -> list[StepRequest]:
        """Return the requests of the next task: about 1 MiB, and a short time of work at most."""
        pool, requests = self._pool, list[StepRequest]()
        max_requests, free_bytes = 1, SLOT_BYTES - SLOT_HEADER - 8
        if pool.request_seconds:
            by_size = HANDOVER_BYTES / max(1.0, pool.request_bytes)
            max_requests = max(
                1, min(MAX_REQUESTS, int(by_size), int(TASK_SECONDS / pool.request_seconds))
            )
        while len(requests) < max_requests:
            request = self._next_request()
            if request is None:
                break
            free_bytes -= count_request_bytes(request)
            if requests and free_bytes < 0:
                self._pending_request = request
                break
            requests.append(request)
        return requests

    def _next_request(self) -> StepRequest | None:
        request, self._pending_request = self._pending_request, None
        if request is not None or self._is_exhausted:
            return request
        try:
            request = next(self._requests, None)
        except Exception as error:  # raised after all answers before it
            if find_interruption(error) is not None:
                raise
            self._failure = error
        self._is_exhausted = request is None
        return request


class WorkerPoolCache:
    """A cache of worker pools, started when they are first needed.

    A pool is kept for the next session if ``persistent_workers`` is True.

    Args:
        fetcher: Fetcher that the workers run.
        options: The number of workers, their start method, and whether they persist.
    """

    def __init__(self, fetcher: WorkerFetcher, options: EngineOptions) -> None:
        self._fetcher = fetcher
        self._options = options
        self._lock = threading.Lock()
        self._idle: list[WorkerPool] = []
        self._busy: list[WorkerPool] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of all workers."""
        return [pid for pool in (*self._idle, *self._busy) for pid in pool.pids]

    @contextmanager
    def open_session(self) -> Iterator[PoolSession]:
        """Yield a session over a pool of its own.

        Raises:
            ConfigError: If processes cannot be started.
        """
        pool, is_reusable = self._acquire(), False
        session = PoolSession(pool)
        try:
            yield session
        finally:
            try:
                is_reusable = session.end()
            finally:
                self._release(pool, is_reusable=is_reusable)

    def cancel(self) -> None:
        """Make all sessions raise at their next step."""
        for pool in list(self._busy):
            pool.is_cancelled = True

    def close(self) -> None:
        """End all processes."""
        self.cancel()
        with self._lock:
            idle, self._idle = self._idle, []
        for pool in (*idle, *self._busy):
            pool.close()

    def _acquire(self) -> WorkerPool:
        """Return a pool whose workers are all alive: the cached one, or a new one."""
        with self._lock:
            idle_pools, self._idle = self._idle, []
            for pool in idle_pools:
                if pool.is_alive:
                    self._busy.append(pool)
                    return pool
        for pool in idle_pools:
            pool.close(kill=True)
        pool = WorkerPool(self._fetcher, self._options)
        with self._lock:
            self._busy.append(pool)
        return pool

    def _release(self, pool: WorkerPool, *, is_reusable: bool) -> None:
        with self._lock:
            self._busy.remove(pool)
            is_reusable = is_reusable and not pool.is_cancelled and pool.error is None
            if is_reusable and self._options.persistent_workers and not self._idle:
                self._idle.append(pool)
                return
        pool.close(kill=not is_reusable)

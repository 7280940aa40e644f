"""A bounded number of pending functions on a user's executor, with results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import ExitStack, contextmanager
from typing import Any

from seqdata.errors import WorkerDiedError

_DEAD_WORKER_ERRORS = (
    "KilledWorker",
    "WorkerCrashedError",
)  # names of the errors of Dask and Ray about dead workers
_STOP_SECONDS = 60.0  # seconds for running functions to end after a failure


class BoundedExecutor:
    """The functions submitted to an executor. Created by ``bounded_executor``.

    Args:
        executor: The executor that runs the functions.
        max_pending: Maximum number of pending functions when ``submit`` returns: it waits for one
            to end. None: any number.
    """

    __slots__ = ("_executor", "_max_pending", "_order", "_pending")

    def __init__(self, executor: Executor, max_pending: int | None) -> None:
        self._executor = executor
        self._max_pending = max_pending
        self._order: dict[Future[Any], int] = {}
        self._pending: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Submit a function, and wait until few enough are pending.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        try:
            future = self._executor.submit(function, *arguments)
        except BrokenExecutor as error:
            raise _make_broken_error(error) from error
        self._order[future] = len(self._order)
        self._pending.add(future)
        while self._max_pending is not None and len(self._pending) > self._max_pending:
            self._wait_for_one()

    def iter_completed(self) -> Iterator[Any]:
        """Yield results as they complete, until nothing is pending.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for future in as_completed(tuple(self._pending)):
            self._pending.discard(future)
            yield _get_result(future)

    def collect(self) -> list[Any]:
        """Return all results, in the order of submission.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for _ in self.iter_completed():
            pass
        return [_get_result(future) for future in self._order]

    def shut_down(self) -> None:
        """Cancel what has not started, and wait a limited time for what is running."""
        pending = list(self._pending)
        if self._max_pending is None:  # a cancelled one may never report its end
            pending = [future for future in pending if not future.cancel()]
        wait(pending, _STOP_SECONDS)

    def _wait_for_one(self) -> None:
        """Wait until a function has ended; raise its error, the earliest submitted first."""
        done, self._pending = wait(
            self._pending, return_when=FIRST_COMPLETED
        )  # ends: each function writes its arguments, and returns
        for future in sorted(done, key=lambda done_future: self._order[done_future]):
            _get_result(future)


def _get_result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=0)
    except Exception as error:
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD_WORKER_ERRORS:
            raise _make_broken_error(error) from error
        raise


def _make_broken_error(error: Exception) -> WorkerDiedError:
    return WorkerDiedError(
        f"`executor`: broke while shards were written ({error}). Look for "
        "what ended its processes (out of memory?) and write again: finished shards are kept."
    )


@contextmanager
def bounded_executor(
    executor: Executor | None, max_pending: int | None
) -> Iterator[BoundedExecutor]:
    """Yield a ``BoundedExecutor``; at the end nothing is pending.

    Args:
        executor: The executor; None: two threads of this process.
        max_pending: Maximum number of pending functions; None: any number.
    """
    with ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(2, "seqdata-writer"))
        bounded = BoundedExecutor(executor, max_pending)
        try:
            yield bounded
        except BaseException:
            bounded.shut_down()
            raise

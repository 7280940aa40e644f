"""Functions that run on somebody's executor, so many at a time, with results in the order given."""

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
)  # what Dask and Ray say of workers that died
_STOP_SECONDS = 60.0  # seconds that what runs may take to end after something has failed


class BoundedExecutor:
    """What was given to an executor. Made by ``bounded_executor``.

    Args:
        executor: Where functions run.
        max_pending: How many may be under way when ``submit`` returns: it waits for one to end.
            None: any number.
    """

    __slots__ = ("_executor", "_max_pending", "_order", "_pending")

    def __init__(self, executor: Executor, max_pending: int | None) -> None:
        self._executor = executor
        self._max_pending = max_pending
        self._order: dict[Future[Any], int] = {}
        self._pending: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function, and wait until few enough are under way for another to be prepared.

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
        """Yield results as they come, until nothing is under way.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for future in as_completed(tuple(self._pending)):
            self._pending.discard(future)
            yield _get_result(future)

    def collect(self) -> list[Any]:
        """Return all results, in the order in which functions were added.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for _ in self.iter_completed():
            pass
        return [_get_result(future) for future in self._order]

    def shut_down(self) -> None:
        """Wait a while for what is under way; where that may be anything, start no more of it."""
        pending = list(self._pending)
        if self._max_pending is None:  # one that is cancelled may never tell that it has ended
            pending = [future for future in pending if not future.cancel()]
        wait(pending, _STOP_SECONDS)

    def _wait_for_one(self) -> None:
        """Wait until something has ended; raises what it raised, the earliest first."""
        done, self._pending = wait(
            self._pending, return_when=FIRST_COMPLETED
        )  # ends: each function writes what it was given, and returns
        for future in sorted(done, key=lambda one: self._order[one]):
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
    """Yield a place for jobs; at the end nothing of them is under way.

    Args:
        executor: Where functions run; None: two threads of our own.
        max_pending: How many may be under way while another is prepared; None: any number.
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

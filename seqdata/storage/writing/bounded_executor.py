"""Functions that run on somebody's executor, so many at a time, with results in the order given.

Place in the flow: the writer digests and writes shards while it packs the next. Reads: nothing.
Makes: results.
"""

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

_DIED = ("KilledWorker", "WorkerCrashedError")  # what Dask and Ray say of workers that died
_PATIENCE = 60.0  # seconds that what runs may take to end after something has failed


class Jobs:
    """What was given to an executor. Made by ``running``.

    Args:
        executor: Where functions run.
        most: How many may be under way when ``add`` returns: it waits for one to end. None: any
            number.
    """

    __slots__ = ("_executor", "_most", "_numbers", "_under_way")

    def __init__(self, executor: Executor, most: int | None) -> None:
        self._executor = executor
        self._most = most
        self._numbers: dict[Future[Any], int] = {}
        self._under_way: set[Future[Any]] = set()

    def add(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function, and wait until few enough are under way for another to be prepared.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        try:
            future = self._executor.submit(function, *arguments)
        except BrokenExecutor as error:
            raise _broken(error) from error
        self._numbers[future] = len(self._numbers)
        self._under_way.add(future)
        while self._most is not None and len(self._under_way) > self._most:
            self._settle()

    def ended(self) -> Iterator[Any]:
        """Give results as they come, until nothing is under way.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for future in as_completed(tuple(self._under_way)):
            self._under_way.discard(future)
            yield _result(future)

    def results(self) -> list[Any]:
        """Give all results, in the order in which functions were added.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for _ in self.ended():
            pass
        return [_result(future) for future in self._numbers]

    def stop(self) -> None:
        """Wait a while for what is under way; where that may be anything, start no more of it."""
        left = list(self._under_way)
        if self._most is None:  # one that is cancelled may never tell that it has ended
            left = [future for future in left if not future.cancel()]
        wait(left, _PATIENCE)

    def _settle(self) -> None:
        """Wait until something has ended; raises what it raised, the earliest first."""
        done, self._under_way = wait(
            self._under_way, return_when=FIRST_COMPLETED
        )  # ends: each function writes what it was given, and returns
        for future in sorted(done, key=lambda one: self._numbers[one]):
            _result(future)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=0)
    except Exception as error:
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DIED:
            raise _broken(error) from error
        raise


def _broken(error: Exception) -> WorkerDiedError:
    return WorkerDiedError(
        f"`executor`: broke while shards were written ({error}), must live until all are; look for "
        "what ended its processes (memory?) and write again: whole shards are kept"
    )


@contextmanager
def running(executor: Executor | None, most: int | None) -> Iterator[Jobs]:
    """Give a place for jobs; at the end nothing of them is under way.

    Args:
        executor: Where functions run; None: two threads of our own.
        most: How many may be under way while another is prepared; None: any number.
    """
    with ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(2, "seqdata-writer"))
        jobs = Jobs(executor, most)
        try:
            yield jobs
        except BaseException:
            jobs.stop()
            raise

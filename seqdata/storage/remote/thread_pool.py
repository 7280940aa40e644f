"""A bounded thread pool for downloads that survives a fork: the child process starts its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class ForkSafeThreadPool:
    """A thread pool of this process, started at first use.

    Args:
        max_workers: Threads.
    """

    __slots__ = ("_lock", "_max_workers", "_pid", "_pool")

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1
        self._lock = threading.Lock()

    def map(self, function: Callable[[T], ResultT], items: Iterable[T]) -> list[ResultT]:
        """Return a function's results in order; raise the first error when all calls have ended."""
        all_items = list(items)
        if len(all_items) < 2:
            return [function(item) for item in all_items]
        pool = self._get_pool()
        futures = [pool.submit(function, item) for item in all_items]
        results, first_error = [], None
        for future in futures:
            try:
                results.append(future.result())  # ends: every request has a timeout
            except Exception as error:
                first_error = first_error or error
                for pending in futures:
                    pending.cancel()
        if first_error is not None:
            raise first_error
        return results

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function in the pool."""
        return self._get_pool().submit(function, *arguments)

    def _get_pool(self) -> ThreadPoolExecutor:
        if (
            self._pid != os.getpid()
        ):  # a forked process has none of the threads, and maybe a held lock
            self._lock = threading.Lock()
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._max_workers, "seqdata-remote")
            return self._pool

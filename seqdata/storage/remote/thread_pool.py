"""Threads that fetch, in a bounded number, and made anew in a forked process.

Place in the flow: remote stores fetch several files or ranges side by side. Makes: results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


class Fetchers:
    """A thread pool of this process, started when it is first needed.

    Args:
        most: Threads.
    """

    __slots__ = ("_lock", "_most", "_pid", "_pool")

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1
        self._lock = threading.Lock()

    def each(self, function: Callable[[Given], Made], given: Iterable[Given]) -> list[Made]:
        """Give a function's results, in order; the first error is raised when all have ended."""
        listed = list(given)
        if len(listed) < 2:
            return [function(one) for one in listed]
        pool = self._of_this_process()
        begun = [pool.submit(function, one) for one in listed]
        results, failed = [], None
        for future in begun:
            try:
                results.append(future.result())  # ends: every request has its time
            except Exception as error:
                failed = failed or error
                for other in begun:
                    other.cancel()
        if failed is not None:
            raise failed
        return results

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let a function run."""
        return self._of_this_process().submit(function, *arguments)

    def _of_this_process(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():  # a fork has none of the threads, and maybe a locked lock
            self._lock = threading.Lock()
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, "seqdata-remote")
            return self._pool

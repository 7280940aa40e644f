"""The crews of one loader: one is kept from epoch to epoch, since starting processes takes long.

Place in the flow: the Player asks for a run. Makes: runs, and an end to all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seqdata.loading.fetcher import WorkerFetcher
from seqdata.loading.options import EngineOptions
from seqdata.loading.workers.pool import WorkerPool
from seqdata.loading.workers.session import PoolSession


class WorkerPoolCache:
    """Worker processes, started when they are first needed.

    Args:
        fetcher: What they do.
        options: How many they are, and how they are started.
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
        """Yield a run over a crew of its own.

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
        """Let all runs end with an error at their next step."""
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
        """Return a crew whose workers all live: the one that was kept, or a new one."""
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
            if is_reusable and not pool.is_cancelled and pool.error is None and not self._idle:
                self._idle.append(pool)
                return
        pool.close(kill=True)

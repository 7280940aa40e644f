"""The crews of one loader: one is kept from epoch to epoch, since starting processes takes long.

Place in the flow: the Player asks for a run. Makes: runs, and an end to all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seqdata.loading.fetcher import Work
from seqdata.loading.options import PlayOptions
from seqdata.loading.workers.pool import Crew
from seqdata.loading.workers.session import Run


class Crews:
    """Worker processes, started when they are first needed.

    Args:
        fetching: What they do.
        options: How many they are, and how they are started.
    """

    def __init__(self, fetching: Work, options: PlayOptions) -> None:
        self._fetching = fetching
        self._options = options
        self._lock = threading.Lock()
        self._idle: list[Crew] = []
        self._busy: list[Crew] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of all workers."""
        return [pid for crew in (*self._idle, *self._busy) for pid in crew.pids]

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Give a run over a crew of its own.

        Raises:
            ConfigError: If processes cannot be started.
        """
        crew, reusable = self._hired(), False
        run = Run(crew)
        try:
            yield run
        finally:
            try:
                reusable = run.end()
            finally:
                self._dismiss(crew, reusable=reusable)

    def cancel(self) -> None:
        """Let all runs end with an error at their next step."""
        for crew in list(self._busy):
            crew.cancelled = True

    def close(self) -> None:
        """End all processes."""
        self.cancel()
        with self._lock:
            idle, self._idle = self._idle, []
        for crew in (*idle, *self._busy):
            crew.close()

    def _hired(self) -> Crew:
        """Give a crew whose workers all live: the one that was kept, or a new one."""
        with self._lock:
            kept, self._idle = self._idle, []
            for crew in kept:
                if crew.whole:
                    self._busy.append(crew)
                    return crew
        for crew in kept:
            crew.close(kill=True)
        crew = Crew(self._fetching, self._options)
        with self._lock:
            self._busy.append(crew)
        return crew

    def _dismiss(self, crew: Crew, *, reusable: bool) -> None:
        with self._lock:
            self._busy.remove(crew)
            if reusable and not crew.cancelled and crew.broken is None and not self._idle:
                self._idle.append(crew)
                return
        crew.close(kill=True)

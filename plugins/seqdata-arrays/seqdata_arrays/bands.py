"""Decoded bands of chunked arrays, in a cache of bounded size for each process.

A band is the chunks of an array with the same timesteps. Threads decode chunks, also in advance the
ones that lanes will read next, while the model computes; a worker of a loader decodes in its own
thread, because there are other workers. Reads: stored chunks. Makes: arrays.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

Band = NDArray[Any]
Decode = Callable[[], Band]
Prepare = Callable[[list[int]], list[Decode]]
"""``prepare(bands)`` reads the chunks of bands, and returns a decoder for each band."""
_MOST_AHEAD = 64  # bands that are decoded ahead at once
_THREADS = 8


def _run(job: Decode) -> Band:
    return job()


class BandCache:
    """Cache of decoded bands by index, from which the least recently used are dropped first.

    It belongs to one process: a forked child must make its own, without locks or threads of its
    parent.

    Args:
        prepare: Reads the chunks of bands, and returns a decoder for each band.
        max_bytes: Maximum size of the cached bands in bytes.
    """

    def __init__(self, prepare: Prepare, max_bytes: int) -> None:
        self._prepare = prepare
        self._max_bytes = max_bytes
        self._bands: OrderedDict[int, Band] = OrderedDict()
        self._bytes = self._largest = 0
        self._ahead: dict[int, Future[Band]] = {}
        self._lock = threading.Lock()
        # workers are daemons; the ranks that a strategy starts are not
        is_worker = multiprocessing.current_process().daemon
        threads = 1 if is_worker else min(_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "chunks") if threads > 1 else None
        self.decoded = 0

    @property
    def has_threads(self) -> bool:
        """Whether bands can be decoded ahead."""
        return self._pool is not None

    def get(self, numbers: Iterable[int]) -> dict[int, Band]:
        """Return index -> band; bands that are not cached are read and decoded.

        Raises:
            DataError: If a chunk is damaged.
        """
        found: dict[int, Band] = {}
        missing: list[int] = []
        waiting: dict[int, Future[Band]] = {}
        with self._lock:
            for number in numbers:
                band = self._bands.get(number)
                if band is not None:
                    self._bands.move_to_end(number)
                    found[number] = band
                elif (future := self._ahead.pop(number, None)) is not None:
                    waiting[number] = future
                else:
                    missing.append(number)
        made = self._decode(missing)
        for number, future in waiting.items():
            made[number] = future.result()  # ends: it decodes one band
        self._keep(made)
        found.update(made)
        return found

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Start to decode bands that are read next, if there are threads and room in the cache."""
        if self._pool is None:
            return
        with self._lock:
            done = [number for number, future in self._ahead.items() if future.done()]
            ended = [(number, self._ahead.pop(number)) for number in done]
        self._keep({n: future.result(0) for n, future in ended if future.exception(0) is None})
        with self._lock:
            most = min(_MOST_AHEAD, self._max_bytes // (2 * max(1, self._largest)))
            new = [n for n in numbers if n not in self._bands and n not in self._ahead]
            for number in new[: max(0, most - len(self._ahead))]:
                self._ahead[number] = self._pool.submit(self._decode_one, number)

    def _decode_one(self, number: int) -> Band:
        (decode,) = self._prepare([number])
        return decode()

    def _decode(self, numbers: list[int]) -> dict[int, Band]:
        jobs = self._prepare(numbers) if numbers else []
        if self._pool is None or len(jobs) <= 1:
            return dict(zip(numbers, (job() for job in jobs), strict=True))
        return dict(zip(numbers, self._pool.map(_run, jobs), strict=True))

    def _keep(self, made: dict[int, Band]) -> None:
        with self._lock:
            self.decoded += len(made)
            for number, band in made.items():
                self._largest = max(self._largest, band.nbytes)
                if number not in self._bands:
                    self._bands[number] = band
                    self._bytes += band.nbytes
            while self._bytes > self._max_bytes and self._bands:
                _, dropped = self._bands.popitem(last=False)
                self._bytes -= dropped.nbytes

"""Rows C2 to C8: what happens to the cache of remote files. Each must show that it happened.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from seqdata_testing.faults import caches
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.subject import Subject
from seqdata_testing.faults.table import Cell, Try

_NO_HARM = Expectation(kinds=(WHOLE,), seconds=30.0)
_LOCKLESS = Expectation(
    kinds=("CacheError",), facts=("file",), texts=("without locks", "Remote(cache_dir=...)"),
    happened={caches.LOCKLESS: 1},
)  # fmt: skip


def cells(subject: Subject, runs: int) -> list[Cell]:
    """Return the cells of the cache.

    Args:
        subject: What is served.
        runs: How often instants are drawn.
    """
    pairs = max(1, runs // 2)
    found = [
        _cell("C2", subject, f"two processes, {pairs} times", caches.EVICTED, pairs,
              partial(caches.raced, subject, pairs), runs),
        _cell("C3", subject, f"killed at {runs} instants", caches.HALF, runs,
              partial(caches.killed, subject, runs), runs),
    ]  # fmt: skip
    for workers in (0, 2):
        way = f"workers {workers}"
        tries = partial(caches.damaged, subject, workers)
        found.append(_cell("C4", subject, way, caches.MENDED, 2, tries))
        tries = partial(caches.removed, subject, workers)
        found.append(_cell("C5", subject, way, caches.REMOVED, 2, tries))
        for shards in (1, 3):
            told = f"{way}, room for {shards} of 8"
            tries = partial(caches.too_small, subject, shards, workers)
            found.append(_cell("C6", subject, told, caches.BY_RANGES, 1, tries))
    found.append(
        _cell("C7", subject, "a folder", caches.EVICTED, 2, partial(caches.beside_others, subject))
    )
    lockless = _cell(
        "C8", subject, "no flock", caches.LOCKLESS, 1, partial(caches.without_locks, subject)
    )
    return [*found, replace(lockless, must=_LOCKLESS)]


def _cell(
    fault: str, subject: Subject, way: str, event: str, least: int, tries: Try, runs: int = 0
) -> Cell:
    slow = "workers 2" in way or "room for 3" in way
    return Cell(
        fault=fault, way=f"{subject.name} remote, {way}", tries=tries,
        must=replace(_NO_HARM, happened={event: least}), quick=not slow,
        bound=min(560.0, 60.0 + 3 * runs),
    )  # fmt: skip

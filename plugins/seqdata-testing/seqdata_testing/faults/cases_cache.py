"""Rows C2 to C8: what happens to the cache of remote files. Each must show that it happened."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from seqdata_testing.faults import try_cache
from seqdata_testing.faults.fault_case import FaultCase, Try
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.targets import FaultTarget

_NO_HARM = Expectation(kinds=(WHOLE,), seconds=30.0)
_LOCKLESS = Expectation(
    kinds=("CacheError",), details=("file",), texts=("has no locks", "Remote(cache_dir=...)"),
    happened={try_cache.LOCKLESS: 1},
)  # fmt: skip


def cases(target: FaultTarget, runs: int) -> list[FaultCase]:
    """Return the cases of the cache.

    Args:
        target: What is served.
        runs: How often instants are drawn.
    """
    pairs = max(1, runs // 2)
    found = [
        _case("C2", target, f"two processes, {pairs} times", try_cache.EVICTED, pairs,
              partial(try_cache.race_for_cache, target, pairs), runs),
        _case("C3", target, f"killed at {runs} instants", try_cache.HALF, runs,
              partial(try_cache.kill_while_filling, target, runs), runs),
    ]  # fmt: skip
    for workers in (0, 2):
        way = f"workers {workers}"
        tries = partial(try_cache.damage_cache, target, workers)
        found.append(_case("C4", target, way, try_cache.MENDED, 2, tries))
        tries = partial(try_cache.remove_cache, target, workers)
        found.append(_case("C5", target, way, try_cache.REMOVED, 2, tries))
        for shards in (1, 3):
            room_way = f"{way}, room for {shards} of 8"
            tries = partial(try_cache.overfill_cache, target, shards, workers)
            found.append(_case("C6", target, room_way, try_cache.BY_RANGES, 1, tries))
    found.append(
        _case(
            "C7", target, "a folder", try_cache.EVICTED, 2, partial(try_cache.share_folder, target)
        )
    )
    lockless = _case(
        "C8",
        target,
        "no flock",
        try_cache.LOCKLESS,
        1,
        partial(try_cache.read_without_locks, target),
    )
    return [*found, replace(lockless, must=_LOCKLESS)]


def _case(
    fault: str, target: FaultTarget, way: str, event: str, least: int, tries: Try, runs: int = 0
) -> FaultCase:
    slow = "workers 2" in way or "room for 3" in way
    return FaultCase(
        fault=fault, way=f"{target.name} remote, {way}", tries=tries,
        must=replace(_NO_HARM, happened={event: least}), quick=not slow,
        bound=min(560.0, 60.0 + 3 * runs),
    )  # fmt: skip

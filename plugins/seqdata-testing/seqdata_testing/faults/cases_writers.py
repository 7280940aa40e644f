"""Rows V1 to V5 and X2: writers that are stopped, and what the system refuses."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial

from seqdata_testing.faults import limits, try_cache, try_limits, try_writers
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.targets import FaultTarget

INSTANTS = 20
_QUICK_INSTANTS = 6
_GONE_ON = Expectation(kinds=("IncompleteDatasetError", WHOLE), details=("dataset", "file"))
_NO_ROOM = Expectation(kinds=("IncompleteDatasetError", WHOLE), details=("file",))
_SMALL = 64 << 10  # bytes of shared memory: less than a batch of the longest sequence
_FEW = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("ulimit -n",))
_UNMAPPED = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("now ",))


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of V1 to V5 and X2.

    Args:
        target: What is written.
        quick: Whether each tries little.
    """
    instants = _QUICK_INSTANTS if quick else INSTANTS
    found = [
        FaultCase(
            fault=fault, way=f"{target.name}, by {number.name} at {instants} instants",
            tries=partial(try_writers.stop_writer, target, number, instants), quick=True,
            must=replace(_GONE_ON, happened={try_writers.STOPPED: instants}),
        )
        for fault, number in (("V1", signal.SIGKILL), ("V3", signal.SIGTERM))
    ]  # fmt: skip
    found.append(
        FaultCase(
            fault="V5", way=f"{target.name}, before each of its calls, gone on {instants} times",
            tries=partial(try_writers.lose_power, target, instants), quick=True, bound=120,
            must=replace(_GONE_ON, happened={try_writers.LOST: instants}),
        )
    )  # fmt: skip
    for disk in (False, True):
        way = "a full disk" if disk else "a file that may not grow"
        tries = partial(try_writers.write_without_room, target, disk)
        found.append(
            FaultCase(
                fault="V2", way=f"{target.name}, {way}", tries=tries, must=_NO_ROOM, quick=not disk
            )
        )
    found.append(
        FaultCase(
            fault="V4", way=f"{target.name}, no flock, on what an ended writer left", quick=True,
            tries=partial(try_cache.write_without_locks, target),
            must=Expectation(kinds=(WHOLE,), happened={try_cache.LOCKLESS: 3}),
        )
    )  # fmt: skip
    return found + _make_limit_cases(target)


def make_little_shared_cases(target: FaultTarget) -> list[FaultCase]:
    """Return the cases of X2 that take nothing from the process that serves remote data."""
    return [_make_little_shared_case(target, workers) for workers in (0, 2)]


def _make_little_shared_case(target: FaultTarget, workers: int) -> FaultCase:
    return FaultCase(
        fault="X2", way=f"{target.name}, workers {workers}, /dev/shm of {_SMALL >> 10} KiB",
        tries=partial(try_limits.play_with_little_shared, target, workers, _SMALL),
        must=Expectation(kinds=(WHOLE,)),
    )  # fmt: skip


def _make_limit_cases(target: FaultTarget) -> list[FaultCase]:
    found = []
    for workers in (0, 2):
        way = f"{target.name}, workers {workers}"
        some = range(0, 24, 1 if workers == 0 else 3)
        tries = partial(try_limits.play_limited, target, workers, limits.few_descriptors, some)
        few = FaultCase(
            fault="X2", way=f"{way}, few descriptors", tries=tries, must=_FEW, quick=workers == 0
        )
        tries = partial(try_limits.play_limited, target, workers, limits.few_mappings, some)
        little = FaultCase(fault="X2", way=f"{way}, few mappings", tries=tries, must=_UNMAPPED)
        found += [few, little, _make_little_shared_case(target, workers)]
    return found

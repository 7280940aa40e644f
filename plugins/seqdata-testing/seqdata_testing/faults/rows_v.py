"""Rows V1 to V5 and X2: writers that are stopped, and what the system refuses.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial

from seqdata_testing.faults import caches, limits, refused, writing
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.subject import Subject
from seqdata_testing.faults.table import Cell

INSTANTS = 20
_QUICK_INSTANTS = 6
_GONE_ON = Expectation(kinds=("IncompleteDatasetError", WHOLE), facts=("dataset", "file"))
_NO_ROOM = Expectation(kinds=("IncompleteDatasetError", WHOLE), facts=("file",))
_SMALL = 64 << 10  # bytes of shared memory: less than a batch of the longest sequence
_FEW = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("ulimit -n",))
_UNMAPPED = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("now ",))


def cells(subject: Subject, *, quick: bool = False) -> list[Cell]:
    """Return the cells of V1 to V5 and X2.

    Args:
        subject: What is written.
        quick: Whether each tries little.
    """
    instants = _QUICK_INSTANTS if quick else INSTANTS
    found = [
        Cell(
            fault=fault, way=f"{subject.name}, by {number.name} at {instants} instants",
            tries=partial(writing.stopped, subject, number, instants), quick=True,
            must=replace(_GONE_ON, happened={writing.STOPPED: instants}),
        )
        for fault, number in (("V1", signal.SIGKILL), ("V3", signal.SIGTERM))
    ]  # fmt: skip
    found.append(
        Cell(
            fault="V5", way=f"{subject.name}, before each of its calls, gone on {instants} times",
            tries=partial(writing.without_power, subject, instants), quick=True, bound=120,
            must=replace(_GONE_ON, happened={writing.LOST: instants}),
        )
    )  # fmt: skip
    for disk in (False, True):
        way = "a full disk" if disk else "a file that may not grow"
        tries = partial(writing.without_room, subject, disk)
        found.append(
            Cell(
                fault="V2", way=f"{subject.name}, {way}", tries=tries, must=_NO_ROOM, quick=not disk
            )
        )
    found.append(
        Cell(
            fault="V4", way=f"{subject.name}, no flock, on what an ended writer left", quick=True,
            tries=partial(caches.writer_without_locks, subject),
            must=Expectation(kinds=(WHOLE,), happened={caches.LOCKLESS: 3}),
        )
    )  # fmt: skip
    return found + _refused(subject)


def little_shared(subject: Subject) -> list[Cell]:
    """Give the cells of X2 that take nothing from the process that serves remote data."""
    return [_little_shared(subject, workers) for workers in (0, 2)]


def _little_shared(subject: Subject, workers: int) -> Cell:
    return Cell(
        fault="X2", way=f"{subject.name}, workers {workers}, /dev/shm of {_SMALL >> 10} KiB",
        tries=partial(refused.little_shared, subject, workers, _SMALL),
        must=Expectation(kinds=(WHOLE,)),
    )  # fmt: skip


def _refused(subject: Subject) -> list[Cell]:
    found = []
    for workers in (0, 2):
        way = f"{subject.name}, workers {workers}"
        some = range(0, 24, 1 if workers == 0 else 3)
        tries = partial(refused.limited, subject, workers, limits.few_descriptors, some)
        few = Cell(
            fault="X2", way=f"{way}, few descriptors", tries=tries, must=_FEW, quick=workers == 0
        )
        tries = partial(refused.limited, subject, workers, limits.few_mappings, some)
        little = Cell(fault="X2", way=f"{way}, few mappings", tries=tries, must=_UNMAPPED)
        found += [few, little, _little_shared(subject, workers)]
    return found

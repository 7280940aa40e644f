"""Rows S1 to S8, and C by ``rows_c``: networks that fail and caches; and D1 to D9 of remote data.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from seqdata_testing.faults import damaged, hostile, network, remote, rows_c
from seqdata_testing.faults.damaged import How
from seqdata_testing.faults.outcome import MENDED, WHOLE, Expectation
from seqdata_testing.faults.rows_d import FILE_FACTS, OWN_ROWS, mended_cells
from seqdata_testing.faults.subject import Subject
from seqdata_testing.faults.table import Cell

_HOW = ("cache", "ranges")
_FACTS = ("dataset", "shard", "file", "attempts")
_UNREADABLE = Expectation(kinds=("RemoteReadError",), facts=_FACTS, seconds=15.0)
_NO_HARM = Expectation(kinds=(WHOLE,), seconds=30.0)
_TRIED_AGAIN = replace(_NO_HARM, happened={remote.RETRY: 1})
_ANOTHER = Expectation(
    kinds=("FingerprintMismatch",), facts=("dataset", "shard", "file"), seconds=30.0,
    texts=("was replaced while it was read",), happened={remote.CHANGED: 1},
)  # fmt: skip
_NO_ROOM = Expectation(
    kinds=("CacheError", WHOLE), facts=("file", "free"), happened={remote.FULL: 1}
)
_DAMAGES = 6  # of each kind
_FLIPS = 100  # of bits of values, each way
_RUNS, _QUICK_RUNS = 200, 3

_REACHES = tuple(
    replace(row, kinds=(MENDED, "DataError"), count=_DAMAGES)  # shards are looked at when read
    for row in OWN_ROWS
    if row.part == "shards" and row.fault in ("D1", "D3", "D4", "D5", "D6", "D7", "D8")
)
_FAULTS: tuple[tuple[str, Callable[[int | None], network.Fault]], ...] = (
    ("S1", partial(network.unavailable, bodies=True)),
    ("S2", network.reset),
    ("S3", network.short),
)
_MORE = Expectation(kinds=("RemoteReadError",), facts=_FACTS, seconds=30.0)
_HOSTILE = (
    (
        "S6", hostile.endless,
        replace(_MORE, texts=("were asked for, more came",), happened={hostile.BODY: 1}),
    ),
    (
        "S7", hostile.bomb,
        replace(_MORE, texts=("they came as 'deflate'",), happened={hostile.BOMB: 1}),
    ),
    (
        "S8", hostile.sent_on,
        replace(_NO_HARM, happened={hostile.SENT_ON: 1, hostile.SECRET: 1}),
    ),
)  # fmt: skip


def cells(subject: Subject, *, quick: bool = False) -> list[Cell]:
    """Give the cells of remote data.

    Args:
        subject: What is served.
        quick: Whether each tries little.
    """
    found = []
    for how in _HOW:
        for workers in (0, 2):
            found += _network(subject, how, workers)
        for fault, tried, must in _HOSTILE:
            found.append(
                Cell(
                    fault=fault, way=f"{subject.name} remote, {how}", quick=how == "ranges",
                    tries=partial(tried, subject, how), must=must,
                )
            )  # fmt: skip
    runs = _QUICK_RUNS if quick else _RUNS
    found += [
        Cell(
            fault="C1", way=f"{subject.name} remote, {way}",
            tries=partial(remote.without_room, subject, disk), must=_NO_ROOM, quick=not disk,
        )
        for disk, way in ((False, "a file that may not grow"), (True, "a full disk"))
    ]  # fmt: skip
    return found + rows_c.cells(subject, runs) + _damages(subject, quick=quick)


def _network(subject: Subject, how: str, workers: int) -> list[Cell]:
    way = f"{subject.name} remote, {how}, workers {workers}"
    quick = how == "cache" and workers == 0
    found = []
    for fault, made in _FAULTS:
        tries = partial(remote.failing, subject, how, workers, partial(made, None), False)
        found.append(
            Cell(fault=fault, way=f"{way}, lasting", tries=tries, must=_UNREADABLE, quick=quick)
        )
        tries = partial(remote.failing, subject, how, workers, partial(made, 1), True)
        once = quick and fault == "S1"
        found.append(
            Cell(fault=fault, way=f"{way}, once", tries=tries, must=_TRIED_AGAIN, quick=once)
        )
    tries = partial(remote.failing, subject, how, workers, partial(network.slow, 1000), False)
    found.append(Cell(fault="S4", way=way, tries=tries, must=_UNREADABLE, quick=quick))
    tries = partial(remote.replaced, subject, how, workers, "raise")
    found.append(Cell(fault="S5", way=way, tries=tries, must=_ANOTHER, quick=workers == 0))
    for policy in ("replace", "mask"):
        tries = partial(remote.replaced, subject, how, workers, policy)
        must = replace(_ANOTHER, kinds=(MENDED, *_ANOTHER.kinds))
        told = f"{way}, on_error {policy}"
        found.append(Cell(fault="S5", way=told, tries=tries, must=must, policy=policy))
    return found


def _damages(given: Subject, *, quick: bool) -> list[Cell]:
    """Give the rows of damage for remote data: where shards come whole, no part of one is used."""
    found = []
    for how in _HOW:
        subject = remote.served_subject(given, how)
        found += mended_cells(subject, _REACHES, quick=quick)
        for row in OWN_ROWS:
            kinds = (*row.kinds, "CorruptShardError", "MissingShardError")
            if row.fault == "D1" and how == "ranges":  # offsets are not read: lengths say the same
                kinds = (*kinds, WHOLE)
            count = _FLIPS if row.fault == "D1" and not quick else min(_DAMAGES, row.count)
            tries = partial(
                damaged.harmed, subject, How(verify="first_read"), row.harms, count, row.part
            )
            found.append(
                Cell(
                    fault=row.fault, way=f"{subject.name}, read, {row.part}", tries=tries,
                    must=Expectation(kinds=kinds, facts=FILE_FACTS, seconds=10.0), bound=300.0,
                )
            )  # fmt: skip
    return found

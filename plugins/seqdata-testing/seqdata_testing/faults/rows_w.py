"""Rows W1 to W5, D10 and X1: what happens to worker processes, for every way to start them.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from seqdata_testing.faults import processes, working
from seqdata_testing.faults.outcome import DIED, WHOLE, Expectation
from seqdata_testing.faults.subject import Subject
from seqdata_testing.faults.table import Cell, Try
from seqdata_testing.faults.working import BEFORE, Setting

SOON = 2.0  # seconds within which the death of a worker is an error
_STALL = 3.0  # seconds; a process starts in less
_STALLED = _STALL + 3.0  # within which it is one: the worker is asked for its stack, too
_LEAVE = 10.0  # seconds that all may take to end
_PLACE = ("dataset", "shard", "file", "sequence", "key", "epoch", "batch", "step", "rank")
_DEAD = ("pid", "worker", "rss", *_PLACE)
_SWOLLEN = 1 << 28

_ACTS: dict[str, list[tuple[Callable[[], None], str, Expectation]]] = {
    "W1": [
        (processes.killed, "by itself", Expectation(
            kinds=("WorkerDiedError",), facts=_DEAD, values={"signal": "SIGKILL"}, seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W2": [
        (processes.crashed, "in C", Expectation(
            kinds=("WorkerDiedError",), facts=_DEAD, values={"signal": "SIGSEGV"},
            texts=("crashed",), seconds=SOON, delivered=BEFORE,
        )),
    ],
    "W3": [
        (processes.Swollen(_SWOLLEN), "and is killed for it", Expectation(
            kinds=("WorkerDiedError",), facts=_DEAD, values={"signal": "SIGKILL"},
            least={"rss": _SWOLLEN}, texts=("memory",), seconds=SOON + 1, delivered=BEFORE,
        )),
        (processes.out_of_memory, "and is told so", Expectation(
            kinds=("MemoryError",), texts=("out_of_memory", "batch 10"), seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W4": [
        (processes.left, "by sys.exit", Expectation(
            kinds=("WorkerDiedError",), facts=_DEAD, values={"exitcode": 3}, seconds=SOON,
            delivered=BEFORE,
        )),
        (processes.left_at_once, "by os._exit", Expectation(
            kinds=("WorkerDiedError",), facts=_DEAD, values={"exitcode": 4}, seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W5": [
        (processes.stuck, "in Python", Expectation(
            kinds=("StallError",), facts=("pid", "worker", *_PLACE), seconds=_STALLED,
            texts=("in stuck", "logged: ", "`stall_timeout`"), delivered=BEFORE,
        )),
        (processes.stuck_in_c, "in C", Expectation(
            kinds=("StallError",), facts=("pid", "worker", *_PLACE), seconds=_STALLED,
            texts=("in stuck_in_c", "logged: "), delivered=BEFORE,
        )),
    ],
}  # fmt: skip
_ALONE = {
    "W1": "the training process itself is killed: nobody is left to say so but its parent",
    "W2": "as W1: Python's faulthandler writes the stack",
    "W3": "as W1",
    "W4": "the training process leaves, as its transform says",
    "W5": "nobody watches the training process; the launcher does",
}
_BUS = Expectation(
    kinds=("WorkerDiedError",), facts=("pid", "worker", "shard", "file"), seconds=SOON,
    values={"signal": "SIGBUS"}, texts=("cut off",),
)  # fmt: skip
_BUS_ALONE = (
    "the training process ends by SIGBUS, with no wrong value before; with a worker it is an error"
)


def all_methods() -> list[str]:
    """Give the ways to start a process here, the default first."""
    return sorted(multiprocessing.get_all_start_methods(), key=lambda name: name != "forkserver")


def cells(
    subject: Subject, methods: Sequence[str] | None = None, *, mapped: bool = True
) -> list[Cell]:
    """Give the cells of W1 to W5, D10 and X1.

    Args:
        subject: What is played.
        methods: How workers are started; None: in every way that there is.
        mapped: Whether its files are mapped where they lie, and may be cut off then.
    """
    found: list[Cell] = []
    for method in all_methods() if methods is None else methods:
        setting = Setting(subject=subject, method=method, counted=mapped)
        impatient = replace(setting, stall_timeout=_STALL)
        make = partial(_cell, f"{subject.name}, workers 2, {method}", quick=method == "forkserver")
        for fault, acts in _ACTS.items():
            for i, (act, how, due) in enumerate(acts):
                must = due if mapped else _without_key(due)
                tries = partial(working.trapped, impatient if fault == "W5" else setting, act)
                found.append(make(fault, how, tries, must, first=not i))
        died = Expectation(
            kinds=("WorkerDiedError",), facts=("pid", "worker"), values={"signal": "SIGKILL"},
            seconds=SOON,
        )  # fmt: skip
        tries = partial(working.signalled, setting, signal.SIGKILL, "worker")
        found.append(make("W1", "by another process", tries, died, first=False))
        tries = partial(working.signalled, setting, signal.SIGKILL, "self")
        must = Expectation(kinds=(DIED,), seconds=_LEAVE)
        found.append(make("W1", "with the training process", tries, must, first=False))
        if mapped:
            tries = partial(working.cut_while_read, setting)
            found.append(make("D10", "", tries, _BUS, first=True))
        whole = Expectation(kinds=(WHOLE,), seconds=_LEAVE)
        for number in (signal.SIGTERM, signal.SIGINT):
            tries = partial(working.signalled, setting, number, "group")
            first = number == signal.SIGTERM
            found.append(make("X1", f"by {number.name}, and go on", tries, whole, first=first))
            tries = partial(working.asked_to_end, setting, number)
            found.append(make("X1", f"by {number.name}, and end", tries, whole, first=first))
    return [*found, *_alone(subject, mapped=mapped)]


def _without_key(must: Expectation) -> Expectation:
    """Leave out what would have to be fetched to be told."""
    return replace(must, facts=tuple(name for name in must.facts if name != "key"))


def _cell(
    way: str, fault: str, how: str, tries: Try, must: Expectation, *, first: bool, quick: bool
) -> Cell:
    way = f"{way}, {how}" if how else way
    return Cell(fault=fault, way=way, tries=tries, must=must, quick=quick and first)


def _alone(subject: Subject, *, mapped: bool) -> list[Cell]:
    """Give the cells without workers."""
    way = f"{subject.name}, workers 0"
    setting = Setting(subject=subject, workers=0)
    made: list[Any] = [
        Cell(fault=fault, way=way, reason=reason) for fault, reason in _ALONE.items()
    ]
    if mapped:
        tries, died = partial(working.cut_while_read, setting), Expectation(kinds=(DIED,))
        made.append(Cell(fault="D10", way=way, tries=tries, must=died, reason=_BUS_ALONE))
    tries = partial(working.signalled, setting, signal.SIGTERM, "group")
    made.append(Cell(fault="X1", way=way, tries=tries, must=Expectation(kinds=(WHOLE,))))
    return made

"""Rows W1 to W5, D10 and X1: what happens to worker processes, for every way to start them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from seqdata_testing.faults import processes, try_workers
from seqdata_testing.faults.fault_case import FaultCase, Try
from seqdata_testing.faults.outcome import DIED, WHOLE, Expectation
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_workers import BEFORE, WorkerSetup

SOON = 2.0  # seconds within which the death of a worker is an error
_STALL = 3.0  # seconds; a process starts in less
_STALLED = _STALL + 3.0  # within which it is one: the worker is asked for its stack, too
_LEAVE = 10.0  # seconds that all may take to end
_PLACE = ("dataset", "shard", "file", "sequence", "key", "epoch", "batch", "step", "rank")
_DEAD = ("pid", "worker", "rss", *_PLACE)
_SWOLLEN = 1 << 28

_ACTS: dict[str, list[tuple[Callable[[], None], str, Expectation]]] = {
    "W1": [
        (processes.kill_self, "by itself", Expectation(
            kinds=("WorkerDiedError",), details=_DEAD, values={"signal": "SIGKILL"}, seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W2": [
        (processes.crash, "in C", Expectation(
            kinds=("WorkerDiedError",), details=_DEAD, values={"signal": "SIGSEGV"},
            texts=("crashed",), seconds=SOON, delivered=BEFORE,
        )),
    ],
    "W3": [
        (processes.OutOfMemoryKill(_SWOLLEN), "and is killed for it", Expectation(
            kinds=("WorkerDiedError",), details=_DEAD, values={"signal": "SIGKILL"},
            least={"rss": _SWOLLEN}, texts=("memory",), seconds=SOON + 1, delivered=BEFORE,
        )),
        (processes.exhaust_memory, "and is told so", Expectation(
            kinds=("MemoryError",), texts=("exhaust_memory", "batch 10"), seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W4": [
        (processes.exit_normally, "by sys.exit", Expectation(
            kinds=("WorkerDiedError",), details=_DEAD, values={"exitcode": 3}, seconds=SOON,
            delivered=BEFORE,
        )),
        (processes.exit_at_once, "by os._exit", Expectation(
            kinds=("WorkerDiedError",), details=_DEAD, values={"exitcode": 4}, seconds=SOON,
            delivered=BEFORE,
        )),
    ],
    "W5": [
        (processes.hang, "in Python", Expectation(
            kinds=("StallError",), details=("pid", "worker", *_PLACE), seconds=_STALLED,
            texts=("in hang", "logged: ", "`stall_timeout`"), delivered=BEFORE,
        )),
        (processes.hang_in_c, "in C", Expectation(
            kinds=("StallError",), details=("pid", "worker", *_PLACE), seconds=_STALLED,
            texts=("in hang_in_c", "logged: "), delivered=BEFORE,
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
    kinds=("WorkerDiedError",), details=("pid", "worker", "shard", "file"), seconds=SOON,
    values={"signal": "SIGBUS"}, texts=("truncated",),
)  # fmt: skip
_BUS_ALONE = (
    "the training process ends by SIGBUS, with no wrong value before; with a worker it is an error"
)


def all_methods() -> list[str]:
    """Return the ways to start a process here, the default first."""
    return sorted(multiprocessing.get_all_start_methods(), key=lambda name: name != "forkserver")


def cases(
    target: FaultTarget, methods: Sequence[str] | None = None, *, mapped: bool = True
) -> list[FaultCase]:
    """Return the cases of W1 to W5, D10 and X1.

    Args:
        target: What is played.
        methods: How workers are started; None: in every way that there is.
        mapped: Whether its files are mapped where they lie, and may be cut off then.
    """
    found: list[FaultCase] = []
    for method in all_methods() if methods is None else methods:
        setup = WorkerSetup(target=target, method=method, is_counted=mapped)
        impatient = replace(setup, stall_timeout=_STALL)
        make = partial(_case, f"{target.name}, workers 2, {method}", quick=method == "forkserver")
        for fault, acts in _ACTS.items():
            for i, (act, detail, due) in enumerate(acts):
                must = due if mapped else _without_key(due)
                tries = partial(
                    try_workers.play_trapped, impatient if fault == "W5" else setup, act
                )
                found.append(make(fault, detail, tries, must, first=not i))
        died = Expectation(
            kinds=("WorkerDiedError",), details=("pid", "worker"), values={"signal": "SIGKILL"},
            seconds=SOON,
        )  # fmt: skip
        tries = partial(try_workers.play_signalled, setup, signal.SIGKILL, "worker")
        found.append(make("W1", "by another process", tries, died, first=False))
        tries = partial(try_workers.play_signalled, setup, signal.SIGKILL, "self")
        must = Expectation(kinds=(DIED,), seconds=_LEAVE)
        found.append(make("W1", "with the training process", tries, must, first=False))
        if mapped:
            tries = partial(try_workers.cut_while_read, setup)
            found.append(make("D10", "", tries, _BUS, first=True))
        unharmed = Expectation(kinds=(WHOLE,), seconds=_LEAVE)
        for number in (signal.SIGTERM, signal.SIGINT):
            tries = partial(try_workers.play_signalled, setup, number, "group")
            first = number == signal.SIGTERM
            found.append(
                make("X1", f"by {number.name}, and continue", tries, unharmed, first=first)
            )
            tries = partial(try_workers.end_and_resume, setup, number)
            found.append(make("X1", f"by {number.name}, and end", tries, unharmed, first=first))
    return [*found, *_make_cases_without_workers(target, mapped=mapped)]


def _without_key(must: Expectation) -> Expectation:
    """Leave out what would have to be fetched to be told."""
    return replace(must, details=tuple(name for name in must.details if name != "key"))


def _case(
    way: str, fault: str, detail: str, tries: Try, must: Expectation, *, first: bool, quick: bool
) -> FaultCase:
    way = f"{way}, {detail}" if detail else way
    return FaultCase(fault=fault, way=way, tries=tries, must=must, quick=quick and first)


def _make_cases_without_workers(target: FaultTarget, *, mapped: bool) -> list[FaultCase]:
    """Return the cases without workers."""
    way = f"{target.name}, workers 0"
    setup = WorkerSetup(target=target, workers=0)
    found: list[Any] = [
        FaultCase(fault=fault, way=way, reason=reason) for fault, reason in _ALONE.items()
    ]
    if mapped:
        tries, died = partial(try_workers.cut_while_read, setup), Expectation(kinds=(DIED,))
        found.append(FaultCase(fault="D10", way=way, tries=tries, must=died, reason=_BUS_ALONE))
    tries = partial(try_workers.play_signalled, setup, signal.SIGTERM, "group")
    found.append(FaultCase(fault="X1", way=way, tries=tries, must=Expectation(kinds=(WHOLE,))))
    return found

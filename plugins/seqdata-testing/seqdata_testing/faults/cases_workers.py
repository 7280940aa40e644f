"""Cases W1 to W5, D10 and X1: faults of worker processes while a loader plays."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata_testing.faults import leftovers, processes
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.fault_case import FaultCase, Try
from seqdata_testing.faults.leftovers import list_shared_memory, open_descriptors
from seqdata_testing.faults.outcome import DIED, WHOLE, Expectation, Outcome
from seqdata_testing.faults.processes import HOLDS, FaultTransform
from seqdata_testing.faults.reading import play_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.waiting import patient, until

BATCH = 4
AT = 41  # the sequence at which it happens
BEFORE = 10  # batches of 4 before the one that holds it: sequence 3 is empty, and left out
_NOTE = Path("note")  # of when it happened
_GATE = Path("held")  # is there as soon as workers may finish what is left
_CALM = 120.0  # seconds that a worker may be silent where it does not matter
_LATE = 3.0  # times as long as the first batch took, a process may take to start
_SLACK = 2  # descriptors more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Options of the loader.

    Attributes:
        target: Target that it plays.
        workers: Number of worker processes.
        method: Start method.
        stall_timeout: Seconds after which a silent worker is an error.
        is_counted: Whether open descriptors are counted; not if the server runs in this process.
    """

    target: FaultTarget
    workers: int = 2
    method: str | None = None
    stall_timeout: float = _CALM
    is_counted: bool = True

    def loader(self, root: Path, transform: FaultTransform) -> Loader:
        """Return the loader."""
        store = self.target.open(root, self.target.verify[-1])
        return Loader(
            store, Fixed(BATCH, shuffle=False), num_workers=self.workers, transform=transform,
            start_method=self.method, stall_timeout=self.stall_timeout,
        )  # fmt: skip


def play_trapped(setup: WorkerSetup, act: Callable[[], None]) -> list[Outcome]:
    """Play until a transform harms its own process."""
    root, sequences = _write_dataset(setup.target)
    return [
        _play_trapped(setup, root, sequences, FaultTransform(act, "y", sequences[AT]["y"], _NOTE))
    ]


def cut_while_read(setup: WorkerSetup) -> list[Outcome]:
    """Play until a transform truncates the last shard, which is mapped and will be read."""
    root, sequences = _write_dataset(setup.target)
    act = processes.Cutting(root / setup.target.shards(root)[-1])
    trap = FaultTransform(  # the last shard is read later; who opens it later finds it damaged
        act, "y", sequences[BATCH]["y"], _NOTE, _GATE.resolve(), among=max(1, setup.workers)
    )
    return [_play_trapped(setup, root, sequences, trap)]


def play_signalled(setup: WorkerSetup, number: int, whom: str) -> list[Outcome]:
    """Play until a process gets a signal, in the middle of the epoch.

    Args:
        setup: Options of the loader.
        number: The signal.
        whom: ``worker``, ``self`` (the training process) or ``group`` (all of them).
    """
    root, sequences = _write_dataset(setup.target)
    sent: list[float] = []
    names: set[str] = set()

    def send(send_signal: Callable[[int, int], None], target: int) -> None:
        sent.append(time.monotonic())
        send_signal(target, number)
        _GATE.touch()

    def send_to_worker() -> None:  # one that has work left, or nothing need come of its end
        if until(lambda: any(Path.cwd().glob(f"{HOLDS}*"))):
            waiting = next(Path.cwd().glob(f"{HOLDS}*"))
            send(processes.kill, int(waiting.name.removeprefix(HOLDS)))

    def each(_: int) -> None:
        if not names:
            names.update(list_shared_memory(os.getsid(0)))
        if whom == "self" and not sent:
            send(processes.kill, os.getpid())
        if whom == "group" and not sent:
            send(os.killpg, os.getpgrp())

    if whom == "group":
        signal.signal(number, lambda *_: None)  # the training process decides: it goes on
    if whom == "worker":
        threading.Thread(target=send_to_worker, daemon=True).start()
    played = play_through(
        partial(setup.loader, root, FaultTransform(None, gate=_GATE.resolve())), sequences,
        since=lambda: sent[0] if sent else None, each=each,
    )  # fmt: skip
    return [replace(played, left=(*played.left, *names))]


def end_and_resume(setup: WorkerSetup, number: int) -> list[Outcome]:
    """Play until all processes get a signal; save the state, shut down, and play the rest.

    Args:
        setup: Options of the loader.
        number: The signal.
    """
    root, sequences = _write_dataset(setup.target)
    signal_times: list[float] = []
    signal.signal(number, lambda *_: signal_times.append(time.monotonic()))
    loader = setup.loader(root, FaultTransform(None, gate=_GATE.resolve()))
    ids: list[int] = []
    for batch in loader:
        ids += batch.ids.tolist()
        if len(ids) == BATCH:
            os.killpg(os.getpgrp(), number)
            _GATE.touch()
        if signal_times:
            break
    state = loader.state_dict()
    loader.shutdown()
    ended = time.monotonic() - signal_times[0]
    left = leftovers.until_empty(
        lambda: tuple(map(str, multiprocessing.active_children())), patient(1.0)
    )
    rest = setup.loader(root, FaultTransform(None))
    rest.load_state_dict(state)
    ids += [number for batch in rest for number in batch.ids.tolist()]
    rest.shutdown()
    due = [number for number, sequence in enumerate(sequences) if len(sequence["x"])]
    verdict = outcomes.WHOLE if ids == due else outcomes.WRONG
    return [Outcome(what=verdict, text=f"{len(ids)} of {len(due)} came", seconds=ended, left=left)]


def _write_dataset(target: FaultTarget) -> tuple[Path, list[dict[str, Any]]]:
    """Write the dataset into the current folder; return its folder and its sequences."""
    root, sequences = Path("data").resolve(), target.dataset()
    target.write(root, sequences)
    return root, sequences


def _read_note() -> float | None:
    return float(_NOTE.read_text()) if _NOTE.exists() else None


def _play_trapped(
    setup: WorkerSetup, root: Path, sequences: list[dict[str, Any]], trap: FaultTransform
) -> Outcome:
    """Play once without and once with a fault; report leaked descriptors and shared memory."""
    names: set[str] = set()
    began, ready = time.monotonic(), list[float]()

    def each(_: int) -> None:
        ready.append(time.monotonic() - began)
        names.update(list_shared_memory(os.getsid(0)))

    calm = replace(setup, stall_timeout=_CALM)
    peace = play_through(partial(calm.loader, root, FaultTransform(None)), sequences, each=each)
    if peace.what != outcomes.WHOLE:
        return peace
    gc.collect()
    before = len(open_descriptors())
    log_lines = _LogLines()
    logging.getLogger("seqdata").addHandler(log_lines)
    busy = max(0.0, _LATE * ready[0] - setup.stall_timeout)  # where processes start slowly
    later = replace(setup, stall_timeout=setup.stall_timeout + busy)
    found = play_through(partial(later.loader, root, trap), sequences, since=_read_note)
    gc.collect()
    more = len(open_descriptors()) - before
    left = [f"{more} descriptors more"] if setup.is_counted and abs(more) > _SLACK else []
    text = "\n".join([found.text, *log_lines.lines])
    return replace(
        found, text=text, left=(*found.left, *left, *sorted(names)), seconds=found.seconds - busy
    )


class _LogLines(logging.Handler):
    """Log handler that keeps all messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"logged: {record.getMessage()}")


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
    """Return the start methods of this system, ``forkserver`` first."""
    return sorted(multiprocessing.get_all_start_methods(), key=lambda name: name != "forkserver")


def cases(
    target: FaultTarget, methods: Sequence[str] | None = None, *, mapped: bool = True
) -> list[FaultCase]:
    """Return the cases of W1 to W5, D10 and X1.

    Args:
        target: Dataset to play.
        methods: Start methods of workers; None: all methods.
        mapped: Whether its files are mapped in place, and so can be truncated while mapped.
    """
    found: list[FaultCase] = []
    for method in all_methods() if methods is None else methods:
        setup = WorkerSetup(target=target, method=method, is_counted=mapped)
        impatient = replace(setup, stall_timeout=_STALL)
        make = partial(_case, f"{target.name}, workers 2, {method}", quick=method == "forkserver")
        for fault, acts in _ACTS.items():
            for i, (act, detail, due) in enumerate(acts):
                must = due if mapped else _without_key(due)
                tries = partial(play_trapped, impatient if fault == "W5" else setup, act)
                found.append(make(fault, detail, tries, must, first=not i))
        died = Expectation(
            kinds=("WorkerDiedError",), details=("pid", "worker"), values={"signal": "SIGKILL"},
            seconds=SOON,
        )  # fmt: skip
        tries = partial(play_signalled, setup, signal.SIGKILL, "worker")
        found.append(make("W1", "by another process", tries, died, first=False))
        tries = partial(play_signalled, setup, signal.SIGKILL, "self")
        must = Expectation(kinds=(DIED,), seconds=_LEAVE)
        found.append(make("W1", "with the training process", tries, must, first=False))
        if mapped:
            tries = partial(cut_while_read, setup)
            found.append(make("D10", "", tries, _BUS, first=True))
        unharmed = Expectation(kinds=(WHOLE,), seconds=_LEAVE)
        for number in (signal.SIGTERM, signal.SIGINT):
            tries = partial(play_signalled, setup, number, "group")
            first = number == signal.SIGTERM
            found.append(
                make("X1", f"by {number.name}, and continue", tries, unharmed, first=first)
            )
            tries = partial(end_and_resume, setup, number)
            found.append(make("X1", f"by {number.name}, and end", tries, unharmed, first=first))
    return [*found, *_make_cases_without_workers(target, mapped=mapped)]


def _without_key(must: Expectation) -> Expectation:
    """Return an expectation without the detail ``key``, which would have to be fetched."""
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
        tries, died = partial(cut_while_read, setup), Expectation(kinds=(DIED,))
        found.append(FaultCase(fault="D10", way=way, tries=tries, must=died, reason=_BUS_ALONE))
    tries = partial(play_signalled, setup, signal.SIGTERM, "group")
    found.append(FaultCase(fault="X1", way=way, tries=tries, must=Expectation(kinds=(WHOLE,))))
    return found

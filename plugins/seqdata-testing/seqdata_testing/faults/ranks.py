"""Starting of parallel ranks, one of which is harmed, with the outcomes of the others.

Ranks are forked from a process that has imported Lightning, and form a gloo group with torch's
default timeout of half an hour.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from seqdata.loading.options import OnError
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.waiting import patient

NOTE = Path("struck")
"""File with the time (``time.monotonic``) at which a rank was struck."""

_LOST = re.compile(r"^PeerFailedError: .*\brank (\d+) (?:\(|has left )", re.MULTILINE)
_TIMEOUT = timedelta(minutes=30)  # as torch has it: so long a collective waits that nobody answers
_SOON = 10.0  # seconds for a killed process to end
_BEGUN = 60.0  # seconds for all ranks to begin
_SHOWN = 2_000

Play = Callable[[int], Outcome]
"""``play(rank)`` plays one rank, in its own process, and returns the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Options of training on ranks.

    Attributes:
        target: Target that they play.
        world: Number of ranks.
        workers: Number of workers of each rank.
        struck: The rank that is harmed.
        policy: ``on_error`` of their loaders.
        patience: Seconds after which a rank without a heartbeat is lost; None: the default.
        bound: Time limit after all have begun, in seconds of an idle machine; ranks that still run
            are stuck, and are killed.
    """

    target: FaultTarget
    world: int = 2
    workers: int = 0
    struck: int = 1
    policy: OnError = "raise"
    patience: float | None = None
    bound: float = 40.0


def play_ranks(play: Play, setup: Ranks, *, silent: int | None = None) -> list[Outcome]:
    """Play ranks in parallel, and wait for all that can end.

    Args:
        play: Function that is called in the process of each rank.
        setup: Number of ranks, and their time limit.
        silent: The rank that hangs when it is struck, and may never end; None: no such rank.

    Returns:
        The outcome of each rank except the silent one, in order of rank. Its seconds count from the
        strike, or from the beginning if there is none, to the end of the process.
    """
    context, world = multiprocessing.get_context("fork"), setup.world
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    gate = context.Barrier(world + 1)  # a rank may end as soon as all are in their group
    ranks = [
        context.Process(target=_rank, args=(play, rank, world, pipes[rank][1], gate))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    _pass_gate(gate)
    began = time.monotonic()
    ends: dict[int, float] = {}
    due: dict[Any, int] = {
        process.sentinel: rank for rank, process in enumerate(ranks) if rank != silent
    }
    while due and time.monotonic() < began + patient(setup.bound):
        for sentinel in wait(list(due), timeout=1.0):
            ends[due.pop(sentinel)] = time.monotonic()
    for process in ranks:
        process.kill()
        process.join(timeout=_SOON)
    since = float(NOTE.read_text()) if NOTE.exists() else began
    return [
        _receive_outcome(rank, ranks[rank].exitcode if rank in ends else None, pipes[rank][0],
              ends.get(rank, time.monotonic()) - since)
        for rank in range(world) if rank != silent
    ]  # fmt: skip


def strike(number: int) -> None:
    """Record the time, and send this process a signal."""
    NOTE.write_text(repr(time.monotonic()))
    os.kill(os.getpid(), number)


def mark_differing(found: Sequence[Outcome], struck: int) -> list[Outcome]:
    """Mark outcomes of ranks as broken if their error differs from that of the struck rank.

    Args:
        found: The outcome of each rank.
        struck: The rank on which it happened.
    """
    first = found[struck]

    def is_same(outcome: Outcome) -> bool:
        return (outcome.kinds, outcome.details) == (first.kinds, first.details)

    text = f"differs from what rank {struck} raises, {first.name} with {dict(first.details)}: "
    return [
        outcome
        if is_same(outcome)
        else replace(outcome, what=outcomes.BROKEN, kinds=(), text=text + outcome.text)
        for outcome in found
    ]


def _pass_gate(gate: Barrier) -> None:
    """Wait until all ranks have begun, or one of them cannot."""
    with contextlib.suppress(threading.BrokenBarrierError):
        gate.wait(timeout=patient(_BEGUN))


def _rank(play: Play, rank: int, world: int, connection: Connection, gate: Barrier) -> None:
    log = os.open(_log(rank), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _enter(rank, world)
    except BaseException:
        gate.abort()
        raise
    _pass_gate(gate)
    found = play(rank)
    connection.send(found)
    connection.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch's threads may be in collectives that nobody answers


def _log(rank: int) -> Path:
    return Path(f"rank-{rank}.txt")


def _enter(rank: int, world: int) -> None:
    """Make this process a rank: set the variables of a launcher, and join the process group."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": 0}
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in {**places, **sizes}.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{Path('group').resolve()}", rank=rank, world_size=world,
        timeout=_TIMEOUT,
    )  # fmt: skip


def _receive_outcome(
    rank: int, code: int | None, connection: Connection, seconds: float
) -> Outcome:
    """Return the outcome that a rank sent, or one made from its exit code and last output."""
    log_text = _log(rank).read_text(errors="replace") if _log(rank).exists() else ""
    text = f"rank {rank}: {log_text[-_SHOWN:]}"
    if code is None:
        return Outcome(what=outcomes.STUCK, text=text, seconds=seconds)
    if code == 0:
        found: Outcome = connection.recv()
        return replace(found, seconds=seconds)
    lost = _LOST.search(log_text)
    if lost is None:
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        return Outcome(what=outcomes.DIED, text=f"{name}, {text}", seconds=seconds)
    details: dict[str, Any] = {"rank": int(lost[1])}
    kinds = ("PeerFailedError", "SeqDataError")
    return Outcome(
        what=outcomes.ERROR,
        kinds=kinds,
        text=log_text[lost.start() :],
        details=details,
        seconds=seconds,
    )

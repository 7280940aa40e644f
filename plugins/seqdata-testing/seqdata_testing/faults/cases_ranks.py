"""Cases R1 to R3: faults of one of several ranks, and the outcomes of the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from seqdata.loading.options import OnError
from seqdata_testing.faults import processes
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import WHOLE, Expectation, Outcome
from seqdata_testing.faults.ranks import Ranks
from seqdata_testing.faults.targets import FaultTarget

_FAILED = 10.0  # seconds within which the others raise the same
_TRAINED = 30.0  # an epoch, with starting
_SIGNALS = {
    "R2": (signal.SIGKILL, 15.0),
    "R3": (signal.SIGSTOP, 60.0),
}
"""Fault -> its signal, and seconds within which the others must end."""

_SHORT = 3.0  # patience where a test waits for it
_LATER = 20.0  # seconds after which who has not ended is stuck
_PLACE = ("dataset", "shard", "file", "sequence", "epoch", "batch", "step")
_SHARD = tuple(name for name in _PLACE if name != "sequence")
_ALONE = "a single rank has no others: W1 and W5 say what comes of it"
WORLDS = ((2, 1), (3, 0))  # ranks, and which of them is struck


def cases(
    target: FaultTarget, worlds: Sequence[tuple[int, int]] = WORLDS, *, mapped: bool = True
) -> list[FaultCase]:
    """Return the cases of R1 to R3.

    Args:
        target: Dataset to train on.
        worlds: Number of ranks, and index of the one that fails.
        mapped: Whether its files are mapped in place; otherwise a shard is checked as a whole.
    """
    found: list[FaultCase] = []
    for world, struck in worlds:
        for workers in (0, 2):
            ranks = Ranks(target=target, world=world, workers=workers, struck=struck)
            found += [*_make_error_cases(ranks, mapped=mapped), *_make_policy_cases(ranks)]
            stopped = ranks if world == 2 else replace(ranks, patience=_SHORT)
            found += [_make_signal_case(ranks, "R2"), _make_signal_case(stopped, "R3")]
    way = f"{target.name}, ranks 1"
    return [
        *found,
        *(FaultCase(fault=fault, way=way, reason=_ALONE) for fault in ("R2", "R3")),
    ]


def _way(ranks: Ranks, harm: str) -> str:
    return f"{ranks.target.name}, ranks {ranks.world}, workers {ranks.workers}, {harm}"


def _make_error_cases(ranks: Ranks, *, mapped: bool) -> list[FaultCase]:
    """Return the cases of R1: the error of one rank is raised on every rank."""
    rank = ranks.struck
    quick = ranks.world == 2 and not ranks.workers
    corrupt = Expectation(
        kinds=("CorruptSampleError",) if mapped else ("CorruptShardError",),
        details=_PLACE if mapped else _SHARD, values={"rank": rank}, seconds=_FAILED,
    )  # fmt: skip
    unheard = Expectation(
        kinds=("Unheard",), texts=("nothing of this kind is known",), seconds=_FAILED
    )
    found = [
        FaultCase(
            fault="R1", way=_way(ranks, "a flipped bit in its copy"), must=corrupt, quick=quick,
            tries=partial(_train_on_damage, ranks),
        ),
        FaultCase(
            fault="R1", way=_way(ranks, "its transform raises"), must=unheard,
            tries=partial(_train_until_error, ranks, processes.raise_unheard),
        ),
    ]  # fmt: skip
    if ranks.workers:
        died = Expectation(
            kinds=("WorkerDiedError",), details=("pid", "worker", *_PLACE), seconds=_FAILED,
            values={"signal": "SIGKILL", "rank": rank},
        )  # fmt: skip
        tries = partial(_train_until_error, ranks, processes.kill_self)
        found.append(
            FaultCase(fault="R1", way=_way(ranks, "its worker dies"), must=died, tries=tries)
        )
    return found


def _make_policy_cases(ranks: Ranks) -> list[FaultCase]:
    """Return the cases of R1 in which unreadable sequences of a rank are replaced or masked."""
    policies: tuple[OnError, ...] = ("replace", "mask")
    must = Expectation(kinds=(WHOLE,), seconds=_TRAINED, happened={"row that cannot be read": 1})
    return [
        FaultCase(
            fault="R1", way=_way(ranks, f"a flipped bit in its copy, on_error {policy}"), must=must,
            tries=partial(_train_on_damage, replace(ranks, policy=policy)), policy=policy,
        )
        for policy in policies
    ]  # fmt: skip


def _make_signal_case(ranks: Ranks, fault: str) -> FaultCase:
    """Return a case of R2 or R3: the others end with an error that names the rank."""
    number, within = _SIGNALS[fault]
    must = Expectation(
        kinds=("PeerFailedError",), seconds=within, values={"rank": ranks.struck},
        texts=(f"has lost rank {ranks.struck}",),
    )  # fmt: skip
    harm = f"rank {ranks.struck} by {number.name}"
    if ranks.patience is not None:
        harm += f", patience {ranks.patience:g} s"
    quick = not ranks.workers and (ranks.world == 2) == (fault == "R2")
    return FaultCase(
        fault=fault, way=_way(ranks, harm), must=must, quick=quick,
        tries=partial(_train_until_signal, replace(ranks, bound=within + _LATER), number),
        bound=within + 3 * _LATER,
    )  # fmt: skip


# Lightning is imported only where ranks are forked: cases are listed without it.
def _train_on_damage(ranks: Ranks) -> list[Outcome]:
    _set_compile_cache()
    from seqdata_testing.faults.training import train_on_damage

    return train_on_damage(ranks)


def _train_until_error(ranks: Ranks, act: Callable[[], None]) -> list[Outcome]:
    _set_compile_cache()
    from seqdata_testing.faults.training import train_until_error

    return train_until_error(ranks, act)


def _train_until_signal(ranks: Ranks, number: int) -> list[Outcome]:
    _set_compile_cache()
    from seqdata_testing.faults.training import train_until_signal

    return train_until_signal(ranks, number)


def _set_compile_cache() -> None:
    """Make torch cache compiled code in the current folder, not among temporary files."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("compiled").resolve())

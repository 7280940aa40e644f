"""Tries what happens where the system refuses something: descriptors, memory, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seqdata_testing.faults import limits
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.reading import play_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import loader_of

Limit = Callable[[int], Callable[[], None]]


def play_limited(
    target: FaultTarget, workers: int, limit: Limit, values: Sequence[int]
) -> list[Outcome]:
    """Open and play under one limit after the other.

    Args:
        target: What is played.
        workers: Processes of the loader.
        limit: Sets it, and gives what undoes it.
        values: What it is set to.
    """
    open_it, sequences = _write_dataset(target, workers)
    found = [play_through(open_it, sequences)]  # whatever is needed once is there
    for value in values:
        undo = limit(value)
        try:
            played = play_through(open_it, sequences)
        finally:
            undo()
        late = [f"an error after {played.delivered} batches"] if played.delivered else []
        left = late if played.what == outcomes.ERROR else []
        found.append(replace(played, left=(*played.left, *left)))
    return found


def play_with_little_shared(target: FaultTarget, workers: int, size: int) -> list[Outcome]:
    """Play with a small /dev/shm.

    Args:
        target: What is played.
        workers: Processes of the loader.
        size: Bytes of it.
    """
    try:
        limits.small_shared(size)
    except limits.Unavailable as error:
        return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
    open_it, sequences = _write_dataset(target, workers)
    return [play_through(open_it, sequences)]


def _write_dataset(
    target: FaultTarget, workers: int
) -> tuple[Callable[[], Any], list[dict[str, Any]]]:
    root, sequences = Path("data").resolve(), target.dataset()
    target.write(root, sequences)
    return partial(loader_of, partial(target.open, root, target.verify[-1]), workers), sequences

"""Which rank does more than the others, and why: the rule by which a run is called skewed.

All ranks wait for the slowest, and the largest decides what fits. Place in the flow: figures of all
ranks in, the text of a warning out. Reads: figures. Makes: a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from seqdata.lightning.callbacks._support.step_stats import Figures

GIB = 1 << 30
_LEAST_BYTES = 64 << 20
_LEAST_WAIT = 0.001  # seconds of a step
"""Differences below these are noise."""


def skew_of(ranks: Sequence[Figures], most: float) -> str | None:
    """Say which rank stands out, by how much and by what cause; None: none does.

    Looked at in this order, for one often brings the next: timesteps, memory, waiting for data.

    Args:
        ranks: What each did in the same steps.
        most: How many times what the others have (their median) is too much.
    """
    if len(ranks) < 2:
        return None
    steps = ranks[0].steps
    rank, mine, others = _highest([one.padded for one in ranks])
    if mine > most * others > 0:
        return (
            f"rank {rank} had {mine / others:.2f} times the timesteps of the other ranks ({mine} "
            f"beside {others:.0f} after padding, in {steps} steps), must be at most {most:g} "
            "times; the cause is its batches: batch by what they cost (TokenBudget), or deal a "
            "multiple of the ranks as lanes"
        )
    rank, mine, others = _highest([one.peak_bytes for one in ranks])
    if mine > most * others > 0 and mine - others > _LEAST_BYTES:
        return (
            f"rank {rank} has taken {mine / others:.2f} times the memory of the other ranks "
            f"({mine / GIB:.2f} GiB beside {others / GIB:.2f} GiB), must be at most {most:g} times;"
            f" {_reason(ranks, rank, most)}"
        )
    rank, waited, others = _highest([one.waited for one in ranks])
    seconds, longer = ranks[rank].seconds, waited - others
    if seconds > most * (seconds - longer) and longer > _LEAST_WAIT * steps:
        return (
            f"rank {rank} waited {waited:.2f} s of {seconds:.2f} s for data, the other ranks "
            f"{others:.2f} s (in {steps} steps): steps must not be more than {most:g} times longer "
            "by that; the cause is its data: more `num_workers` or `prefetch` there, or look at "
            "its disk"
        )
    return None


def _reason(ranks: Sequence[Figures], rank: int, most: float) -> str:
    largest, of_others = ranks[rank].largest, _others([one.largest for one in ranks], rank)
    if largest > most * of_others:
        return (
            f"the cause is its largest batch of {largest} timesteps after padding, beside "
            f"{of_others:.0f}: batch by what they cost (TokenBudget)"
        )
    return (
        f"the cause is not its batches (the largest has {largest} timesteps after padding, beside "
        f"{of_others:.0f}): look for outputs that are kept there, and for others on its device"
    )


def _highest(values: Sequence[float]) -> tuple[int, float, float]:
    """Give the rank that has most, what it has, and what the others have."""
    rank = max(range(len(values)), key=values.__getitem__)
    return rank, values[rank], _others(values, rank)


def _others(values: Sequence[float], rank: int) -> float:
    return float(median([*values[:rank], *values[rank + 1 :]]))

"""Which rank does more than the others, and why: the rule by which a run is called skewed.

All ranks wait for the slowest, and the largest decides what fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from seqdata.lightning.callbacks._support.step_stats import StepStats

GIB = 1 << 30
_MIN_BYTES = 64 << 20
_MIN_WAIT_SECONDS = 0.001  # seconds of a step
"""Differences below these are noise."""


def describe_skew(ranks: Sequence[StepStats], max_ratio: float) -> str | None:
    """Say which rank stands out, by how much and by what cause; None: none does.

    Looked at in this order, for one often brings the next: timesteps, memory, waiting for data.

    Args:
        ranks: What each did in the same steps.
        max_ratio: How many times what the others have (their median) is too much.
    """
    if len(ranks) < 2:
        return None
    steps = ranks[0].steps
    rank, highest, others = _find_highest([stats.padded for stats in ranks])
    if highest > max_ratio * others > 0:
        return (
            f"rank {rank} had {highest / others:.2f} times the timesteps of the other ranks "
            f"({highest} "
            f"beside {others:.0f} after padding, in {steps} steps), must be at most {max_ratio:g} "
            "times; the cause is its batches: batch by what they cost (TokenBudget), or deal a "
            "multiple of the ranks as lanes"
        )
    rank, highest, others = _find_highest([stats.peak_bytes for stats in ranks])
    if highest > max_ratio * others > 0 and highest - others > _MIN_BYTES:
        return (
            f"rank {rank} has taken {highest / others:.2f} times the memory of the other ranks "
            f"({highest / GIB:.2f} GiB beside {others / GIB:.2f} GiB), must be at most "
            f"{max_ratio:g} times;"
            f" {_describe_reason(ranks, rank, max_ratio)}"
        )
    rank, waited_seconds, others = _find_highest([stats.waited for stats in ranks])
    seconds, extra_seconds = ranks[rank].seconds, waited_seconds - others
    if (
        seconds > max_ratio * (seconds - extra_seconds)
        and extra_seconds > _MIN_WAIT_SECONDS * steps
    ):
        return (
            f"rank {rank} waited {waited_seconds:.2f} s of {seconds:.2f} s for data, the other "
            "ranks "
            f"{others:.2f} s (in {steps} steps): steps must not be more than {max_ratio:g} times "
            "longer "
            "by that; the cause is its data: more `num_workers` or `prefetch` there, or look at "
            "its disk"
        )
    return None


def _describe_reason(ranks: Sequence[StepStats], rank: int, max_ratio: float) -> str:
    largest, others_largest = (
        ranks[rank].largest,
        _median_of_others([stats.largest for stats in ranks], rank),
    )
    if largest > max_ratio * others_largest:
        return (
            f"the cause is its largest batch of {largest} timesteps after padding, beside "
            f"{others_largest:.0f}: batch by what they cost (TokenBudget)"
        )
    return (
        f"the cause is not its batches (the largest has {largest} timesteps after padding, beside "
        f"{others_largest:.0f}): look for outputs that are kept there, and for others on its device"
    )


def _find_highest(values: Sequence[float]) -> tuple[int, float, float]:
    """Return the rank that has most, what it has, and what the others have."""
    rank = max(range(len(values)), key=values.__getitem__)
    return rank, values[rank], _median_of_others(values, rank)


def _median_of_others(values: Sequence[float], rank: int) -> float:
    return float(median([*values[:rank], *values[rank + 1 :]]))

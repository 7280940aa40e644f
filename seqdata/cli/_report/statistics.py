"""The figures that ``seqdata stats`` and ``seqdata plan`` report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.plan import Plan
from seqdata.report import BatchMeasures
from seqdata.sharing import Tail, World, share
from seqdata.storage.store_repr import HistogramBin, histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    """Statistics of the lengths along one axis, in timesteps."""

    total: int
    empty: int
    shortest: int
    median: float
    mean: float
    p95: float
    longest: int
    histogram: tuple[HistogramBin, ...]


def compute_length_stats(lengths: NDArray[Any]) -> LengthStats:
    """Return statistics of lengths, integers (n,) of at least one sequence."""
    return LengthStats(
        total=int(lengths.sum(dtype=np.int64)),
        empty=int(np.count_nonzero(lengths == 0)),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        p95=float(np.percentile(lengths, 95)),
        longest=int(lengths.max()),
        histogram=histogram(lengths),
    )


def compute_idle_share(plan: Plan) -> float:
    """Return the share of a plan's rows that are idle lanes; 0 if the plan has no lanes."""
    rows = len(plan) * plan.lanes
    return 1.0 - plan.totals(0, len(plan))[1] / rows if rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldStats:
    """The division of a plan among a number of ranks.

    Attributes:
        size: Number of ranks.
        steps: Steps of every rank.
        filler: Number of filler batches in the last step.
        left_out: Number of batches of the plan that are not trained.
        repeated: Number of batches that are trained again in the last step.
        balance: sum(max)/sum(mean) over the steps of the longest row of each rank: 1.0 is even.
    """

    size: int
    steps: int
    filler: int
    left_out: int
    repeated: int
    balance: float


def compute_world_stats(
    plan: Plan, batches: BatchMeasures, sizes: Sequence[int], tail: Tail = "fill"
) -> list[WorldStats]:
    """Return steps and balance of a plan for several world sizes.

    Raises:
        PlanError: If ``drop`` would leave out everything.
    """
    stats = []
    for count in sizes:
        steps = len(share(plan, World(0, count), tail=tail))
        full_steps = 0 if plan.lanes else len(plan) // count * count  # of full steps
        missing = 0 if plan.lanes else steps * count - len(plan)
        longest_by_step = batches.longest[:full_steps].reshape(-1, count)
        mean = float(longest_by_step.mean(axis=1).sum())
        stats.append(
            WorldStats(
                size=count,
                steps=steps,
                filler=missing if tail == "fill" else 0,
                left_out=-missing if tail == "drop" else 0,
                repeated=missing if tail == "repeat" else 0,
                balance=float(longest_by_step.max(axis=1).sum()) / mean if mean else 1.0,
            )
        )
    return stats

"""Simulation of an epoch on all ranks in one process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import SeqDataWarning
from seqdata.plan import Plan
from seqdata.plan_table import PlanBatch
from seqdata.sharing import RankPlan, Step, Tail, World, share
from seqdata_testing import ConformanceError


class TrainedBatch(NamedTuple):
    """A batch that a step trains: its number in the plan, its spans, and the offsets of rows."""

    number: int
    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None


def share_all_ranks(plan: Plan, size: int, first: int, tail: Tail) -> list[RankPlan]:
    """Return the share of every rank, without the warning about uneven lanes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        return [share(plan, World(rank, size), first=first, tail=tail) for rank in range(size)]


class SimulatedShare(NamedTuple):
    """The remaining steps of all ranks of an epoch.

    Attributes:
        plan: The plan of an epoch.
        size: World size.
        first: Number of batches of the plan that were trained before.
        tail: Treatment of ranks without a batch in the last step.
        ranks: The share of each rank.
        steps: For each step, the steps of all ranks.
    """

    plan: Plan
    size: int
    first: int
    tail: Tail
    ranks: list[RankPlan]
    steps: list[list[Step]]


def play(plan: Plan, size: int, *, first: int = 0, tail: Tail = "fill") -> SimulatedShare:
    """Play the rest of an epoch on all ranks."""
    ranks = share_all_ranks(plan, size, first, tail)
    coming = range(ranks[0].first_step, len(ranks[0]))
    return SimulatedShare(
        plan, size, first, tail, ranks, [[mine[k] for mine in ranks] for k in coming]
    )


def trained_batches(plan: Plan, steps: Sequence[Step]) -> list[TrainedBatch]:
    """Return the batches that the ranks of one step train, in the order of ranks."""
    if not plan.lanes:
        return [
            TrainedBatch(step.number, step.spans, step.rows)
            for step in steps
            if bool(step.weights.all())
        ]
    return [_join_lanes(plan, steps)]


def _join_lanes(plan: Plan, steps: Sequence[Step]) -> TrainedBatch:
    """Join the lanes of all ranks to a batch, and check weights and lane numbers."""
    spans, sizes = [], []
    lanes: list[int] = []
    for rank, step in enumerate(steps):
        own = plan.lanes * (rank + 1) // len(steps) - plan.lanes * rank // len(steps)
        lengths = row_lengths(step.spans, step.rows)
        due = (lengths > 0).astype(np.float32) if own else np.zeros(1, dtype=np.float32)
        if not np.array_equal(step.weights, due):
            raise ConformanceError(
                f"share: batch {step.number} has weights {step.weights.tolist()} on rank {rank} of "
                f"{len(steps)}, but must be {due.tolist()}: 0 where a lane is idle or a padding row"
            )
        if not own:
            continue
        spans.append(step.spans)
        sizes.append(np.ones(len(step.spans)) if step.rows is None else np.diff(step.rows))
        lanes += [] if step.lanes is None else step.lanes.tolist()
    if lanes != list(range(plan.lanes)):
        raise ConformanceError(
            f"share: the lanes of {len(steps)} ranks are {lanes}, but must be 0 to "
            f"{plan.lanes - 1}, each on one rank"
        )
    rows = None
    if steps[0].rows is not None:
        rows = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return TrainedBatch(steps[0].number, np.concatenate(spans), rows)


def weighted_spans(step: Step) -> NDArray[np.int64]:
    """Return the spans of a step's rows of weight > 0, int64 (n, 3)."""
    if bool(step.weights.all()):
        return step.spans
    is_weighted = step.weights > 0
    return step.spans[
        is_weighted if step.rows is None else np.repeat(is_weighted, np.diff(step.rows))
    ]


def count_step(step: Step, plan: Plan) -> tuple[int, int]:
    """Return the number of scored timesteps and of rows of weight > 0 of a step."""
    scored = without_context(plan, step.number, step.spans, step.rows)
    spans = weighted_spans(step._replace(spans=scored))
    return int((spans[:, 2] - spans[:, 1]).sum()), int(np.count_nonzero(step.weights))


def scored_spans(plan: Plan, number: int, batch: PlanBatch) -> NDArray[np.int64]:
    """Return the spans of a batch without context, int64 (n, 3)."""
    return without_context(plan, number, batch.spans, batch.rows)


def without_context(
    plan: Plan, number: int, spans: NDArray[np.int64], rows: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the spans of rows of a batch without context, int64 (n, 3)."""
    lengths = spans[:, 2] - spans[:, 1]
    if not plan.carry:
        context = np.where(spans[:, 1] > 0, np.minimum(plan.overlap, lengths), 0)
    elif number == 0:  # the epoch's first batch has nothing before it
        context = np.zeros_like(lengths)
    else:
        before = np.cumsum(lengths) - lengths
        if rows is not None:
            before -= np.repeat(before[rows[:-1]], np.diff(rows))
        else:
            before[:] = 0
        context = np.clip(plan.overlap - before, 0, lengths)
    scored = spans.copy()
    scored[:, 1] += context
    return scored


def row_lengths(spans: NDArray[np.int64], rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the number of timesteps of each row, int64 (rows,)."""
    lengths = spans[:, 2] - spans[:, 1]
    if rows is None:
        return lengths
    return np.array([lengths[a:b].sum() for a, b in pairwise(rows)])


def is_batch(batch: PlanBatch, part: TrainedBatch) -> bool:
    """Return whether a trained batch equals that of the plan, row by row."""
    return np.array_equal(batch.spans, part.spans) and is_same_rows(batch.rows, part.rows)


def is_same_step(step: Step, other: Step) -> bool:
    """Return whether two steps have the same batch, spans, weights, rows and lanes."""
    return (
        step.number == other.number
        and np.array_equal(step.spans, other.spans)
        and np.array_equal(step.weights, other.weights)
        and is_same_rows(step.rows, other.rows)
        and is_same_rows(step.lanes, other.lanes)
    )


def is_same_rows(rows: NDArray[np.int64] | None, other: NDArray[np.int64] | None) -> bool:
    """Return whether two optional arrays are the same."""
    if rows is None or other is None:
        return rows is other
    return np.array_equal(rows, other)

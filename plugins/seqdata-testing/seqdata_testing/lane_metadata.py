"""Checks of lane metadata: resets, context and counts (I6).

A simulated state follows each lane: the position up to which the lane was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.loading.batch_metadata import make_metadata
from seqdata.plan import Plan
from seqdata.sharing import Step
from seqdata_testing import ConformanceError
from seqdata_testing.simulate import count_step, share_all_ranks

_AXES = Axes()


def check_heads(plan: Plan, size: int = 1) -> None:
    """Check that resets, context and counts of all ranks' batches match the plan.

    Args:
        plan: A plan with lanes.
        size: Number of ranks.

    Raises:
        ConformanceError: If a lane is not reset exactly where a sequence begins, a state would
            continue at another position than it ended at, or a count is wrong.
    """
    states = [_State() for _ in range(plan.lanes)]
    ranks = share_all_ranks(plan, size, 0, "fill")
    for number in range(len(plan)):
        total = 0
        for rank, mine in enumerate(ranks):
            step = mine[number]
            head = make_metadata(step, step.spans[:, 0], plan, _AXES)
            where = f"metadata: batch {number} on rank {rank} of {size}"
            _check_counts(where, head, step, plan)
            total += head.num_tokens
            lanes = [-1] if step.lanes is None else step.lanes.tolist()
            for lane, row in zip(lanes, _rows(head), strict=True):
                if row.counts:
                    states[lane].take(f"{where}, lane {lane}", row, plan)
                elif row.reset and not row.length:
                    raise ConformanceError(
                        f"{where}, lane {lane} is idle and reset, but must not be"
                    )
        due = plan.totals(number, number + 1)[0]
        if total != due:
            raise ConformanceError(
                f"metadata: batch {number} has {total} scored timesteps on {size} ranks, but must "
                f"have {due}, as planned"
            )


class _Row(NamedTuple):
    """The metadata of a row; ``last`` is the sequence and the stop of its last span."""

    number: int
    start: int
    length: int
    context: int
    reset: bool
    counts: bool
    last: tuple[int, int]


def _rows(head: SequenceBatch) -> list[_Row]:
    none = [0] * len(head)
    ids, starts, lengths = head.ids.tolist(), head.start.tolist(), head.lengths.tolist()
    last = [(a, b + c) for a, b, c in zip(ids, starts, lengths, strict=True)]
    for row, number, _, stop in [] if head.segments is None else head.segments.tolist():
        last[row] = number, stop
    context = none if head.burn_in is None else head.burn_in.tolist()
    reset = none if head.reset is None else head.reset.tolist()
    counts = (head.weight > 0).tolist()
    return [
        _Row(*row) for row in zip(ids, starts, lengths, context, reset, counts, last, strict=True)
    ]


@dataclass(slots=True, eq=False)
class _State:
    """The position of a lane's state: sequence, and one past its last timestep; None: no state."""

    at: tuple[int, int] | None = None

    def take(self, where: str, row: _Row, plan: Plan) -> None:
        """Check that a row continues from this state or begins a sequence, then advance it."""
        place = f"timestep {row.start} of sequence {row.number}"
        begins = self.at is None if plan.carry else row.start == 0
        if row.reset != begins:
            raise ConformanceError(
                f"{where}: reset is {row.reset} at {place}, but must be {begins}"
            )
        due = 0 if begins else plan.overlap
        if row.context != due:
            raise ConformanceError(
                f"{where}: burn_in is {row.context} at {place}, but must be {due}"
            )
        if not plan.carry and not begins and self.at != (row.number, row.start):
            raise ConformanceError(
                f"{where}: the state is that of {self.at}, but must be that of "
                f"{(row.number, row.start)}"
            )
        self.at = row.last[0], row.last[1] - plan.overlap


def _check_counts(where: str, head: SequenceBatch, step: Step, plan: Plan) -> None:
    scored = head.lengths.clone()
    if head.burn_in is not None:
        scored -= head.burn_in
    row_total = int(scored[head.weight > 0].sum())
    due = count_step(step, plan)[0]
    if not head.num_tokens == row_total == due:
        raise ConformanceError(
            f"{where}: num_tokens is {head.num_tokens} and the rows score {row_total} tokens, but "
            f"both must be {due}"
        )
    if head.overlap != plan.overlap or head.lr_scale != plan.lr_scale(step.number):
        raise ConformanceError(
            f"{where}: overlap and lr_scale must be {plan.overlap} and "
            f"{plan.lr_scale(step.number)} as in the plan, but are {head.overlap} and "
            f"{head.lr_scale}"
        )
    head_lanes = None if head.lanes is None else head.lanes.tolist()
    step_lanes = None if step.lanes is None else step.lanes.tolist()
    if head_lanes != step_lanes:
        raise ConformanceError(
            f"{where}: lanes are {head_lanes}, but must be {step_lanes}, as in the step"
        )

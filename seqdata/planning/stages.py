"""Stages of a run: what is drawn follows from a batch's number, over all epochs together.

Within a stage one policy makes the batches. It goes through what it plans over in passes, which do
not end where an epoch does: batch ``j`` of a stage is batch ``j % n`` of its pass ``j // n``. So a
stage has no sequence again before all others have come, any batch is found by its number, and an
epoch has as many batches as are declared. Reads: policies. Makes: a table.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from seqdata.errors import PlanError, StopIterationGuard
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.plan_table import BatchTable, DrawnBatch
from seqdata.planning.parts import derive_part_seed
from seqdata.planning.piecewise import Piece, PiecewiseTable
from seqdata.protocols import Policy
from seqdata.report import PlanReport, make_report

_CACHED_PASSES = 2  # a reader may be in the next one already


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of batches that one policy makes.

    Attributes:
        first: Its first batch in the run.
        policy: Makes the batches.
        pass_batches: Batches of each pass.
    """

    first: int
    policy: Policy
    pass_batches: int

    def plan_pass(self, index: SequenceIndex, seed: int, number: int) -> Plan:
        """Return the plan of a pass; no two stages have the same random numbers.

        Raises:
            PlanError: If its batches are not as many as the policy said.
        """
        own_seed = derive_part_seed(seed, f"stage from {self.first}") if self.first else seed
        with StopIterationGuard("stages: `policy`", self.policy):
            plan = self.policy.plan(index, seed=own_seed, epoch=number)
        if len(plan) != self.pass_batches:
            raise PlanError(
                f"stages: epoch {number} of {type(self.policy).__name__} must have "
                f"{self.pass_batches} batches, as its `num_batches` says, but has {len(plan)}. Use "
                "a policy whose epochs are alike."
            )
        return plan


@dataclass(frozen=True, slots=True, eq=False)
class StagedTable(PiecewiseTable):
    """The batches of one epoch of a run in stages.

    Attributes:
        stages: The stages of the epoch, in order.
        index: What is planned over.
        seed: Of the plans.
        first: Batches of the run before this epoch.
        count: Batches of this epoch.
    """

    stages: Sequence[Stage]
    index: SequenceIndex
    seed: int
    first: int
    count: int
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    def drawn_batch(self, number: int) -> DrawnBatch:
        """Return what tells the draws of a sequence apart: its pass, and what that says of it."""
        stage, own_pass, within = self._find_pass(number)
        plan = self._make_plan(stage, own_pass)
        drawn = plan.drawn_batch(within)
        if drawn is None:
            drawn = DrawnBatch(self.index, plan.batch(within).spans)
        labels = plan.label_parts([within])
        part_epoch = labels[0].epoch if labels else None
        if not isinstance(part_epoch, int):  # of rows of several parts, draws are counted
            part_epoch = None
        text = f"stage;{stage.first};{own_pass};{part_epoch};{drawn.epoch}"
        digest = hashlib.sha256(text.encode()).digest()
        return drawn._replace(epoch=int.from_bytes(digest[:8], "little") >> 1)

    @property
    def lookahead(self) -> int:
        """Timesteps that the plans read past their spans."""
        return self._locate(0).plan.lookahead

    def first_plans(self) -> list[Plan]:
        """Return the plan of each stage's first pass of the epoch."""
        firsts = [max(stage.first - self.first, 0) for stage in self.stages]
        return [self._make_plan(*self._find_pass(number)[:2]) for number in firsts]

    def _locate(self, number: int) -> Piece:
        stage, own_pass, within = self._find_pass(number)
        start = number - within
        stop = min(self.count, start + stage.pass_batches)
        later = bisect_right(self.stages, stage.first, key=_get_first)
        if later < len(self.stages):
            stop = min(stop, self.stages[later].first - self.first)
        return Piece(self._make_plan(stage, own_pass), start, stop)

    def _find_pass(self, number: int) -> tuple[Stage, int, int]:
        """Return the stage of a batch, the number of its pass, and its number there."""
        position = self.first + number
        i = bisect_right(self.stages, position, key=_get_first) - 1
        stage = self.stages[i]
        return stage, *divmod(position - stage.first, stage.pass_batches)

    def _make_plan(self, stage: Stage, own_pass: int) -> Plan:
        key = stage.first, own_pass
        plan = self._plans.get(key)
        if plan is None:
            plan = stage.plan_pass(self.index, self.seed, own_pass)
            for old in list(self._plans)[: 1 - _CACHED_PASSES]:  # a reader thread may do the same
                self._plans.pop(old, None)
            self._plans[key] = plan
        return plan


def _get_first(stage: Stage) -> int:
    return stage.first


def make_staged_report(table: BatchTable, plans: Sequence[Plan]) -> PlanReport:
    """Return the report of an epoch.

    Args:
        table: Its batches.
        plans: One of each stage: what all of them leave out is dropped, what any splits is split.
    """
    reports = [plan.report for plan in plans]
    return replace(
        make_report(table),
        dropped=reduce(np.intersect1d, [report.dropped for report in reports]),
        split=reduce(np.union1d, [report.split for report in reports]),
        truncated=reduce(np.union1d, [report.truncated for report in reports]),
    )

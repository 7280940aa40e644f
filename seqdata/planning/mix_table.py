"""The batches of a mixture: the batches of its parts' own plans, in the order of the parts.

Everything is made on demand: the plan of a part with its first batch, and the order of parts for
some events at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, StopIterationGuard
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    PartLabel,
    PlanBatch,
    concat_ranges,
    offsets_from_sizes,
)
from seqdata.planning.part_order import PartOrder
from seqdata.planning.part_positions import PartPosition, PartPositions
from seqdata.planning.parts import number_part_crops
from seqdata.planning.piecewise import Piece, PieceSlice, PiecewiseTable, add_rows
from seqdata.planning.policy import has_draws, has_importance
from seqdata.protocols import Policy
from seqdata.report import PlanReport, count_repeats, make_report

_RUN_BATCHES = 64  # batches that are described at once
_ORDER_EVENTS = 1 << 10  # events whose order is computed at once
_CACHED_ORDERS = 4
_CACHED_EPOCHS = 2  # plans of a part: a reader may be in the next epoch already


@dataclass(frozen=True, slots=True, eq=False)
class PartRun:
    """The endless run of a part: its own epochs, each a plan of its own policy and seed.

    Attributes:
        name: Name of the part.
        first: Index of its first sequence in the mixture.
        index: Lengths of the part.
        policy: Policy that makes its batches.
        seed: Seed of its plans.
        num_batches: Number of batches of each of its epochs.
        lookahead: Timesteps that its plans read past their spans.
        rule: Name of the policy that combines the parts, for messages.
        group: Number of consecutive batches of its plans with similar lengths.
        lanes: Number of lanes of its plans; 0: their batches are independent.
    """

    name: str
    first: int
    index: SequenceIndex
    policy: Policy
    seed: int
    num_batches: int
    lookahead: int
    rule: str = "mix"
    group: int = 1
    lanes: int = 0
    _plans: dict[int, Plan] = field(default_factory=dict)

    def plan(self, epoch: int) -> Plan:
        """Return the plan of one of the part's own epochs; the last ones are kept.

        Raises:
            PlanError: If the plan does not have the number of batches or lanes of this run.
        """
        plan = self._plans.get(epoch)
        if plan is None:
            with StopIterationGuard(f"policy {self.rule!r}: `policy`", self.policy):
                plan = self.policy.plan(self.index, seed=self.seed, epoch=epoch)
            self._check(plan, epoch)
            for old in list(self._plans)[: 1 - _CACHED_EPOCHS]:  # a reader thread may do the same
                self._plans.pop(old, None)
            self._plans[epoch] = plan
        return plan

    def locate(self, own: int) -> tuple[int, int]:
        """Return the epoch of a batch of the endless run, and its index in that plan.

        Groups of like batches begin at multiples of their size, in every epoch: the batches before
        the first one are taken from the end of the epoch's plan.
        """
        epoch, number = divmod(own, self.num_batches)
        return epoch, (number + epoch * self.num_batches % -self.group) % self.num_batches

    def count_left(self, epoch: int, number: int) -> int:
        """Return the number of batches from a batch of an epoch's plan to the end of this epoch."""
        batches = self.num_batches
        return batches - (number - epoch * batches % -self.group) % batches

    def _check(self, plan: Plan, epoch: int) -> None:
        """Raise if a plan of the part cannot be mixed with others."""
        if self.lanes and plan.lanes != self.lanes:
            raise PlanError(
                f"policy {self.rule!r}: plans of part {self.name!r} must have {self.lanes} lanes, "
                f"as `lanes` of its policy says, but have {plan.lanes}. Correct the policy."
            )
        if plan.lanes != self.lanes:
            raise PlanError(
                f"policy {self.rule!r}: the batches of part {self.name!r} must be independent, but "
                f"have {plan.lanes} lanes. Train on such a policy alone."
            )
        promised = (self.num_batches, self.lookahead)
        if (len(plan), plan.lookahead) != promised:
            raise PlanError(
                f"policy {self.rule!r}: epoch {epoch} of part {self.name!r} must have (batches, "
                f"lookahead) {promised}, as `num_batches` and `horizon` of its policy say, but has "
                f"{(len(plan), plan.lookahead)}. Use a policy whose epochs are alike."
            )


@dataclass(frozen=True, slots=True, eq=False)
class MixTable(PiecewiseTable):
    """The batches of one epoch of a mixture.

    Attributes:
        parts: The run of each part.
        order: The order of the parts; an event is ``group`` batches of a part.
        group: Number of consecutive batches of one part.
        first: Number of batches of the mixture before this epoch.
        count: Number of batches of this epoch.
        bases: Number of batches of each part before the order begins; None: 0.
        origin: Positions of the parts where the mixture began; None: their first epochs.
    """

    parts: Sequence[PartRun]
    order: PartOrder
    group: int
    first: int
    count: int
    bases: Sequence[int] | None = None
    origin: PartPositions | None = None
    _orders: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, some at a time; with rows where any part has them."""
        has_rows = any(run.plan(0).batch(0).rows is not None for run in self._drawn_runs())
        firsts = range(0, self.count, _RUN_BATCHES)
        tables = (self.slice(first, min(first + _RUN_BATCHES, self.count)) for first in firsts)
        return add_rows(tables, has_rows=has_rows)

    def prepare(self, number: int) -> int:
        """Return the first batch after those that are described together with this one."""
        return min(number - number % _RUN_BATCHES + _RUN_BATCHES, self.count)

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each of these batches, and the part's own epoch."""
        located = map(self._find, numbers)
        return [PartLabel(self.parts[part].name, epoch) for part, epoch, _ in located]

    def locate_parts(self, number: int) -> dict[str, PartPosition]:
        """Return each part's position in its own epochs before a batch, or, for ``count``, last."""
        counts = self.order.count_batches(self.first + number, self.group, len(self.parts))
        bases = self.bases or [0] * len(self.parts)
        begins = self.origin.values if self.origin else [PartPosition(0, 0)] * len(self.parts)
        return {
            run.name: PartPosition(*divmod(base + own, run.num_batches))
            if run.num_batches
            else begin
            for run, base, own, begin in zip(self.parts, bases, counts, begins, strict=True)
        }

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches; None: all are 1."""
        if not any(has_importance(run.policy) for run in self.parts):
            return None
        return self._fill_weights(numbers)

    def _drawn_runs(self) -> Iterator[PartRun]:
        """Yield the parts that may be drawn from."""
        drawn = {side for pair in self.order.pairs for side in (pair.left, pair.right)}
        for side in drawn | {self.order.root}:
            if side < 0:
                yield self.parts[~side]

    def _find(self, number: int) -> tuple[int, int, int]:
        """Return the part of a batch, the part's own epoch, and the index of the batch there."""
        event, within = divmod(self.first + number, self.group)
        block, position = divmod(event, _ORDER_EVENTS)
        parts, numbers = self._find_order(block)
        part = parts[position]
        return part, *self.parts[part].locate(numbers[position] + within)

    def _locate(self, number: int) -> Piece:
        part, epoch, own = self._find(number)
        run = self.parts[part]
        plan, count = run.plan(epoch), self.group - (self.first + number) % self.group
        if count > 1:
            count = min(count, run.count_left(epoch, own), plan.prepare(own) - own)
        return Piece(plan, number - own, number + count, run.first, run.name)

    def _cut(self, first: int, stop: int) -> Iterator[PieceSlice]:
        """Yield batches ``first:stop`` as slices of the plans of parts."""
        if self.group > 1:
            yield from PiecewiseTable._cut(self, first, stop)
            return
        while first < stop:  # each batch by itself, in half the time
            block, position = divmod(self.first + first, _ORDER_EVENTS)
            parts, numbers = self._find_order(block)
            end = min(position + stop - first, _ORDER_EVENTS)
            for part, own in zip(parts[position:end], numbers[position:end], strict=True):
                run = self.parts[part]
                epoch, number = run.locate(own)
                yield PieceSlice(run.plan(epoch), number, number + 1, run.first)
            first += end - position

    def _find_order(self, block: int) -> tuple[list[int], list[int]]:
        """Return the parts of a block of events, and the index of the first batch of each event."""
        found = self._orders.get(block)
        if found is None:
            parts, numbers = self.order.locate_run(block * _ORDER_EVENTS, _ORDER_EVENTS)
            numbers = numbers * self.group
            if self.bases is not None:
                numbers += np.array(self.bases)[parts]
            found = parts.tolist(), numbers.tolist()
            for old in list(self._orders)[: 1 - _CACHED_ORDERS]:  # a reader thread may do the same
                self._orders.pop(old, None)
            self._orders[block] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class LaneMixTable(BatchTable):
    """The steps of one epoch of a mixture of lanes: the lanes of every part, in their order.

    A lane belongs to one part. Each part goes through its own epochs, whose steps follow each other
    without a gap, also over the ends of the mixture's epochs.

    Attributes:
        parts: The run of each part that has lanes.
        first: Number of steps of the mixture before this epoch.
        count: Number of steps of this epoch.
    """

    parts: Sequence[PartRun]
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def batch(self, number: int) -> PlanBatch:
        """Return one batch: a row of each lane."""
        return self.slice(number, number + 1).batch(0)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        tables = []
        for run in self.parts:
            epoch, step = run.locate(self.first + first)
            tables.append(run.plan(epoch).slice(step, step + stop - first))
        return self._join(tables, stop - first)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return batches of one run whose rows continue along a stream; None if no row does."""
        tables = []
        for run in self.parts:
            epoch, step = run.locate(self.first + first)
            table = run.plan(epoch).extend(step, step + stop - first)
            if table is None:
                return None
            tables.append(table)
        return self._join(tables, stop - first)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
        del overlap  # known to the plans
        timesteps = rows = 0
        for run in self.parts:
            number = first
            while number < stop:
                epoch, step = run.locate(self.first + number)
                end = min(run.num_batches, step + stop - number)
                more = run.plan(epoch).totals(step, end)
                timesteps, rows = timesteps + more[0], rows + more[1]
                number += end - step
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, one run after another, with rows if any of them has rows."""
        tables, number = [], 0
        while number < self.count:
            stop = self.prepare(number)
            tables.append(self.slice(number, stop))
            number = stop
        return add_rows(tables, has_rows=any(table.rows is not None for table in tables))

    def prepare(self, number: int) -> int:
        """Return the first batch after those that every part computes together."""
        stop = self.count
        for run in self.parts:
            epoch, step = run.locate(self.first + number)
            stop = min(stop, number + run.plan(epoch).prepare(step) - step)
        return stop

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each lane in these batches, and the part's own epoch."""
        names = [run.name for run in self.parts for _ in range(run.lanes)]
        found = []
        for number in numbers:
            own = [(run.locate(self.first + number)[0], run.lanes) for run in self.parts]
            found.append(PartLabel(names, [epoch for epoch, lanes in own for _ in range(lanes)]))
        return found

    def lane_begins(self, numbers: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether each lane begins an epoch of its part, bool (n, lanes)."""
        steps = np.asarray(numbers, dtype=np.int64) + self.first
        begins = [steps % run.num_batches == 0 for run in self.parts]
        return np.repeat(np.stack(begins, axis=1), [run.lanes for run in self.parts], axis=1)

    def locate_parts(self, number: int) -> dict[str, PartPosition]:
        """Return each part's position in its own epochs before a batch."""
        return {
            run.name: PartPosition(*divmod(self.first + number, run.num_batches))
            for run in self.parts
        }

    def _join(self, tables: Sequence[ArrayTable], steps: int) -> ArrayTable:
        """Return the rows of all parts, step by step."""
        spans = [
            table.spans + np.array([run.first, 0, 0])
            for run, table in zip(self.parts, tables, strict=True)
        ]
        counts = [run.lanes for run in self.parts]
        offsets = np.arange(steps + 1) * sum(counts)
        if all(table.rows is None for table in tables):
            by_step = [own.reshape(steps, -1, 3) for own in spans]
            return ArrayTable(np.concatenate(by_step, axis=1).reshape(-1, 3), None, offsets)
        sizes, starts, bounds, base = [], [], [], 0
        for table, own, lanes in zip(tables, spans, counts, strict=True):
            rows = np.arange(len(own) + 1) if table.rows is None else table.rows
            sizes.append(np.diff(rows).reshape(steps, lanes))
            firsts = rows[::lanes]
            starts.append(base + firsts[:-1])
            bounds.append(np.diff(firsts))
            base += len(own)
        numbers = concat_ranges(
            np.stack(starts, axis=1).reshape(-1),
            offsets_from_sizes(np.stack(bounds, axis=1).reshape(-1)),
        )
        row_sizes = np.concatenate(sizes, axis=1).reshape(-1)
        return ArrayTable(np.concatenate(spans)[numbers], offsets_from_sizes(row_sizes), offsets)


def number_crops(
    runs: Sequence[PartRun], spans: NDArray[np.int64], epoch: int
) -> NDArray[np.int64]:
    """Return the index of each span of a mixture among its sequence's windows, int64 (n,).

    Args:
        runs: The run of each part.
        spans: int64 (n, 3): sequence, start, stop.
        epoch: The part's own epoch.
    """
    numbers = np.zeros(len(spans), dtype=np.int64)
    for run in runs:
        own = (spans[:, 0] >= run.first) & (spans[:, 0] < run.first + len(run.index))
        if own.any():
            own_spans = spans[own] - np.array([run.first, 0, 0])
            numbers[own] = number_part_crops(
                run.policy, run.index, own_spans, seed=run.seed, epoch=epoch
            )
    return numbers


def find_lookahead(drawn: list[PartRun]) -> int:
    """Return the number of timesteps that all parts read past their spans.

    Raises:
        ConfigError: If they differ.
    """
    lookaheads = {run.name: run.lookahead for run in drawn}
    if len(set(lookaheads.values())) > 1:
        raise ConfigError(
            f"policy 'mix': the windows of all parts must have the same `horizon`, but "
            f"have {lookaheads}. Pass the same to their policies."
        )
    return next(iter(lookaheads.values()))


def make_mix_report(table: BatchTable, drawn: list[PartRun]) -> PlanReport:
    """Return the report of an epoch, with the sequences that parts leave out, split or truncate."""
    reports = [(run.first, run.plan(0).report) for run in drawn]
    return replace(
        make_report(table),
        dropped=np.concatenate([first + report.dropped for first, report in reports]),
        split=np.concatenate([first + report.split for first, report in reports]),
        truncated=np.concatenate([first + report.truncated for first, report in reports]),
        repeats=count_repeats(table) if any(has_draws(run.policy) for run in drawn) else 0,
    )

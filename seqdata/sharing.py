"""The ranks of a run, and the share of each in a plan: the only module of planning with ranks.

``World`` is a value, made once from the Trainer, process group or argument, and passed down.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, as_integer, must_be, warn
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable, PlanBatch


@dataclass(frozen=True, slots=True)
class World:
    """Rank of a process and number of ranks, in data-parallel training.

    With several time parts (context parallelism), processes that share rows have the same rank, and
    each of them receives another time part of these rows.

    Args:
        rank: Index of this rank along the data-parallel dimension, from 0.
        size: Number of data-parallel ranks.
        time_part: Index of the time part of each row that this process receives, from 0.
        time_parts: Number of time parts; 1: rows are whole.

    Raises:
        ConfigError: If a value is not an integer, ``size`` or ``time_parts`` is less than 1,
            ``rank`` is not in ``[0, size)``, or ``time_part`` is not in ``[0, time_parts)``.

    Examples:
        >>> World(1, 4)
        World(rank=1, size=4)
        >>> World(0, 1, time_part=1, time_parts=2).time_bounds(7)
        (3, 7)
    """

    rank: int = 0
    size: int = 1
    time_part: int = 0
    time_parts: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "size", "time_part", "time_parts"):
            number = as_integer(getattr(self, name))
            if number is None:
                remedy = "Write e.g. World(int(os.environ['RANK']), 4)"
                found = repr(getattr(self, name))
                raise ConfigError(must_be(f"world: `{name}`", "an integer", found, remedy))
            object.__setattr__(self, name, number)
        if self.size < 1:
            raise ConfigError(
                must_be("world: `size`", "at least 1", f"{self.size!r}", "Pass World(0, 1)")
            )
        if not 0 <= self.rank < self.size:
            raise ConfigError(
                must_be(
                    "world: `rank`", f"in [0, {self.size})", f"{self.rank!r}", "Ranks count from 0"
                )
            )
        if self.time_parts < 1:
            raise ConfigError(
                must_be("world: `time_parts`", "at least 1", f"{self.time_parts!r}", "Pass 1")
            )
        if not 0 <= self.time_part < self.time_parts:
            raise ConfigError(
                must_be(
                    "world: `time_part`",
                    f"in [0, {self.time_parts})",
                    f"{self.time_part!r}",
                    "Parts count from 0",
                )
            )

    def __repr__(self) -> str:
        part = f", time_part={self.time_part}, time_parts={self.time_parts}"
        return f"World(rank={self.rank}, size={self.size}{part if self.time_parts > 1 else ''})"

    def time_bounds(self, lengths: Any) -> tuple[Any, Any]:
        """Return start and stop of the time part of this process in rows.

        The time parts of a row are contiguous, and their lengths differ by at most one timestep. A
        row with fewer timesteps than time parts has empty parts.

        Args:
            lengths: Number of timesteps of rows, an integer, or an array or tensor of integers.

        Returns:
            Start and stop, each in the form of ``lengths``.
        """
        part, parts = self.time_part, self.time_parts
        return lengths * part // parts, lengths * (part + 1) // parts

    @classmethod
    def current(cls) -> World:
        """Return rank and size of the default process group, or ``World(0, 1)`` without one.

        Environment variables such as RANK are not read.
        """
        distributed = sys.modules.get("torch.distributed")  # no group can exist before this import
        if (
            distributed is None
            or not distributed.is_available()
            or not distributed.is_initialized()
        ):
            return cls(0, 1)
        return cls(distributed.get_rank(), distributed.get_world_size())


Tail = Literal["fill", "drop", "repeat"]


class Step(NamedTuple):
    """Work of one rank in one step.

    Attributes:
        number: Index of the batch in the plan; for a padding row, of the first batch of the step.
        spans: int64 (n, 3): sequence, start, stop in timesteps.
        rows: int64 (r+1,), row -> spans, from 0; None: each span is a row.
        weights: float32 (r,), weight of each row; 0 for a padding row or an idle row.
        lengths: int64 (r,), number of timesteps of each row.
        lanes: int64 (r,), lane of each row; None without lanes.
        extended: Rows extended along a stream by the lookahead; None if spans are extended one by
            one.
    """

    number: int
    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None
    weights: NDArray[np.float32]
    lengths: NDArray[np.int64]
    lanes: NDArray[np.int64] | None
    extended: PlanBatch | None = None


class RankSteps(NamedTuple):
    """The work of one rank in consecutive steps.

    Attributes:
        numbers: Index of the batch of each step in the plan; of a padding row, that of its step's
            first batch.
        table: A batch for each step.
        extended: The rows extended along a stream; None if spans are extended one by one.
        weights: float32 (r,), weights of the rows of all steps; 0 for a padding or an idle row.
        lengths: int64 (r,), number of timesteps of each row.
        lanes: int64 (l,), lane of each row of every step; None without lanes.
        uncut_rows: The steps with whole rows; None if these rows are whole.
        skipped: int64 (r,), number of timesteps of each row before its time part; None: whole rows.
    """

    numbers: Sequence[int]
    table: ArrayTable
    extended: ArrayTable | None
    weights: NDArray[np.float32]
    lengths: NDArray[np.int64]
    lanes: NDArray[np.int64] | None
    uncut_rows: RankSteps | None = None
    skipped: NDArray[np.int64] | None = None

    @classmethod
    def from_step(cls, step: Step) -> RankSteps:
        """Return the work of one step."""
        offsets = np.array([0, len(step.weights)])
        extended = None if step.extended is None else ArrayTable(*step.extended, offsets)
        table = ArrayTable(step.spans, step.rows, offsets)
        return cls((step.number,), table, extended, step.weights, step.lengths, step.lanes)

    def step(self, i: int) -> Step:
        """Return one step."""
        spans, rows = self.table.batch(i)
        extended = None if self.extended is None else self.extended.batch(i)
        first, stop = self.table.offsets[i : i + 2].tolist()
        weights, lengths = self.weights[first:stop], self.lengths[first:stop]
        return Step(self.numbers[i], spans, rows, weights, lengths, self.lanes, extended)

    def cut_time(self, world: World) -> RankSteps:
        """Return the steps with the time part of each row that a process receives.

        Args:
            world: The rank, with its time part.
        """
        if world.time_parts == 1:
            return self
        starts, stops = world.time_bounds(self.lengths)
        extended = self.extended
        if extended is not None:  # empty parts read nothing past them
            past = np.where(stops > starts, extended.row_lengths() - self.lengths, 0)
            extended = extended.cut_rows(starts, stops + past)
        return self._replace(
            table=self.table.cut_rows(starts, stops), extended=extended, lengths=stops - starts,
            uncut_rows=self, skipped=starts,
        )  # fmt: skip


def share(plan: Plan, world: World, *, first: int = 0, tail: Tail = "fill") -> RankPlan:
    """Return the share of one rank in a plan.

    Args:
        plan: Plan of one epoch, for any world.
        world: Rank and number of ranks, and the time part of each row.
        first: Number of batches of the plan that all ranks together have trained in this epoch.
        tail: Treatment of ranks without a batch in the last step. ``fill``: row 0 of the first
            batch of the step, with weight 0. ``drop``: skip the last uneven step. ``repeat``: batch
            ``i mod batches`` again, with weight 1.

    Returns:
        Steps of the rank in training order. ``len()`` is the number of steps of the whole epoch,
        equal on every rank and for every ``first``. Index ``[k]`` is valid from ``first_step`` on.

    Raises:
        PlanError: If ``first`` is outside the plan, or ``drop`` would leave no step.
        ConfigError: If ``tail`` is not ``fill``, ``drop`` or ``repeat``.

    With 9 batches on 2 ranks (numbers are batches, d is a padding row)::

        step     0  1  2  3  4
        rank 0   0  2  4  6  8
        rank 1   1  3  5  7  d

    Examples:
        >>> from seqdata import Fixed, SequenceIndex, World, share
        >>> plan = Fixed(2).plan(SequenceIndex.from_lengths([1] * 18), seed=0, epoch=0)
        >>> len(plan), len(share(plan, World(0, 2))), len(share(plan, World(1, 2)))
        (9, 5, 5)
    """
    if tail not in get_args(Tail):
        raise ConfigError(must_be("share: `tail`", "'fill', 'drop' or 'repeat'", f"{tail!r}"))
    count = len(plan)
    if not 0 <= first <= count:
        raise PlanError(
            f"share: `first` must be in [0, {count}], the batches of the plan, but is {first}. A "
            "state with this position belongs to another dataset, policy or seed."
        )
    if tail == "drop" and not plan.lanes and 0 < count < world.size:
        raise PlanError(
            f"share: `tail='drop'` must leave at least one step, but drops all {count} "
            f"batches on {world.size} ranks. Use 'fill' or 'repeat', fewer ranks or smaller "
            "batches."
        )
    if plan.lanes % world.size:
        warn(
            f"share: {plan.lanes} lanes on {world.size} ranks: the load is uneven. Use a "
            f"multiple of {world.size}.",
        )
    steps = count_steps(count, world, tail, plan.lanes)
    first_step = steps - count_steps(count - first, world, tail, plan.lanes)
    return RankPlan(plan, world, tail, first, first_step, steps, 1 if plan.lanes else world.size)


def count_steps(batches: int, world: World, tail: Tail, lanes: int = 0) -> int:
    """Return the number of steps of an epoch of ``batches`` batches."""
    if lanes:
        return batches
    return batches // world.size if tail == "drop" else -(-batches // world.size)


def measure_ranks(
    plan: Plan, size: int, tail: Tail = "fill"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of timesteps of each rank in each step of an epoch.

    Args:
        plan: Plan of one epoch.
        size: Number of ranks.
        tail: As in ``share``.

    Returns:
        Real timesteps and timesteps after padding, int64 (steps, ranks) each. A padding row only
        has the latter.
    """
    if plan.lanes:
        return _measure_lane_ranks(plan, size)
    measures = plan.measures
    steps = count_steps(len(plan), World(0, size), tail)
    real, padded = (np.zeros(steps * size, dtype=np.int64) for _ in range(2))
    own = min(len(plan), steps * size)
    real[:own], padded[:own] = measures.timesteps[:own], measures.padded[:own]
    if own < steps * size:
        if tail == "repeat":
            repeated = np.arange(own, steps * size) % len(plan)
            real[own:], padded[own:] = measures.timesteps[repeated], measures.padded[repeated]
        else:
            padded[own:] = plan.batch((steps - 1) * size).lengths[0]
    return real.reshape(steps, size), padded.reshape(steps, size)


def _measure_lane_ranks(plan: Plan, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lanes = plan.lanes
    bounds = [rank * lanes // size for rank in range(size + 1)]
    real, padded = (np.zeros((len(plan), size), dtype=np.int64) for _ in range(2))
    first = 0
    while first < len(plan):
        stop = max(first + 1, min(len(plan), plan.prepare(first)))
        lengths = plan.slice(first, stop).row_lengths().reshape(-1, lanes)
        for rank in range(size):
            own = lengths[:, bounds[rank] : bounds[rank + 1]]
            is_dummy = not own.shape[1]  # a copy of lane 0, of weight 0
            width = lengths[:, 0] if is_dummy else own.max(axis=1)
            real[first:stop, rank] = own.sum(axis=1)
            padded[first:stop, rank] = width * max(1, own.shape[1])
        first = stop
    return real, padded


@dataclass(frozen=True, eq=False, slots=True)
class RankPlan:
    """Steps of one rank; the result of ``share``.

    Attributes:
        plan: The whole plan.
        world: Rank and number of ranks.
        tail: Treatment of ranks without a batch in the last step.
        first: Number of batches of the plan that are trained before ``first_step``.
        first_step: Index of the step at which the epoch continues.
        steps: Number of steps of the whole epoch, ``len()``.
        stride: Number of batches of the plan per step.
    """

    plan: Plan
    world: World
    tail: Tail
    first: int
    first_step: int
    steps: int
    stride: int

    def __len__(self) -> int:
        return self.steps

    @property
    def remaining(self) -> int:
        """Number of remaining steps."""
        return self.steps - self.first_step

    def position(self, step: int) -> int:
        """Return the number of batches of the plan that are trained before ``step``."""
        return min(len(self.plan), self._first_batch(step))

    def totals(self, first: int, stop: int) -> tuple[int, int]:
        """Return the number of scored timesteps, and of rows, of all ranks in steps ``first:stop``.

        Rows of weight 0 are not counted.
        """
        if self.plan.lanes:  # a step is a batch
            return self.plan.totals(max(0, first), min(self.steps, stop))
        count = len(self.plan)
        low, high = max(0, min(count, self._first_batch(first))), self._first_batch(stop)
        timesteps, rows = self.plan.totals(low, min(count, max(low, high)))
        if self.tail == "repeat" and not self.plan.lanes:
            for batch in range(max(count, self._first_batch(first)), high):
                repeated = batch % count
                extra = self.plan.totals(repeated, repeated + 1)
                timesteps, rows = timesteps + extra[0], rows + extra[1]
        return timesteps, rows

    def __getitem__(self, step: int) -> Step:
        return self.steps_from(step, 1).step(0)

    def steps_from(self, step: int, max_rows: int) -> RankSteps:
        """Return a step and the next ones that are prepared together with it.

        Args:
            step: Index of the first step.
            max_rows: Maximum number of rows, if there are several steps.

        Raises:
            IndexError: If the share does not have the step.
        """
        if not self.first_step <= step < self.steps:
            reason = "is past the end of the epoch" if step >= self.steps else "precedes the share"
            raise IndexError(
                f"share: `step` must be in [{self.first_step}, {self.steps}), but is {step}, which "
                f"{reason}."
            )
        return self._whole_steps_from(step, max_rows).cut_time(self.world)

    def _whole_steps_from(self, step: int, max_rows: int) -> RankSteps:
        number, plan = self._first_batch(step), self.plan
        if plan.lanes:
            most = max(1, max_rows * self.world.size // plan.lanes)
            stop = min(number + most, plan.prepare(number)) if most > 1 else number + 1
            return self._lane_steps(number, stop)
        own = number + self.world.rank
        if own < len(plan):
            return self._batch_steps(own, min(self.steps - step, max_rows), max_rows)
        if self.tail == "repeat":
            return self._batch_steps(own % len(plan), 1, 1)
        return RankSteps.from_step(_make_dummy_step(number, plan.batch(number), None))

    def _first_batch(self, step: int) -> int:
        return self.first + (step - self.first_step) * self.stride

    def _batch_steps(self, number: int, max_steps: int, max_rows: int) -> RankSteps:
        """Return the steps of batch ``number`` and every ``stride``-th batch after it."""
        stride = self.stride
        if max_steps == 1:
            table = self.plan.slice(number, number + 1)
        else:
            stop = min(number + stride * (max_steps - 1) + 1, self.plan.prepare(number))
            table = self.plan.slice(number, stop).every(stride, max_rows)
        numbers = range(number, number + stride * len(table), stride)
        lengths = table.row_lengths()
        weights = self.plan.row_weights(numbers)
        if weights is None:
            weights = np.ones(len(lengths), np.float32)
        return RankSteps(numbers, table, None, weights, lengths, None)

    def _lane_steps(self, number: int, stop: int) -> RankSteps:
        lanes, (rank, size) = self.plan.lanes, (self.world.rank, self.world.size)
        first, last = rank * lanes // size, (rank + 1) * lanes // size
        if first == last:
            return RankSteps.from_step(self._make_dummy_lane(number))
        table, extended = self.plan.slice(number, stop), self.plan.extend(number, stop)
        own_table = table.select_lanes(first, last, lanes)
        if extended is not None:
            extended = extended.select_lanes(first, last, lanes)
        lengths = own_table.row_lengths()
        weights = (lengths > 0).astype(np.float32)
        numbers = range(number, stop)
        return RankSteps(numbers, own_table, extended, weights, lengths, np.arange(first, last))

    def _make_dummy_lane(self, number: int) -> Step:
        lane = np.zeros(1, dtype=np.int64)
        dummy = _make_dummy_step(number, self.plan.batch(number), lane)
        extended = self.plan.extend(number, number + 1)
        return dummy if extended is None else dummy._replace(extended=extended.batch(0).slice(0, 1))


def _make_dummy_step(number: int, batch: PlanBatch, lanes: NDArray[np.int64] | None) -> Step:
    row = batch.slice(0, 1)
    return Step(number, row.spans, row.rows, np.zeros(1, dtype=np.float32), row.lengths, lanes)

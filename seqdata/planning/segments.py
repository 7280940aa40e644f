"""Segments of an epoch: weights change where a segment begins, and nowhere else.

An epoch is cut into segments of a declared number of batches. The plan of a segment follows from
the seed, the epoch, the segment's first batch and the weights that were set before it began, so its
batches may be read ahead up to its end, and a resumed run makes the same ones. A run keeps the
weights that it has set, and the positions at which parts of its mixture have replaced others, in a
``WeightHistory``. Place in the flow: ``set_weights``, ``Feedback`` and resumed states -> weights of
a run -> the plans of segments -> Plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.part_positions import PartPositions
from seqdata.planning.piecewise import Piece, PiecewiseTable


class Weights(Protocol):
    """Weights that were set in a run."""

    @property
    def digest(self) -> str:
        """Digest of all values, by which weights are compared."""
        ...


class WeightChange(NamedTuple):
    """Weights, and the segment from which they hold.

    Attributes:
        epoch: Epoch of the plan.
        first: First batch of the segment.
        weights: Weights from there on; or ``PartPositions`` of parts that replaced others.
    """

    epoch: int
    first: int
    weights: Any


class WeightHistory:
    """The weights that a run has set so far, and the latest segment that has begun.

    Args:
        max_changes: Maximum number of changes that are kept; None: all.

    Attributes:
        max_changes: The argument.
        changes: The changes, in the order of the run.
        on_begin: Function of epoch and first batch that is called whenever a segment begins, and
            may set weights; None: no function.
        version: Number of changes of ``changes``.
    """

    def __init__(self, max_changes: int | None = None) -> None:
        self.changes: tuple[WeightChange, ...] = ()
        self.on_begin: Callable[[int, int], None] | None = None
        self.version = 0
        self.max_changes = max_changes
        self._begun = (-1, 0)
        self._known_from = (0, 0)

    def set(self, epoch: int, first: int, weights: Weights) -> None:
        """Set the weights of a segment that has not begun, and of all later segments."""
        earlier = [
            change
            for change in self.changes
            if change[:2] < (epoch, first) or isinstance(change.weights, PartPositions)
        ]
        self._keep([*earlier, WeightChange(epoch, first, weights)])

    def replace_parts(self, epoch: int, first: int, positions: PartPositions) -> None:
        """Continue with other parts of a mixture, in a segment that has not begun here.

        Args:
            epoch: Epoch of the segment.
            first: First batch of the segment.
            positions: Position at which each part begins.
        """
        self.restore([WeightChange(epoch, first, positions)], epoch, first)

    @property
    def origin(self) -> WeightChange | None:
        """The change at which the parts of a mixture have replaced others; None: there is none."""
        change = self.changes[0] if self.changes else None
        return change if change and isinstance(change.weights, PartPositions) else None

    def restore(self, changes: Sequence[WeightChange], epoch: int, first: int) -> None:
        """Continue with the changes of a saved run, in a segment that has not begun here.

        Args:
            changes: The kept changes of the saved run.
            epoch: Epoch of the segment.
            first: First batch of the segment.
        """
        self.changes, self._known_from, self._begun = (), (0, 0), (-1, 0)
        self._keep(list(changes))
        if self.max_changes is not None and changes:
            self._known_from = (epoch, first)
        elif self.origin is not None:
            self._known_from = self.origin[:2]

    def begin(self, epoch: int, position: int, length: int) -> None:
        """Begin the segment of a position, or continue within it.

        Args:
            epoch: Epoch of the plan.
            position: Index of the batch that is read next.
            length: Number of batches of a segment.
        """
        first = position - position % length
        if position == first and self.on_begin is not None:
            self.on_begin(epoch, first)
        self._begun = (epoch, first)

    def has_begun(self, epoch: int, first: int) -> bool:
        """Return whether batches of a segment, or of a later one, may have been read."""
        return (epoch, first) <= self._begun

    def find(self, epoch: int, first: int) -> tuple[WeightChange, ...]:
        """Return the changes up to a segment.

        Raises:
            PlanError: If the weights of the segment are not kept, or it had other parts.
        """
        if (epoch, first) < self._known_from and self.origin is not None:
            raise PlanError(
                f"segments: a segment must not begin before batch {self._known_from[1]} of epoch "
                f"{self._known_from[0]}, where other parts of the mixture have begun, but begins "
                f"at batch {first} of epoch {epoch}, whose data may be gone. Use the data and the "
                "policy of the earlier run, or its run file."
            )
        if (epoch, first) < self._known_from:
            raise PlanError(
                f"segments: the weights of batch {first} of epoch {epoch} must be known, but only "
                f"those from batch {self._known_from[1]} of epoch {self._known_from[0]} on are "
                "kept. Resume from an earlier checkpoint to see that batch."
            )
        return tuple(change for change in self.changes if change[:2] <= (epoch, first))

    def _keep(self, changes: list[WeightChange]) -> None:
        if self.max_changes is not None and len(changes) > self.max_changes:
            changes = changes[-self.max_changes :]
            self._known_from = changes[0][:2]
        self.changes = tuple(changes)
        self.version += 1


_CACHED_SEGMENTS = 2  # the last batch of one may be described when the next has begun


class Segment(NamedTuple):
    """A run of batches of an epoch, within which nothing changes.

    Attributes:
        epoch: Epoch of the plan.
        first: Index of its first batch.
        batches: Number of its batches.
        length: Number of batches of every segment except the last.
        epoch_batches: Number of batches of the epoch.
    """

    epoch: int
    first: int
    batches: int
    length: int
    epoch_batches: int


RoundFn = Callable[[int], Plan]
"""Returns the plan of a round of a segment, from round 0 on while batches are missing."""


@runtime_checkable
class SupportsWeightChanges(Protocol):
    """A policy whose weights may change between segments."""

    @property
    def max_changes(self) -> int | None:
        """Maximum number of changes that are kept; None: a segment's plan depends on all."""
        ...

    def make_weights(self, index: SequenceIndex, weights: Any) -> Weights:
        """Return weights in the policy's form.

        Raises:
            ConfigError: If they are invalid.
        """
        ...

    def plan_segment(
        self,
        index: SequenceIndex,
        *,
        seed: int,
        segment: Segment,
        changes: Sequence[WeightChange],
    ) -> RoundFn:
        """Return the function that plans a segment's rounds.

        Args:
            index: The lengths.
            seed: Seed of the plan.
            segment: The segment.
            changes: Weights that were set up to the segment, in order; empty: the policy's own.
        """
        ...


@dataclass(slots=True, eq=False)
class _SegmentPlans:
    """The plans of one segment's rounds.

    Attributes:
        make_round: Function that returns the plan of a round.
        plans: The plans made so far.
        stops: Cumulative number of batches of these plans.
    """

    make_round: RoundFn
    plans: list[Plan] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def locate(self, number: int) -> tuple[Plan, int]:
        """Return the plan of a batch of the segment, and the plan's first batch."""
        while not self.stops or number >= self.stops[-1]:
            plan = self.make_round(len(self.plans))
            if not len(plan):
                raise PlanError(
                    "segments: a segment must have a sequence to draw, but has none. Give a weight "
                    "above 0 to a sequence that the policy does not drop."
                )
            self.stops.append((self.stops[-1] if self.stops else 0) + len(plan))
            self.plans.append(plan)
        i = int(np.searchsorted(self.stops, number, side="right"))
        return self.plans[i], self.stops[i] - len(self.plans[i])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentedTable(PiecewiseTable):
    """The batches of an epoch, segment by segment.

    Attributes:
        epoch: Index of the epoch.
        count: Number of batches of the epoch.
        length: Number of batches of a segment; the last one may have fewer.
        history: Weights of the run.
        make_plans: Function of a segment, and of the changes up to it, that returns the function
            which plans the rounds of the segment.
    """

    epoch: int
    count: int
    length: int
    history: WeightHistory
    make_plans: Callable[[Segment, Sequence[WeightChange]], RoundFn]
    _segments: dict[tuple[int, int], _SegmentPlans] = field(default_factory=dict)

    def prepare(self, number: int) -> int:
        """Plan a batch's block, if its segment has begun; return the first batch after it."""
        first = number - number % self.length
        if not self.history.has_begun(self.epoch, first):
            return min(first + self.length, self.count)
        return self._find_run_stop(number)

    def locate_parts(self, number: int) -> Mapping[str, tuple[int, int]] | None:
        """Return the positions of a mixture's parts before a batch; None without a mixture."""
        piece = self._locate(min(number, self.count - 1))
        return piece.plan.locate_parts(number - piece.start)

    def _locate(self, number: int) -> Piece:
        first = number - number % self.length
        stop = min(first + self.length, self.count)
        key = first, self.history.version
        plans = self._segments.get(key)
        if plans is None:
            segment = Segment(self.epoch, first, stop - first, self.length, self.count)
            changes = self.history.find(self.epoch, first)
            plans = _SegmentPlans(self.make_plans(segment, changes))
            for old in list(self._segments)[: 1 - _CACHED_SEGMENTS]:  # a reader may do the same
                self._segments.pop(old, None)
            self._segments[key] = plans
        plan, start = plans.locate(number - first)
        return Piece(plan, first + start, min(stop, first + start + len(plan)))


def derive_segment_epoch(segment: Segment, number: int) -> int:
    """Return the key of the random numbers of a segment's round, in place of the epoch.

    It does not depend on the weights, so that similar weights draw similar sequences.

    Args:
        segment: The segment.
        number: Index of the round.
    """
    text = f"segment;{segment.epoch};{segment.first};{number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

"""The weights that a run has set, and where the parts of its mixture have replaced others.

Place in the flow: ``set_weights``, ``Feedback`` and resumed states -> the plans of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from seqdata.errors import PlanError
from seqdata.planning.part_positions import PartPositions


class Weights(Protocol):
    """Weights that were set in a run."""

    @property
    def digest(self) -> str:
        """Digest of all values; equal weights have equal ones."""
        ...


class WeightChange(NamedTuple):
    """Weights, and the segment from which they hold.

    Attributes:
        epoch: Of the plan.
        first: First batch of the segment.
        weights: Those from there on; or ``PartPositions``, where the parts of a mixture replaced
            others.
    """

    epoch: int
    first: int
    weights: Any


class WeightHistory:
    """The weights that a run has set so far, and the latest segment that has begun.

    Args:
        max_changes: How many of the last changes are kept; None: all.

    Attributes:
        max_changes: As given.
        changes: In the order of the run.
        on_begin: Called with epoch and first batch whenever a segment begins; it may set weights.
        version: Grows with every change.
    """

    def __init__(self, max_changes: int | None = None) -> None:
        self.changes: tuple[WeightChange, ...] = ()
        self.on_begin: Callable[[int, int], None] | None = None
        self.version = 0
        self.max_changes = max_changes
        self._begun = (-1, 0)
        self._known_from = (0, 0)

    def set(self, epoch: int, first: int, weights: Weights) -> None:
        """Set the weights from a segment on; it has not begun."""
        earlier = [
            change
            for change in self.changes
            if change[:2] < (epoch, first) or isinstance(change.weights, PartPositions)
        ]
        self._keep([*earlier, WeightChange(epoch, first, weights)])

    def replace_parts(self, epoch: int, first: int, positions: PartPositions) -> None:
        """Continue with other parts of a mixture, in a segment that has not begun here.

        Args:
            epoch: Of the segment.
            first: Its first batch.
            positions: Where each part begins.
        """
        self.restore([WeightChange(epoch, first, positions)], epoch, first)

    @property
    def origin(self) -> WeightChange | None:
        """Where the parts of a mixture have replaced others; None: nowhere."""
        change = self.changes[0] if self.changes else None
        return change if change and isinstance(change.weights, PartPositions) else None

    def restore(self, changes: Sequence[WeightChange], epoch: int, first: int) -> None:
        """Continue with the changes of a saved run, in a segment that has not begun here.

        Args:
            changes: Those that were kept.
            epoch: Of the segment.
            first: Its first batch.
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
            epoch: Of the plan.
            position: The batch that is read next.
            length: Batches of a segment.
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
            PlanError: If its weights are not kept, or it had other parts.
        """
        if (epoch, first) < self._known_from and self.origin is not None:
            raise PlanError(
                f"segments: a segment must not begin before batch {self._known_from[1]} of epoch "
                f"{self._known_from[0]}, where other parts of the mixture have begun, but is that "
                f"of batch {first} of epoch {epoch}, whose data may be gone. Use the data and the "
                "policy, or the run file, of the run before."
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

"""The cursor: the batch that is trained next, from the Trainer's counters only.

A loader that counts its batches is wrong whenever a batch is fetched ahead, fails, or ends an epoch
early. So nothing is counted here: the Trainer's count of trained steps is compared with its value
when this epoch's iteration began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from seqdata.lightning.adapter import Counters
from seqdata.resume_state import RunPosition


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of training, derived from the Trainer's counters.

    Attributes:
        start: Position at which the latest iteration began; before the first one, the loaded
            position.
        trained_before: Number of steps trained in total when that iteration began; None if none
            began.
        batches: Number of batches of the plan.
        stride: Number of batches of the plan that one step of all ranks trains.
    """

    start: RunPosition = RunPosition()  # noqa: RUF009 (a frozen value)
    trained_before: int | None = None
    batches: int = 0
    stride: int = 1

    def get_run_position(self, counters: Counters) -> RunPosition:
        """Return the position of the batch that is trained next."""
        trained_steps = self._count_trained(counters)
        if not trained_steps:
            return self.start
        if (
            counters.is_epoch_ended or not counters.processed
        ):  # none was fetched: the Trainer has opened the next epoch
            return self.start.next_epoch
        position = self.start.position + trained_steps * self.stride
        return RunPosition(self.start.epoch, min(self.batches, position))

    def begin_iteration(self, counters: Counters, *, stride: int, batches: int = 0) -> Self:
        """Return the cursor of an iteration that begins now.

        If the previous iteration trained a step, its epoch has ended or is abandoned, and the next
        one begins. If it trained nothing, the iteration begins again at the same position.

        Args:
            counters: The Trainer's counters at the iteration's first ``next()``.
            batches: Number of batches of the plan.
            stride: Number of batches that one step of all ranks trains: the number of ranks, or 1
                with lanes.
        """
        start = self.start.next_epoch if self._count_trained(counters) else self.start
        return type(self)(start, counters.total, batches, stride)

    def _count_trained(self, counters: Counters) -> int:
        return 0 if self.trained_before is None else counters.total - self.trained_before

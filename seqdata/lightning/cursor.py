"""The cursor: which batch is trained next, by what the Trainer has trained and nothing else.

A loader that counts what it hands out is wrong whenever a batch is fetched ahead, fails, or ends an
epoch early. So nothing is counted here: the Trainer's own count of trained steps is compared with
what it was when this epoch's iteration began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from seqdata.lightning.adapter import Counters
from seqdata.resume_state import RunPosition


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where training stands, told from the Trainer's counters.

    Attributes:
        start: Where the latest iteration began; before the first one, what was loaded.
        trained_before: Steps the Trainer had trained in all when that iteration began; None: none
            began.
        batches: Batches of the plan.
        stride: Batches of the plan that one step of all ranks trains.
    """

    start: RunPosition = RunPosition()  # noqa: RUF009 (a frozen value)
    trained_before: int | None = None
    batches: int = 0
    stride: int = 1

    def get_run_position(self, counters: Counters) -> RunPosition:
        """Return the place of the batch that is trained next."""
        trained_steps = self._count_trained(counters)
        if not trained_steps:
            return self.start
        if (
            counters.is_epoch_ended or not counters.processed
        ):  # none: the Trainer has opened the next epoch
            return self.start.next_epoch
        position = self.start.position + trained_steps * self.stride
        return RunPosition(self.start.epoch, min(self.batches, position))

    def begin_iteration(self, counters: Counters, *, stride: int, batches: int = 0) -> Self:
        """Return the cursor of an iteration that begins now.

        Where the iteration before it trained something, its epoch has ended or is abandoned, and
        the next one begins. Where it trained nothing, it is begun again at the same place.

        Args:
            counters: The Trainer's, at the iteration's first ``next()``.
            batches: Batches of the plan.
            stride: Batches that one step of all ranks trains: the world size, or 1 for lanes.
        """
        start = self.start.next_epoch if self._count_trained(counters) else self.start
        return type(self)(start, counters.total, batches, stride)

    def _count_trained(self, counters: Counters) -> int:
        return 0 if self.trained_before is None else counters.total - self.trained_before

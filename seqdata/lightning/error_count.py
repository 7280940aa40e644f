"""Counts the skipped errors in the training data over all ranks, by position.

Ranks differ in their errors, but saved states must be equal: so the counts are summed over ranks in
the exchange that precedes each batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seqdata.lightning.ranks.lockstep import RankCounter
from seqdata.lightning.trainer_loader import BatchRef, TaggedBatch
from seqdata.loading.base_engine import BaseEngine
from seqdata.resume_state import RunPosition

_MAX_POSITIONS = 2  # the current batch may be trained or not


@dataclass(slots=True, eq=False)
class ErrorCount:
    """The number of errors that a run skipped, before each of the latest positions.

    Attributes:
        engine: The engine of the training data.
        num_processes: Number of processes; a data-parallel rank may have several.
    """

    engine: BaseEngine
    num_processes: int
    _before: int = field(default=0, init=False)
    _recent_counts: list[tuple[RunPosition, int]] = field(default_factory=list, init=False)

    def restart(self, before: int) -> None:
        """Continue the count of a state, or begin at 0."""
        self._before = before
        self._recent_counts.clear()
        self.engine.options.error_log.restart(before)

    @property
    def counter(self) -> RankCounter[TaggedBatch] | None:
        """The counter that is summed over ranks; None if the first error ends the run."""
        if self.engine.options.on_error == "raise":
            return None
        return RankCounter(self._count_own, self._on_total)

    def count_at(self, run_position: RunPosition) -> int:
        """Return the number of errors before a position close to the latest batch."""
        if self.engine.options.world.size == 1:
            return self._before + self._count_own_before(run_position)
        position = run_position.epoch, run_position.position
        counts = [
            count
            for counted_at, count in self._recent_counts
            if (counted_at.epoch, counted_at.position) <= position
        ]
        return counts[-1] if counts else self._before

    def _count_own(self, tagged: TaggedBatch) -> int:
        batch_ref = tagged[0]
        return 0 if batch_ref is None else self._count_own_before(self._position_after(batch_ref))

    def _on_total(self, tagged: TaggedBatch, total: int) -> None:
        if tagged[0] is None:
            return
        world, run_position = self.engine.options.world, self._position_after(tagged[0])
        count = self._before + total * world.size // self.num_processes
        self.engine.options.error_log.set_elsewhere(count - self._count_own_before(run_position))
        self._recent_counts = [*self._recent_counts, (run_position, count)][-_MAX_POSITIONS:]

    def _position_after(self, batch_ref: BatchRef) -> RunPosition:
        begun_at = batch_ref.begun_at
        share = self.engine.share(begun_at.epoch, begun_at.position)
        return RunPosition(begun_at.epoch, share.position(batch_ref.step + 1))

    def _count_own_before(self, run_position: RunPosition) -> int:
        return self.engine.count_errors_before(run_position.epoch, run_position.position)

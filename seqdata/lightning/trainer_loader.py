"""The loader that the Trainer sees: an own iterable, so that Lightning leaves it alone.

It owns nothing durable. Its length is a constant, its state a marker, and an iterator that nobody
draws from has no effect, since Lightning throws several away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from seqdata.loading.engine import EpochEngine
from seqdata.loading.epoch_batches import EpochBatches
from seqdata.loading.options import UpdateSchedule
from seqdata.resume_state import RunPosition

MARKER = {"seqdata": 1}
"""All that a loader puts into a checkpoint; the place is the DataModule's to know."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """Where an iteration begins, and how its batches are gathered into updates.

    Attributes:
        run_position: Of its first batch.
        update_schedule: How batches make updates.
        is_probe: Whether somebody only looks into the loader, beside the loop that draws from it.
    """

    run_position: RunPosition
    update_schedule: UpdateSchedule
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class BatchRef:
    """Which batch an iteration has handed out last.

    Attributes:
        begun_at: Where the iteration began.
        step: Of the rank's share from there.
    """

    begun_at: RunPosition
    step: int


TaggedBatch = tuple[BatchRef | None, Any]
LockstepFn = Callable[["LoaderIterator", Iterator[TaggedBatch]], Iterator[TaggedBatch]]


class TrainerLoader:
    """Batches of one data set for the Trainer.

    Args:
        engine: What plays the epochs.
        get_start: Called with an iteration at its first ``next()``; says where it begins.
        name: Of its data set, where several were given by name.
        lockstep: Gives an iteration's batches where the other ranks have theirs; None: asks nobody.
        epoch: Whose length it has, where epochs differ.

    Attributes:
        last_batch: The batch that a loop was handed last; None: none was.
        waited_seconds: Seconds that iterations have waited for this rank's batches in all, not for
            others.
    """

    def __init__(
        self,
        engine: EpochEngine,
        get_start: Callable[[LoaderIterator], IterationStart],
        name: str | None = None,
        *,
        lockstep: LockstepFn | None = None,
        epoch: int = 0,
    ) -> None:
        self.engine = engine
        self.epoch = epoch
        self.name = name
        self.last_batch: BatchRef | None = None
        self.waited_seconds = 0.0
        self._get_start = get_start
        self._lockstep = lockstep

    def __len__(self) -> int:
        return self.engine.count_steps(self.epoch)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self)

    def iterate(self, iteration: LoaderIterator) -> Iterator[TaggedBatch]:
        """Return the batches of an iteration, each with which one it is; begins at the first."""
        batches = _BatchDrawer(self, iteration)
        return batches if self._lockstep is None else self._lockstep(iteration, batches)

    def get_start(self, iteration: LoaderIterator) -> IterationStart:
        """Return where an iteration begins that is about to draw its first batch."""
        return self._get_start(iteration)

    def state_dict(self) -> dict[str, int]:
        """Return the constant marker, which tells the Trainer that resuming is taken care of."""
        return dict(MARKER)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the DataModule has loaded the place before."""
        del state

    def shutdown(self) -> None:
        """End the player's threads."""
        self.engine.shutdown()


class EpochCounter:
    """Where iterations of a loader begin that no Trainer counts for."""

    def __init__(self) -> None:
        self._epoch = 0

    def __call__(self, iteration: LoaderIterator) -> IterationStart:
        """Return the start of the next epoch."""
        del iteration
        self._epoch += 1
        return IterationStart(RunPosition(self._epoch - 1), UpdateSchedule())


def start_first_epoch(iteration: LoaderIterator) -> IterationStart:
    """Return the start of epoch 0, which evaluations play."""
    del iteration
    return IterationStart(RunPosition(), UpdateSchedule())


class _BatchDrawer(Iterator[TaggedBatch]):
    """What an iteration draws; it begins with its first batch.

    An error takes the place of its batch, and the next ``next()`` goes on with the one behind.

    Args:
        loader: Whose batches; how long they were waited for is added up there.
        iteration: Whose place is asked for. It holds this object, which must end with it.
    """

    def __init__(self, loader: TrainerLoader, iteration: LoaderIterator) -> None:
        self._loader = loader
        self._iteration = iteration
        self._running: tuple[IterationStart, EpochBatches] | None = None

    def __next__(self) -> TaggedBatch:
        start, batches = self._running or self._begin()
        asked_at = time.perf_counter()
        try:
            batch = next(batches)
        finally:
            self._loader.waited_seconds += time.perf_counter() - asked_at
        return None if start.is_probe else BatchRef(start.run_position, batches.step - 1), batch

    def _begin(self) -> tuple[IterationStart, EpochBatches]:
        start = self._loader.get_start(self._iteration)
        del self._iteration
        run_position = start.run_position
        self._running = (
            start,
            self._loader.engine.iterate(
                run_position.epoch, run_position.position, start.update_schedule
            ),
        )
        return self._running


class LoaderIterator:
    """One iteration over a loader; it begins when its first batch is drawn.

    Args:
        loader: Whose.

    Attributes:
        loader: Whose.
        has_batch: Whether it handed out a batch and was not asked for another one.
    """

    def __init__(self, loader: TrainerLoader) -> None:
        self.loader = loader
        self.has_batch = False
        self._batches: Iterator[TaggedBatch] | None = None

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        self.has_batch = False
        if self._batches is None:
            self._batches = self.loader.iterate(self)
        batch_ref, batch = next(self._batches)
        self.loader.last_batch = batch_ref or self.loader.last_batch
        self.has_batch = True
        return batch

"""The loader that the Trainer receives: an iterable that Lightning does not replace.

It has no position. Its length is a constant, its state a marker, and an unused iterator has no
effect, since Lightning discards several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from seqdata.loading.base_engine import BaseEngine, EpochBatches
from seqdata.loading.options import UpdateSchedule
from seqdata.resume_state import EpochProgress, RunPosition

MARKER = {"seqdata": 1}
"""All that a loader puts into a checkpoint; the position is in the DataModule's state."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """The start of an iteration, and how its batches make updates.

    Attributes:
        run_position: Position of its first batch.
        update_schedule: How batches make updates.
        is_probe: Whether the iteration is not of the Trainer's loop, but only inspects the loader.
    """

    run_position: RunPosition
    update_schedule: UpdateSchedule
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class BatchRef:
    """The last batch that an iteration returned.

    Attributes:
        begun_at: Position at which the iteration began.
        step: Step of the rank's share from there.
    """

    begun_at: RunPosition
    step: int


TaggedBatch = tuple[BatchRef | None, Any]
LockstepFn = Callable[["LoaderIterator", Iterator[TaggedBatch]], Iterator[TaggedBatch]]


class TrainerLoader:
    """Batches of one data set for the Trainer.

    Args:
        engine: Iterates over the epochs.
        get_start: Called with an iteration at its first ``next()``; returns its start.
        name: Name of its data set, if there are several.
        lockstep: Yields a batch once all ranks have theirs; None for no lockstep.
        epoch: The epoch whose length it has, if epochs differ.

    Attributes:
        last_batch: The last batch that a loop received; None if there was none.
        waited_seconds: Total seconds that iterations have waited for this rank's batches, not for
            other ranks.
    """

    def __init__(
        self,
        engine: BaseEngine,
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
        """Return the batches of an iteration, each with its ``BatchRef``."""
        batches = _BatchDrawer(self, iteration)
        return batches if self._lockstep is None else self._lockstep(iteration, batches)

    def get_start(self, iteration: LoaderIterator) -> IterationStart:
        """Return the start of an iteration, when it draws its first batch."""
        return self._get_start(iteration)

    def state_dict(self) -> dict[str, int]:
        """Return the constant marker, which tells the Trainer that the loader can resume."""
        return dict(MARKER)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the DataModule has loaded the position."""
        del state

    def shutdown(self) -> None:
        """Stop the engine's threads."""
        self.engine.shutdown()


class EpochCounter:
    """The starts of iterations for which no Trainer counts: one epoch after the other."""

    def __init__(self) -> None:
        self._epoch = 0

    def __call__(self, iteration: LoaderIterator) -> IterationStart:
        """Return the start of the next epoch."""
        del iteration
        self._epoch += 1
        return IterationStart(RunPosition(self._epoch - 1), UpdateSchedule())


def start_first_epoch(iteration: LoaderIterator) -> IterationStart:
    """Return the start of epoch 0, for evaluations."""
    del iteration
    return IterationStart(RunPosition(), UpdateSchedule())


class _BatchDrawer(Iterator[TaggedBatch]):
    """The iterator of a loader's batches; it begins with its first batch.

    An error takes the place of its batch, and ``next()`` then continues with the next batch.

    Args:
        loader: The loader; waiting times are summed there.
        iteration: The iteration whose start is requested. It refers to this object, which must end
            with it.
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
        run_position, engine = start.run_position, self._loader.engine

        def begin() -> EpochProgress:
            progress = engine.begin(run_position.epoch, run_position.position)
            progress.is_probe = start.is_probe
            return progress

        self._running = start, engine.iterate_from(begin, start.update_schedule)
        return self._running


class LoaderIterator:
    """An iteration over a loader; it begins when its first batch is drawn.

    Args:
        loader: Whose.

    Attributes:
        loader: Whose.
        has_batch: Whether it has returned a batch, and the next one was not requested yet.
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

"""Loader that the Trainer receives: an iterable that Lightning does not replace.

It has no position. Its length is a constant, its state a marker, and an unused iterator has no
effect, since Lightning discards several. Information about its batches is also here: the batch of
an exception in an evaluation step, and the number of errors that were skipped before each of the
latest positions. Ranks differ in their errors, but saved states must be equal: these counts are
summed over ranks in the exchange that precedes each batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from lightning.pytorch import Trainer

from seqdata.errors import REPLAY_PREFIX, ConfigError, ResumeError, format_step
from seqdata.lightning import adapter
from seqdata.lightning.ranks.synchronizer import RankCounter
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.loader import EpochSetter, count_later_ranks
from seqdata.loading.options import UpdateSchedule
from seqdata.loading.pictures import describe_engine
from seqdata.resume_state import EpochProgress, RunPosition
from seqdata.sharing import World

MARKER = {"seqdata": 1}
"""All that a loader puts into a checkpoint; the position is in the DataModule's state."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """Start of an iteration.

    Attributes:
        run_position: Position of the first batch.
        update_schedule: Schedule of optimizer updates.
        is_inspection: Whether the iteration only inspects the loader, outside the Trainer's loop.
    """

    run_position: RunPosition
    update_schedule: UpdateSchedule
    is_inspection: bool = False


@dataclass(frozen=True, slots=True)
class BatchRef:
    """Reference to the last batch that an iteration returned.

    Attributes:
        start_position: Position at which the iteration began.
        step: Index of the step in the rank's share of the epoch.
    """

    start_position: RunPosition
    step: int


TaggedBatch = tuple[BatchRef | None, Any]
SynchronizeFn = Callable[["LoaderIterator", Iterator[TaggedBatch]], Iterator[TaggedBatch]]


class TrainerLoader:
    """Batches of one dataset for the Trainer.

    Args:
        engine: Engine of the dataset.
        get_start: Function of an iteration that returns its start, called at its first ``next()``.
        name: Name of the dataset, if there are several.
        synchronize: Function that returns batches once all ranks have theirs; None: unchanged.
        epoch: Epoch whose length the loader has, if epochs differ.

    Attributes:
        last_batch: Reference to the last batch that a loop received; None if there was none.
        waited_seconds: Total time that iterations have waited for this rank's batches, without
            waiting for other ranks.
    """

    def __init__(
        self,
        engine: BaseEngine,
        get_start: Callable[[LoaderIterator], IterationStart],
        name: str | None = None,
        *,
        synchronize: SynchronizeFn | None = None,
        epoch: int = 0,
    ) -> None:
        self.engine = engine
        self.epoch = epoch
        self.name = name
        self.last_batch: BatchRef | None = None
        self.waited_seconds = 0.0
        self._get_start = get_start
        self._synchronize = synchronize
        if isinstance(get_start, EpochCounter):  # a Trainer sets the epoch of a sampler
            self.batch_sampler = EpochSetter(get_start.set_epoch)

    def __len__(self) -> int:
        return self.engine.count_steps(self.epoch)

    def __repr__(self) -> str:
        name = self.engine.options.name
        steps = f"{len(self):,} steps"
        return f"TrainerLoader({f'{name}: ' * bool(name)}{describe_engine(self.engine)}; {steps})"

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self)

    def iterate(self, iteration: LoaderIterator) -> Iterator[TaggedBatch]:
        """Return the batches of an iteration, each with its ``BatchRef``.

        Args:
            iteration: The iteration; its start is determined when the first batch is drawn.
        """
        # a weak reference: the iteration refers to the batches, which must end with it
        iteration_ref = weakref.ref(iteration)
        started: list[IterationStart] = []

        def begin() -> EpochProgress:
            start = self._get_start(cast(LoaderIterator, iteration_ref()))
            position = start.run_position
            progress = self.engine.begin(position.epoch, position.position)
            progress.is_inspection = start.is_inspection
            started[:] = [start]
            return progress

        def tag(batch: Any, step: int, seconds: float) -> TaggedBatch:
            self.waited_seconds += seconds
            start = started[0]
            return None if start.is_inspection else BatchRef(start.run_position, step), batch

        batches = self.engine.iterate_from(begin, lambda: started[0].update_schedule, tag)
        return batches if self._synchronize is None else self._synchronize(iteration, batches)

    def state_dict(self) -> dict[str, int]:
        """Return a constant marker, by which the Trainer knows that the loader can resume."""
        return dict(MARKER)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Check that the DataModule has loaded the position.

        Raises:
            ResumeError: If the Trainer was given this loader, but not its DataModule.
        """
        del state
        if isinstance(self._get_start, EpochCounter):
            raise ResumeError(
                "resume: a loader of a SequenceDataModule has no position, and the Trainer was "
                "given the loader alone. Pass the DataModule, as `datamodule`, to save and resume"
            )

    def shutdown(self) -> None:
        """Stop the engine's threads."""
        self.engine.shutdown()


class EpochCounter:
    """Function that starts each iteration outside a Trainer: of the next epoch, or of epoch 0.

    Args:
        is_evaluation: Whether every iteration is of epoch 0.
    """

    def __init__(self, *, is_evaluation: bool = False) -> None:
        self._epoch = 0
        self._is_evaluation = is_evaluation
        self._is_single_process = World.current().size == 1  # no process group yet

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, unless it has begun already."""
        if not self._is_evaluation:
            self._epoch = max(self._epoch, epoch)

    def __call__(self, iteration: LoaderIterator) -> IterationStart:
        """Return the start of the next epoch.

        Raises:
            ConfigError: If a process group was initialised after the loader was made.
        """
        ranks = count_later_ranks(iteration.loader.engine.options.world, self._is_single_process)
        if ranks:
            raise ConfigError(
                "datamodule: a loader was made for one process, before the process group of "
                f"{ranks} ranks was initialised, so that every rank would read all data. Pass the "
                "DataModule to the Trainer, as `datamodule`"
            )
        start = IterationStart(RunPosition(self._epoch), UpdateSchedule())
        self._epoch += not self._is_evaluation
        return start


def start_first_epoch(iteration: LoaderIterator) -> IterationStart:
    """Return the start of epoch 0, for evaluations."""
    del iteration
    return IterationStart(RunPosition(), UpdateSchedule())


class LoaderIterator:
    """Iteration over a loader; it begins when the first batch is drawn.

    Args:
        loader: The loader.

    Attributes:
        loader: The loader.
        has_batch: Whether a batch was returned and the next one not requested yet.
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


def add_evaluation_context(trainer: Trainer | None, exception: BaseException) -> None:
    """Add a note with the batch to an exception of a validation, test or prediction step."""
    loader = None if trainer is None else find_evaluated_loader(trainer)
    if loader is not None and isinstance(exception, Exception):
        exception.add_note(f"in {_describe_batch(loader)}")


def find_evaluated_loader(trainer: Trainer) -> TrainerLoader | None:
    """Return the loader of the batch of an evaluation step; None if there is none."""
    if not adapter.is_in_evaluation(trainer):
        return None
    iterators = [
        iterator
        for iterator in adapter.get_active_iterators(trainer)
        if isinstance(iterator, LoaderIterator)
    ]
    return iterators[0].loader if iterators and iterators[0].has_batch else None


def format_replay_hint(loader: TrainerLoader, epoch: int, batch: int) -> str:
    """Return the end of a message with the command that replays a batch; empty without one."""
    hint = loader.engine.options.replay_hint
    return "" if hint is None else f". {REPLAY_PREFIX}{hint(epoch, batch)}"


def _describe_batch(loader: TrainerLoader) -> str:
    batch_ref, engine = loader.last_batch, loader.engine
    if batch_ref is None:
        return "no batch"
    run_position, world = batch_ref.start_position, engine.options.world
    number = engine.share(run_position.epoch, run_position.position)[batch_ref.step].number
    line = format_step(
        epoch=run_position.epoch,
        batch=number,
        step=batch_ref.step,
        rank=world.rank,
        size=world.size,
    )
    return f"{line}{format_replay_hint(loader, run_position.epoch, number)}"


_MAX_POSITIONS = 2  # the current batch may be trained or not


@dataclass(slots=True, eq=False)
class ErrorCount:
    """Number of errors that a run skipped before each of the latest positions.

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
        """Counter that is summed over ranks; None if the first error ends the run."""
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
        start_position = batch_ref.start_position
        share = self.engine.share(start_position.epoch, start_position.position)
        return RunPosition(start_position.epoch, share.position(batch_ref.step + 1))

    def _count_own_before(self, run_position: RunPosition) -> int:
        return self.engine.count_errors_before(run_position.epoch, run_position.position)

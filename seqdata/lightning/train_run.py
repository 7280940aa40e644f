"""Training run of a DataModule: cursor, saved state and run file.

A resumed run is exact only with the hidden states of the saved run. The training tables of each
``LaneStates`` that the LightningModule or a submodule has, as an attribute or in a list, tuple or
dict, are gathered over the ranks into the DataModule's state. The key of the table with the
loader's name is the path of the ``LaneStates``; the key of another table is ``path:table``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import (
    REPLAY_PREFIX,
    PeerFailedError,
    ResumeError,
    SeqDataError,
    format_step,
    must_be,
    warn,
)
from seqdata.lightning import adapter, trainer_settings
from seqdata.lightning.cursor import CounterRepair, Cursor, ResumePoint, make_two_runs_error
from seqdata.lightning.feedback_run import FeedbackRun, SupportsFeedback, count_segment_batches
from seqdata.lightning.ranks.collect import check_consistent
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.lightning.trainer_loader import ErrorCount, IterationStart, LoaderIterator
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.mixture_changes import (
    RunStart,
    check_next_segment,
    describe_parts,
    find_start,
)
from seqdata.recurrent.lane_states import LaneStates
from seqdata.resume_state import FitState, RunPosition
from seqdata.runs.data_sources import DataSources, RunContext
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.options import DataOptions
from seqdata.runs.run_file import RunFile
from seqdata.runs.run_record import RunRecord, find_installed_versions
from seqdata.sharing import World

LANES_KEY = "lanes"
"""Key of the states of lanes in the DataModule's state."""
_LOADER = "train"  # name of the loader, and of its table


class TrainRun:
    """Training of one DataModule by one Trainer.

    Args:
        trainer: The Trainer.
        engine: The engine of the training data.
        world: This rank and the number of ranks.
        sources: Stores and engines of the DataModule.
        run_record: Record of the start of each fit, which writes its run file.
        coordinator: Coordinator of the ranks, which gathers their lane states and scores.
        is_other: Whether the last fit of the DataModule was of other data or another Trainer.

    Raises:
        ConfigError: If an option or a callback needs another policy.
    """

    def __init__(
        self,
        trainer: Trainer,
        engine: BaseEngine,
        world: World,
        sources: DataSources,
        run_record: RunRecord,
        coordinator: RankCoordinator,
        *,
        is_other: bool = False,
    ) -> None:
        if sources.options.on_changed == "next_segment":
            check_next_segment(engine, "datamodule")
        if engine.segments is not None:
            engine.segments.history.restore((), 0, 0)  # forget a fit with another Trainer
        engine.set_order(None, 0)  # forget the order with which such a fit was resumed
        self.trainer = trainer
        self.engine = engine
        self._transform_label = engine.transform_label  # before the transform runs
        self.errors = ErrorCount(engine, trainer.world_size)
        self.errors.restart(0)
        self.callback = CounterRepair(
            lambda: self._resume_point,
            self._on_restored,
            self._on_started,
            sources.options.on_changed,
        )
        self._world = world
        self._sources = sources
        self._run_record = run_record
        self._cursor = Cursor()
        self._resume_point: ResumePoint | None = None
        self._has_warned = False
        self._is_other = is_other
        self._has_set_accumulation = False
        self._coordinator = coordinator
        self.feedback: FeedbackRun | None = None
        callback = adapter.find_callback(trainer, SupportsFeedback)
        if callback is not None:
            self.feedback = FeedbackRun(callback, trainer, engine, coordinator)
        self._geometry: FitGeometry | None = None  # until the fit draws its first batch

    def is_of(self, trainer: Trainer, engine: BaseEngine) -> bool:
        """Return whether this is the training of a Trainer over the data of an engine."""
        return self.trainer is trainer and self.engine is engine

    def prepare_fit(self) -> None:
        """Set up the Trainer for a fit, which may be a further one.

        Raises:
            ConfigError: If the Trainer cannot train on these batches.
        """
        trainer_settings.check_training(self.trainer, self.engine)
        batches = self._sources.options.batches_per_update
        if batches is not None:
            trainer_settings.set_accumulation(
                self.trainer, batches, self.engine.plan(0).lanes,
                is_repeated=self._has_set_accumulation,
            )  # fmt: skip
            self._has_set_accumulation = True
        adapter.attach(self.trainer, self.callback)
        adapter.guard_searches(self.trainer)
        if self.feedback is not None:  # the module may have replaced the callback
            self.feedback.attach(adapter.find_callback(self.trainer, SupportsFeedback))

    def restore_trainer(self) -> None:
        """Restore the settings of the Trainer after a fit."""
        if self._has_set_accumulation:
            self.trainer.accumulate_grad_batches = 1
            self._has_set_accumulation = False

    def begin_iteration(self, iteration: LoaderIterator) -> IterationStart:
        """Return the start of an iteration that draws its first batch.

        Only an iteration of the fit loop moves the cursor; other iterations over the loader do not.

        Raises:
            ConfigError: If the Trainer's epoch has more steps than the data.
            ResumeError: If the data and the Trainer are at different steps.
        """
        counters = adapter.read_counters(self.trainer)
        if not adapter.is_trained_from(self.trainer, iteration):
            return self._begin_inspection(self.get_run_position())
        lanes = self.engine.plan(self.get_run_position().epoch).lanes
        stride = 1 if lanes else self._world.size
        is_first = self._cursor.trained_before is None
        cursor = self._make_next_cursor(counters, stride)
        run_position = cursor.start
        if is_first and self._resume_point is not None and _is_ending_epoch(counters, run_position):
            return self._begin_inspection(run_position)  # Lightning fetches one batch ahead
        self._cursor = replace(cursor, batches=self.engine.count_batches(run_position.epoch))
        steps = self.engine.count_steps(run_position.epoch)
        trainer_settings.check_epoch_steps(self.trainer, counters.steps, steps)
        self._check_same_step(counters, run_position)
        if is_first and self._resume_point is not None:
            adapter.align_logged_steps(self.trainer)
        elif is_first and counters.total and adapter.is_resuming(self.trainer):
            warn(
                "resume: the checkpoint has no state of this DataModule, so the data begins at "
                "epoch 0. Resume with the class that saved it, not renamed"
            )
        elif is_first and counters.total and self._is_other:
            trainer_settings.warn_of_other_data(counters.total)
        self._resume_point = None
        if self._geometry is not None and self._geometry != self._make_geometry(run_position):
            self._record_begin(run_position, is_repeated=True)  # an epoch was abandoned
        self._geometry = None
        schedule = trainer_settings.make_update_schedule(self.trainer, steps)
        return IterationStart(run_position, schedule)

    def _begin_inspection(self, run_position: RunPosition) -> IterationStart:
        """Return the start of an iteration that trains nothing."""
        steps = self.engine.count_steps(run_position.epoch)
        schedule = trainer_settings.make_update_schedule(self.trainer, steps)
        return IterationStart(run_position, schedule, is_inspection=True)

    def add_context(self, exception: BaseException, replay_hint: Callable[[int, int], str]) -> None:
        """Add a note with the batch and the command to replay it to an exception of a step.

        Args:
            exception: The exception.
            replay_hint: Function of epoch and batch index that returns the command to replay it.
        """
        if not isinstance(exception, Exception) or not adapter.is_in_step(self.trainer):
            return
        run_position, world = self.get_run_position(), self._world
        share = self.engine.share(run_position.epoch, run_position.position)
        step = share.first_step
        if step == len(share):
            return
        batch = share[step].number
        line = format_step(
            epoch=run_position.epoch, batch=batch, step=step, rank=world.rank, size=world.size
        )
        exception.add_note(f"in {line}. {REPLAY_PREFIX}{replay_hint(run_position.epoch, batch)}")

    @property
    def epoch(self) -> int:
        """Epoch whose length the Trainer reads now; 0 if all epochs have the same length."""
        if not self.engine.has_varying_epochs:
            return 0
        return self._make_next_cursor(adapter.read_counters(self.trainer), 1).start.epoch

    def get_run_position(self) -> RunPosition:
        """Return the position of the batch that is trained next."""
        return self._cursor.get_run_position(adapter.read_counters(self.trainer))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with lane states and feedback; a collective operation."""
        run_position = self.get_run_position()
        state = _make_lane_state(self.trainer, run_position, self._coordinator)
        if self.feedback is not None:
            state |= self.feedback.make_state(run_position)
        state |= self._sources.make_statistics_state()
        return {**self.make_state().as_dict(), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position, with lane states and feedback.

        Raises:
            ResumeError: If the state does not fit; the message has the reason.
            ConfigError: If the rest of the epoch has padding rows that the output does not mark.
        """
        saved = FitState.from_dict(state)
        start = self.load_state(saved)
        run_position = self.get_run_position()
        _restore_lane_states(self.trainer, run_position, state)
        if self.feedback is None or start.is_changed:
            changed_parts = start.load_weights(self.engine, run_position, saved.weights, None)
            if changed_parts:
                warn(changed_parts)
        if self.feedback is not None:
            self.feedback.restore(state, run_position, is_changed=start.is_changed)

    def make_state(self) -> FitState:
        """Return the current state; warn once in the middle of an update."""
        run_position = self.get_run_position()
        self._warn_in_mid_update(run_position)
        return replace(
            self._make_state_at(run_position),
            weights=self.engine.describe_weights(run_position),
            parts=describe_parts(self.engine, run_position),
        )

    def load_state(self, state: FitState) -> RunStart:
        """Continue at a saved position.

        Raises:
            ResumeError: If the plan is another, or the Trainer's limits select different batches.
            ConfigError: If the rest of the epoch has padding rows that the output does not mark.
        """
        options = self._sources.options
        start = find_start(self.engine, state, self._make_state_at, options.on_changed)
        run_position = start.run_position
        if start.warning:
            warn(f"resume: {start.warning}")
        changed_transform = self.engine.describe_transform_change(state.transform)
        if changed_transform:
            warn(f"resume: {changed_transform}")
        sharding = (self._world.size, options.tail)
        is_moved = run_position != state.run_position
        is_shifted = (state.world_size, state.tail) != sharding or is_moved
        if state.world_size != self._world.size:
            trainer_settings.check_limits(self.trainer, state.world_size, self._world.size)
        step = self._find_step(run_position)
        saved_step = None if is_shifted else step
        if run_position.position and step >= self._count_trained_steps(run_position):
            run_position, step, is_moved = run_position.next_epoch, 0, True
        accumulate = trainer_settings.count_accumulated(self.trainer, run_position.epoch)
        if step % accumulate:
            warn(
                f"resume: step {step} is inside an update of {accumulate} steps, whose gradients "
                "are not in checkpoints: this update differs. Save at its end "
                "(every_n_train_steps)"
            )
        self._cursor = Cursor(run_position)
        self.errors.restart(state.errors)
        self._resume_point = ResumePoint(
            run_position, step, is_shifted, self._count_trained_steps(run_position), saved_step,
            is_moved,
        )  # fmt: skip
        return start

    def _make_next_cursor(self, counters: adapter.Counters, stride: int) -> Cursor:
        """Return the cursor of an iteration that begins now.

        A fit that failed in its first step after a resume leaves the rest of an epoch, which is
        abandoned for the next epoch unless that fit is resumed again.
        """
        cursor = self._cursor.begin_iteration(counters, stride=stride)
        is_further = self._cursor.trained_before is not None
        if is_further and not adapter.is_resuming(self.trainer) and self._find_step(cursor.start):
            return replace(cursor, start=cursor.start.next_epoch)
        return cursor

    def _make_state_at(self, run_position: RunPosition) -> FitState:
        engine = self.engine
        return FitState.from_plan(
            engine.describe(), run_position, engine.fingerprint(run_position.epoch),
            tail=self._sources.options.tail, world_size=self._world.size,
            accumulate=adapter.count_accumulated(self.trainer),
            errors=self.errors.count_at(run_position), transform=self._transform_label,
            balance_ranks=self.engine.find_ranks(run_position.epoch),
        )  # fmt: skip

    def _make_geometry(self, run_position: RunPosition) -> FitGeometry:
        segments = self.engine.segments
        return FitGeometry(
            seed=self.engine.options.seed,
            frozen=self.engine.options.overfit,
            world_size=self._world.size,
            epoch=run_position.epoch,
            position=run_position.position,
            accumulate=adapter.count_accumulated(self.trainer),
            divided=adapter.has_automatic_optimization(self.trainer),
            steps=self._count_trained_steps(run_position),
            segment=None if self.feedback is None else self.feedback.segment_batches,
            mixture=None if segments is None else segments.describe_origin(),
            balance_ranks=self.engine.find_ranks(run_position.epoch),
        )

    def _record_begin(self, run_position: RunPosition, *, is_repeated: bool = False) -> None:
        """Record the start of the fit on every rank, and write its run file if it has a folder.

        Args:
            run_position: Position at which the fit starts.
            is_repeated: Whether another position was recorded before; then nothing is collective.
        """
        trainer, record = self.trainer, self._run_record
        self._geometry = self._make_geometry(run_position)
        folder = record.folder if is_repeated else adapter.get_run_folder(trainer)  # collective
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = None
        record.begin_fit(self._geometry, folder)
        if folder is not None:
            run_file = self._make_run_file(self._geometry, folder)
            record.keep_run_file(run_file, folder, is_writer=trainer.is_global_zero)
        if self.feedback is not None and trainer.is_global_zero:
            self.feedback.keep_weights(folder, run_position)

    def _make_run_file(self, geometry: FitGeometry, folder: Path) -> RunFile:
        return RunFile.from_options(
            self._sources.options, geometry, folder,
            fingerprints=self._sources.list_fingerprints(("train", "val")),
            plan=self.engine.fingerprint(geometry.epoch),
            versions=find_installed_versions(), trainer=adapter.get_settings(self.trainer),
        )  # fmt: skip

    def _count_trained_steps(self, run_position: RunPosition) -> int:
        return adapter.count_trained_steps(
            self.trainer, self.engine.count_steps(run_position.epoch)
        )

    def _find_step(self, run_position: RunPosition) -> int:
        return self.engine.share(run_position.epoch, run_position.position).first_step

    def _check_same_step(self, counters: adapter.Counters, run_position: RunPosition) -> None:
        step = self._find_step(run_position)
        if step == counters.ready:
            return
        if self._resume_point is not None:
            raise make_two_runs_error(counters.ready, step)
        raise ResumeError(
            f"resume: the Trainer is at step {counters.ready}, but the data is at step {step}: "
            "the checkpoint has no state of this DataModule. Resume with the class that saved "
            "it, not renamed, passed as `datamodule`"
        )

    def _on_restored(self) -> None:
        """Compare the positions of ranks: one without a checkpoint would do a sanity check."""
        run_position = self._cursor.start
        values = {
            "ckpt_path": "loaded" if adapter.has_loaded_checkpoint(self.trainer) else None,
            "epoch": run_position.epoch,
            "position": run_position.position,
        }
        check_consistent(self._world, values)

    def _on_started(self) -> None:
        """Compare the ranks, and warn of validations that depend on the number of ranks."""
        error, values, steps = None, dict[str, str | int](), 0
        trainer_settings.set_scheduled_accumulation(self.trainer)
        try:
            run_position = self.get_run_position()
            steps = self.engine.count_steps(run_position.epoch)
            values = {
                "plan": self.engine.fingerprint(run_position.epoch),
                "steps": steps,
                "epoch": run_position.epoch,
                "position": run_position.position,
                "tail": self._sources.options.tail,
                "accumulate": adapter.count_accumulated(self.trainer),
                "trained steps": self._count_trained_steps(run_position),
            }
        except SeqDataError as failure:
            error = failure
        check_consistent(self._world, values, error)
        self._record_begin(self.get_run_position())
        if self.trainer.enable_validation:
            trainer_settings.warn_of_validations(self.trainer, steps)

    def _warn_in_mid_update(self, run_position: RunPosition) -> None:
        accumulate = adapter.count_accumulated(self.trainer)
        step = adapter.read_counters(self.trainer).processed
        if run_position.position and step % accumulate and not self._has_warned:
            self._has_warned = True
            warn(
                f"datamodule: saved after step {step}, inside an update of {accumulate} steps, "
                "whose gradients are not in checkpoints: a resume from here will differ. Save "
                "at an update's end (every_n_train_steps)"
            )


def _make_lane_state(
    trainer: Trainer, run_position: RunPosition, coordinator: RankCoordinator
) -> dict[str, Any]:
    """Return the entry of the DataModule's state for lanes; empty if there are none.

    All ranks must save together; otherwise the reason is saved, with a warning.

    Args:
        trainer: The Trainer of the module.
        run_position: Position of the batch that is trained next.
        coordinator: Coordinator that gathers the tables of all ranks.
    """
    states = LaneStates.find_in(trainer.lightning_module)
    if not states or not run_position.position:  # every lane restarts with an epoch
        return {}
    own_tables = {
        _make_lane_key(path, table): saved_table
        for path, lanes in states.items()
        for table, saved_table in _save_lane_tables(lanes, run_position).items()
    }
    try:
        tables_by_rank = coordinator.all_gather(
            own_tables, trainer.world_size, (run_position.epoch, run_position.position)
        )
    except PeerFailedError as cause:
        return _make_missing_lane_state(run_position, str(cause))
    keys = dict.fromkeys(key for rank in tables_by_rank for key in rank)
    tables = {key: [rank.get(key, {}) for rank in tables_by_rank] for key in keys}
    if any(table is None for ranks in tables.values() for table in ranks):
        reason = "the last `put` was for another batch; call `put` once in each training step"
        return _make_missing_lane_state(run_position, reason)
    joined: dict[str, Any] = {}
    for key, ranks in tables.items():
        path, _ = _split_lane_key(key, states)
        used = [table for table in ranks if table]
        if path is not None and used:
            joined[key] = states[path].joined(used)
    return {LANES_KEY: joined}


def _restore_lane_states(
    trainer: Trainer, run_position: RunPosition, state: Mapping[str, Any]
) -> None:
    """Restore each LaneStates from a state.

    Args:
        trainer: The Trainer of the module.
        run_position: Position at which the run continues.
        state: The DataModule's state.

    Raises:
        ResumeError: If the lane states are damaged, or of another batch.
    """
    if not run_position.position or LANES_KEY not in state:
        return
    lane_states, saved_tables = LaneStates.find_in(trainer.lightning_module), state[LANES_KEY]
    if isinstance(saved_tables, str):
        for states in lane_states.values():
            states.forgive(_LOADER, run_position.epoch, run_position.position)
        warn(
            f"resume: the checkpoint has no lane states: {saved_tables}. Sequences restart in "
            "the middle of a lane; resume from an earlier checkpoint to be exact"
        )
        return
    if not isinstance(saved_tables, Mapping):
        raise ResumeError(
            must_be(
                f"resume: `{LANES_KEY}` of the state",
                "tables by name",
                f"{saved_tables!r:.60}",
                "Resume from another checkpoint",
            )
        )
    for key, saved_table in saved_tables.items():
        path, table = _split_lane_key(str(key), lane_states)
        if path is not None:
            lane_states[path].restore(
                table, saved_table, run_position.epoch, run_position.position, loader=_LOADER
            )


def _save_lane_tables(
    lanes: LaneStates, run_position: RunPosition
) -> dict[str, dict[str, Any] | None]:
    """Return the training tables of this rank, by name; None for one of another batch.

    If one table is of this batch, the others are omitted: only the first batch of an epoch can
    take them.
    """
    epoch, number = run_position.epoch, run_position.position
    tables = {table: lanes.saved(table, epoch, number) for table in lanes.tables_of(_LOADER, epoch)}
    if not any(tables.values()):
        return tables
    return {table: saved_table for table, saved_table in tables.items() if saved_table is not None}


def _make_lane_key(path: str, table: str) -> str:
    """Return the key of a table in the state."""
    return path if table == _LOADER else f"{path}:{table}"


def _split_lane_key(key: str, paths: Iterable[str]) -> tuple[str | None, str]:
    """Return the path of a key, None if it is unknown, and the table."""
    for path in paths:
        if key == path:
            return path, _LOADER
        if key.startswith(f"{path}:"):
            return path, key.removeprefix(f"{path}:")
    return None, ""


def _make_missing_lane_state(run_position: RunPosition, reason: str) -> dict[str, Any]:
    """Return the entry of a state with the reason why it has no lane states."""
    warn(
        f"datamodule: the checkpoint at batch {run_position.position} of epoch "
        f"{run_position.epoch} has no lane states: {reason}. A run that resumes from it restarts "
        "its sequences in the middle of a lane. Resume from another checkpoint"
    )
    return {LANES_KEY: reason}


def make_run_context(
    trainer: Trainer | None, options: DataOptions, folder: Path | None
) -> RunContext:
    """Return the context for the engines of a DataModule.

    Args:
        trainer: Trainer of the DataModule.
        options: Options of the DataModule.
        folder: Folder of the run, in which unreadable data is reported.
    """
    segment_batches, feedback = None, adapter.find_callback(trainer, SupportsFeedback)
    if trainer is not None and feedback is not None:
        segment_batches = count_segment_batches(feedback, trainer, options)
    return RunContext(
        world=adapter.get_world(trainer),
        seed=trainer_settings.get_seed(options),
        overfit=adapter.is_overfitting(trainer),
        folder=folder if options.on_error != "raise" else None,
        is_on_cuda=adapter.is_on_cuda(trainer),
        segment_batches=segment_batches,
    )


def _is_ending_epoch(counters: adapter.Counters, run_position: RunPosition) -> bool:
    """Return whether a resumed fit has yet to end the epoch before the one that is read."""
    return counters.is_last and counters.ready > 0 and run_position.position == 0

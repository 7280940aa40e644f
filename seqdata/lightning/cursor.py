"""Cursor: the batch that is trained next, derived from the Trainer's counters only.

A loader that counts its batches is wrong whenever a batch is fetched ahead, fails, or ends an epoch
early. So nothing is counted here: the Trainer's count of trained steps is compared with its value
when this epoch's iteration began.

The counters of a checkpoint are repaired here, before Lightning's loops read them. Lightning counts
steps of the run that wrote the checkpoint, and resumes incorrectly after the last batch of an
epoch: validations are lost, and whole epochs are skipped or trained twice, silently. The counters
are corrected for the position at which the data continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from seqdata.errors import ResumeError, warn
from seqdata.lightning.adapter import (
    TRACKER_KEYS,
    Counters,
    LoopStates,
    Tracker,
    continue_after_step,
    copy_metrics,
    end_restart,
    extend_limit,
    find_unknown_monitors,
    force_validation,
    get_datamodule_name,
    has_validated,
    is_in_validation,
    is_interrupted,
    is_restarting,
    is_resuming,
    lacks_scheduler_step,
    loop_states,
    mark_as_saved,
    read_counters,
    restore_limit,
    restore_metrics,
    step_plateau_schedulers,
    step_plateau_schedulers_of_epoch,
    take_back_failed_step,
)
from seqdata.loading.options import OnChanged
from seqdata.resume_state import RunPosition

_LACKS_SCHEDULER_STEP = (
    "resume: `lr_scheduler_step` failed after the last update of this checkpoint, so its learning "
    "rate schedulers are a step behind its optimizers. Step them once in `on_train_start`, or "
    "resume from an earlier checkpoint"
)

_LACKS_METRICS = (
    "resume: the checkpoint does not have the metric {names}, so the scheduler that monitors it "
    "does not step at the end of this epoch. Resume from a checkpoint that this release saved "
    "during a fit"
)
RECORD = "seqdata"
"""Key of a checkpoint for the work that a resumed fit does before its first step."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of training, derived from the Trainer's counters.

    Attributes:
        start: Position at which the latest iteration began; before the first one, the loaded
            position.
        trained_before: Total number of trained steps when that iteration began; None before the
            first one.
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
        # without a processed step the Trainer has opened the next epoch
        if counters.is_epoch_ended or not counters.processed:
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


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position at which a loaded state continues.

    Attributes:
        run_position: Epoch and position.
        step: Step of this run at that position.
        is_shifted: Whether the saving run counted its steps differently from this one.
        epoch_steps: Number of steps of an epoch in this run.
        saved_step: Step that the counters of the checkpoint must have; None if unknown.
        is_moved: Whether another epoch begins in place of the rest of the saved one.
    """

    run_position: RunPosition
    step: int
    is_shifted: bool
    epoch_steps: int
    saved_step: int | None = None
    is_moved: bool = False


class Pending(Enum):
    """Work that a fit still had to do after its latest step when a checkpoint was saved."""

    NOTHING = "nothing"
    STEP_END = "validation, if it is due, and schedulers"
    VALIDATION = "validation and schedulers"
    SCHEDULERS = "schedulers"
    EPOCH_SCHEDULERS = "schedulers of the last epoch"


class CounterRepair(Callback):
    """Repairs the counters of the checkpoint from which a fit resumes, and does pending work.

    Args:
        get_resume_point: Function that returns the point that the DataModule loaded, or None.
        on_restored: Function to call after a checkpoint is loaded, before loops are restored.
        on_started: Function to call when loops and loaders are ready, before the first batch.
        on_changed: Treatment of a checkpoint without a state of the DataModule, as its option.
    """

    is_rank_local = True  # attached by the DataModule: not compared over ranks

    def __init__(
        self,
        get_resume_point: Callable[[], ResumePoint | None],
        on_restored: Callable[[], None],
        on_started: Callable[[], None],
        on_changed: OnChanged,
    ) -> None:
        self._on_changed = on_changed
        self._get_resume_point = get_resume_point
        self._on_restored = on_restored
        self._on_started = on_started
        self._validated_step: int | None = None  # step after which the latest validation began
        self._pending = Pending.NOTHING
        self._saved_updates = 0
        self._limit: int | None = None  # `max_steps` of the Trainer, while it is extended
        self._metrics: dict[str, Tensor] | None = None  # metrics of the loaded checkpoint

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Repair the counters of ``checkpoint``; called before the loops are restored."""
        del pl_module
        resume_point = self._get_resume_point()
        if resume_point is None:
            adopt_checkpoint(checkpoint, get_datamodule_name(trainer), self._on_changed)
        else:
            record = checkpoint.get(RECORD, {})
            self._saved_updates = checkpoint["global_step"]
            self._metrics = record.get("metrics")
            self._pending = repair_counters(
                loop_states(checkpoint), resume_point, is_validated=record.get("is_validated")
            )
            if lacks_scheduler_step(checkpoint):
                warn(_LACKS_SCHEDULER_STEP)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record the work before the next step of a resumed fit, and the metrics for it."""
        del pl_module
        is_validated, has_failed = False, is_interrupted(trainer)
        if is_in_validation(trainer) and not has_failed:
            has_begun = self._validated_step == read_counters(trainer).total
            is_validated = has_begun and has_validated(trainer)
        if is_in_validation(trainer) and not is_validated:
            reopen_validation(loop_states(checkpoint))
        if has_failed:
            reopen_epoch_end(loop_states(checkpoint))
        checkpoint[RECORD] = {"is_validated": is_validated, "metrics": copy_metrics(trainer)}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notify the DataModule that a checkpoint, if there is one, is loaded."""
        del pl_module
        self._on_restored()
        if self._pending not in {Pending.NOTHING, Pending.EPOCH_SCHEDULERS}:
            self._limit = extend_limit(trainer, self._saved_updates)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset a step that failed, notify the DataModule, and do pending work."""
        del pl_module
        take_back_failed_step(trainer)
        self._on_started()
        if self._get_resume_point() is not None and is_resuming(trainer):
            self._begin(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the step after which a validation begins."""
        del pl_module
        self._restore_limit(trainer)
        self._validated_step = read_counters(trainer).total

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step schedulers that monitor a metric also at the end of a resumed epoch."""
        del pl_module
        self._restore_limit(trainer)
        if not is_restarting(trainer):
            return
        unknown = [] if self._metrics is not None else find_unknown_monitors(trainer)
        if unknown:
            names = ", ".join(map(repr, unknown))
            warn(_LACKS_METRICS.format(names=names))
        end_restart(trainer, has_metrics=not unknown)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restore the limit of steps."""
        del pl_module, exception
        self._restore_limit(trainer)

    def _restore_limit(self, trainer: Trainer) -> None:
        if self._limit is not None:
            restore_limit(trainer, self._limit)
            self._limit = None

    def _begin(self, trainer: Trainer) -> None:
        pending, self._pending = self._pending, Pending.NOTHING
        mark_as_saved(trainer)
        if self._metrics is not None:
            restore_metrics(trainer, self._metrics)
        if pending in {Pending.STEP_END, Pending.VALIDATION} and force_validation(trainer):
            return
        if self._metrics is not None and pending is Pending.EPOCH_SCHEDULERS:
            step_plateau_schedulers_of_epoch(trainer)
        elif self._metrics is not None and pending is not Pending.NOTHING:
            step_plateau_schedulers(trainer)
        continue_after_step(trainer, is_at_limit=self._limit is not None)


def adopt_checkpoint(checkpoint: dict[str, Any], name: str, on_changed: OnChanged) -> None:
    """Adapt a checkpoint without a state of the DataModule, so that the next epoch begins.

    Args:
        checkpoint: The checkpoint, whose counters are changed.
        name: Name of the DataModule's class.
        on_changed: Option of the DataModule: with ``next_epoch``, an epoch may be left unfinished.

    Raises:
        ResumeError: If it was saved in the middle of an epoch, and ``on_changed`` is not
            ``next_epoch``, or it has the state of another DataModule.
    """
    if "loops" not in checkpoint:
        return
    states = loop_states(checkpoint)
    steps = states.batches["current"]["processed"]
    if not steps or states.batches["is_last_batch"]:
        return
    others = [key for key, value in checkpoint.items() if _is_fit_state(value)]
    if others:
        raise ResumeError(
            f"resume: the checkpoint has the state of {others[0]}, but the DataModule is {name}. "
            "Resume with the class that saved it, not renamed, passed as `datamodule`"
        )
    if on_changed != "next_epoch":
        raise ResumeError(
            f"resume: the checkpoint was saved in the middle of an epoch, after {steps} steps, by "
            "a run without a SequenceDataModule (it has no state of one), so the remaining data of "
            "the epoch is unknown. Pass on_changed='next_epoch' to leave that epoch and begin "
            "another one with weights, optimizers and counters of the checkpoint, or resume from a "
            "checkpoint of an epoch's end"
        )
    finish_epoch(states)


def repair_counters(
    states: LoopStates, resume_point: ResumePoint, *, is_validated: bool | None = None
) -> Pending:
    """Set a checkpoint's counters to the position at which the data continues.

    Args:
        states: The counters.
        resume_point: The position.
        is_validated: Whether they were saved at the end of a validation; None if unknown.

    Returns:
        Work that the fit still had to do when it was saved.

    Raises:
        ResumeError: If their position differs from that of the data.
    """
    processed = states.batches["current"]["processed"]
    has_ended = resume_point.saved_step == 0 and states.batches["is_last_batch"]
    if (
        resume_point.saved_step is not None
        and processed != resume_point.saved_step
        and not has_ended
    ):
        raise make_two_runs_error(processed, resume_point.saved_step)
    pending = _find_pending(states, is_validated=is_validated)
    align_totals(states)
    states.validation["current"] = _make_tracker(0)  # an unfinished validation is repeated
    states.validation["total"] = _make_tracker(states.validation["total"]["completed"])
    if resume_point.run_position.position == 0:
        return _repair_epoch_end(states, resume_point, pending)
    if pending is Pending.STEP_END:
        _complete_step(states)
    if resume_point.is_shifted:
        shift_steps(states, resume_point.step)
    open_epoch(states, resume_point.run_position.epoch)
    return Pending.NOTHING if pending is Pending.EPOCH_SCHEDULERS else pending


def make_two_runs_error(trainer: int, data: int) -> ResumeError:
    """Return the error about a Trainer and data at different steps."""
    return ResumeError(
        f"resume: the Trainer is at step {trainer}, but the data is at step {data}: the "
        "checkpoint's loops and DataModule state are from two runs. Resume from a checkpoint as "
        "a Trainer saved it"
    )


def reopen_validation(states: LoopStates) -> None:
    """Count one batch of the validation as started but not completed: Lightning then repeats it.

    Lightning does so itself if a step failed, but not if a batch could not be fetched.
    """
    total: Tracker = states.validation["total"]
    completed = total["completed"]
    states.validation["total"] = {
        **_make_tracker(completed),
        "ready": completed + 1,
        "started": completed + 1,
    }


def reopen_epoch_end(states: LoopStates) -> None:
    """Count the end of an epoch as not begun if it has not ended, so that it is repeated."""
    for tracker in states.epochs.values():
        if tracker["started"] == tracker["processed"] > tracker["completed"]:
            tracker["processed"] -= 1


def align_totals(states: LoopStates) -> None:
    """Make all totals of batches differ from those of the epoch by the same number.

    The differences vary if a hook ended an epoch early (``on_train_batch_start`` returned -1), or
    after an earlier resume from a failed step; Lightning then cannot recognise the hook at which
    the checkpoint was saved.
    """
    current, total = states.batches["current"], states.batches["total"]
    before = total["processed"] - current["processed"]
    states.batches["total"] = {key: current[key] + before for key in TRACKER_KEYS}


def finish_epoch(states: LoopStates) -> None:
    """Close the epoch whose last batch is in the checkpoint, so that the next one begins.

    In a checkpoint of an epoch's last batch, the epoch has started but is not completed; in one
    that was saved while the next epoch was prepared, that epoch is ready but has not started.
    """
    for kind, tracker in states.epochs.items():
        states.epochs[kind] = _make_tracker(tracker["started"])
    states.batches["total"] = _make_tracker(states.batches["total"]["ready"])
    states.batches["current"] = _make_tracker(0)
    states.batches["is_last_batch"] = False


def shift_steps(states: LoopStates, step: int) -> None:
    """Set the epoch's number of trained steps to ``step``.

    All four counters change by the same amount: from their differences Lightning finds the hook at
    which the checkpoint was saved. The totals do not change: they count trained steps.
    """
    current: Tracker = states.batches["current"]
    difference = step - current["processed"]
    for key in TRACKER_KEYS:
        current[key] += difference
    states.batches["is_last_batch"] = False


def open_epoch(states: LoopStates, epoch: int) -> None:
    """Mark the epoch that continues as started and not completed.

    A Trainer that stops in the middle of an epoch (``max_steps``, ``max_time``) closes it, and one
    that resumed without these repairs may never have opened it.
    """
    current = states.epochs["current"]
    is_unopened = current["started"] == current["completed"] <= epoch
    for kind, tracker in states.epochs.items():
        started = tracker["started"] + is_unopened
        states.epochs[kind] = {**_make_tracker(started - 1), "ready": started, "started": started}


def _find_pending(states: LoopStates, *, is_validated: bool | None) -> Pending:
    """Return the work that the fit still had to do after its latest step.

    Args:
        states: The counters as saved.
        is_validated: Whether they were saved at the end of a validation; None if unknown.
    """
    epochs: Tracker = states.epochs["current"]
    current: Tracker = states.batches["current"]
    validation: Tracker = states.validation["total"]
    if current["ready"] > current["processed"] or not current["processed"]:
        return Pending.NOTHING  # a step failed, or an epoch's first batch was not fetched
    if current["started"] == current["processed"] > current["completed"]:
        return Pending.STEP_END
    if epochs["processed"] == epochs["started"]:
        is_closed = epochs["completed"] == epochs["processed"]
        return Pending.NOTHING if is_closed else Pending.EPOCH_SCHEDULERS
    if validation["ready"] > validation["completed"]:
        return Pending.VALIDATION
    return Pending.NOTHING if is_validated is False else Pending.SCHEDULERS


def _repair_epoch_end(states: LoopStates, resume_point: ResumePoint, pending: Pending) -> Pending:
    """Leave an epoch whose steps are trained open for pending work, or close it."""
    epochs = states.epochs["current"]
    if not states.batches["current"]["processed"]:
        return Pending.NOTHING
    if epochs["processed"] < epochs["started"] and not resume_point.is_moved:
        _complete_step(states)
        states.batches["current"] = _make_tracker(resume_point.epoch_steps)
        return pending
    finish_epoch(states)
    return Pending.NOTHING if resume_point.is_moved else pending


def _complete_step(states: LoopStates) -> None:
    """Count the latest step as completed; the work after it is pending."""
    for kind in ("current", "total"):
        states.batches[kind] = _make_tracker(states.batches[kind]["processed"])


def _is_fit_state(value: Any) -> bool:
    return isinstance(value, dict) and {"fingerprint", "position", "policy"} <= set(value)


def _make_tracker(count: int) -> Tracker:
    return dict.fromkeys(TRACKER_KEYS, count)

"""Repairs of the counters in a checkpoint, before Lightning's loops read them.

Lightning counts steps of the world that wrote the checkpoint, and goes on wrongly after the last
batch of an epoch: validations are lost, whole epochs are skipped or trained twice, all silently.
The functions here put the counters right for the place where the data goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ResumeError
from seqdata.lightning.adapter import (
    TRACKER_KEYS,
    LoopStates,
    Tracker,
    is_cutting_validation,
    loop_states,
    take_back_failed_step,
)
from seqdata.resume_state import RunPosition


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a loaded state goes on.

    Attributes:
        run_position: Epoch and position.
        step: Step of this world at that position.
        is_shifted: Whether the steps of the run that saved it are counted differently from ours.
        epoch_steps: Steps of this world that an epoch trains.
        saved_step: Step at which the counters of the checkpoint must stand; None: that is not
            known.
    """

    run_position: RunPosition
    step: int
    is_shifted: bool
    epoch_steps: int
    saved_step: int | None = None


class CounterRepair(Callback):
    """Repairs the counters of the checkpoint that a fit goes on from.

    Args:
        get_resume_point: Gives what the DataModule loaded; None: nothing.
        on_started: Called once the loops and loaders stand, before the first batch.
    """

    def __init__(
        self, get_resume_point: Callable[[], ResumePoint | None], on_started: Callable[[], None]
    ) -> None:
        self._get_resume_point = get_resume_point
        self._on_started = on_started

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Change the counters in ``checkpoint``; called before the loops are restored."""
        del trainer, pl_module
        resume_point = self._get_resume_point()
        if resume_point is not None:
            repair_counters(loop_states(checkpoint), resume_point)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mark a validation that is cut off here, so that whoever goes on runs it."""
        del pl_module
        if is_cutting_validation(trainer):
            reopen_validation(loop_states(checkpoint))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take back a step that failed, and tell the DataModule that training begins."""
        del pl_module
        take_back_failed_step(trainer)
        self._on_started()


def repair_counters(states: LoopStates, resume_point: ResumePoint) -> None:
    """Make a checkpoint's counters tell the place where the data goes on.

    Raises:
        ResumeError: If they are of another place than the data.
    """
    processed = states.batches["current"]["processed"]
    has_ended = resume_point.saved_step == 0 and states.batches["is_last_batch"]
    if (
        resume_point.saved_step is not None
        and processed != resume_point.saved_step
        and not has_ended
    ):
        raise make_two_runs_error(processed, resume_point.saved_step)
    lacks_only_validation = _lacks_only_validation(states)
    align_totals(states)
    states.validation["current"] = _make_tracker(0)  # one that was cut off is run again as a whole
    if resume_point.run_position.position == 0:
        if lacks_only_validation:
            states.batches["current"] = _make_tracker(resume_point.epoch_steps)
        elif states.batches["current"]["processed"] > 0:
            finish_epoch(states)
        return
    if resume_point.is_shifted:
        shift_steps(states, resume_point.step)
    open_epoch(states, resume_point.run_position.epoch)


def make_two_runs_error(trainer: int, data: int) -> ResumeError:
    """Return the error about a Trainer and data that stand at different steps."""
    return ResumeError(
        f"resume: the Trainer stands at step {trainer}, the data at step {data}, must be the same; "
        "the checkpoint's loops and DataModule state are of two runs: resume from one as a Trainer "
        "saved it"
    )


def reopen_validation(states: LoopStates) -> None:
    """Count one batch of the validation as begun and not done: Lightning then goes back to it.

    It would do so by itself where a step failed, but not where a batch could not be had.
    """
    total: Tracker = states.validation["total"]
    completed = total["completed"]
    states.validation["total"] = {
        **_make_tracker(completed),
        "ready": completed + 1,
        "started": completed + 1,
    }


def align_totals(states: LoopStates) -> None:
    """Make the totals of batches differ from those of the epoch by one number.

    They do not where a hook ended an epoch early (``on_train_batch_start`` returned -1), or where
    an earlier resume went on from a step that failed. Lightning would then not see at which hook
    the checkpoint was saved.
    """
    current, total = states.batches["current"], states.batches["total"]
    before = total["processed"] - current["processed"]
    states.batches["total"] = {key: current[key] + before for key in TRACKER_KEYS}


def finish_epoch(states: LoopStates) -> None:
    """Close the epoch whose last batch the checkpoint holds: the next one begins from its start.

    Saved in an epoch's last batch, an epoch has started but is not completed; saved while the next
    epoch was being prepared, that one is ready but has not started.
    """
    for kind, tracker in states.epochs.items():
        states.epochs[kind] = _make_tracker(tracker["started"])
    states.batches["total"] = _make_tracker(states.batches["total"]["ready"])
    states.batches["current"] = _make_tracker(0)
    states.batches["is_last_batch"] = False


def shift_steps(states: LoopStates, step: int) -> None:
    """Count the epoch's trained steps as ``step``.

    All four counters move by one amount: their differences tell Lightning at which hook the
    checkpoint was saved. The totals stay: they are steps that were really trained.
    """
    current: Tracker = states.batches["current"]
    difference = step - current["processed"]
    for key in TRACKER_KEYS:
        current[key] += difference
    states.batches["is_last_batch"] = False


def open_epoch(states: LoopStates, epoch: int) -> None:
    """Count the epoch that goes on as begun and not as done.

    A Trainer that stops in mid-epoch (``max_steps``, ``max_time``) closes the epoch, and one that
    resumed without these repairs may never have opened it.
    """
    current = states.epochs["current"]
    is_unopened = current["started"] == current["completed"] <= epoch
    for kind, tracker in states.epochs.items():
        started = tracker["started"] + is_unopened
        states.epochs[kind] = {**_make_tracker(started - 1), "ready": started, "started": started}


def _lacks_only_validation(states: LoopStates) -> bool:
    """Return whether all of an epoch is done but a validation that was cut off."""
    batches: Tracker = states.batches["current"]
    is_trained = states.batches["is_last_batch"] and batches["ready"] == batches["completed"]
    current: Tracker = states.validation["current"]
    is_validated = states.validation["is_last_batch"] and current["ready"] == current["completed"]
    total: Tracker = states.validation["total"]
    return is_trained and not is_validated and total["ready"] > total["completed"]


def _make_tracker(count: int) -> Tracker:
    return dict.fromkeys(TRACKER_KEYS, count)

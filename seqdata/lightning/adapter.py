"""What Lightning keeps to itself: the only module that touches the Trainer's private attributes.

Everything else in this room speaks in the values made here, so that a Lightning release that moves
a counter breaks one file and the test beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ResumeError
from seqdata.world import World

Tracker = dict[str, int]
"""``ready``, ``start_ticks``, ``processed`` and ``completed`` of one Lightning counter."""

TRACKER_KEYS = ("ready", "started", "processed", "completed")
_SETTINGS = (
    "accumulate_grad_batches", "limit_train_batches", "max_epochs", "max_steps", "overfit_batches",
    "precision", "val_check_interval",
)  # fmt: skip
_STAGES = {
    RunningStage.TRAINING: "training",
    RunningStage.SANITY_CHECKING: "validation",
    RunningStage.VALIDATING: "validation",
    RunningStage.TESTING: "test",
    RunningStage.PREDICTING: "prediction",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """How far the Trainer has come.

    Attributes:
        ready: Steps of this epoch whose batch was fetched.
        processed: Steps of this epoch that were trained.
        total: Steps that were trained since training began, over all epochs and resumes.
        is_last: Whether Lightning calls the latest batch the epoch's last.
        steps: Steps of an epoch that are trained (``limit_train_batches`` included).
    """

    ready: int
    processed: int
    total: int
    is_last: bool
    steps: float

    @property
    def is_epoch_ended(self) -> bool:
        """Whether the epoch is over by Lightning's count, which is not the loader's."""
        return self.processed == self.ready and (self.is_last or self.ready >= self.steps)


@dataclass(frozen=True, slots=True)
class LoopStates:
    """The counters inside a checkpoint, to be changed in place."""

    epochs: dict[str, Tracker]
    batches: dict[str, Any]
    validation: dict[str, Any]


def read_counters(trainer: Trainer) -> Counters:
    """Read the Trainer's counters."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return Counters(
        ready=progress.current.ready,
        processed=progress.current.processed,  # type: ignore[attr-defined]
        total=progress.total.processed,  # type: ignore[attr-defined]
        is_last=progress.is_last_batch,
        steps=trainer.num_training_batches,
    )


def get_active_iterators(trainer: Trainer) -> Sequence[object]:
    """Return the iterators that the loop that runs draws its batches from."""
    loop = trainer._active_loop
    combined = None if loop is None else loop._combined_loader
    iterator = None if combined is None else combined._iterator
    return () if iterator is None else iterator.iterators


def is_drawn_from(trainer: Trainer, iterator: object) -> bool:
    """Return whether the loop that runs draws its batches from this very iterator."""
    return any(active is iterator for active in get_active_iterators(trainer))


def is_trained_from(trainer: Trainer, iterator: object) -> bool:
    """Return whether what is trained is drawn from this very iterator."""
    return trainer.training and is_drawn_from(trainer, iterator)


def attach(trainer: Trainer | None, callback: Callback, *, first: bool = False) -> None:
    """Make the Trainer call ``callback``, once, from now on: after all others, or before them."""
    if trainer is not None and callback not in get_callbacks(trainer):
        get_callbacks(trainer).insert(0 if first else len(get_callbacks(trainer)), callback)


def detach(trainer: Trainer | None, callback: Callback) -> None:
    """Make the Trainer call ``callback`` no more."""
    if trainer is not None:
        get_callbacks(trainer)[:] = [
            attached for attached in get_callbacks(trainer) if attached is not callback
        ]


def get_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the Trainer's own list of callbacks."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def end_run(trainer: Trainer, exception: BaseException, *, after: Callback) -> list[Exception]:
    """Do what Lightning does about an exception once it has told the callback ``after``.

    So that this callback may raise another one in its place. Each is told, whatever others raise.

    Returns:
        What they raised: a callback that saves may ask for ranks that are gone.
    """
    callbacks = get_callbacks(trainer)
    later_callbacks = callbacks[callbacks.index(after) + 1 :]
    notifications: list[Callable[[], object]] = [
        partial(receiver.on_exception, trainer, trainer.lightning_module, exception)
        for receiver in later_callbacks
    ]
    data = trainer.datamodule  # type: ignore[attr-defined]
    notifications += [
        partial(receiver.on_exception, exception)
        for receiver in (data, trainer.strategy)
        if receiver
    ]
    notifications += [partial(logger.finalize, "failed") for logger in trainer.loggers]
    errors = []
    for notify in (*notifications, trainer._teardown):
        try:
            notify()
        except Exception as other:  # anybody's code
            errors.append(other)
    trainer.state.stage = None
    return errors


def is_overfitting(trainer: Trainer | None) -> bool:
    """Return whether the Trainer was asked to overfit a few batches."""
    return trainer is not None and trainer.overfit_batches > 0  # type: ignore[attr-defined]


def is_fitting(trainer: Trainer | None) -> bool:
    """Return whether ``trainer.fit`` is running, sanity check and validations included."""
    return trainer is not None and trainer.state.fn == TrainerFn.FITTING


def is_cutting_validation(trainer: Trainer) -> bool:
    """Return whether a validation of the fit has begun and is not over."""
    progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
    is_over = progress.is_last_batch and progress.current.completed == progress.current.ready
    return trainer.validating and is_fitting(trainer) and not is_over


def is_resuming(trainer: Trainer) -> bool:
    """Return whether the fit goes on from a checkpoint, up to the end of its first epoch."""
    return trainer.fit_loop.is_resuming


def get_world(trainer: Trainer | None) -> World:
    """Return rank and size along the data-parallel dimension, which need not be the global rank."""
    if trainer is None:
        return World.current()
    sampler_kwargs = trainer.distributed_sampler_kwargs
    return (
        World(0, 1)
        if sampler_kwargs is None
        else World(int(sampler_kwargs["rank"]), int(sampler_kwargs["num_replicas"]))
    )


def is_on_cuda(trainer: Trainer | None) -> bool:
    """Return whether the Trainer moves batches to a CUDA device."""
    return trainer is not None and trainer.strategy.root_device.type == "cuda"


def get_log_folder(trainer: Trainer | None) -> Path | None:
    """Return the folder that a run logs into, the same on every rank; all must ask together.

    None where there is none on this machine.
    """
    folder = None if trainer is None else trainer.log_dir
    return None if folder is None or "://" in str(folder) else Path(folder)


def get_run_folder(trainer: Trainer) -> Path | None:
    """Return the folder that a run was given; None: it was given none. All ranks must ask together.

    Where nobody gives one, Lightning says the working folder: by its whole path, or as the ``.`` of
    a logger that keeps nothing in files.
    """
    folder, working = get_log_folder(trainer), Path.cwd()
    if folder is None or folder == working or (trainer.loggers and folder.resolve() == working):
        return None
    return folder


def has_dataloader_iter(trainer: Trainer) -> bool:
    """Return whether the training step draws its batches itself (``dataloader_iter``)."""
    step = getattr(trainer.lightning_module, "training_step", None)
    return callable(step) and "dataloader_iter" in inspect.signature(step).parameters


def get_settings(trainer: Trainer) -> dict[str, Any]:
    """Return the settings that decide which batches are trained and what becomes of them."""
    launch_settings = {
        "strategy": type(trainer.strategy).__name__,
        "accelerator": type(trainer.accelerator).__name__,
        "processes": trainer.world_size,
        "nodes": trainer.num_nodes,
    }
    settings = {name: getattr(trainer, name, None) for name in _SETTINGS}
    seconds = get_validation_seconds(trainer)
    if seconds is not None:
        settings["val_check_interval"] = f"{seconds:g} seconds"
    return {**launch_settings, **settings}


def is_in_step(trainer: Trainer) -> bool:
    """Return whether a training step has its batch and is not done: no validation, no fetching."""
    counters = read_counters(trainer)
    return trainer.training and counters.ready > counters.processed


def get_stage(trainer: Trainer) -> str:
    """Say what runs: training, validation (the sanity check, too), test or prediction."""
    stage = trainer.state.stage
    return _STAGES[RunningStage.TRAINING if stage is None else stage]


def is_in_evaluation(trainer: Trainer) -> bool:
    """Return whether a validation, test or prediction has a batch to come, or one not done."""
    if not (trainer.predicting or trainer.evaluating):
        return False
    loop: Any = trainer._active_loop
    return bool(loop.batch_progress.current.completed < sum(loop.max_batches))


def is_reloading_every_epoch(trainer: Trainer) -> bool:
    """Return whether every epoch asks for its loader anew, and for its length."""
    interval: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    return interval == 1 or trainer.max_epochs == 1


def count_trained_steps(trainer: Trainer, steps: int) -> int:
    """Return how many of an epoch's ``steps`` Trainer will train, before it has counted them."""
    limit = trainer.limit_train_batches
    return min(steps, limit) if isinstance(limit, int) else int(steps * limit)


def has_automatic_optimization(trainer: Trainer) -> bool:
    """Return whether Lightning divides each loss by the steps of an update: not by hand."""
    return trainer.lightning_module.automatic_optimization


def get_validation_steps(trainer: Trainer) -> int | None:
    """Return the steps between two validations of an epoch; None: not counted in steps."""
    interval = trainer.val_check_batch
    return interval if isinstance(interval, int) and trainer.enable_validation else None


def get_validation_seconds(trainer: Trainer) -> float | None:
    """Return the seconds between two validations; None: they do not go by the clock.

    Such a Trainer has no ``val_check_interval``.
    """
    seconds: float | None = getattr(trainer, "_val_check_time_interval", None)
    return seconds if trainer.enable_validation else None


def set_batch_size(trainer: Trainer, batch: Any) -> None:
    """Tell Lightning how many rows a batch of ours has, for means that are logged.

    It would look for tensors in what a batch gives when it is iterated: names.
    """
    if isinstance(batch, SequenceBatch) and trainer._results is not None:
        trainer._results.batch_size = len(batch)


def is_logging_step(trainer: Trainer) -> bool:
    """Return whether Lightning hands to the loggers what is logged at the end of this step."""
    is_accumulating = has_automatic_optimization(trainer) and trainer.fit_loop._should_accumulate()
    return trainer._logger_connector.should_update_logs and not is_accumulating


def log_now(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Hand metrics to the loggers at the step that Lightning's own have; on rank 0."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def take_back_failed_step(trainer: Trainer) -> None:
    """Count a step that failed, and is trained again, as never begun.

    A resumed Trainer takes it out of the epoch's counters only. With one begun too many in all,
    checkpoints that are saved later cannot be resumed, and validation comes a step early where its
    interval is counted over epochs.
    """
    total = trainer.fit_loop.epoch_loop.batch_progress.total
    total.ready = total.start_ticks = total.processed  # type: ignore[attr-defined]


def align_logged_steps(trainer: Trainer) -> None:
    """Let loggers go on at the right step after a resume.

    Lightning saves their counter sometimes before and sometimes after it counts the latest update.
    With automatic optimization it is the number of optimizer steps, which is saved exactly.
    """
    if trainer.lightning_module.automatic_optimization:
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step


def loop_states(checkpoint: dict[str, Any]) -> LoopStates:
    """Find the counters in a checkpoint.

    Raises:
        ResumeError: If they are not where Lightning 2.6 keeps them.
    """
    try:
        fit = checkpoint["loops"]["fit_loop"]
        return LoopStates(
            epochs=fit["epoch_progress"],
            batches=fit["epoch_loop.batch_progress"],
            validation=fit["epoch_loop.val_loop.batch_progress"],
        )
    except KeyError as missing:
        raise ResumeError(
            f"resume: the checkpoint has no {missing}, must hold the fit loop's counters; resume "
            "from one that a Trainer of Lightning 2.6 saved"
        ) from missing

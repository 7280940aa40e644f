"""Adapter to Lightning: the only module that uses private attributes of the Trainer.

All other modules use this one, so that a Lightning release that moves a counter breaks one file and
its test.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, ResumeError, warn
from seqdata.sharing import World

Tracker = dict[str, int]
"""``ready``, ``started``, ``processed`` and ``completed`` of one Lightning counter."""

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
    """Progress of the Trainer.

    Attributes:
        ready: Number of steps of this epoch whose batch was fetched.
        processed: Number of steps of this epoch that were trained.
        total: Number of steps trained over all epochs and resumes.
        is_last: Whether Lightning considers the latest batch the epoch's last.
        steps: Number of steps of an epoch that are trained (with ``limit_train_batches``).
    """

    ready: int
    processed: int
    total: int
    is_last: bool
    steps: float

    @property
    def is_epoch_ended(self) -> bool:
        """Whether the epoch has ended by Lightning's count, which may differ from the loader's."""
        return self.processed == self.ready and (self.is_last or self.ready >= self.steps)


@dataclass(frozen=True, slots=True)
class LoopStates:
    """Counters of a checkpoint, to be changed in place."""

    epochs: dict[str, Tracker]
    batches: dict[str, Any]
    validation: dict[str, Any]


def read_counters(trainer: Trainer) -> Counters:
    """Return the Trainer's counters."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return Counters(
        ready=progress.current.ready,
        processed=progress.current.processed,  # type: ignore[attr-defined]
        total=progress.total.processed,  # type: ignore[attr-defined]
        is_last=progress.is_last_batch,
        steps=trainer.num_training_batches,
    )


def get_active_iterators(trainer: Trainer) -> Sequence[object]:
    """Return the iterators from which the running loop draws its batches."""
    loop = trainer._active_loop
    combined = None if loop is None else loop._combined_loader
    iterator = None if combined is None else combined._iterator
    return () if iterator is None else iterator.iterators


def is_drawn_from(trainer: Trainer, iterator: object) -> bool:
    """Return whether the running loop draws its batches from this iterator."""
    return any(active is iterator for active in get_active_iterators(trainer))


def is_trained_from(trainer: Trainer, iterator: object) -> bool:
    """Return whether training batches are drawn from this iterator."""
    return trainer.training and is_drawn_from(trainer, iterator)


def attach(trainer: Trainer | None, callback: Callback, *, first: bool = False) -> None:
    """Add ``callback`` to the Trainer after all others, or before them, unless it is there."""
    if trainer is not None and callback not in get_callbacks(trainer):
        get_callbacks(trainer).insert(0 if first else len(get_callbacks(trainer)), callback)


def detach(trainer: Trainer | None, callback: Callback) -> None:
    """Remove ``callback`` from the Trainer."""
    if trainer is not None:
        get_callbacks(trainer)[:] = [
            attached for attached in get_callbacks(trainer) if attached is not callback
        ]


def get_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the Trainer's own list of callbacks."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def find_callback(trainer: Trainer | None, callback_type: type[Any]) -> Any:
    """Return the callback of a Trainer with a given type; None if there is none.

    Raises:
        ConfigError: If there are several.
    """
    callbacks = [] if trainer is None else get_callbacks(trainer)
    found = [callback for callback in callbacks if isinstance(callback, callback_type)]
    if len(found) > 1:
        name = type(found[0]).__name__
        raise ConfigError(
            f"{name}: a Trainer must have one {name}, but has {len(found)}. Leave the others out."
        )
    return found[0] if found else None


def guard_searches(trainer: Trainer) -> None:
    """Skip these searches in a resumed fit; in any other, refuse the search of a batch size.

    The search of a learning rate loads a checkpoint of its own in place of the one from which the
    fit resumes. The search of a batch size sets an attribute that does not determine our batches.
    """
    for callback in get_callbacks(trainer):
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            callback.on_fit_start = partial(_search, callback)  # type: ignore[method-assign]


def _search(callback: Callback, trainer: Trainer, pl_module: LightningModule) -> None:
    vars(callback).pop("on_fit_start")  # restores the method of the class
    name = type(callback).__name__
    if has_loaded_checkpoint(trainer):
        warn(
            f"resume: {name} does not search again in a fit with `ckpt_path`: "
            + (
                "the batch size is in the policy of the SequenceDataModule. Leave it out"
                if isinstance(callback, BatchSizeFinder)
                else "the optimizers continue with the rates of the checkpoint. Fit without "
                "`ckpt_path` to search"
            ),
        )
    elif isinstance(callback, BatchSizeFinder):
        raise ConfigError(
            f"datamodule: {name} sets an attribute, but the batch size of a SequenceDataModule is "
            "in its policy, `batching`, so the search would end at its limit. Leave it out, and "
            "try sizes in the policy: the first batch of a run is the most expensive one"
        )
    else:
        callback.on_fit_start(trainer, pl_module)


def end_run(trainer: Trainer, exception: BaseException, *, after: Callback) -> list[Exception]:
    """End a run as Lightning does after an exception, after the callback ``after``.

    That callback may then raise another exception. All later callbacks are called, even if some
    raise.

    Returns:
        Exceptions raised meanwhile, for example by callbacks that need a rank that has ended.
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
        except Exception as error:  # a callback may raise anything
            errors.append(error)
    trainer.state.stage = None
    return errors


def is_overfitting(trainer: Trainer | None) -> bool:
    """Return whether the Trainer overfits a few batches."""
    return trainer is not None and trainer.overfit_batches > 0  # type: ignore[attr-defined]


def is_fitting(trainer: Trainer | None) -> bool:
    """Return whether ``trainer.fit`` is running, sanity check and validations included."""
    return trainer is not None and trainer.state.fn == TrainerFn.FITTING


def get_running_stage(trainer: Trainer | None) -> str:
    """Return ``fit``, ``validate``, ``test`` or ``predict``; empty if none is running."""
    running = trainer is not None and trainer.state.status == TrainerStatus.RUNNING
    return str(trainer.state.fn.value) if trainer and running and trainer.state.fn else ""


def is_interrupted(trainer: Trainer) -> bool:
    """Return whether an exception or a signal ends the run."""
    return bool(trainer.state.status == TrainerStatus.INTERRUPTED)


def is_in_validation(trainer: Trainer) -> bool:
    """Return whether a validation of the fit has begun; it may be in its last hook."""
    return trainer.validating and is_fitting(trainer)


def has_validated(trainer: Trainer) -> bool:
    """Return whether the latest validation of the fit has reached ``on_validation_end``."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    progress = loop.batch_progress
    is_through = progress.is_last_batch and progress.current.completed == progress.current.ready
    return is_through and not loop._logged_outputs  # they are logged before that hook


def is_resuming(trainer: Trainer) -> bool:
    """Return whether the fit resumes from a checkpoint, up to the end of its first epoch."""
    return trainer.fit_loop.is_resuming


def get_world(trainer: Trainer | None) -> World:
    """Return rank and size along the data-parallel dimension, which need not be the global rank.

    A strategy that splits rows in time has ``time_part``: index and number of the parts.
    """
    if trainer is None:
        return World.current()
    sampler_kwargs = trainer.distributed_sampler_kwargs
    if sampler_kwargs is None:
        return World(0, 1)
    time_part: tuple[int, int] = getattr(trainer.strategy, "time_part", (0, 1))
    return World(int(sampler_kwargs["rank"]), int(sampler_kwargs["num_replicas"]), *time_part)


def is_on_cuda(trainer: Trainer | None) -> bool:
    """Return whether the Trainer moves batches to a CUDA device."""
    return trainer is not None and trainer.strategy.root_device.type == "cuda"


def get_log_folder(trainer: Trainer | None) -> Path | None:
    """Return the log folder of a run, equal on all ranks; a collective operation.

    None if there is none, or if it is a URL.
    """
    folder = None if trainer is None else trainer.log_dir
    return None if folder is None or "://" in str(folder) else Path(folder)


def get_run_folder(trainer: Trainer | None) -> Path | None:
    """Return the folder that was set for a run; None if none was set. A collective operation.

    A URL counts as none. If none is set, Lightning returns the working folder: its absolute path,
    or the ``.`` of a logger that writes no files.
    """
    if trainer is None:
        return None
    folder, working = get_log_folder(trainer), Path.cwd()
    if folder is None or folder == working or (trainer.loggers and folder.resolve() == working):
        return None
    return folder


def has_dataloader_iter(trainer: Trainer) -> bool:
    """Return whether the training step draws its batches itself (``dataloader_iter``)."""
    step = getattr(trainer.lightning_module, "training_step", None)
    return callable(step) and "dataloader_iter" in inspect.signature(step).parameters


def get_settings(trainer: Trainer) -> dict[str, Any]:
    """Return the settings that determine which batches are trained, and how."""
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


def get_strategy_settings(trainer: Trainer) -> dict[str, Any]:
    """Return the settings of a strategy that affect communication, by name."""
    strategy: Any = trainer.strategy
    kinds = [type(getattr(strategy, name, None)) for name in ("_layer_sync", "_ddp_comm_hook")]
    comm_hook = getattr(strategy, "_ddp_comm_hook", None)
    return {
        "strategy": type(strategy).__name__,
        "sync_batchnorm": kinds[0].__name__,
        "ddp_comm_hook of the strategy": getattr(comm_hook, "__qualname__", kinds[1].__name__),
        **{f"{key} of the strategy": x for key, x in vars(strategy).get("_ddp_kwargs", {}).items()},
    }


def has_loaded_checkpoint(trainer: Trainer) -> bool:
    """Return whether a checkpoint was loaded whose loops are not restored yet."""
    return bool(trainer._checkpoint_connector._loaded_checkpoint)


def get_datamodule_name(trainer: Trainer) -> str:
    """Return the key of the DataModule's state in a checkpoint."""
    return type(trainer.datamodule).__qualname__  # type: ignore[attr-defined]


def is_in_step(trainer: Trainer) -> bool:
    """Return whether a training step runs, and neither a validation nor the fetching of a batch."""
    counters = read_counters(trainer)
    return trainer.training and counters.ready > counters.processed


def get_stage(trainer: Trainer) -> str:
    """Return the stage: training, validation (including the sanity check), test or prediction."""
    stage = trainer.state.stage
    return _STAGES[RunningStage.TRAINING if stage is None else stage]


def is_in_evaluation(trainer: Trainer) -> bool:
    """Return whether a validation, test or prediction has not finished its batches."""
    if not (trainer.predicting or trainer.evaluating):
        return False
    loop: Any = trainer._active_loop
    return bool(loop.batch_progress.current.completed < sum(loop.max_batches))


def is_reloading_every_epoch(trainer: Trainer) -> bool:
    """Return whether the Trainer requests the loader and its length in every epoch."""
    interval: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    return interval == 1 or trainer.max_epochs == 1


def count_trained_steps(trainer: Trainer, steps: int) -> int:
    """Return the number of steps of an epoch of ``steps`` that the Trainer will train."""
    limit = trainer.limit_train_batches
    return min(steps, limit) if isinstance(limit, int) else int(steps * limit)


def has_automatic_optimization(trainer: Trainer) -> bool:
    """Return whether Lightning optimizes, and divides losses by the number of accumulated steps."""
    return trainer.lightning_module.automatic_optimization


def count_accumulated(trainer: Trainer) -> int:
    """Return the number of steps by which Lightning divides losses; 1 if it does not."""
    return trainer.accumulate_grad_batches if has_automatic_optimization(trainer) else 1


def get_validation_steps(trainer: Trainer) -> int | None:
    """Return the number of steps between two validations; None if they are not by steps."""
    interval = trainer.val_check_batch
    return interval if isinstance(interval, int) and trainer.enable_validation else None


def get_validation_seconds(trainer: Trainer) -> float | None:
    """Return the seconds between two validations; None if they are not by time.

    A Trainer with an interval in seconds has no ``val_check_interval``.
    """
    return get_validation_interval(trainer) if trainer.enable_validation else None


def get_validation_interval(trainer: Trainer) -> float | None:
    """Return the seconds of ``val_check_interval``, even if there is no validation."""
    seconds: float | None = getattr(trainer, "_val_check_time_interval", None)
    return seconds


def set_batch_size(trainer: Trainer, batch: Any) -> None:
    """Set the number of rows of a SequenceBatch in Lightning, for logged means.

    Lightning would look for tensors by iterating over the batch, which yields names. For zipped
    parts it is the number of the first part, as Lightning does for a dict of tensors.
    """
    if isinstance(batch, dict):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, SequenceBatch) and trainer._results is not None:
        trainer._results.batch_size = len(batch)


def is_logging_step(trainer: Trainer) -> bool:
    """Return whether Lightning passes metrics to the loggers at the end of this step."""
    is_accumulating = has_automatic_optimization(trainer) and trainer.fit_loop._should_accumulate()
    return trainer._logger_connector.should_update_logs and not is_accumulating


def lacks_scheduler_step(checkpoint: dict[str, Any]) -> bool:
    """Return whether a checkpoint was saved after an error in ``lr_scheduler_step``.

    Its optimizers have made the update; Lightning does not repeat the step of the scheduler.
    """
    progress = checkpoint["loops"]["fit_loop"].get("epoch_loop.scheduler_progress")
    if progress is None:
        return False
    return bool(progress["current"]["ready"] > progress["current"]["completed"])


def get_logged_step(trainer: Trainer) -> int:
    """Return the step of loggers: with one optimizer the number of updates before."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def log_now(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Log metrics at the step of Lightning's own metrics; call it on rank 0."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=get_logged_step(trainer))


def take_back_failed_step(trainer: Trainer) -> None:
    """Reset the counters of a step that failed and is trained again.

    A resumed Trainer removes the step from the epoch's counters only. With one started step too
    many in the totals, later checkpoints cannot be resumed, and validation runs a step early if its
    interval is counted over epochs.
    """
    total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    total.ready = total.started = total.processed


def copy_metrics(trainer: Trainer) -> dict[str, Tensor]:
    """Return the logged metrics that callbacks and schedulers monitor, on the CPU."""
    metrics = trainer.callback_metrics
    return {name: value.detach().cpu().clone() for name, value in metrics.items()}


def restore_metrics(trainer: Trainer, metrics: dict[str, Tensor]) -> None:
    """Restore the latest logged metrics that callbacks and schedulers monitor."""
    device = trainer.strategy.root_device
    restored = {name: value.to(device) for name, value in metrics.items()}
    trainer._logger_connector._callback_metrics.update(restored)


def force_validation(trainer: Trainer) -> bool:
    """Make a resumed fit begin with the validation that follows the latest step.

    Returns:
        Whether a validation follows; validations may be scheduled otherwise than when saved.
    """
    if get_validation_seconds(trainer) is not None:
        timed: Any = trainer
        timed._last_val_time = -math.inf  # it was due when it was interrupted
    fetcher, loop = trainer.fit_loop._data_fetcher, trainer.fit_loop.epoch_loop
    if fetcher is None or not loop._should_check_val_fx(fetcher):
        return False
    loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION
    return True


def step_plateau_schedulers(trainer: Trainer) -> None:
    """Step the schedulers that monitor a metric, as after the latest step."""
    trainer.fit_loop.epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=True)


def step_plateau_schedulers_of_epoch(trainer: Trainer) -> None:
    """Step the schedulers that monitor a metric, as at the end of the last epoch."""
    progress = trainer.fit_loop.epoch_progress.current
    progress.completed -= 1  # schedulers compare the epoch with their frequency
    try:
        trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    finally:
        progress.completed += 1


def continue_after_step(trainer: Trainer, *, is_at_limit: bool = False) -> None:
    """Make a resumed fit begin with the next step or, after the last one, with the epoch's end.

    Args:
        trainer: The Trainer.
        is_at_limit: Whether ``max_steps`` is reached, so that the epoch ends early.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.reset_restart_stage()  # otherwise Lightning ends the latest step a second time
    current = loop.batch_progress.current
    if is_at_limit:
        loop.batch_progress.is_last_batch = True
    if current.ready == current.completed and loop._num_ready_batches_reached():
        loop.val_loop._has_run = True  # then the loop ends the epoch


def extend_limit(trainer: Trainer, step: int) -> int | None:
    """Increase ``max_steps`` if it is reached, so that a resumed fit ends its latest step.

    Args:
        trainer: The Trainer.
        step: Number of updates in the checkpoint.

    Returns:
        The limit, to be restored before a step is trained; None if it is not reached.
    """
    loop = trainer.fit_loop.epoch_loop
    limit = loop.max_steps
    if not 0 <= limit <= step:
        return None
    loop.max_steps = step + 1
    return limit


def restore_limit(trainer: Trainer, limit: int) -> None:
    """Restore ``max_steps``."""
    loop = trainer.fit_loop.epoch_loop
    loop.max_steps = limit
    loop.batch_progress.is_last_batch = loop.batch_idx + 1 >= trainer.num_training_batches


def mark_as_saved(trainer: Trainer) -> None:
    """Keep callbacks from saving again the step from which a fit resumes.

    After a resume they would save at the next step, in the middle of an update.
    """
    for callback in trainer.checkpoint_callbacks:
        every = getattr(callback, "_every_n_train_steps", 0)
        if isinstance(callback, ModelCheckpoint) and every and trainer.global_step % every == 0:
            callback._last_global_step_saved = trainer.global_step


def is_restarting(trainer: Trainer) -> bool:
    """Return whether this is the epoch in which the fit resumed."""
    return bool(trainer.fit_loop.restarting)


def end_restart(trainer: Trainer, *, has_metrics: bool) -> None:
    """End the resuming of the loops at the end of the first epoch.

    Args:
        trainer: The Trainer.
        has_metrics: Whether schedulers that monitor a metric step there; Lightning leaves them out
            in the epoch in which it resumed.
    """
    if has_metrics:
        trainer.fit_loop._restarting = False
    if trainer.fit_loop.epoch_loop.restarting:
        trainer.fit_loop.epoch_loop.on_iteration_done()


def find_unknown_monitors(trainer: Trainer) -> list[str]:
    """Return the unknown metrics that schedulers monitor by epoch."""
    monitors = {
        str(config.monitor)
        for config in trainer.lr_scheduler_configs
        if config.reduce_on_plateau and config.interval == "epoch"
    }
    return sorted(monitors - set(trainer.callback_metrics))


def align_logged_steps(trainer: Trainer) -> None:
    """Set the step at which loggers continue after a resume.

    Lightning saves their counter sometimes before and sometimes after it counts the latest update.
    With automatic optimization the counter equals the number of optimizer steps, which is exact.
    """
    if trainer.lightning_module.automatic_optimization:
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step


def loop_states(checkpoint: dict[str, Any]) -> LoopStates:
    """Return the counters of a checkpoint.

    Raises:
        ResumeError: If the checkpoint lacks one, as those of other versions than Lightning 2.6.
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
            f"resume: the checkpoint must have {missing}, a counter of the fit loop, but does not. "
            "Resume from a checkpoint that a Trainer of Lightning 2.6 saved"
        ) from missing

"""Settings of a Trainer in steps or seconds, whose effect depends on the number of ranks.

The steps of an epoch have different batches on another number of ranks, and clocks differ from run
to run. The number of steps of an update is set such that it holds the same batches; limits by which
a run would end or validate elsewhere are refused or warned of before the first batch.
"""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from seqdata.errors import ConfigError, ResumeError, must_be, warn
from seqdata.lightning import adapter
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.options import UpdateSchedule
from seqdata.runs.options import DataOptions


def get_seed(options: DataOptions) -> int:
    """Return the seed of order and transforms: by default that of ``seed_everything``, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0")) if options.seed is None else options.seed


def check_training(trainer: Trainer, engine: BaseEngine) -> None:
    """Raise if a Trainer cannot train on the batches of an engine.

    Raises:
        ConfigError: If epochs differ in length and the Trainer reads only one, or the module's
            training step draws its batches itself.
    """
    if engine.has_varying_epochs and not adapter.is_reloading_every_epoch(trainer):
        raise ConfigError(
            f"datamodule: epochs of {engine.policy} differ in their number of steps, but the "
            "Trainer reads it only once. Pass Trainer(reload_dataloaders_every_n_epochs=1)."
        )
    if adapter.has_dataloader_iter(trainer):
        raise ConfigError(
            "datamodule: `training_step` of the module must take `batch`, but takes "
            "`dataloader_iter`: the trained batches are unknown if a step draws its own. "
            "Write training_step(self, batch, batch_idx); batches are read ahead "
            "nevertheless"
        )


def make_update_schedule(trainer: Trainer, steps: int) -> UpdateSchedule:
    """Return the schedule of optimizer updates of an epoch.

    Args:
        trainer: The Trainer, which may train fewer steps.
        steps: Number of steps of the epoch.
    """
    return UpdateSchedule(
        accumulate=adapter.count_accumulated(trainer),
        steps=int(min(adapter.read_counters(trainer).steps, steps)),
        is_loss_divided=adapter.has_automatic_optimization(trainer),
    )


def check_epoch_steps(trainer: Trainer, trainer_steps: float, steps: int) -> None:
    """Raise if the Trainer's epoch has more steps than the training data.

    Args:
        trainer: The Trainer.
        trainer_steps: Number of steps of its epoch.
        steps: Number of steps of an epoch of the training data.

    Raises:
        ConfigError: If it has more: the data would begin a second epoch.
    """
    if len(adapter.get_active_iterators(trainer)) > 1 and trainer_steps > steps:
        raise ConfigError(
            f"datamodule: the Trainer's epoch must have at most the {steps} steps of the training "
            f"data, but has {trainer_steps}: of several loaders (a dict, list or CombinedLoader) "
            "ours must be the longest, since an epoch iterates over it once. Pass "
            'CombinedLoader(..., "min_size"), or make the other one shorter'
        )


def count_accumulated(trainer: Trainer, epoch: int) -> int:
    """Return the number of steps of an update in an epoch, for which a callback may set it."""
    for callback in adapter.get_callbacks(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            return callback.get_accumulate_grad_batches(epoch)
    return adapter.count_accumulated(trainer)


def warn_of_other_data(step: int) -> None:
    """Warn that data begins at epoch 0 for a Trainer that is at a later step."""
    _warn(
        f"datamodule: the Trainer is at step {step}, but its data begins at epoch 0: data, seed, "
        "ranks or Trainer differ from those of the last fit. Pass `ckpt_path` to resume, or "
        "another SequenceDataModule"
    )


def set_scheduled_accumulation(trainer: Trainer) -> None:
    """Set the number of steps of an update that a callback schedules for the current epoch.

    Lightning does so at the beginning of an epoch, but not when a run resumes in its middle.
    """
    if adapter.is_resuming(trainer) and adapter.has_automatic_optimization(trainer):
        trainer.accumulate_grad_batches = count_accumulated(trainer, trainer.current_epoch)


def set_accumulation(trainer: Trainer, batches: int, lanes: int, *, is_repeated: bool) -> None:
    """Make the Trainer accumulate ``batches`` batches of the plan in each update.

    Args:
        trainer: The Trainer.
        batches: Number of batches of the plan, over all ranks.
        lanes: Number of lanes of the plan; with lanes a step is one batch of all ranks.
        is_repeated: Whether an earlier call has set it.

    Raises:
        ConfigError: If ``batches`` is not a multiple of the number of ranks, if the module
            optimizes manually, or if the accumulation is set elsewhere.
    """
    size = adapter.get_world(trainer).size
    if not lanes and batches % size:
        raise ConfigError(
            must_be(
                "datamodule: `batches_per_update`",
                f"a multiple of the {size} ranks",
                f"{batches}",
                f"Pass {-(-batches // size) * size}, or use another number of ranks",
            )
        )
    steps = batches if lanes else batches // size
    if not adapter.has_automatic_optimization(trainer):
        raise ConfigError(
            "datamodule: `batches_per_update` needs automatic optimization, but the module "
            "optimizes manually. Leave it out, and step after the number of batches that you "
            "want"
        )
    if any(
        isinstance(callback, GradientAccumulationScheduler)
        for callback in adapter.get_callbacks(trainer)
    ):
        raise ConfigError(
            must_be(
                "datamodule: `batches_per_update`",
                "the only setting of the Trainer's accumulation",
                "given with a GradientAccumulationScheduler",
                "Leave one of them out",
            )
        )
    if trainer.accumulate_grad_batches not in (1, steps if is_repeated else 1):
        raise ConfigError(
            must_be(
                "datamodule: `accumulate_grad_batches` of the Trainer",
                "1 with `batches_per_update`, which sets it",
                f"{trainer.accumulate_grad_batches}",
                "Leave it out",
            )
        )
    trainer.accumulate_grad_batches = steps


def check_limits(trainer: Trainer, saved_size: int, size: int) -> None:
    """Raise if the Trainer's limits select different batches than in the run that saved a state.

    Args:
        trainer: The Trainer.
        saved_size: Number of ranks of the run that saved the state.
        size: Number of ranks of this run, which differs.

    Raises:
        ResumeError: If a limit is a number of steps.
    """
    for name in ("limit_train_batches", "val_check_interval"):
        value: Any = getattr(trainer, name, None)  # absent if the clock decides
        if isinstance(value, int):
            raise ResumeError(
                must_be(
                    f"resume: `{name}`", "a fraction",
                    f"{value!r} steps, which have other batches on {size} ranks than on the "
                    f"{saved_size} that saved the state", "Pass a float",
                )
            )  # fmt: skip


def warn_of_validations(trainer: Trainer, steps: int) -> None:
    """Warn if validations run after other batches in every run, or on other ranks.

    Args:
        trainer: The Trainer.
        steps: Number of steps of an epoch.
    """
    seconds = adapter.get_validation_seconds(trainer)
    if seconds is not None:
        _warn(
            f"datamodule: `val_check_interval` is a time of {seconds:g} seconds: validation "
            "runs after other batches in every run and after every resume, and ranks whose "
            "clocks differ may not validate together. Pass steps or a fraction of the epoch"
        )
    interval, accumulate = adapter.get_validation_steps(trainer), adapter.count_accumulated(trainer)
    if interval and interval < steps and interval % accumulate:
        _warn(
            f"datamodule: validation every {interval} steps is not a multiple of the "
            f"{accumulate} steps of an update, so its position depends on the number of "
            "ranks. Change `val_check_interval`"
        )


def _warn(message: str) -> None:
    warn(message)

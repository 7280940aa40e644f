"""Settings of a Trainer that count steps or seconds, so that they differ on other ranks.

Steps of an epoch hold other batches on another number of ranks, and clocks differ from run to run.
The steps of an optimizer update are set so that they hold the same batches; limits that would end
or validate a run elsewhere are refused or warned of before the first batch.
"""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning, must_be
from seqdata.lightning import adapter


def set_accumulation(trainer: Trainer, batches: int, lanes: int, *, is_repeated: bool) -> None:
    """Make the Trainer accumulate ``batches`` batches of the plan in each update.

    Args:
        trainer: The Trainer.
        batches: Number of batches of the plan, over all ranks.
        lanes: Number of lanes of the plan; with lanes a step is one batch of all ranks.
        is_repeated: Whether it was set before, for an earlier fit of the same Trainer.

    Raises:
        ConfigError: If the number of ranks does not divide ``batches``, or the accumulation is set
            elsewhere.
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
                "one of them",
                "given but a GradientAccumulationScheduler sets the Trainer's accumulation",
                "Leave the other out",
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
    """Raise if limits of the Trainer hold other batches than in the run that saved a state.

    Args:
        trainer: The Trainer.
        saved_size: Ranks of the run that saved the state.
        size: Ranks of this run, another number.

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
        steps: Steps of an epoch.
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
    warnings.warn(message, SeqDataWarning, stacklevel=3)

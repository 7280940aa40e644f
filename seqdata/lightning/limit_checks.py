"""Limits of a Trainer that count steps or seconds, so that they differ on other ranks.

Steps of an epoch hold other batches on another number of ranks, and clocks differ from run to run.
What would then end or validate a run elsewhere is refused or warned of before the first batch.
"""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import ResumeError, SeqDataWarning, must_be
from seqdata.lightning import adapter


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

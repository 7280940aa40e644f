"""How many steps make an optimizer update, so that any number of ranks gives the same run."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from seqdata.errors import ConfigError
from seqdata.lightning import adapter


def set_accumulation(trainer: Trainer, batches: int, lanes: int, *, is_repeated: bool) -> None:
    """Make the Trainer gather ``batches`` batches of the plan into each update.

    Args:
        trainer: Whose accumulation is set.
        batches: Of the plan, over all ranks.
        lanes: Of the plan; with lanes a step is one batch of all ranks.
        is_repeated: Whether it was set before, for an earlier fit of the same Trainer.

    Raises:
        ConfigError: If the world does not divide ``batches``, or somebody else decides already.
    """
    size = adapter.get_world(trainer).size
    if not lanes and batches % size:
        raise ConfigError(
            f"datamodule: `batches_per_update` is {batches}, must be a multiple of the {size} "
            f"ranks; pass {-(-batches // size) * size}, or use another number of ranks"
        )
    steps = batches if lanes else batches // size
    if not adapter.has_automatic_optimization(trainer):
        raise ConfigError(
            "datamodule: `batches_per_update` is given but the module optimizes by hand, must do so"
            " automatically; leave it out and step after as many batches as you mean"
        )
    if any(
        isinstance(callback, GradientAccumulationScheduler)
        for callback in adapter.get_callbacks(trainer)
    ):
        raise ConfigError(
            "datamodule: `batches_per_update` is given but a GradientAccumulationScheduler sets "
            "the Trainer's accumulation, must be one of them; leave the other out"
        )
    if trainer.accumulate_grad_batches not in (1, steps if is_repeated else 1):
        raise ConfigError(
            f"datamodule: `accumulate_grad_batches` of the Trainer is "
            f"{trainer.accumulate_grad_batches}, must be 1 with `batches_per_update`, which sets "
            "it; leave it out"
        )
    trainer.accumulate_grad_batches = steps

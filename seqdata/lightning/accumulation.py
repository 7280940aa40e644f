"""Sets the steps of an optimizer update, so that a run does not depend on the number of ranks."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from seqdata.errors import ConfigError, must_be
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

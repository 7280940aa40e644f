"""Checks for callbacks that need whole weights or the loss of each batch.

The strategies train a module by parts and whole updates, and do not support these callbacks.
Place in the flow: below the strategies, which run the checks. Reads: the Trainer's callbacks.
Makes: errors that name a callback.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer, callbacks

from seqdata import ConfigError, Feedback, LossRecord, RankConsistency

_AVERAGING: tuple[type, ...] = tuple(
    getattr(callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging")  # the second from 2.6
    if hasattr(callbacks, name)
)


def check_whole_weights(trainer: Trainer) -> None:
    """Raise if a callback needs the weights of all stages in each step.

    Raises:
        ConfigError: If a callback averages weights, or compares the weights of ranks.
    """
    if name := _find_name(trainer, _AVERAGING):
        raise ConfigError(
            "wavefront: callbacks must not average weights, since a process updates only "
            f"those of its stage, but there is a {name}. Leave it out, or use `RingStrategy` or "
            "'ddp'."
        )
    if name := _find_name(trainer, (RankConsistency,)):
        raise ConfigError(
            "wavefront: callbacks must not compare the weights of ranks, since a process "
            f"updates only those of its stage, but there is a {name}. Leave it out, or use "
            "`RingStrategy` or 'ddp'."
        )


def check_scores(trainer: Trainer, batches: int) -> None:
    """Raise if a callback would record the loss of several batches as that of one batch.

    Args:
        trainer: Trainer of the fit.
        batches: Number of batches of an update, over all replicas.

    Raises:
        ConfigError: If an update has several batches, and a callback records losses of batches.
    """
    name = _find_name(trainer, (Feedback, LossRecord)) if batches > 1 else None
    if name:
        raise ConfigError(
            f"parallel: an update must have one batch with {name}, since the batches of an update "
            f"run together and have one loss, but has {batches} (accumulated batches x "
            "replicas). Leave the callback out, or use 'ddp'."
        )


def _find_name(trainer: Trainer, kinds: tuple[type, ...]) -> str | None:
    """Return the name of the first callback of some kinds; None: there is none."""
    untyped_trainer: Any = trainer
    found = (type(one).__name__ for one in untyped_trainer.callbacks if isinstance(one, kinds))
    return next(found, None)

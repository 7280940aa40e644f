"""Learning rates over a whole fit, update by update, which a longer fit stretches.

The rate of an update follows from its number and from the updates of the whole fit alone. So a fit
that continues, from a checkpoint or with the same Trainer, has the rates that it would have had if
it had been that long from its beginning.
"""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR


class Cosine(LambdaLR):
    """Falls to 0 along half a cosine.

    Args:
        optimizer: Optimizer with the initial rates.
        total: Updates of the whole fit.
        done: Updates that were made before.
    """

    def __init__(self, optimizer: Optimizer, total: int, done: int = 0) -> None:
        super().__init__(
            optimizer, lambda update: 0.5 + 0.5 * math.cos(math.pi * min(update / total, 1.0))
        )
        self._go_to(done)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the updates of a saved schedule, over the updates of this fit."""
        self.base_lrs = state_dict["base_lrs"]
        self._go_to(state_dict["last_epoch"])

    def _go_to(self, update: int) -> None:
        if update:
            self.last_epoch, self._step_count = update - 1, update + 1
            self.step()
            self._step_count = update + 1


class OneCycle(OneCycleLR):
    """Rises to a peak and falls to nearly 0; what comes after the cycle keeps its last rate.

    Args:
        optimizer: Optimizer with one peak.
        peak: The highest rate.
        total: Updates of the whole fit.
        done: Updates that were made before.
    """

    def __init__(self, optimizer: Optimizer, peak: float, total: int, done: int = 0) -> None:
        super().__init__(optimizer, peak, total)
        self._go_to(done)

    def step(self, epoch: int | None = None) -> None:
        """Set the rates of the next update."""
        if self.last_epoch < self.total_steps - 1:
            super().step(epoch)
        else:
            self.last_epoch, self._step_count = self.last_epoch + 1, self._step_count + 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the updates of a saved schedule, over the updates of this fit."""
        self._go_to(state_dict["last_epoch"])

    def _go_to(self, update: int) -> None:
        if update:
            self.last_epoch = min(update, self.total_steps - 1) - 1
            self._step_count = update + 1
            self.step()
            self.last_epoch, self._step_count = update, update + 1


def count_updates(module: L.LightningModule) -> tuple[int, int]:
    """Return the updates of a module's whole fit, 0 if it has no known end, and those made before.

    Args:
        module: Within ``configure_optimizers``.
    """
    trainer = module.trainer
    total = trainer.estimated_stepping_batches
    return (int(total) if 0 < total < float("inf") else 0), trainer.global_step


def each_update(optimizer: Optimizer, schedule: Cosine | OneCycle) -> OptimizerLRScheduler:
    """Return an optimizer and its schedule as a Trainer takes them."""
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }

"""Learning-rate schedules over the updates of a whole fit; a longer fit stretches them.

The rate of an update depends only on its index and on the number of updates of the whole fit. A fit
that continues, from a checkpoint or with the same Trainer, therefore has the rates of a fit that
was planned with its full length from the beginning.
"""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR


class Cosine(LambdaLR):
    """Schedule that falls to 0 along half a cosine.

    Args:
        optimizer: Optimizer with the initial rates.
        total: Number of updates of the whole fit.
        done: Number of updates made so far.
    """

    def __init__(self, optimizer: Optimizer, total: int, done: int = 0) -> None:
        super().__init__(
            optimizer, lambda update: 0.5 + 0.5 * math.cos(math.pi * min(update / total, 1.0))
        )
        self._go_to(done)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the initial rates and the number of updates; the total stays this fit's."""
        self.base_lrs = state_dict["base_lrs"]
        self._go_to(state_dict["last_epoch"])

    def _go_to(self, update: int) -> None:
        if update:
            self.last_epoch, self._step_count = update - 1, update + 1
            self.step()
            self._step_count = update + 1


class OneCycle(OneCycleLR):
    """Schedule that rises to a peak and falls to nearly 0; later updates keep the last rate.

    Args:
        optimizer: Optimizer whose parameter groups all have this schedule.
        peak: Highest rate.
        total: Number of updates of the whole fit.
        done: Number of updates made so far.
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
        """Restore the number of updates so far; the total number stays that of this fit."""
        self._go_to(state_dict["last_epoch"])

    def _go_to(self, update: int) -> None:
        if update:
            self.last_epoch = min(update, self.total_steps - 1) - 1
            self._step_count = update + 1
            self.step()
            self.last_epoch, self._step_count = update, update + 1


def count_updates(module: L.LightningModule) -> tuple[int, int]:
    """Return the numbers of updates of a whole fit and of those made so far.

    Args:
        module: Module with a Trainer; its ``configure_optimizers`` calls this function.

    Returns:
        Number of updates of the whole fit, 0 if unknown, and number of updates made so far.
    """
    trainer = module.trainer
    total = trainer.estimated_stepping_batches
    return (int(total) if 0 < total < float("inf") else 0), trainer.global_step


def each_update(optimizer: Optimizer, schedule: Cosine | OneCycle) -> OptimizerLRScheduler:
    """Return an optimizer and its schedule, which steps after each update, for a Trainer."""
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }

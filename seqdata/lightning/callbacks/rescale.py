"""Callback that scales the learning rate by the length of a chunk, update by update.

If chunk lengths are random (``TBPTT(…, jitter=True)``), a short chunk is trained with a
proportionally smaller learning rate, as AWD-LSTM does (Merity, Keskar and Socher, 2018).
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.callbacks._support.batch_info import get_lr_scale, get_train_loader


class RescaleLearningRate(Callback):
    """Callback that multiplies every learning rate by ``batch.lr_scale`` during optimizer steps.

    With accumulation, the factor is the mean over the batches of the update. The callback restores
    the rates after each step, so that schedulers and checkpoints read the original rates.

    Raises:
        ConfigError: In training, if an optimizer is not a ``torch.optim.Optimizer``, or a batch has
            no ``lr_scale``.

    Examples:
        >>> rescale = RescaleLearningRate()
    """

    def __init__(self) -> None:
        self._steps: list[_RescaledStep] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register hooks around the steps of every optimizer.

        Raises:
            ConfigError: If an optimizer is not a ``torch.optim.Optimizer``.
        """
        del pl_module
        for optimizer in trainer.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise ConfigError(
                    must_be(
                        "RescaleLearningRate: the optimizer",
                        "a torch.optim.Optimizer",
                        f"a {type(optimizer).__name__}",
                        "Leave the callback out",
                    )
                )
        self._steps = [_RescaledStep(optimizer) for optimizer in trainer.optimizers]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the scale of the batch.

        Raises:
            ConfigError: If the batch is not one of seqdata, and so has no ``lr_scale``.
        """
        scale = get_lr_scale(batch, get_train_loader(trainer))
        if scale is None:
            raise ConfigError(
                "RescaleLearningRate: the batch must have `lr_scale`, but is a "
                f"{type(batch).__name__} of a loader that is not seqdata's. Train with a "
                "SequenceDataModule."
            )
        # With manual optimization, a module steps at any time; otherwise `batch_idx` decides.
        is_manual = not pl_module.automatic_optimization
        is_first = not is_manual and batch_idx % trainer.accumulate_grad_batches == 0
        for step in self._steps:
            step.add(scale, is_first=is_first)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the hooks from the optimizers."""
        del trainer, pl_module
        self._remove_hooks()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restore the rates and remove the hooks, before a checkpoint is saved."""
        del trainer, pl_module, exception
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for step in self._steps:
            step.close()
        self._steps = []


class _RescaledStep:
    """Hooks that scale the learning rates of an optimizer before a step, and restore them after."""

    __slots__ = ("_hooks", "_optimizer", "_own_rates", "_scales")

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._scales: list[float] = []
        self._own_rates: list[Any] = []
        self._hooks = (
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
        )

    def add(self, scale: float, *, is_first: bool) -> None:
        self._scales = [scale] if is_first else [*self._scales, scale]

    def close(self) -> None:
        self._restore()
        for hook in self._hooks:
            hook.remove()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if not self._scales:  # no batch since the last step
            return
        scale = sum(self._scales) / len(self._scales)
        self._own_rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * scale

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self._scales = []
        self._restore()

    def _restore(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._own_rates, strict=False):
            group["lr"] = rate
        self._own_rates = []

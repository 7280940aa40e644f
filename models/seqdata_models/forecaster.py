"""A forecaster: one LSTM reads a window's context, another continues from its state."""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn

from seqdata import ConfigError, SequenceBatch
from seqdata_models.functional import check_precision, field_name, linear_exactly
from seqdata_models.metrics import ExactMeanMetric


class Forecaster(L.LightningModule):
    """Forecaster of the timesteps after a window: each is the one before it plus a change.

    Args:
        features: Size F of one timestep; all of them are read and forecast. Scale them before.
        horizon: Timesteps to forecast, as the policy's.
        hidden: Size of the hidden state.
        layers: Stacked LSTM layers, of both.
        teacher_forcing: Whether training continues from the true timesteps, in one pass; else, and
            always in evaluation, from the forecast ones.
        learning_rate: Learning rate of Adam.
        x: Name of the field, float (T, F) in each sequence.
        field: The former name of ``x``.
    """

    def __init__(
        self,
        features: int,
        horizon: int,
        *,
        hidden: int = 64,
        layers: int = 1,
        teacher_forcing: bool = False,
        learning_rate: float = 5e-3,
        x: str = "x",
        field: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.horizon = horizon
        self.teacher_forcing = teacher_forcing
        self.learning_rate = learning_rate
        self.x = field_name(x, field)
        self.encoder = nn.LSTM(features, hidden, layers, batch_first=True)
        self.decoder = nn.LSTM(features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, features)
        self.val_mse, self.test_mse = ExactMeanMetric(), ExactMeanMetric()

    def setup(self, stage: str) -> None:
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, context: Tensor, future: Tensor | None = None) -> Tensor:
        """Return the forecast.

        Args:
            context: (B, size, F) float.
            future: (B, horizon, F) float, the true timesteps, from which timestep t is then
                forecast. None for forecasts from the forecast ones.

        Returns:
            (B, horizon, F) float.
        """
        _, state = self.encoder(context)
        last = context[:, -1:]  # (B, 1, F)
        if future is not None:
            before = torch.cat([last, future[:, :-1]], dim=1)
            out, _ = self.decoder(before, state)
            return before + self._change(out)
        steps = []
        for _ in range(self.horizon):
            out, state = self.decoder(last, state)
            last = last + self._change(out)
            steps.append(last)
        return torch.cat(steps, dim=1)

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss: a mean over the windows of the whole update, on any number of ranks."""
        loss = (self.window_errors(batch) * batch.weight).sum()
        windows = batch.weight.sum().clamp(min=1)
        self.log("train_mse", loss.detach() / windows, batch_size=len(batch))
        return loss * batch.sequence_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update ``val_mse``."""
        self._evaluate(batch, "val_mse", self.val_mse)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update ``test_mse``."""
        self._evaluate(batch, "test_mse", self.test_mse)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return ``ids`` and ``start`` (r,) int64 on the CPU and ``forecast`` (r, horizon, F).

        Padding rows are dropped. Windows without a horizon suffice: true values are not read.

        Raises:
            ConfigError: If rows differ in length: a forecast would begin behind padding.
        """
        counted = batch.weight > 0
        is_counted_cpu = counted.cpu()
        context = batch.context[self.x]
        length, width = batch.lengths[is_counted_cpu], context.shape[1]
        if bool((length < width).any()):
            raise ConfigError(
                f"forecaster: rows must have equal lengths, but have {int(length.min())} to "
                f"{width} timesteps. Batch with Windows(size=...)"
            )
        forecast = self(context)[counted]
        return {
            "ids": batch.ids[is_counted_cpu],
            "start": batch.start[is_counted_cpu],
            "forecast": forecast,
        }

    def window_errors(self, batch: SequenceBatch) -> Tensor:
        """Return the mean squared error of each window's future, (B,), independent of its weight.

        Raises:
            ConfigError: If the windows have another horizon.
        """
        if batch.horizon != self.horizon:
            raise ConfigError(
                f"forecaster: the batch's horizon is {batch.horizon}, but must be {self.horizon}. "
                f"Batch with Windows(…, horizon={self.horizon})"
            )
        context, future = batch.context[self.x], batch.future[self.x]
        is_teacher_forced = self.training and self.teacher_forcing
        forecast: Tensor = self(context, future if is_teacher_forced else None)  # (B, horizon, F)
        errors: Tensor = (forecast - future).square().flatten(1).mean(dim=1)
        return errors

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    def _change(self, out: Tensor) -> Tensor:
        change: Tensor = self.head(out) if self.training else linear_exactly(self.head, out)
        return change

    def _evaluate(self, batch: SequenceBatch, name: str, mean: ExactMeanMetric) -> None:
        counted = batch.weight > 0
        errors = torch.where(counted, self.window_errors(batch).double(), 0.0)
        mean.update(errors.sum(), counted.sum())
        self.log(name, mean, batch_size=len(batch), prog_bar=True)

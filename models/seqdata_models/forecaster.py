"""Forecaster of windows: an LSTM reads the context, and another continues from its state."""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn

from seqdata import ConfigError, SequenceBatch
from seqdata_models.functional import check_precision, field_name, linear_exactly
from seqdata_models.metrics import ExactMeanMetric


class Forecaster(L.LightningModule):
    """Forecaster of the timesteps that follow the context of a window.

    Each forecast is the previous timestep plus a predicted change. The loss of a window is the mean
    squared error over its horizon.

    Args:
        features: Number of features F of a timestep. All features are read and forecast, and should
            be scaled before.
        horizon: Number of timesteps to forecast, equal to the ``horizon`` of the policy.
        hidden: Size of the hidden state of both LSTMs.
        layers: Number of stacked layers of both LSTMs.
        teacher_forcing: Whether training forecasts each timestep from the true previous timestep,
            in a single pass. If False, and always in evaluation, each timestep is forecast from
            the previous forecast.
        learning_rate: Learning rate of Adam.
        x: Name of the field, (T, F) float in each sequence.
        field: Deprecated; the name of ``x`` in version 0.1.
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
        """Check that this processor can run the LSTMs in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, context: Tensor, future: Tensor | None = None) -> Tensor:
        """Return the forecast.

        Args:
            context: (B, size, F) float.
            future: (B, horizon, F) float, true timesteps. Each timestep is then forecast from the
                true timestep before it. None: from the forecast before it.

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
        """Return the loss, and log ``train_mse``.

        The loss is the weighted sum over the windows times ``batch.sequence_scale``, so that an
        update minimizes the mean over all its windows, on any number of ranks.

        Raises:
            ConfigError: If the horizon of the batch is not ``horizon``.
        """
        loss = (self.window_errors(batch) * batch.weight).sum()
        windows = batch.weight.sum().clamp(min=1)
        self.log("train_mse", loss.detach() / windows, batch_size=len(batch))
        return loss * batch.sequence_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_mse``, the mean over all windows of nonzero weight."""
        self._evaluate(batch, "val_mse", self.val_mse)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_mse``, the mean over all windows of nonzero weight."""
        self._evaluate(batch, "test_mse", self.test_mse)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the forecast of each window; padding rows are dropped.

        True future values are not read, so windows may have any horizon, also 0.

        Returns:
            ``ids`` and ``start``, int64 (n,) on the CPU, and ``forecast``, (n, horizon, F) float.

        Raises:
            ConfigError: If the contexts of rows differ in length, because forecasts of shorter rows
                would begin after padding.
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
        """Return the unweighted mean squared error of the forecast of each window.

        Returns:
            (B,) float.

        Raises:
            ConfigError: If the horizon of the batch is not ``horizon``.
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

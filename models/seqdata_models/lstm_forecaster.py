"""Forecaster of several fields: an LSTM reads the context, and another forecasts the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import lightning as L
import torch
from torch import Tensor, nn

from seqdata import ConfigError, SequenceBatch
from seqdata_models.functional import check_precision, linear_exactly
from seqdata_models.metrics import ExactMeanMetric

_OBSERVED = "_observed"


class LSTMForecaster(L.LightningModule):
    """Forecaster of the targets of a ``ForecastDataModule``; ``for_data`` makes one.

    The encoder reads all fields of the context. At each timestep of the future, the decoder reads
    its previous forecast, the known fields and the static fields. A forecast is the previous value
    plus a predicted change. The loss of a window is the mean squared error over its observed
    values.

    Args:
        target: Names of the fields to forecast, each (B, T).
        horizon: Number of timesteps to forecast.
        known: Names of the fields that are known in the context and in the future.
        observed: Names of the fields that are known in the context only.
        masks: Names of the masks of targets, ``<target>_observed``, each False where a value is
            missing.
        static: Names of the fields with one value per series, each (B,).
        embeddings: Field -> number of embeddings, for fields of ids. Ids of a static field begin
            at -1 (unknown), those of other fields at 0. None: all fields are numbers.
        hidden: Size of the hidden state of both LSTMs.
        layers: Number of stacked layers of both LSTMs.
        embedding: Size of an embedding.
        learning_rate: Learning rate of Adam.

    Raises:
        ConfigError: If ``target`` is empty, or ``horizon`` is less than 1.
    """

    def __init__(  # noqa: PLR0913
        self,
        target: Sequence[str] = (),
        horizon: int = 0,
        *,
        known: Sequence[str] = (),
        observed: Sequence[str] = (),
        masks: Sequence[str] = (),
        static: Sequence[str] = (),
        embeddings: Mapping[str, int] | None = None,
        hidden: int = 64,
        layers: int = 1,
        embedding: int = 8,
        learning_rate: float = 5e-3,
    ) -> None:
        super().__init__()
        if not target or horizon < 1:
            raise ConfigError(
                "forecaster: `target` must name at least one field and `horizon` must be at least "
                f"1, but they are {tuple(target)} and {horizon}. Write "
                "LSTMForecaster.for_data(data), which takes them from a ForecastDataModule"
            )
        self.save_hyperparameters()
        self.target, self.horizon = tuple(target), horizon
        self.known, self.observed = tuple(known), tuple(observed)
        self.masks, self.static = tuple(masks), tuple(static)
        self.learning_rate = learning_rate
        sizes = dict(embeddings or {})
        self.embed = nn.ModuleDict(
            {name: nn.Embedding(count, embedding) for name, count in sizes.items()}
        )
        width = {name: embedding if name in sizes else 1 for name in (*known, *observed, *static)}
        future = sum(width[name] for name in (*self.known, *self.static))
        past = future + sum(width[name] for name in self.observed) + len(self.masks)
        self.encoder = nn.LSTM(len(self.target) + past, hidden, layers, batch_first=True)
        self.decoder = nn.LSTM(len(self.target) + future, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, len(self.target))
        self.val_mse, self.test_mse = ExactMeanMetric(), ExactMeanMetric()

    @classmethod
    def for_data(
        cls,
        data: Any,
        *,
        hidden: int = 64,
        layers: int = 1,
        embedding: int = 8,
        learning_rate: float = 5e-3,
    ) -> Self:
        """Return a model for the fields and sizes of a ``ForecastDataModule``.

        Args:
            data: The DataModule; its stores are opened.
            hidden: Size of the hidden state of both LSTMs.
            layers: Number of stacked layers of both LSTMs.
            embedding: Size of an embedding.
            learning_rate: Learning rate of Adam.

        Raises:
            ConfigError: If the data is no ``ForecastDataModule``.
        """
        if not hasattr(data, "known"):
            raise ConfigError(
                "forecaster: the data must be a ForecastDataModule, which names targets and "
                f"horizon, but is a {type(data).__name__}. Choose it, or another model"
            )
        sizes = data.sizes
        counts = {**sizes["vocabulary"], **{k: n + 1 for k, n in sizes["classes"].items()}}
        known, observed = (*data.known, *data.calendar), data.observed
        embedded = {n: counts[n] for n in (*known, *observed, *data.static) if n in counts}
        return cls(
            data.target, data.horizon, known=known, observed=observed, masks=data.masks,
            static=data.static, embeddings=embedded, hidden=hidden, layers=layers,
            embedding=embedding, learning_rate=learning_rate,
        )  # fmt: skip

    def setup(self, stage: str) -> None:
        """Check that this processor can run the LSTMs in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the forecast, (B, horizon, targets) float; true future targets are not read."""
        context, future = batch.context, batch.future
        values = self._stack(context, self.target)  # (B, size, targets)
        size = values.shape[1]
        past = [values, self._read(context, self.known), self._read(context, self.observed)]
        past += [self._stack(context, self.masks), self._repeat_static(batch, size)]
        _, state = self.encoder(torch.cat(past, dim=-1))
        ahead = torch.cat(
            [self._read(future, self.known), self._repeat_static(batch, self.horizon)], dim=-1
        )  # (B, horizon, known)
        last, steps = values[:, -1:], []
        for step in range(self.horizon):
            inputs = torch.cat([last, ahead[:, step : step + 1]], dim=-1)
            out, state = self.decoder(inputs, state)
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
        """Return target -> forecast, (B, horizon) float, in the scale of the batch.

        Padding rows are not dropped.
        """
        forecast = self(batch)
        return {name: forecast[..., at] for at, name in enumerate(self.target)}

    def window_errors(self, batch: SequenceBatch) -> Tensor:
        """Return the unweighted mean squared error of the forecast of each window.

        Returns:
            (B,) float, the mean over the observed values of all targets; 0 if none is observed.

        Raises:
            ConfigError: If the horizon of the batch is not ``horizon``.
        """
        if batch.horizon != self.horizon:
            raise ConfigError(
                f"forecaster: the batch's horizon is {batch.horizon}, but must be {self.horizon}. "
                f"Pass horizon={self.horizon} to the DataModule"
            )
        future = batch.future
        errors = (self(batch) - self._stack(future, self.target)).square()  # (B, horizon, targets)
        counted = torch.ones_like(errors)
        for at, name in enumerate(self.target):
            if f"{name}{_OBSERVED}" in self.masks:
                counted[..., at] = future[f"{name}{_OBSERVED}"].to(errors.dtype)
        errors = torch.where(counted > 0, errors, 0.0)
        return errors.flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1).clamp(min=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    def _stack(self, fields: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
        """Return fields of numbers as (B, T, names)."""
        if not names:
            any_field = next(iter(fields.values()))
            shape = (*any_field.shape[:2], 0)
            return torch.zeros(shape, device=any_field.device, dtype=self.head.weight.dtype)
        return torch.stack([fields[name].to(self.head.weight.dtype) for name in names], dim=-1)

    def _read(self, fields: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
        """Return fields of numbers and of ids as (B, T, width)."""
        numbers = self._stack(fields, [name for name in names if name not in self.embed])
        embedded = [self.embed[name](fields[name]) for name in names if name in self.embed]
        return torch.cat([numbers, *embedded], dim=-1)

    def _repeat_static(self, batch: SequenceBatch, length: int) -> Tensor:
        """Return fields per series for each timestep, (B, length, width)."""
        rows: list[Tensor] = []
        for name in self.static:
            value = batch[name]
            if name in self.embed:  # -1 is unknown
                rows.append(self.embed[name](value + 1))
            else:
                rows.append(value.to(self.head.weight.dtype)[:, None])
        if not rows:
            shape = (len(batch), length, 0)
            return torch.zeros(shape, device=batch.weight.device, dtype=self.head.weight.dtype)
        return torch.cat(rows, dim=-1)[:, None].expand(-1, length, -1)

    def _change(self, out: Tensor) -> Tensor:
        change: Tensor = self.head(out) if self.training else linear_exactly(self.head, out)
        return change

    def _evaluate(self, batch: SequenceBatch, name: str, mean: ExactMeanMetric) -> None:
        counted = batch.weight > 0
        errors = torch.where(counted, self.window_errors(batch).double(), 0.0)
        mean.update(errors.sum(), counted.sum())
        self.log(name, mean, batch_size=len(batch), prog_bar=True)

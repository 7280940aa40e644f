"""Sequence classifier: LSTM, output at the last valid timestep and linear head."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from seqdata import SequenceBatch
from seqdata_models.functional import (
    Layout,
    check_layout,
    check_precision,
    check_rows,
    last_valid,
    linear_exactly,
    run_dense,
)
from seqdata_models.metrics import UNLABELLED, ExactMeanMetric
from seqdata_models.schedules import OneCycle, count_updates, each_update


class LSTMClassifier(L.LightningModule):
    """LSTM that predicts one label per sequence.

    The logits of a row do not depend on the other rows of its batch.

    Args:
        features: Number of features F of a timestep.
        classes: Number of labels.
        hidden: Size of the hidden state of each direction.
        layers: Number of stacked LSTM layers.
        bidirectional: Whether a second LSTM reads each row backward, from its last valid timestep.
        dropout: Fraction of activations dropped between layers and before the head.
        layout: Layout of rows in training. ``"packed"`` skips padding. ``"dense"`` computes and
            ignores it, which suits rows of nearly equal lengths. Parameters are the same, and
            results are equal up to rounding. Evaluation is always dense; the result of a row in
            another batch differs by rounding only.
        learning_rate: Learning rate of Adam; the peak of one cycle over the whole fit. A longer fit
            stretches the cycle, and a fit of unknown length has a constant rate.
        weight_decay: Weight decay of Adam.
        x: Name of the field of features, (B, T, F) float.
        y: Name of the field of labels, (B,) integers in [0, classes). A label of -100 has loss 0,
            and metrics of evaluation ignore it.

    Raises:
        ConfigError: If ``layout`` is neither ``"packed"`` nor ``"dense"``.
    """

    def __init__(  # noqa: PLR0913
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 100,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.2,
        layout: Layout = "packed",
        learning_rate: float = 5e-3,
        weight_decay: float = 1e-4,
        x: str = "x",
        y: str = "y",
    ) -> None:
        check_layout("classifier", layout)
        super().__init__()
        self.save_hyperparameters()
        self.x, self.y = x, y
        self.layout = layout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.lstm = nn.LSTM(
            features,
            hidden,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden * (2 if bidirectional else 1), classes)
        self.val_loss, self.val_accuracy = ExactMeanMetric(), ExactMeanMetric()
        self.test_loss, self.test_accuracy = ExactMeanMetric(), ExactMeanMetric()

    def setup(self, stage: str) -> None:
        """Check that this processor can run the LSTM in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits, (B, classes) float.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        check_rows("classifier", batch)
        if self.training and self.layout == "packed":
            out, _ = self.lstm(batch.packed(self.x))
        else:
            out = run_dense(self.lstm, batch[self.x], batch.lengths)  # (B, T, directions * hidden)
        final = last_valid(out, batch.lengths, bidirectional=self.lstm.bidirectional)
        if not self.training:
            return linear_exactly(self.head, final)
        logits: Tensor = self.head(self.dropout(final))
        return logits

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss, and log ``train_loss``.

        The loss is the weighted sum over the rows times ``batch.sequence_scale``, so that an update
        minimizes the mean over all its sequences, on any number of ranks.
        """
        loss = (self.row_losses(self(batch), batch) * batch.weight).sum()
        rows = batch.weight.sum().clamp(min=1)
        self.log("train_loss", loss.detach() / rows, batch_size=len(batch))
        return loss * batch.sequence_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_loss`` and ``val_accuracy``, both over labelled sequences."""
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_loss`` and ``test_accuracy``, both over labelled sequences."""
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits of each sequence; padding rows are dropped.

        Returns:
            ``ids``, int64 (n,) on the CPU, and ``logits``, (n, classes) float.
        """
        counted = batch.weight > 0
        return {"ids": batch.ids[counted.cpu()], "logits": self(batch)[counted]}

    def row_losses(self, logits: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the unweighted cross entropy of each row in nats, (B,) float."""
        return F.cross_entropy(logits, batch[self.y].long(), reduction="none")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, with one cycle of the learning rate if the length of the fit is known."""
        optimizer = torch.optim.Adam(
            self.parameters(), self.learning_rate, weight_decay=self.weight_decay
        )
        total, done = count_updates(self)
        if not total:
            return optimizer
        return each_update(optimizer, OneCycle(optimizer, self.learning_rate, total, done))

    def _evaluate(
        self,
        batch: SequenceBatch,
        stage: str,
        mean_loss: ExactMeanMetric,
        accuracy: ExactMeanMetric,
    ) -> None:
        logits, labels = self(batch), batch[self.y]
        counted = (batch.weight > 0) & (labels.long() != UNLABELLED)  # as uint8, -100 is 156
        is_correct = counted & (logits.argmax(dim=-1) == labels)
        losses = torch.where(counted, self.row_losses(logits, batch).double(), 0.0)
        mean_loss.update(losses.sum(), counted.sum())
        accuracy.update(is_correct.sum(), counted.sum())
        self.log(f"{stage}_loss", mean_loss, batch_size=len(batch))
        self.log(f"{stage}_accuracy", accuracy, batch_size=len(batch), prog_bar=True)

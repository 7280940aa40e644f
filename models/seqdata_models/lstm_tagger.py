"""Tagger: LSTM and linear head at every timestep."""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from seqdata import SequenceBatch
from seqdata_models.functional import (
    Layout,
    check_layout,
    check_precision,
    check_rows,
    linear_exactly,
    run_dense,
    token_nll,
)
from seqdata_models.metrics import ExactMeanMetric, update_label_means


class LSTMTagger(L.LightningModule):
    """LSTM that predicts one label per timestep.

    The logits of a row do not depend on the other rows of its batch.

    Args:
        features: Number of features F of a timestep.
        classes: Number of labels.
        hidden: Size of the hidden state of each direction.
        layers: Number of stacked LSTM layers.
        bidirectional: Whether a label may also depend on later timesteps.
        dropout: Fraction of activations dropped between layers and before the head.
        layout: Layout of rows in training, ``"packed"`` or ``"dense"``, as in ``LSTMClassifier``.
        learning_rate: Learning rate of Adam.
        x: Name of the field of features, (B, T, F) float.
        y: Name of the field of labels, (B, T) integers in [0, classes). A label of -100 has loss 0,
            and metrics of evaluation ignore it.

    Raises:
        ConfigError: If ``layout`` is neither ``"packed"`` nor ``"dense"``.
    """

    def __init__(  # noqa: PLR0913
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 64,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        layout: Layout = "packed",
        learning_rate: float = 5e-3,
        x: str = "x",
        y: str = "y",
    ) -> None:
        check_layout("tagger", layout)
        super().__init__()
        self.save_hyperparameters()
        self.x, self.y = x, y
        self.layout = layout
        self.learning_rate = learning_rate
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
        """Return the logits, (B, T, classes) float; values at padded timesteps are undefined.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        check_rows("tagger", batch)
        x = batch[self.x]  # (B, T, F)
        if self.training and self.layout == "packed":
            packed, _ = self.lstm(batch.packed(self.x))
            out, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        else:
            out = run_dense(self.lstm, x, batch.lengths)  # (B, T, directions * hidden)
        if not self.training:
            return linear_exactly(self.head, out)
        logits: Tensor = self.head(self.dropout(out))
        return logits

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss, and log ``train_loss``.

        The loss is the sum over the scored timesteps times ``batch.loss_scale``, so that an update
        minimizes the mean over all its scored timesteps, on any number of ranks.
        """
        nll = token_nll(self(batch), batch[self.y], batch.score).sum()
        mean = nll.detach() / max(batch.num_tokens, 1)
        self.log("train_loss", mean, batch_size=batch.num_tokens)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_loss`` and ``val_accuracy``, both over labelled timesteps."""
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_loss`` and ``test_accuracy``, both over labelled timesteps."""
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits of each timestep; padding rows are dropped.

        Returns:
            ``ids`` and ``lengths``, int64 (n,) on the CPU, and ``logits``, (n, T, classes) float.
        """
        counted = batch.weight > 0
        is_counted_cpu = counted.cpu()
        logits = self(batch)[counted]
        return {
            "ids": batch.ids[is_counted_cpu],
            "lengths": batch.lengths[is_counted_cpu],
            "logits": logits,
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    def _evaluate(
        self,
        batch: SequenceBatch,
        stage: str,
        mean_loss: ExactMeanMetric,
        accuracy: ExactMeanMetric,
    ) -> None:
        update_label_means(self(batch), batch[self.y], batch.score, mean_loss, accuracy)
        self.log(f"{stage}_loss", mean_loss, batch_size=batch.num_tokens)
        self.log(f"{stage}_accuracy", accuracy, batch_size=batch.num_tokens, prog_bar=True)

"""A tagger: LSTM, linear head at every timestep."""

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
    """One label per timestep. A row's logits do not depend on other rows.

    Args:
        features: Size F of one timestep of ``x`` (B, T, F) float.
        classes: Number of labels; ``y`` (B, T) holds integers below it.
        hidden: Size of one direction's hidden state.
        layers: Stacked LSTM layers.
        bidirectional: Whether a label may also depend on later timesteps.
        dropout: Fraction of activations dropped between layers and before the head.
        layout: Layout of training: ``"packed"`` or ``"dense"``, as for ``LSTMClassifier``.
        learning_rate: Learning rate of Adam.
        x: Name of the field of features.
        y: Name of the field of labels.

    Raises:
        ConfigError: If ``layout`` is not one of these.
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
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits, (B, T, classes); values at padded steps have no meaning.

        Raises:
            ConfigError: If a row holds several sequences.
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
        """Return loss: a mean over the timesteps of the whole update, on any number of ranks."""
        nll = token_nll(self(batch), batch[self.y], batch.score).sum()
        mean = nll.detach() / max(batch.num_tokens, 1)
        self.log("train_loss", mean, batch_size=batch.num_tokens)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update ``val_loss`` and ``val_accuracy``, both per timestep."""
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update ``test_loss`` and ``test_accuracy``, both per timestep."""
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return ``ids`` and ``lengths`` (n,) int64 on the CPU and ``logits`` (n, T, classes).

        Padding rows are dropped.
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

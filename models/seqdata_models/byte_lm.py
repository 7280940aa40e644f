"""A language model over bytes: embedding, LSTM, linear head over 256 values."""

from __future__ import annotations

import math

import lightning as L
import torch
from torch import Tensor, nn

from seqdata import SequenceBatch
from seqdata_models.functional import (
    check_precision,
    check_rows,
    field_name,
    token_nll,
)
from seqdata_models.metrics import ExactMeanMetric

BYTES = 256


class ByteLM(L.LightningModule):
    """The next byte from the bytes before it.

    Args:
        embedding: Size of a byte's vector.
        hidden: Size of the hidden state.
        layers: Stacked LSTM layers.
        dropout: Fraction of activations dropped after embedding and layers, before the head.
        learning_rate: Learning rate of Adam.
        x: Name of the field of bytes, (B, T) integers below 256.
        field: The former name of ``x``.
    """

    def __init__(
        self,
        embedding: int = 64,
        hidden: int = 256,
        layers: int = 1,
        *,
        dropout: float = 0.0,
        learning_rate: float = 4e-3,
        x: str = "x",
        field: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.x = field_name(x, field)
        self.embedding = nn.Embedding(BYTES, embedding)
        self.lstm = nn.LSTM(
            embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, BYTES)
        self.val_bits, self.test_bits = ExactMeanMetric(), ExactMeanMetric()

    def setup(self, stage: str) -> None:
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of each next byte.

        Args:
            inputs: (B, T) integers below 256. Padding at a row's end has no effect.

        Returns:
            (B, T, 256) float.
        """
        x = self.dropout(self.embedding(inputs.long()))  # (B, T, embedding)
        out, _ = self.lstm(x)  # (B, T, hidden)
        logits: Tensor = self.head(self.dropout(out))
        return logits

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss: a mean over the bytes of the whole update, on any number of ranks."""
        nll = self.nll(batch).sum()
        bits = nll.detach() / math.log(2) / max(batch.num_tokens, 1)
        self.log("train_bits_per_byte", bits, batch_size=batch.num_tokens, prog_bar=True)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update ``val_bits_per_byte``."""
        self.val_bits.update(self.nll(batch).double().sum() / math.log(2), batch.num_tokens)
        self.log("val_bits_per_byte", self.val_bits, batch_size=batch.num_tokens, prog_bar=True)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update ``test_bits_per_byte``."""
        self.test_bits.update(self.nll(batch).double().sum() / math.log(2), batch.num_tokens)
        self.log("test_bits_per_byte", self.test_bits, batch_size=batch.num_tokens)

    def nll(self, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored byte in nats, (B, T); 0 elsewhere.

        Raises:
            ConfigError: If a row holds several sequences.
        """
        check_rows("byte lm", batch)
        return token_nll(self(batch[self.x]), batch["targets"], batch.score)

    def parallel_stages(self) -> list[nn.Module]:
        """Return the parts in their order, for `seqdata_models.parallel`."""
        return [self.embedding, self.dropout, self.lstm, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T) int64."""
        tokens: Tensor = batch[self.x]
        return tokens.long()

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored timestep, (r, T)."""
        return token_nll(outputs, batch["targets"], batch.score)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

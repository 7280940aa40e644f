"""Language model over bytes: embedding, LSTM and linear head over 256 values."""

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
    """Language model that predicts each byte from the bytes before it.

    Batches need the field ``targets``, (B, T) integers, as the ``shift`` of a Loader makes it. The
    loss is the negative log-likelihood of the timesteps in ``batch.score``.

    Args:
        embedding: Size of the embedding of a byte.
        hidden: Size of the hidden state.
        layers: Number of stacked LSTM layers.
        dropout: Fraction of activations dropped after the embedding, between layers and before the
            head.
        learning_rate: Learning rate of Adam.
        x: Name of the field of bytes, (B, T) integers below 256.
        field: Deprecated; the name of ``x`` in version 0.1.
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
        """Check that this processor can run the LSTM in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the byte that follows each timestep.

        Args:
            inputs: (B, T) integers below 256. Padding at the end of a row has no effect on the
                logits of its other timesteps.

        Returns:
            (B, T, 256) float.
        """
        x = self.dropout(self.embedding(inputs.long()))  # (B, T, embedding)
        out, _ = self.lstm(x)  # (B, T, hidden)
        logits: Tensor = self.head(self.dropout(out))
        return logits

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss, and log ``train_bits_per_byte``.

        The loss is the sum over the scored bytes times ``batch.loss_scale``, so that an update
        minimizes the mean over all its scored bytes, on any number of ranks.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        nll = self.nll(batch).sum()
        bits = nll.detach() / math.log(2) / max(batch.num_tokens, 1)
        self.log("train_bits_per_byte", bits, batch_size=batch.num_tokens, prog_bar=True)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_bits_per_byte``, the mean over all scored bytes."""
        self.val_bits.update(self.nll(batch).double().sum() / math.log(2), batch.num_tokens)
        self.log("val_bits_per_byte", self.val_bits, batch_size=batch.num_tokens, prog_bar=True)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_bits_per_byte``, the mean over all scored bytes."""
        self.test_bits.update(self.nll(batch).double().sum() / math.log(2), batch.num_tokens)
        self.log("test_bits_per_byte", self.test_bits, batch_size=batch.num_tokens)

    def nll(self, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored byte.

        Returns:
            (B, T) float, in nats; 0 for timesteps that are not scored.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        check_rows("byte lm", batch)
        return token_nll(self(batch[self.x]), batch["targets"], batch.score)

    def parallel_stages(self) -> list[nn.Module]:
        """Return the parts in the order in which they run, for ``seqdata_models.parallel``."""
        return [self.embedding, self.dropout, self.lstm, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T) int64."""
        tokens: Tensor = batch[self.x]
        return tokens.long()

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each timestep in nats, (r, T); 0 if not scored."""
        return token_nll(outputs, batch["targets"], batch.score)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

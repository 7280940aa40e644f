"""Speech recognizer: an LSTM reads the features, and another predicts the ids with attention."""

from __future__ import annotations

from typing import Any, Self

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from seqdata import ConfigError, SequenceBatch
from seqdata_models.functional import check_precision, check_rows, token_nll
from seqdata_models.metrics import ExactMeanMetric

State = tuple[Tensor, Tensor]


class LSTMRecognizer(L.LightningModule):
    """Recognizer of a ``SpeechDataModule`` with ``target="seq2seq"``; ``for_data`` makes one.

    The loss of a recording is the mean over the ids of its text, times ``batch.sequence_scale``.
    All recordings thus count equally, on any number of ranks.

    Args:
        features: Number of features F of a frame.
        vocabulary: Number of ids.
        bos: Id that begins a text.
        eos: Id that ends a text.
        hidden: Size of the hidden state of both LSTMs.
        embedding: Size of the embedding of an id.
        learning_rate: Learning rate of Adam.
        max_length: Maximum number of ids of a prediction.
        x: Name of the field of features, (B, T, F) float.

    Raises:
        ConfigError: If ``vocabulary`` is less than 1.
    """

    def __init__(
        self,
        features: int = 80,
        vocabulary: int = 0,
        bos: int = 0,
        eos: int = 0,
        *,
        hidden: int = 128,
        embedding: int = 32,
        learning_rate: float = 2e-3,
        max_length: int = 200,
        x: str = "mel",
    ) -> None:
        super().__init__()
        if vocabulary < 1:
            raise ConfigError(
                "recognizer: `vocabulary` must be the number of ids, at least 1, but is "
                f"{vocabulary}. Write LSTMRecognizer.for_data(data), which takes it from a "
                "SpeechDataModule"
            )
        self.save_hyperparameters()
        self.bos, self.eos, self.x = bos, eos, x
        self.learning_rate, self.max_length = learning_rate, max_length
        self.norm = nn.LayerNorm(features)
        self.encoder = nn.LSTM(features, hidden, batch_first=True)
        self.embed = nn.Embedding(vocabulary, embedding)
        self.decoder = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(2 * hidden, vocabulary)
        self.val_loss, self.val_accuracy = ExactMeanMetric(), ExactMeanMetric()

    @classmethod
    def for_data(
        cls, data: Any, *, hidden: int = 128, embedding: int = 32, learning_rate: float = 2e-3,
        max_length: int = 200,
    ) -> Self:  # fmt: skip
        """Return a model for the sizes of a ``SpeechDataModule``.

        Args:
            data: The DataModule; its stores are opened.
            hidden: Size of the hidden state of both LSTMs.
            embedding: Size of the embedding of an id.
            learning_rate: Learning rate of Adam.
            max_length: Maximum number of ids of a prediction.

        Raises:
            ConfigError: If the ``target`` of the DataModule is not ``"seq2seq"``.
        """
        sizes = data.sizes
        ids = sizes.get("ids", {})
        if "bos" not in ids:
            raise ConfigError(
                "recognizer: the data must have ids of a decoder, but has none. Write "
                "SpeechDataModule(..., target='seq2seq')"
            )
        ((x, features),) = sizes["features"].items()
        return cls(
            features, sizes["vocabulary"]["text"], ids["bos"], ids["eos"], x=x, hidden=hidden,
            embedding=embedding, learning_rate=learning_rate, max_length=max_length,
        )  # fmt: skip

    def setup(self, stage: str) -> None:
        """Check that this processor can run the LSTMs in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of each label, given the true ids before it (teacher forcing).

        Returns:
            (B, N + 1, vocabulary) float; N is the number of ids of the longest text.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        memory, state = self._encode(batch)
        return self._decode(batch["decoder_input_ids"], memory, batch, state)[0]

    def row_losses(self, logits: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the unweighted mean negative log-likelihood of the text of each row.

        Returns:
            (B,) float, in nats per id, including the id that ends the text.
        """
        mask = batch["decoder_attention_mask"]
        nats = token_nll(logits, batch["labels"], mask)
        means: Tensor = nats.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return means

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss, and log ``train_loss``.

        The loss is the weighted sum over the rows times ``batch.sequence_scale``, so that an update
        minimizes the mean over all its recordings, on any number of ranks.
        """
        loss = (self.row_losses(self(batch), batch) * batch.weight).sum()
        rows = batch.weight.sum().clamp(min=1)
        self.log("train_loss", loss.detach() / rows, batch_size=len(batch))
        return loss * batch.sequence_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_loss`` and ``val_accuracy``, both with teacher forcing.

        Loss is the mean over recordings. Accuracy is the fraction of ids that are predicted
        correctly from the true ids before them.
        """
        logits, counted = self(batch), batch.weight > 0
        losses = torch.where(counted, self.row_losses(logits, batch).double(), 0.0)
        scored = batch["decoder_attention_mask"] & counted[:, None]
        is_correct = (logits.argmax(dim=-1) == batch["labels"]) & scored
        self.val_loss.update(losses.sum(), counted.sum())
        self.val_accuracy.update(is_correct.sum(), scored.sum())
        self.log("val_loss", self.val_loss, batch_size=len(batch))
        self.log("val_accuracy", self.val_accuracy, batch_size=len(batch), prog_bar=True)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return greedy predictions; padding rows are dropped.

        Returns:
            ``ids``, int64 (n,) on the CPU, and ``text``, int64 (n, max_length): at each step the
            most likely id after those before it, and ``eos`` after the end.
        """
        memory, state = self._encode(batch)
        token = torch.full((len(batch), 1), self.bos, dtype=torch.int64, device=self.device)
        text = torch.full(
            (len(batch), self.max_length), self.eos, dtype=torch.int64, device=self.device
        )
        is_ended = torch.zeros_like(token, dtype=torch.bool)
        for step in range(self.max_length):
            logits, state = self._decode(token, memory, batch, state)
            token = torch.where(is_ended, self.eos, logits.argmax(dim=-1))  # (B, 1)
            text[:, step : step + 1] = token
            is_ended |= token == self.eos
            if bool(is_ended.all()):
                break
        counted = batch.weight > 0
        return {"ids": batch.ids[counted.cpu()], "text": text[counted]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    def _encode(self, batch: SequenceBatch) -> tuple[Tensor, State]:
        """Return the outputs of each frame, (B, T, H), and the state at each row's own end."""
        check_rows("recognizer", batch)
        packed = batch.packed(self.x)
        out, (h, c) = self.encoder(PackedSequence(self.norm(packed.data), *packed[1:]))
        width = batch[self.x].shape[1]
        return pad_packed_sequence(out, batch_first=True, total_length=width)[0], (h, c)

    def _decode(
        self, tokens: Tensor, memory: Tensor, batch: SequenceBatch, state: State
    ) -> tuple[Tensor, State]:
        out, state = self.decoder(self.embed(tokens), state)  # (B, N, H)
        scores = out @ memory.transpose(1, 2) / out.shape[-1] ** 0.5  # (B, N, T)
        scores = scores.masked_fill(~batch.mask[:, None], -torch.inf)
        return self.head(torch.cat([out, scores.softmax(dim=-1) @ memory], dim=-1)), state

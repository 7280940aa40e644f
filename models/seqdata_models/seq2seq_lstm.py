"""Sequence to sequence: two LSTMs with a state between them, for tokens of two axes."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from seqdata import SequenceBatch
from seqdata_models.functional import check_precision, check_rows, token_nll
from seqdata_models.metrics import ExactMeanMetric

State = tuple[Tensor, Tensor]


class Seq2SeqLSTM(L.LightningModule):
    """Target tokens from source tokens; targets get one more token, which marks the end.

    The loss is each sequence's own mean over its target, times ``batch.sequence_scale``: exact over
    ranks and accumulation, and every sequence counts equally. ``batch.loss_scale`` would be wrong
    here: it counts timesteps of the axis that is planned on, which is the source's. (For a mean
    over target tokens plan on ``axis="text"``; ``score`` and ``loss_scale`` are then about those.)

    Args:
        source_tokens: Source tokens are integers below this.
        target_tokens: Target tokens are integers below this; the end gets this number.
        embedding: Size of a token's vector.
        hidden: Size of the hidden state: all that the target's LSTM knows about the source.
        learning_rate: Learning rate of Adam.
        max_length: Maximum number of tokens of a prediction.
        source: Name of the field of source tokens.
        target: Name of the field of target tokens.
        target_axis: The axis that the target runs along.
    """

    def __init__(
        self,
        source_tokens: int,
        target_tokens: int,
        *,
        embedding: int = 32,
        hidden: int = 128,
        learning_rate: float = 5e-3,
        max_length: int = 32,
        source: str = "source",
        target: str = "target",
        target_axis: str = "text",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.end = target_tokens
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.source, self.target, self.target_axis = source, target, target_axis
        self.source_embedding = nn.Embedding(source_tokens, embedding)
        self.target_embedding = nn.Embedding(
            target_tokens + 1, embedding
        )  # the end token is also the first input
        self.encoder = nn.LSTM(embedding, hidden, batch_first=True)
        self.decoder = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, target_tokens + 1)
        self.val_loss, self.val_accuracy, self.val_exact = (
            ExactMeanMetric(),
            ExactMeanMetric(),
            ExactMeanMetric(),
        )
        self.test_loss, self.test_accuracy, self.test_exact = (
            ExactMeanMetric(),
            ExactMeanMetric(),
            ExactMeanMetric(),
        )

    def setup(self, stage: str) -> None:
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of each target token from the true ones before it (teacher forcing).

        Returns:
            (B, N + 1, target_tokens + 1) float; N is the longest target.
        """
        targets, _ = self.targets(batch)
        first = torch.full_like(targets[:, :1], self.end)
        logits, _ = self._decode(torch.cat([first, targets[:, :-1]], dim=1), self._encode(batch))
        return logits

    def targets(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return the target tokens with the end token after each row, and a mask of the real ones.

        Returns:
            int64 and bool, both (B, N + 1).
        """
        tokens = batch[self.target].long()  # (B, N)
        lengths = batch.lengths_of[self.target_axis].to(tokens.device)[:, None]
        steps = torch.arange(tokens.shape[1] + 1, device=tokens.device)
        return torch.where(steps < lengths, F.pad(tokens, (0, 1)), self.end), steps <= lengths

    def row_losses(self, logits: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the mean nats of each row's target with its end, (B,), without weights."""
        targets, is_target = self.targets(batch)
        return token_nll(logits, targets, is_target).sum(dim=1) / is_target.sum(dim=1)

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return loss: a mean over the sequences of the whole update, on any number of ranks."""
        loss = (self.row_losses(self(batch), batch) * batch.weight).sum()
        rows = batch.weight.sum().clamp(min=1)
        self.log("train_loss", loss.detach() / rows, batch_size=len(batch))
        return loss * batch.sequence_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update ``val_loss``, ``val_accuracy`` (tokens) and ``val_exact`` (whole sequences)."""
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy, self.val_exact)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update ``test_loss``, ``test_accuracy`` (tokens) and ``test_exact`` (whole sequences)."""
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy, self.test_exact)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return predicted targets, each token the most likely one after those before it.

        Returns:
            ``ids`` (n,) int64 on the CPU, ``tokens`` (n, max_length), 0 after the end, and
            ``lengths`` (n,), both int64; padding rows are dropped.
        """
        counted = batch.weight > 0
        state = self._encode(batch)
        token = torch.full((len(batch), 1), self.end, dtype=torch.int64, device=counted.device)
        written = []
        for _ in range(self.max_length):
            logits, state = self._decode(token, state)
            token = logits.argmax(dim=-1)  # (B, 1)
            written.append(token)
        tokens = torch.cat(written, dim=1)[counted]
        is_open = (tokens == self.end).cumsum(dim=1) == 0
        return {
            "ids": batch.ids[counted.cpu()],
            "tokens": torch.where(is_open, tokens, 0),
            "lengths": is_open.sum(dim=1),
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    def _encode(self, batch: SequenceBatch) -> State:
        """Return the state at each source's own end."""
        check_rows("seq2seq", batch)
        packed = batch.packed(self.source)
        embedded = self.source_embedding(packed.data.long())
        _, state = self.encoder(PackedSequence(embedded, *packed[1:]))
        return state[0], state[1]

    def _decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        out, state = self.decoder(self.target_embedding(tokens), state)
        return self.head(out), state

    def _evaluate(
        self,
        batch: SequenceBatch,
        stage: str,
        mean_loss: ExactMeanMetric,
        accuracy: ExactMeanMetric,
        exact: ExactMeanMetric,
    ) -> None:
        logits, counted = self(batch), batch.weight > 0
        targets, is_target = self.targets(batch)
        is_target = is_target & counted[:, None]
        is_correct = logits.argmax(dim=-1) == targets
        losses = torch.where(counted, self.row_losses(logits, batch).double(), 0.0)
        mean_loss.update(losses.sum(), counted.sum())
        accuracy.update((is_correct & is_target).sum(), is_target.sum())
        # Right after every true beginning: then it is what `predict_step` returns.
        exact.update((counted & (is_correct | ~is_target).all(dim=1)).sum(), counted.sum())
        self.log(f"{stage}_loss", mean_loss, batch_size=len(batch))
        self.log(f"{stage}_accuracy", accuracy, batch_size=len(batch), prog_bar=True)
        self.log(f"{stage}_exact", exact, batch_size=len(batch), prog_bar=True)

"""Sequence-to-sequence model for tokens of two axes: the state of an LSTM starts another."""

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
    """Sequence-to-sequence LSTM that predicts target tokens from source tokens.

    An end token is appended to each target. The loss of a sequence is the mean over its target,
    times ``batch.sequence_scale``. All sequences thus count equally, on any number of ranks and
    with any accumulation.

    ``batch.loss_scale`` would be wrong here, because it counts timesteps of the axis of the plan,
    which is the axis of the source. For a mean over target tokens, a policy needs ``axis="text"``;
    ``score`` and ``loss_scale`` then refer to target tokens.

    Args:
        source_tokens: Number of source tokens in the vocabulary.
        target_tokens: Number of target tokens in the vocabulary, without the end token, whose index
            this is.
        embedding: Size of the embedding of a token.
        hidden: Size of the hidden state, which is all that the decoder reads of the source.
        learning_rate: Learning rate of Adam.
        max_length: Maximum number of tokens of a prediction.
        source: Name of the field of source tokens, (B, T) integers in [0, source_tokens).
        target: Name of the field of target tokens, (B, N) integers in [0, target_tokens).
        target_axis: Name of the axis of the target.
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
        # The end token is also the first input.
        self.target_embedding = nn.Embedding(target_tokens + 1, embedding)
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
        """Check that this processor can run the LSTMs in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of each target token, given the true ones before it (teacher forcing).

        Returns:
            (B, N + 1, target_tokens + 1) float; N is the length of the longest target.

        Raises:
            ConfigError: If a row contains several sequences.
        """
        targets, _ = self.targets(batch)
        first = torch.full_like(targets[:, :1], self.end)
        logits, _ = self._decode(torch.cat([first, targets[:, :-1]], dim=1), self._encode(batch))
        return logits

    def targets(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return the target tokens, each row followed by the end token, and their mask.

        Returns:
            Tokens, int64 (B, N + 1), and mask, bool (B, N + 1): True for the tokens and the first
            end token of each row.
        """
        tokens = batch[self.target].long()  # (B, N)
        lengths = batch.lengths_of[self.target_axis].to(tokens.device)[:, None]
        steps = torch.arange(tokens.shape[1] + 1, device=tokens.device)
        return torch.where(steps < lengths, F.pad(tokens, (0, 1)), self.end), steps <= lengths

    def row_losses(self, logits: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the unweighted mean negative log-likelihood of the target of each row.

        Returns:
            (B,) float, in nats per token, including the end token.
        """
        targets, is_target = self.targets(batch)
        return token_nll(logits, targets, is_target).sum(dim=1) / is_target.sum(dim=1)

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
        """Update and log ``val_loss``, ``val_accuracy`` and ``val_exact``.

        Loss is the mean over sequences. Accuracy is the fraction of tokens that are predicted
        correctly from the true ones before them. Exact is the fraction of targets without an error.
        """
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy, self.val_exact)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_loss``, ``test_accuracy`` and ``test_exact``, as in validation."""
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy, self.test_exact)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return greedy predictions; padding rows are dropped.

        Returns:
            ``ids``, int64 (n,) on the CPU; ``tokens``, int64 (n, max_length), at each step the most
            likely token after those before it, and 0 after the end; and ``lengths``, int64 (n,),
            without the end token.
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

"""Language model over streams: embedding, LSTM or GRU with carried state, and linear head."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from seqdata import LaneStates, SequenceBatch
from seqdata_models.functional import check_precision, field_name, token_nll
from seqdata_models.metrics import BitsPerToken, ExactMeanMetric, Perplexity
from seqdata_models.recurrent import Cell, adam, recurrent_layer


class StatefulLM(L.LightningModule):
    """Language model that predicts each token of a stream from the tokens before it.

    The state is carried from chunk to chunk, so predictions depend on tokens of earlier chunks.
    Gradients end at the beginning of a chunk. Every scored token enters the loss once, with its
    weight in the whole optimizer update. Training, validation and test have separate states.
    Batches need the field ``targets``, (r, T) integers, as the ``shift`` of a Loader makes it.

    Args:
        tokens: Number of tokens in the vocabulary.
        embedding: Size of the embedding of a token. None: ``hidden``; the weights of the head are
            then the embeddings (tied weights).
        hidden: Size of the hidden state.
        layers: Number of stacked recurrent layers.
        cell: ``lstm`` or ``gru``.
        dropout: Fraction of activations dropped after the embedding, between layers and before the
            head.
        learning_rate: Learning rate of Adam.
        cosine: Whether the learning rate falls to 0 along half a cosine over the whole fit. A
            longer fit stretches the schedule, and a fit of unknown length has a constant rate.
        x: Name of the field of tokens, (r, T) integers in [0, tokens).
        field: Deprecated; the name of ``x`` in version 0.1.

    Raises:
        ConfigError: If ``cell`` is neither ``lstm`` nor ``gru``.
    """

    def __init__(  # noqa: PLR0913
        self,
        tokens: int,
        embedding: int | None = 128,
        hidden: int = 224,
        layers: int = 1,
        *,
        cell: Cell = "lstm",
        dropout: float = 0.0,
        learning_rate: float = 4e-3,
        cosine: bool = False,
        x: str = "x",
        field: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.cosine = cosine
        self.x = field_name(x, field)
        size = hidden if embedding is None else embedding
        self.embedding = nn.Embedding(tokens, size)
        self.rnn = recurrent_layer("language model", cell, size, hidden, layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, tokens)
        if embedding is None:
            # Small, as the weights of a head are, so that the first logits are small.
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
            self.head.weight = self.embedding.weight
        self.lanes = LaneStates()
        self.val_loss, self.test_loss = ExactMeanMetric(), ExactMeanMetric()
        self.val_perplexity, self.test_perplexity = Perplexity(), Perplexity()
        self.val_bits, self.test_bits = BitsPerToken(), BitsPerToken()

    def setup(self, stage: str) -> None:
        """Check that this processor can run the recurrent layer in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of the token after each timestep, and update the states of the lanes.

        Returns:
            (r, T, tokens) float; values at padded timesteps are undefined.

        Raises:
            PlanError: If the batch does not follow the previous one of its lanes.
            ResumeError: If the batch continues sequences whose states are not known.
            ConfigError: If the batch has no lanes.
        """
        x = self.dropout(self.embedding(batch[self.x].long()))  # (r, T, embedding)
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.rnn, batch, x, state)  # (r, T, hidden)
        self.lanes.put(batch, state)
        logits: Tensor = self.head(self.dropout(out))
        return logits

    def nll(self, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each token in nats, (r, T); 0 if not scored."""
        return token_nll(self(batch), batch["targets"], batch.score)

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss, and log ``train_loss`` in nats per token.

        The loss is the sum over the scored tokens times ``batch.loss_scale``, so that an update
        minimizes the mean over all its scored tokens, on any number of ranks.
        """
        nll = self.nll(batch).sum()
        mean = nll.detach() / max(batch.num_tokens, 1)
        self.log("train_loss", mean, batch_size=batch.num_tokens, prog_bar=True)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update and log ``val_loss`` (nats), ``val_perplexity`` and ``val_bits_per_token``."""
        self._evaluate(batch, "val", self.val_loss, self.val_perplexity, self.val_bits)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update and log ``test_loss`` (nats), ``test_perplexity`` and ``test_bits_per_token``."""
        self._evaluate(batch, "test", self.test_loss, self.test_perplexity, self.test_bits)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the negative log-likelihood of each token; idle and padding rows are dropped.

        Returns:
            ``ids``, ``start`` and ``lengths``, int64 (n,) on the CPU, and ``nll``, (n, T) float in
            nats. If a row contains several sequences, ``ids`` and ``start`` are those of the first.
        """
        is_counted_cpu = (batch.weight > 0).cpu()
        nll = self.nll(batch)[batch.weight > 0]
        return {
            "ids": batch.ids[is_counted_cpu],
            "start": batch.start[is_counted_cpu],
            "lengths": batch.lengths[is_counted_cpu],
            "nll": nll,
        }

    def parallel_stages(self) -> list[nn.Module]:
        """Return the parts in the order in which they run, for ``seqdata_models.parallel``."""
        return [self.embedding, self.dropout, self.rnn, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T) int64."""
        tokens: Tensor = batch[self.x]
        return tokens.long()

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each timestep in nats, (r, T); 0 if not scored."""
        return token_nll(outputs, batch["targets"], batch.score)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, with a cosine schedule if ``cosine`` is set."""
        return adam(self, self.learning_rate, cosine=self.cosine)

    def _evaluate(
        self,
        batch: SequenceBatch,
        stage: str,
        loss: ExactMeanMetric,
        perplexity: Perplexity,
        bits: BitsPerToken,
    ) -> None:
        total, count = self.nll(batch).double().sum(), batch.num_tokens
        for mean in (loss, perplexity, bits):
            mean.update(total, count)
        self.log(f"{stage}_loss", loss, batch_size=count, prog_bar=True)
        self.log(f"{stage}_perplexity", perplexity, batch_size=count)
        self.log(f"{stage}_bits_per_token", bits, batch_size=count)

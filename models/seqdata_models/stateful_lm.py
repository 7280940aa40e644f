"""A language model over streams: embedding, LSTM or GRU with carried state, linear head."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from seqdata import LaneStates, SequenceBatch
from seqdata_models.functional import check_precision, field_name, token_nll
from seqdata_models.metrics import BitsPerToken, ExactMeanMetric, Perplexity
from seqdata_models.recurrent import Cell, adam, recurrent_layer


class StatefulLM(L.LightningModule):
    """The next token from all tokens before it in the stream, as far back as the state reaches.

    Gradients end where a chunk begins; states are carried over. Every scored token enters the loss
    once, with the weight that it has in the whole optimizer update. Validation and test carry
    states of their own through their streams.

    Args:
        tokens: Tokens are integers below this.
        embedding: Size of a token's vector; None: ``hidden``, and the head's weights are these
            vectors themselves (tied).
        hidden: Size of the hidden state.
        layers: Stacked recurrent layers.
        cell: ``lstm`` or ``gru``.
        dropout: Fraction of activations dropped after embedding and layers, before the head.
        learning_rate: Learning rate of Adam.
        cosine: Whether the learning rate falls to 0 along half a cosine over the whole fit,
            which more epochs stretch.
        x: Name of the field of tokens, (r, T) integers.
        field: The former name of ``x``.

    Raises:
        ConfigError: If ``cell`` is unknown.
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
            nn.init.uniform_(
                self.embedding.weight, -0.1, 0.1
            )  # as of a head, so that logits are small at first
            self.head.weight = self.embedding.weight
        self.lanes = LaneStates()
        self.val_loss, self.test_loss = ExactMeanMetric(), ExactMeanMetric()
        self.val_perplexity, self.test_perplexity = Perplexity(), Perplexity()
        self.val_bits, self.test_bits = BitsPerToken(), BitsPerToken()

    def setup(self, stage: str) -> None:
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of each next token, and update the states of the batch's lanes.

        Returns:
            (r, T, tokens) float; values at padded steps have no meaning.
        """
        x = self.dropout(self.embedding(batch[self.x].long()))  # (r, T, embedding)
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.rnn, batch, x, state)  # (r, T, hidden)
        self.lanes.put(batch, state)
        logits: Tensor = self.head(self.dropout(out))
        return logits

    def nll(self, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored token in nats, (r, T); 0 elsewhere."""
        return token_nll(self(batch), batch["targets"], batch.score)

    def training_step(self, batch: SequenceBatch) -> Tensor:
        """Return the loss: a mean over the tokens of the whole update, on any number of ranks."""
        nll = self.nll(batch).sum()
        mean = nll.detach() / max(batch.num_tokens, 1)
        self.log("train_loss", mean, batch_size=batch.num_tokens, prog_bar=True)
        return nll * batch.loss_scale

    def validation_step(self, batch: SequenceBatch) -> None:
        """Update ``val_loss`` (nats per token), ``val_perplexity`` and ``val_bits_per_token``."""
        self._evaluate(batch, "val", self.val_loss, self.val_perplexity, self.val_bits)

    def test_step(self, batch: SequenceBatch) -> None:
        """Update ``test_loss``, ``test_perplexity`` and ``test_bits_per_token``."""
        self._evaluate(batch, "test", self.test_loss, self.test_perplexity, self.test_bits)

    def predict_step(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return ``ids``, ``start`` and ``lengths`` (n,) int64 on the CPU and ``nll`` (n, T).

        Padding rows and idle lanes are dropped. If a row holds several sequences, ``ids`` and
        ``start`` are those of the first.
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
        """Return the parts in their order, for `seqdata_models.parallel`."""
        return [self.embedding, self.dropout, self.rnn, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T) int64."""
        tokens: Tensor = batch[self.x]
        return tokens.long()

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored timestep, (r, T)."""
        return token_nll(outputs, batch["targets"], batch.score)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, with the chosen schedule."""
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

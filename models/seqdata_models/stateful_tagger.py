"""A tagger over streams: LSTM or GRU with carried state, linear head at every timestep."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from seqdata import LaneStates, SequenceBatch
from seqdata_models.functional import check_precision, token_nll
from seqdata_models.metrics import ExactMeanMetric, update_label_means
from seqdata_models.recurrent import Cell, adam, recurrent_layer


class StatefulTagger(L.LightningModule):
    """One label per timestep of sequences that are too long for one batch.

    Gradients end where a chunk begins; states are carried over, and reset where a sequence begins.
    Every scored timestep enters the loss once, with the weight that it has in the whole optimizer
    update.

    Args:
        features: Size F of one timestep of ``x`` (r, T, F) float.
        classes: Number of labels; ``y`` (r, T) holds integers below it.
        hidden: Size of the hidden state.
        layers: Stacked recurrent layers.
        cell: ``lstm`` or ``gru``.
        dropout: Fraction of activations dropped between layers and before the head.
        learning_rate: Learning rate of Adam.
        cosine: Whether the learning rate falls to 0 along half a cosine over the whole fit.
        x: Name of the field of features.
        y: Name of the field of labels.

    Raises:
        ConfigError: If ``cell`` is unknown.
    """

    def __init__(  # noqa: PLR0913
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 64,
        layers: int = 1,
        cell: Cell = "lstm",
        dropout: float = 0.0,
        learning_rate: float = 5e-3,
        cosine: bool = False,
        x: str = "x",
        y: str = "y",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.x, self.y = x, y
        self.learning_rate = learning_rate
        self.cosine = cosine
        self.rnn = recurrent_layer("stateful tagger", cell, features, hidden, layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)
        self.lanes = LaneStates()
        self.val_loss, self.val_accuracy = ExactMeanMetric(), ExactMeanMetric()
        self.test_loss, self.test_accuracy = ExactMeanMetric(), ExactMeanMetric()

    def setup(self, stage: str) -> None:
        """Refuse a precision in which this processor cannot run the LSTM."""
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits, (r, T, classes), and update the states of the batch's lanes.

        Values at padded steps have no meaning.
        """
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.rnn, batch, self.x, state)  # (r, T, hidden)
        self.lanes.put(batch, state)
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
        """Return ``ids``, ``start`` and ``lengths`` (n,) int64 on the CPU and ``logits``.

        Logits are (n, T, classes). Padding rows and idle lanes are dropped. If a row holds several
        sequences, ``ids`` and ``start`` are those of the first.
        """
        is_counted_cpu = (batch.weight > 0).cpu()
        logits = self(batch)[batch.weight > 0]
        return {
            "ids": batch.ids[is_counted_cpu],
            "start": batch.start[is_counted_cpu],
            "lengths": batch.lengths[is_counted_cpu],
            "logits": logits,
        }

    def parallel_stages(self) -> list[nn.Module]:
        """Return the parts in their order, for `seqdata_models.parallel`."""
        return [self.rnn, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T, features)."""
        inputs: Tensor = batch[self.x]  # (r, T, features), or (r, T) of one feature
        inputs = inputs if inputs.ndim == 3 else inputs.unsqueeze(-1)
        return inputs.to(self.head.weight.dtype)

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each scored timestep, (r, T)."""
        return token_nll(outputs, batch[self.y], batch.score)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, with the chosen schedule."""
        return adam(self, self.learning_rate, cosine=self.cosine)

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

"""Tagger over streams: LSTM or GRU with carried state, and linear head at every timestep."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from seqdata import LaneStates, SequenceBatch
from seqdata_models.functional import check_precision, token_nll
from seqdata_models.metrics import ExactMeanMetric, update_label_means
from seqdata_models.recurrent import Cell, adam, recurrent_layer


class StatefulTagger(L.LightningModule):
    """Tagger that predicts one label per timestep, for sequences too long for one batch.

    The state is carried from chunk to chunk, and reset at the beginning of a sequence. Gradients
    end at the beginning of a chunk. Every scored timestep enters the loss once, with its weight in
    the whole optimizer update.

    Args:
        features: Number of features F of a timestep.
        classes: Number of labels.
        hidden: Size of the hidden state.
        layers: Number of stacked recurrent layers.
        cell: ``lstm`` or ``gru``.
        dropout: Fraction of activations dropped between layers and before the head.
        learning_rate: Learning rate of Adam.
        cosine: Whether the learning rate falls to 0 along half a cosine over the whole fit. A
            longer fit stretches the schedule, and a fit of unknown length has a constant rate.
        x: Name of the field of features, (r, T, F) float.
        y: Name of the field of labels, (r, T) integers in [0, classes). A label of -100 has loss 0,
            and metrics of evaluation ignore it.

    Raises:
        ConfigError: If ``cell`` is neither ``lstm`` nor ``gru``.
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
        """Check that this processor can run the recurrent layer in the Trainer's precision.

        Raises:
            ConfigError: If it cannot.
        """
        del stage
        check_precision(self)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of each timestep, and update the states of the lanes.

        Returns:
            (r, T, classes) float; values at padded timesteps are undefined.

        Raises:
            PlanError: If the batch does not follow the previous one of its lanes.
            ResumeError: If the batch continues sequences whose states are not known.
            ConfigError: If the batch has no lanes.
        """
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.rnn, batch, self.x, state)  # (r, T, hidden)
        self.lanes.put(batch, state)
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
        """Return the logits of each timestep; padding rows and idle lanes are dropped.

        Returns:
            ``ids``, ``start`` and ``lengths``, int64 (n,) on the CPU, and ``logits``, (n, T,
            classes) float. If a row contains several sequences, ``ids`` and ``start`` are those of
            the first.
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
        """Return the parts in the order in which they run, for ``seqdata_models.parallel``."""
        return [self.rnn, self.dropout, self.head]

    def parallel_inputs(self, batch: SequenceBatch) -> Tensor:
        """Return the input of the first part, (r, T, features) in the dtype of the weights."""
        inputs: Tensor = batch[self.x]  # (r, T, features), or (r, T) of one feature
        inputs = inputs if inputs.ndim == 3 else inputs.unsqueeze(-1)
        return inputs.to(self.head.weight.dtype)

    def parallel_nll(self, outputs: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the negative log-likelihood of each timestep in nats, (r, T); 0 if not scored."""
        return token_nll(outputs, batch[self.y], batch.score)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, with a cosine schedule if ``cosine`` is set."""
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

"""Callback that changes weights during a run, so that hard sequences are drawn more often.

The callback collects scores from the outputs of training steps. The DataModule gathers them once
per segment, computes weights, and plans the next segment with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.feedback_run import FeedbackOptions, FeedbackRun


class Feedback(Callback):
    """Callback that changes the weights of a policy periodically, by scores of training steps.

    With ``batching=Weighted(...)``, the weight of a sequence is its latest mean score, but at least
    a tenth of the mean score of all sequences. With a ``Mix``, the weight of a part is its weight
    in the ``Mix``, multiplied by its latest mean score, with the same minimum. A sequence or part
    without a score has the mean score.

    Weights change at the beginning of a segment, that is, after ``every`` updates and at the
    beginning of each epoch. A checkpoint contains the weights and the scores since the last change,
    so that a resumed run continues exactly. With ``batches_per_update`` of the DataModule, it can
    continue on any number of ranks.

    Args:
        score: Key of the score in the dict that ``training_step`` returns: a tensor (rows,) with
            one value for each row of the batch, or a single value that applies to each row.
        every: Number of optimizer updates of a segment.
        weigh: Function of the latest mean scores that returns weights, equal on every rank. With
            ``Weighted``, both are float64 (sequences,) in the order of the store, with NaN for a
            sequence without a score. With a ``Mix``, both are part -> value. None: weights as
            described above.

    Raises:
        ConfigError: If an argument is invalid. In a fit, if the Trainer has no SequenceDataModule,
            if it has ``overfit_batches``, if ``batching`` is neither ``Weighted`` nor a ``Mix``, or
            if the callback is added too late. In training, if a batch has no ids, if a step returns
            no such score, if a score is not finite or exceeds 2**20, or, without ``weigh``, if a
            mean score is negative.
        RanksDifferError: In training, if ``weigh`` does not return the same weights on every rank.

    Examples:
        >>> feedback = Feedback(score="loss", every=1_000)
    """

    def __init__(
        self, score: str = "loss", every: int = 1_000, weigh: Callable[[Any], Any] | None = None
    ) -> None:
        if not isinstance(score, str) or not score:
            raise ConfigError(
                must_be(
                    "Feedback: `score`",
                    "a non-empty string, a key of the step's output",
                    repr(score),
                )
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(must_be("Feedback: `every`", "an integer of at least 1", repr(every)))
        if weigh is not None and not callable(weigh):
            raise ConfigError(must_be("Feedback: `weigh`", "a function of scores", repr(weigh)))
        self.feedback_options = FeedbackOptions(score, every, weigh)
        self.feedback_run: FeedbackRun | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the Trainer has a SequenceDataModule, which changes the weights.

        Raises:
            ConfigError: If it has not.
        """
        del pl_module
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if stage == "fit" and not isinstance(datamodule, SequenceDataModule):
            raise ConfigError(
                must_be(
                    "Feedback: `datamodule`", "a SequenceDataModule, whose batches are weighted",
                    "None" if datamodule is None else f"a {type(datamodule).__name__}",
                    "Pass one, or set the weights of a Loader with `set_weights`",
                )
            )  # fmt: skip

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the callback was added before the DataModule was set up.

        Raises:
            ConfigError: If it was not.
        """
        del trainer, pl_module
        self._get_run()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the scores of a step.

        Raises:
            ConfigError: If the batch has no ids, or the step returns no such score, or one of
                another shape.
        """
        del trainer, pl_module, batch_idx
        self._get_run().add(outputs, batch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach the callback from the run."""
        del trainer, pl_module, stage
        self.feedback_run = None

    def _get_run(self) -> FeedbackRun:
        if self.feedback_run is None:
            raise ConfigError(
                "Feedback: the callback must be one of the Trainer's before `setup`, but was added "
                "later, after the data was planned. Pass it to the Trainer as `callbacks`, "
                "or return it from `configure_callbacks`"
            )
        return self.feedback_run

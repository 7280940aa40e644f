"""Callback that draws hard sequences more often: weights from scores by id, during a run.

The callback collects the outputs of training steps. The DataModule gathers them once per segment,
and plans the next segment with the weights that follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.feedback_run import FeedbackOptions, FeedbackRun


class Feedback(Callback):
    """Callback that changes weights periodically, by the scores that training steps return.

    With ``batching=Weighted(...)`` a sequence is drawn in proportion to its latest mean score, at
    least a tenth as often as the mean. With a ``Mix`` the weight of a part is multiplied by its
    mean score. Weights change when a segment begins: after ``every`` updates, and with each epoch.
    A checkpoint has the weights and the scores since the last change, so that a resumed run
    continues exactly; with ``batches_per_update`` of the DataModule, on any number of ranks.

    Args:
        score: Key of the score in the dict that ``training_step`` returns: a tensor (rows,) with a
            value for each row of the batch, or one value, which counts for each of them.
        every: Number of optimizer updates of a segment.
        weigh: Function of the latest mean scores that returns weights, the same on every rank. With
            ``Weighted`` both are float64 (sequences,), in the order of the store, NaN for a
            sequence without a score; with a ``Mix`` both are dicts, part -> value. None: weights
            as above.

    Raises:
        ConfigError: If an argument is invalid, or the callback is added to the Trainer too late;
            while training: if a batch has no ids, a step returns no such score, or a score is not
            finite.

    Examples:
        >>> feedback = Feedback(score="loss", every=1_000)
    """

    def __init__(
        self, score: str = "loss", every: int = 1_000, weigh: Callable[[Any], Any] | None = None
    ) -> None:
        if not isinstance(score, str) or not score:
            raise ConfigError(
                must_be("Feedback: `score`", "a key of the step's output", repr(score))
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(must_be("Feedback: `every`", "an integer of at least 1", repr(every)))
        if weigh is not None and not callable(weigh):
            raise ConfigError(must_be("Feedback: `weigh`", "a function of scores", repr(weigh)))
        self.feedback_options = FeedbackOptions(score, every, weigh)
        self.feedback_run: FeedbackRun | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise unless there is a SequenceDataModule, which changes the weights."""
        del pl_module
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if stage == "fit" and not isinstance(datamodule, SequenceDataModule):
            raise ConfigError(
                must_be(
                    "Feedback: `datamodule`", "a SequenceDataModule, whose batches are weighted",
                    f"a {type(datamodule).__name__}",
                    "Pass one, or set the weights of a Loader with `set_weights`",
                )
            )  # fmt: skip

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if the callback was added after the DataModule was set up."""
        del trainer, pl_module
        self._get_run()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the scores of a step."""
        del trainer, pl_module, batch_idx
        self._get_run().add(outputs, batch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the run."""
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

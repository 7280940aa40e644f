"""Draws by what the model found hard: weights from scores by id, in the middle of a run.

The callback passes on what training steps return. The DataModule gathers it once per segment, and
plans the next segment with the weights that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.feedback_run import FeedbackOptions, FeedbackRun


class Feedback(Callback):
    """Changes weights every so many updates, by the scores that training steps return.

    With ``batching=Weighted(...)`` a sequence is drawn in proportion to its latest mean score, at
    least a tenth as often as the mean. With a ``Mix`` the weight of a part is multiplied by its
    mean score. Weights change where a segment begins: every ``every`` updates, and with each epoch.
    A checkpoint has them, with the scores since the last change, so that a resumed run continues
    exactly. With ``batches_per_update`` of the DataModule it does so on any number of ranks.

    Args:
        score: Key of the score in the dict that ``training_step`` returns: a tensor (rows,) with a
            value for each row of the batch, or one value, which counts for each of them.
        every: Optimizer updates of a segment.
        weigh: ``weigh(scores) -> weights``, the same on every rank: of float64 (sequences,), NaN
            where a sequence was not met yet, in the order of the store; of a ``Mix`` part -> mean
            score. None: as above.

    Raises:
        ConfigError: If an argument is invalid; while training: if a batch has no ids, a step
            returns no such score, or a score is not finite.

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
        """Check that there is a SequenceDataModule, which changes the weights."""
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

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the scores of a step."""
        del trainer, pl_module, batch_idx
        if self.feedback_run is not None:
            self.feedback_run.add(outputs, batch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the run."""
        del trainer, pl_module
        if stage == "fit":
            self.feedback_run = None

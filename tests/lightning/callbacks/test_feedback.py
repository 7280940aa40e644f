"""Feedback: its options are checked, and it passes on what training steps return."""

from types import SimpleNamespace

import pytest

from seqdata import SequenceDataModule
from seqdata.errors import ConfigError
from seqdata.lightning.callbacks.feedback import Feedback


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"score": ""},
            "Feedback: `score` must be a non-empty string, a key of the step's output, but is ''",
        ),
        ({"score": 3}, "`score` must be a non-empty string, a key of the step's output, but is 3"),
        ({"every": 0}, "Feedback: `every` must be an integer of at least 1, but is 0"),
        ({"every": True}, "`every` must be an integer of at least 1, but is True"),
        ({"every": 2.0}, "`every` must be an integer of at least 1, but is 2.0"),
        ({"weigh": 3}, "Feedback: `weigh` must be a function of scores, but is 3"),
    ],
)
def test_options_are_checked(options, text):
    with pytest.raises(ConfigError, match=text):
        Feedback(**options)


def test_it_needs_a_data_module_that_weighs():
    feedback = Feedback()
    trainer = SimpleNamespace(datamodule=None)
    with pytest.raises(
        ConfigError, match=r"`datamodule` must be a SequenceDataModule, .*but is None"
    ):
        feedback.setup(trainer, None, "fit")
    feedback.setup(trainer, None, "validate")
    trainer.datamodule = SequenceDataModule(train=[{"x": [1, 2]}])
    feedback.setup(trainer, None, "fit")


class Run:
    def __init__(self):
        self.added = []

    def add(self, outputs, batch):
        self.added.append((outputs, batch))


def test_steps_are_passed_on_while_there_is_a_run():
    feedback = Feedback(every=3)
    with pytest.raises(ConfigError, match="must be one of the Trainer's before `setup`"):
        feedback.on_train_batch_end(None, None, {"loss": 1}, "batch", 0)
    feedback.feedback_run = run = Run()
    feedback.on_train_batch_end(None, None, {"loss": 1}, "batch", 0)
    assert run.added == [({"loss": 1}, "batch")]
    feedback.teardown(None, None, "fit")
    assert feedback.feedback_run is None
    assert (feedback.feedback_options.score, feedback.feedback_options.every) == ("loss", 3)

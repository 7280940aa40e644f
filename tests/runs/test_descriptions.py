"""DataModules as text and in a notebook: what is opened, and nothing is opened for it."""

import numpy as np

from seqdata import Bucketed, Labels, MeanStd, SequenceDataModule, Zip

ROWS = [{"x": np.full(at % 9 + 1, at, dtype=np.float32), "y": "<b>"} for at in range(40)]


def make(**options):
    return SequenceDataModule(
        train=ROWS, split={"train": 0.8, "val": 0.2, "exact": True}, batching=Bucketed(4), **options
    )


def test_before_setup_nothing_is_opened():
    data = make()
    assert repr(data) == str(data) == "SequenceDataModule(train, val; Bucketed(batch_size=4))"
    assert "nothing is opened: call setup() first" in data._repr_html_()
    assert not data._sources.get_engines("train")


def test_after_setup_sequences_and_steps_are_listed():
    data = make(statistics={"x": MeanStd(), "y": Labels()})
    data.setup("fit")
    assert repr(data).splitlines()[1:] == [
        "  train: 32 sequences, 8 steps",
        "  val: 8 sequences, 2 steps",
    ]
    page = data._repr_html_()
    assert "<td>train</td><td>32 sequences</td><td>8 steps</td>" in page
    assert "train: 32 sequences, 1 to 9 timesteps" in page
    assert page.count("<svg") == 3  # lengths of both, and classes
    assert "&lt;b&gt;" in page
    text = repr(data.train_dataloader())
    assert text == "TrainerLoader(train: 32 sequences, Bucketed(batch_size=4), seed 0; 8 steps)"


def test_zipped_parts_have_a_picture_each():
    data = SequenceDataModule(
        train={"a": ROWS, "b": ROWS[:9]}, batching=Zip({"a": Bucketed(4), "b": Bucketed(2)})
    )
    data.setup("fit")
    page = data._repr_html_()
    assert page.count("<svg") == 2
    assert "train/b: 9 sequences" in page

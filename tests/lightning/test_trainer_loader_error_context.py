"""An evaluation that crashes: its batch is made again by the command that the error ends with."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata.api import open_store, write_store
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME, RunFile
from seqdata.storage.views import take
from seqdata_testing.waiting import patient
from tests.lightning.crashing import noisy, told
from tests.lightning.harness import Recorder, fit, quietly, sequences
from tests.preloaded import python
from tests.runs.run_files import remake


@pytest.fixture
def store(tmp_path) -> str:
    """Forty short sequences."""
    write_store(tmp_path / "store", ({"x": x} for x in sequences(40)))
    return str(tmp_path / "store")


class Evaluating(Recorder):
    """Crashes in an evaluation step; ``kept`` is what its batch said."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left, self.kept = at, None

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.left -= 1
        if self.left < 0:
            self.kept = told(batch)
            raise OSError("told to crash")
        return self.left

    test_step = predict_step = validation_step


def replayed(note: str) -> dict:
    """Run the command at a note's end word by word; gives what it saved."""
    words = shlex.split(re.search(r"See it: (seqdata replay .*)$", note)[1])
    done = subprocess.run(
        [python(), "-m", *words, "--save", "batch.pt"],
        capture_output=True, text=True, timeout=patient(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return torch.load("batch.pt", weights_only=True)


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_the_batch_that_crashed_a_validation_is_made_again_by_the_printed_command(store, named):
    val = {"a name": take(open_store(store), [5, 3, 8]), "other": store} if named else store
    data = SequenceDataModule(
        train=store, val=val, batching=Bucketed(4), eval_batching=Fixed(2), transform=noisy
    )
    model = Evaluating(at=3)
    (note,) = fit(data, model=model, max_epochs=1).error.__notes__
    number = 1 if named else 3
    assert note.startswith(f"in epoch 0, batch {number} (step {number}, rank 0 of 1). See it: ")
    assert note.endswith("--kind val --name other" if named else "--kind val")
    saved = replayed(note)
    assert saved["data"]["x"].numpy().tobytes() == model.kept["data"]["x"]
    assert saved["ids"].numpy().tobytes() == model.kept["ids"]


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_an_evaluation_after_a_fit_has_the_command_of_its_own_data(store, call):
    kind = {"validate": "val"}.get(call, call)
    data = SequenceDataModule(
        train=store, **{kind: {"one": store}}, batching=Bucketed(4), eval_batching=Fixed(2)
    )
    run = fit(data, max_epochs=1)
    model = Evaluating(at=1)
    with quietly(), pytest.raises(OSError, match="told to crash") as caught:
        getattr(run.trainer, call)(model, datamodule=data)
    (note,) = caught.value.__notes__
    assert note.endswith(f"--epoch 0 --batch 1 --kind {kind} --name one")
    again_made = remake(1, kind=kind, name="one")
    assert told(again_made)["ids"] == model.kept["ids"]


@pytest.mark.parametrize("given", [list(range(1, 41)), np.arange(1, 41)])
def test_lengths_of_a_dataset_are_counted_and_not_written_down(given):
    items = [{"x": torch.ones(length, 1)} for length in given]
    lengths = {"train": given, "val": {"one": given}}
    data = SequenceDataModule(
        train=Listed(items), val={"one": Listed(items)}, lengths=lengths, batching=Bucketed(4)
    )
    data.setup("fit")
    options = data._options
    file = RunFile.from_options(
        options, FitGeometry(), Path(), fingerprints={}, plan="", versions={}, trainer={}
    )
    assert file.data["lengths"] is None
    assert file.missing == [
        "train: a Dataset (Listed) has no path",
        "val.one: a Dataset (Listed) has no path",
    ]


def test_the_function_that_gives_lengths_is_named():
    options = SequenceDataModule(lengths=len)._options
    file = RunFile.from_options(
        options, FitGeometry(), Path(), fingerprints={}, plan="", versions={}, trainer={}
    )
    assert file.data["lengths"]["init_args"] == {"path": "builtins.len"}


class Listed(torch.utils.data.Dataset):
    """Items in memory."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def test_the_command_of_any_batch_may_be_asked_for(store):
    data = SequenceDataModule(train=store, val={"one": store}, batching=Bucketed(4))
    fit(data, max_epochs=1)
    wanted = f"seqdata replay {NAME} --epoch 0 --batch 2 --kind val --name one"
    assert data.replay_command(epoch=0, batch=2, kind="val", name="one") == wanted

"""Fitted statistics go into checkpoints, and come out of them where the data is not there."""

import warnings
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata import MeanStd, columnar, fit, measure_lengths, open_store, split, write_store
from seqdata.errors import ResumeError, SeqDataWarning
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Fixed
from seqdata.runs.data_sources import STATISTICS
from seqdata.runs.locate_batch import ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from tests.lightning.harness import QUIET, Recorder, quietly, sequences
from tests.lightning.harness import fit as run_fit
from tests.runs.run_files import read_run_file


class Predictor(Recorder):
    """Returns what it is given."""

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch.real()["x"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    parts = split(open_store(sequences(20)), {"train": 0.7, "val": 0.3})
    stats = fit(parts["train"], {"x": MeanStd()})
    data = SequenceDataModule(
        train=parts["train"], batching=Fixed(4), transform=stats.transform(), seed=1
    )
    run_fit(data, folder=folder, max_epochs=1, default_root_dir=str(folder))
    (path,) = folder.glob("*.ckpt")
    return stats, path


def predict(path, **options):
    data = SequenceDataModule(predict=sequences(5, 7), batching=Fixed(5), **options)
    with quietly():
        trainer = pl.Trainer(**{**QUIET, "default_root_dir": str(path.parent)})
        return trainer.predict(Predictor(), datamodule=data, ckpt_path=str(path))[0]


def expected(stats):
    raw = sequences(5, 7)
    rows = [(x - stats["x"].mean) / stats["x"].std for x in raw]
    width = max(map(len, rows))
    return np.stack([np.pad(row, ((0, width - len(row)), (0, 0))) for row in rows])


def test_a_checkpoint_holds_the_statistics_under_weights_only(trained):
    stats, path = trained
    state = torch.load(path, weights_only=True)["SequenceDataModule"]
    assert state[STATISTICS] == stats.state_dict()


def test_a_prediction_without_a_transform_uses_those_of_the_checkpoint(trained):
    stats, path = trained
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeqDataWarning)
        np.testing.assert_array_equal(predict(path).numpy(), expected(stats))
        same = predict(path, transform=stats.transform())
    np.testing.assert_array_equal(same.numpy(), expected(stats))


def test_other_statistics_than_those_of_the_checkpoint_are_used_with_a_warning(trained):
    stats, path = trained
    others = fit(sequences(3), {"x": MeanStd()})
    with pytest.warns(SeqDataWarning, match=f"{others.digest}, but the model was .*{stats.digest}"):
        found = predict(path, transform=others.transform())
    np.testing.assert_array_equal(found.numpy(), expected(others))


def test_fitted_statistics_are_those_of_the_checkpoint_and_transform_once(trained):
    stats, path = trained
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeqDataWarning)
        found = predict(path, statistics=stats)
    np.testing.assert_array_equal(found.numpy(), expected(stats))
    others = fit(sequences(3), {"x": MeanStd()})
    message = f"statistics of the data are {others.digest}, but the model was .*{stats.digest}"
    with pytest.warns(SeqDataWarning, match=message):
        found = predict(path, statistics=others)
    np.testing.assert_array_equal(found.numpy(), expected(stats))


def test_a_transform_without_statistics_stays(trained):
    _, path = trained
    found = predict(path, transform=lambda sequence, rng: {"x": 0 * sequence["x"]})
    assert not found.any()


def test_a_view_that_carries_a_transform_keeps_it(trained):
    _, path = trained
    view = measure_lengths(sequences(5, 7), lambda sequence, rng: {"x": 0 * sequence["x"]})
    data = SequenceDataModule(predict=view, batching=Fixed(5))
    with quietly():
        trainer = pl.Trainer(**{**QUIET, "default_root_dir": str(path.parent)})
        found = trainer.predict(Predictor(), datamodule=data, ckpt_path=str(path))[0]
    assert not found.any()


def test_a_function_around_statistics_passes_them_on(tmp_path):
    stats = fit(sequences(9), {"x": MeanStd()})

    @columnar
    def doubled(columns, seeds):
        return stats.transform()(columns, seeds)

    doubled.statistics = stats
    data = SequenceDataModule(train=sequences(9), batching=Fixed(4), transform=doubled)
    run_fit(data, max_epochs=1, default_root_dir=str(tmp_path))
    assert data.state_dict()[STATISTICS] == stats.state_dict()


def test_a_state_without_statistics_has_no_entry_for_them(tmp_path):
    data = SequenceDataModule(train=sequences(9), batching=Fixed(4))
    run_fit(data, max_epochs=1, default_root_dir=str(tmp_path))
    assert STATISTICS not in data.state_dict()


@pytest.mark.parametrize("state", [{STATISTICS: {"content": "x", "digest": ""}}, {STATISTICS: 7}])
def test_damaged_statistics_are_refused(state):
    data = SequenceDataModule(predict=sequences(5), batching=Fixed(5))
    with pytest.raises(ResumeError, match="resume: the checkpoint's statistics cannot be read"):
        data.load_state_dict(state)


def test_a_batch_is_made_again_from_the_run_file_without_the_training_view(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = write_store(tmp_path / "store", [{"x": x} for x in sequences(12)])
    stats = fit(stored, {"x": MeanStd()})
    data = SequenceDataModule(train=stored, batching=Fixed(4), transform=stats.transform(), seed=1)
    run_fit(data, max_epochs=1)
    text = read_run_file()["data"]["transform"]
    assert text["init_args"]["statistics"]["init_args"]["digest"] == stats.digest
    made = open_replay(Path(NAME), ReplayRequest(epoch=0, batch=1), "train", None)
    assert made.engine.fingerprint(0) == data.train_dataloader().engine.fingerprint(0)
    batch = remake_batch(made.engine, made.located)
    assert torch.equal(batch["x"], data.replay(epoch=0, batch=1)["x"])

"""One call from a model and data to a table: its rows, its unit, and nothing is left behind."""

import tempfile
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch

from seqdata import Fixed, MeanStd, SequenceDataModule, Windows
from seqdata.errors import ConfigError
from tests.lightning.harness import QUIET, quietly

TABLE = pd.DataFrame(
    {
        "site": list("aaaabbb"),
        "day": pd.to_datetime([f"2024-01-0{day}" for day in (4, 2, 1, 3, 2, 1, 3)]),
        "load": [40.0, 20, 10, 30, 200, 100, 300],
    }
)
IN_ORDER = TABLE.sort_values(["site", "day"], ignore_index=True)


class Echo(pl.LightningModule):
    """Predicts what ``make`` returns of a batch."""

    def __init__(self, make=lambda batch: {"load": batch["load"]}):
        super().__init__()
        self.make = make

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.make(batch)


def predict(model=None, trainer=None, per=None, **options):
    chosen = {"predict": TABLE, "group": "site", "order": "day", "batching": Fixed(1)}
    data = SequenceDataModule(**{**chosen, **options})
    with quietly():
        trainer = trainer or pl.Trainer(**QUIET)
        return data.predict(trainer, model or Echo(), per=per).to_pandas()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder for temporary files of a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_each_timestep_is_a_row_with_group_and_date():
    found = predict()
    assert found["site"].tolist() == IN_ORDER["site"].tolist()
    assert found["day"].tolist() == IN_ORDER["day"].tolist()
    assert found["load_pred"].tolist() == IN_ORDER["load"].tolist()


def test_an_order_that_is_no_date_is_not_in_the_table():
    table = TABLE.assign(day=TABLE["day"].dt.day)
    found = predict(predict=table)
    assert "day" not in found
    assert found["load_pred"].tolist() == IN_ORDER["load"].tolist()
    assert found["timestep"].tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_sequences_without_a_group_are_named_by_their_ids():
    rows = [{"id": f"r{number}", "load": np.full(2 + number, float(number))} for number in range(2)]
    found = predict(predict=rows, group=None, order=None)
    assert found["id"].tolist() == ["r0", "r0", "r1", "r1", "r1"]


@pytest.mark.parametrize(
    "policy", [Windows(2, 1, 2, horizon=1), Windows(seconds=2, stride_seconds=1, horizon_seconds=1)]
)
def test_a_forecast_has_the_dates_of_its_horizon(policy):
    found = predict(
        Echo(lambda batch: {"load": batch.future["load"]}), batching=policy,
        rates={"load": 1} if policy.seconds else None,
    )  # fmt: skip
    assert found["step"].tolist() == [1] * 3
    joined = found.merge(TABLE, on=["site", "day"])
    assert joined["day"].dt.day.tolist() == [3, 4, 3]
    assert joined["load_pred"].tolist() == joined["load"].tolist()


def test_predictions_are_in_the_unit_of_the_data():
    data = SequenceDataModule(
        train=TABLE, group="site", order="day", batching=Fixed(1), statistics={"load": MeanStd()},
        split={"train": "..2024-01-03", "predict": "2024-01-03..", "along": "day"},
    )  # fmt: skip
    with quietly():
        found = data.predict(pl.Trainer(**QUIET), Echo()).to_pandas()
    assert found["load_pred"].tolist() == pytest.approx([30.0, 40.0, 300.0])


class Fails(Exception):
    """An error of a model."""


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_on_the_disk_or_in_the_trainer(folder, fails):
    seen = []

    def make(batch):
        seen.extend(folder.glob("seqdata-predict-*"))
        if fails:
            raise Fails
        return {"load": batch["load"]}

    with quietly():
        trainer = pl.Trainer(**QUIET)
    before = list(trainer.callbacks)
    try:
        predict(Echo(make), trainer)
    except Fails:
        assert fails
    assert seen
    assert not list(folder.glob("seqdata-predict-*"))
    assert trainer.callbacks == before


def test_a_checkpoint_is_loaded(tmp_path):
    class Scaled(pl.LightningModule):
        def __init__(self, factor):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(factor, dtype=torch.float64))

        def predict_step(self, batch):
            return {"load": batch["load"] * self.factor}

    with quietly():
        trainer = pl.Trainer(**QUIET)
        trainer.strategy.connect(Scaled(3.0))
        trainer.save_checkpoint(Path(tmp_path) / "a.ckpt", weights_only=True)
        data = SequenceDataModule(predict=TABLE, group="site", order="day", batching=Fixed(1))
        found = data.predict(pl.Trainer(**QUIET), Scaled(1.0), ckpt_path=tmp_path / "a.ckpt")
    assert found.to_pandas()["load_pred"].tolist() == (3 * IN_ORDER["load"]).tolist()


def test_several_datasets_are_no_one_table():
    message = "`predict` makes a table of one dataset, but there are several, by name. Use Predict"
    with pytest.raises(ConfigError, match=message):
        predict(predict={"a": TABLE, "b": TABLE})


def test_sequences_of_one_length_need_a_unit():
    """Their predictions are as wide as every batch, so ``per`` says what they are."""
    table = IN_ORDER.iloc[[0, 1, 2, 4, 5, 6]]
    with pytest.raises(ConfigError, match=r"Pass `per='timestep'` or `per=.sequence.`\n"):
        predict(predict=table)
    found = predict(predict=table, per="timestep")
    assert found["load_pred"].tolist() == table["load"].tolist()
    assert len(predict(predict=table, per="sequence")) == 2

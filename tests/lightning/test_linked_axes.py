"""Linked axes under a Trainer: by YAML, in a run file, and in predictions along each axis."""

import lightning as L
import numpy as np
import pytest
import torch
import yaml

from seqdata import (
    TBPTT,
    Axis,
    Bucketed,
    ConfigError,
    PredictionWriter,
    SequenceDataModule,
    Windows,
    open_store,
    split,
    write_store,
)
from tests.runs.run_files import remake

AXES = {"ecg": "ecg", "temp": "temp"}
RATES = {"acc": 100, "ecg": 500, "temp": 4}
YAML = """
class_path: seqdata.SequenceDataModule
init_args:
  train: recordings
  axes: {acc: {rate: 100}, ecg: {rate: 500, offset: 0.12}}
  rates: {temp: "4"}
  batching:
    class_path: seqdata.Windows
    init_args: {seconds: 2.0, stride_seconds: 1.0, batch_size: 16}
"""


def make_rows(seconds=(20, 11.25, 13)):
    return [
        {
            "acc": np.arange(300 * int(each), dtype="float32").reshape(-1, 3),
            "ecg": np.arange(int(500 * int(each)), dtype="float32"),
            "temp": np.arange(4 * int(each), dtype="float32"),
        }
        for each in seconds
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store("recordings", make_rows(), axes=AXES)
    return tmp_path


class Model(L.LightningModule):
    """Keep the batches of training, and predict what a field holds."""

    def __init__(self, field="ecg"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.field, self.seen = field, []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return self.weight * batch["ecg"].mean()

    def predict_step(self, batch, batch_idx):
        return batch[self.field]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(**options):
    return L.Trainer(
        logger=False, enable_progress_bar=False, accelerator="cpu", enable_checkpointing=False,
        enable_model_summary=False, max_epochs=1, **options,
    )  # fmt: skip


def test_a_data_module_is_made_from_yaml(folder):
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--data", type=L.LightningDataModule)
    config = parser.parse_object({"data": yaml.safe_load(YAML)})
    data = parser.instantiate(config).data
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert [batch[name].shape[:2] for name in RATES] == [(16, 200), (16, 1_000), (16, 8)]
    assert torch.equal(batch.start_of["ecg"], (5 * batch.start - 60).clamp(min=0))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["a path", "a view"])
def test_a_batch_is_made_again_from_a_run_file(folder, form):
    if form == "a path":
        axes = {"ecg": Axis(500, 0.12)}
        source = {"train": "recordings", "rates": {"acc": 100, "temp": 4}, "axes": axes}
    else:
        source = {"train": open_store("recordings", rates=RATES).take([2, 0]).select("acc", "ecg")}
    data = SequenceDataModule(**source, batching=TBPTT(2, seconds=3.5), num_workers=0)
    model = Model()
    run(default_root_dir=".").fit(model, data)
    again = remake(2)
    for name in again:
        assert torch.equal(again[name], model.seen[2][name])
    assert torch.equal(again.start_of["ecg"], model.seen[2].start_of["ecg"])


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["time", "ecg", "temp"])
def test_predictions_lie_where_they_are_along_each_axis(folder, axis):
    field = {"time": "acc", "ecg": "ecg", "temp": "temp"}[axis]
    store = open_store("recordings", rates=RATES)
    part = split(store, {"a": "..733", "b": "733.."}, along="time")["b"]
    data = SequenceDataModule(
        predict=part, batching=TBPTT(2, 200 if axis != "temp" else 9, axis=axis)
    )
    writer = PredictionWriter("out", field="prediction", per="timestep")
    run(callbacks=[writer]).predict(Model(field), data, return_predictions=False)
    for found in open_store("out"):
        whole = make_rows()[int(found["position"])][field]
        spans = found["spans"]
        due = np.concatenate([whole[start:stop] for start, stop in spans.tolist()])
        assert np.array_equal(found["prediction"], due)
        assert spans[-1, 1] == len(whole)
        assert len(found["prediction"]) == len(part[int(found["id"])][field])


def test_rates_are_checked_before_data_is_opened():
    with pytest.raises(ConfigError, match=r"`rates\['ecg'\]`: axis: `rate` must be a number"):
        SequenceDataModule(train="nowhere", rates={"ecg": 0})


def test_an_evaluation_is_read_in_the_same_seconds(folder):
    data = SequenceDataModule(
        train="recordings", val={"all": "recordings"}, rates=RATES,
        batching=Bucketed(2), eval_batching=Windows(seconds=1, batch_size=4), whole=None,
    )  # fmt: skip
    data.setup("fit")
    (loader,) = data.val_dataloader()
    assert next(iter(loader))["ecg"].shape == (4, 500)

"""Projects that import Lightning as ``pytorch_lightning`` train as with ``lightning.pytorch``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

RUN = """
import importlib, json, logging, sys, warnings
pl = importlib.import_module(sys.argv[1])
import numpy as np, torch
from seqdata import DataMonitor, Fixed, SequenceDataModule

warnings.filterwarnings("ignore", category=UserWarning, module=sys.argv[1])
logging.getLogger(sys.argv[1]).setLevel(logging.ERROR)
rows = [np.full((1 + n % 3, 1), n / 20, "float32") for n in range(20)]
seen = []

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        losses = self.layer(batch["x"])[:, 0, 0].square()
        seen.append(("train", batch.epoch, batch.number, batch.ends_update))
        return (losses * batch.weight).sum() * batch.sequence_scale

    def validation_step(self, batch, batch_idx):
        seen.append(("val", batch.epoch, batch.number))

    def predict_step(self, batch, batch_idx):
        return batch.ids

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def make_data(**options):
    return SequenceDataModule(
        train=rows, batching=Fixed(3), batches_per_update=2, seed=1, predict=rows[:4], **options
    )

def make_trainer(**options):
    return pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )

model = Model()
saving = pl.callbacks.ModelCheckpoint(".", "{step}", every_n_train_steps=1, save_top_k=-1)
make_trainer(callbacks=[saving, DataMonitor()]).fit(model, make_data(val=rows[:4]))
whole, weights = list(seen), model.layer.weight.item()
seen.clear()
model = Model()
make_trainer(enable_checkpointing=False).fit(
    model, datamodule=make_data(val=rows[:4]), ckpt_path="step=2.ckpt", weights_only=False
)
trained = [step for step in whole if step[0] == "train"]
assert [step for step in seen if step[0] == "train"] == trained[4:], (seen, whole)
assert model.layer.weight.item() == weights
seen.clear()
make_trainer(enable_checkpointing=False).fit(Model(), make_data())  # without validation
assert seen == trained
ids = make_trainer(enable_checkpointing=False).predict(model, make_data())
assert [batch.tolist() for batch in ids] == [[0, 1, 2], [3]]
print(json.dumps([whole, weights]))
"""


def run(code, *arguments, folder):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True,
        timeout=patient(120), check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_is_the_same_under_both_names(tmp_path):
    told = []
    for name in ("lightning.pytorch", "pytorch_lightning"):
        (tmp_path / name).mkdir()
        told.append(json.loads(run(RUN, name, folder=tmp_path / name).splitlines()[-1]))
    assert told[0] == told[1]
    assert len([step for step in told[0][0] if step[0] == "train"]) == 14


LATE = """
from seqdata import ConfigError, Fixed, SequenceDataModule

data = SequenceDataModule(train=[[1.0], [2.0]], batching=Fixed(1))
try:
    iter(data)
except ConfigError as error:
    print(error)

import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

for options in ({"datamodule": data}, {"train_dataloaders": data}):
    try:
        pl.Trainer(logger=False, accelerator="cpu").fit(BoringModel(), **options)
    except ConfigError as error:
        print(error)
"""


def test_a_package_that_is_imported_too_late_is_told(tmp_path):
    lines = [line for line in run(LATE, folder=tmp_path).splitlines() if "datamodule:" in line]
    assert "a SequenceDataModule cannot be iterated over. Iterate over its `train_data" in lines[0]
    assert len(lines) == 3
    assert all("Write `import pytorch_lightning` above" in line for line in lines[1:])

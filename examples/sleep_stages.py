"""Tell waking from sleep in recordings of EEG: windows of EDF files, labels from annotations."""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import edfio
import lightning as L
import numpy as np
import torch
from seqdata_biosignals import Biosignals

from seqdata import SequenceDataModule, Windows, open_store

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)
nights, epochs = (2, 1) if "--smoke" in sys.argv else (8, 3)
RATE, STAGES = 64, ["Sleep stage W", "Sleep stage 2"]


def write_night(path: Path, seed: int) -> None:
    """Write two channels of 10 minutes: waves of 10 Hz while awake, of 2 Hz while asleep."""
    random = np.random.default_rng(seed)
    stages = random.integers(0, 2, 20)  # of 30 s each
    time = np.arange(len(stages) * 30 * RATE) / RATE
    waves = np.sin(2 * np.pi * np.where(np.repeat(stages, 30 * RATE), 2, 10) * time)
    signals = [
        edfio.EdfSignal(
            30 * waves + 20 * random.standard_normal(len(waves)), RATE, label=name,
            physical_dimension="uV", physical_range=(-200, 200),
        )
        for name in ("Fpz-Cz", "Pz-Oz")
    ]  # fmt: skip
    marks = [edfio.EdfAnnotation(30 * at, 30, STAGES[stage]) for at, stage in enumerate(stages)]
    edfio.Edf(signals, data_record_duration=1, annotations=marks).write(path)


class Stager(L.LightningModule):
    """A convolution, averaged over the time of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(2, 8, 17), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool1d(1),
            torch.nn.Flatten(), torch.nn.Linear(8, len(STAGES)),
        )  # fmt: skip
        self.right: list[torch.Tensor] = []

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        scores = self.layers(batch["signal"].transpose(1, 2) / 50)
        return torch.nn.functional.cross_entropy(scores, batch["label"][:, 0])

    def validation_step(self, batch, _):
        """Note which windows are right."""
        scores = self.layers(batch["signal"].transpose(1, 2) / 50)
        self.right.append(scores.argmax(1) == batch["label"][:, 0])

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 0.01)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    for name, count in (("train", nights), ("val", 1)):
        Path(folder, name).mkdir()
        for night in range(count):
            write_night(Path(folder, name, f"{night}.edf"), 100 * len(name) + night)
    backend = Biosignals(labels=STAGES)
    train, val = (open_store(Path(folder, name), backend=backend) for name in ("train", "val"))
    data = SequenceDataModule(train=train, val=val, batching=Windows(2 * RATE, batch_size=32))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    model = Stager()
    trainer = L.Trainer(
        max_epochs=epochs, devices=1, accelerator="cpu", enable_checkpointing=False,
        num_sanity_val_steps=0, **quiet,
    )  # fmt: skip
    trainer.fit(model, data)
    last = torch.cat(model.right[-len(model.right) // epochs :]).float().mean()
    print(f"{len(train)} nights, {int(train.lengths.sum()) // RATE} s: {last:.0%} of windows right")

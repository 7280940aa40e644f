"""Classify windows of long recordings in one HDF5 file with gzip chunks, read as it lies."""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import h5py
import lightning as L
import numpy as np
import torch
from seqdata_arrays import HDF5

from seqdata import SequenceDataModule, Windows, open_store, split

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)  # a model this small is slower on several
count, steps, epochs = (8, 2_000, 1) if "--smoke" in sys.argv else (40, 20_000, 3)


def write(path: Path) -> None:
    """Write a group per recording: an acceleration whose rhythm is that of walking or running."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(count):
            rhythm = 2.0 + number % 2  # steps per second, at 50 Hz
            phase = 2 * np.pi * rhythm * np.arange(steps)[:, None] / 50 + rng.uniform(0, 7, 3)
            acc = (np.sin(phase) + rng.normal(0, 0.5, (steps, 3))).astype("float32")
            group = file.create_group(f"recording-{number}")
            group.create_dataset("acc", data=acc, chunks=(1_000, 3), compression="gzip")
            group.attrs["running"] = number % 2


class Classifier(L.LightningModule):
    """An LSTM over a window, and the class of its mean state."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 2)

    def training_step(self, batch):
        """Return the loss of a batch."""
        states, _ = self.lstm(batch["acc"])
        return torch.nn.functional.cross_entropy(self.head(states.mean(1)), batch["running"])

    def validation_step(self, batch):
        """Log the fraction of windows that are right."""
        states, _ = self.lstm(batch["acc"])
        right = (self.head(states.mean(1)).argmax(1) == batch["running"]).float().mean()
        self.log("accuracy", right, batch_size=len(batch["running"]))

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 0.01)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "recordings.h5"
    write(path)
    parts = split(open_store(path, backend=HDF5()), {"train": 0.75, "val": 0.25}, exact=True)
    windows = Windows(100, stride=100, batch_size=64)
    data = SequenceDataModule(train=parts["train"], val=parts["val"], batching=windows)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=epochs, devices=1, enable_checkpointing=False, **quiet)
    trainer.fit(Classifier(), data)
    print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")

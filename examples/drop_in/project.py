"""A project that knows nothing of seqdata: recordings in a folder, a Dataset, a model."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import Dataset


class Recordings(Dataset):
    """One ``.npy`` file per recording, and a ``labels.csv`` with name, length and label."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = [line.split(",") for line in (folder / "labels.csv").read_text().splitlines()]
        self.names = [name for name, _, _ in rows]
        self.lengths = [int(length) for _, length, _ in rows]
        self.labels = [int(label) for _, _, label in rows]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        x = np.load(self.folder / self.names[number])
        return torch.from_numpy(x), self.labels[number]


class Model(L.LightningModule):
    """Takes ``(x, lengths, y)``: padded (B, T, 2), (B,), (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(2, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x, lengths):
        """Return one score per class for each row."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        return self.head(last[-1])

    def training_step(self, batch):
        """Return the mean loss of the batch."""
        x, lengths, y = batch
        return cross_entropy(self(x, lengths), y)

    def validation_step(self, batch):
        """Log how many rows are right."""
        x, lengths, y = batch
        right = (self(x, lengths).argmax(1) == y).double().mean()
        self.log("accuracy", right, batch_size=len(y), sync_dist=True)

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 0.01)


def make_recordings(folder: Path, count: int, seed: int) -> None:
    """Write made-up recordings: noise that drifts up or down."""
    folder.mkdir(parents=True)
    random, rows = np.random.default_rng(seed), []
    for number, length in enumerate(random.integers(5, 60, count)):
        label = int(random.integers(2))
        x = random.normal(size=(length, 2)).astype("float32")
        x[:, 0] += (0.5 if label else -0.5) * np.linspace(0, 2, length)
        np.save(folder / f"{number}.npy", x)
        rows.append(f"{number}.npy,{length},{label}")
    (folder / "labels.csv").write_text("\n".join(rows))

"""The DataLoader that people write by hand: values and offsets in memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from samples import Samples
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from peers.asking import BATCH, Ask, Peer, Pooled, Reading, shape_of

Change = Callable[[np.ndarray], np.ndarray]


def write(folder: Path, samples: Samples) -> None:
    folder.mkdir()
    samples.values.tofile(folder / "values")
    samples.offsets.tofile(folder / "offsets")


class Sequences(Dataset[torch.Tensor]):
    """Sequences of two memory-mapped files, each changed by a function if there is one."""

    def __init__(self, folder: Path, name: str, change: Change | None = None) -> None:
        dtype = np.int32 if name == "S" else np.float32
        mapped = np.memmap(folder / "values", dtype=dtype, mode="c")
        self._values, self._change = mapped.reshape(-1, *shape_of(name)), change
        self._offsets = np.asarray(np.memmap(folder / "offsets", dtype=np.int64, mode="r"))
        self.lengths = np.diff(self._offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> torch.Tensor:
        row = self._values[self._offsets[number] : self._offsets[number + 1]]
        return torch.from_numpy(row if self._change is None else self._change(row))


def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def read(ask: Ask, change: Change | None = None) -> Reading:
    dataset = Sequences(ask.folder, ask.name, change)
    kinds: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    if ask.order == "bucketed":
        kinds = {"batch_sampler": Pooled(dataset.lengths)}
    options = {"collate_fn": collate, "persistent_workers": ask.workers > 0, **kinds}
    return Reading(DataLoader(dataset, num_workers=ask.workers, **options))


PEER = Peer("memmap DataLoader", ("torch",), read, write, lacks="no resume; no checks of the data")

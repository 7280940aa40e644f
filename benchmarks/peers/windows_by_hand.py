"""A hand-written Dataset of windows: whole batches, by indexing into one array in memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from samples import Samples
from torch.utils.data import DataLoader, Dataset

from peers.asking import CONTEXT, HORIZON, WINDOWS, Ask, Peer, Reading


def write(folder: Path, samples: Samples) -> None:
    folder.mkdir()
    np.save(folder / "values.npy", samples.values)
    np.save(folder / "offsets.npy", samples.offsets)


class Cut(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self._values = np.load(folder / "values.npy")
        offsets, size = np.load(folder / "offsets.npy"), CONTEXT + HORIZON
        pairs = pairwise(offsets)
        self._starts = np.concatenate([np.arange(a, b - size + 1) for a, b in pairs])
        self._steps = np.arange(size)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Any:
        places = self._starts[numbers][:, None] + self._steps
        return torch.from_numpy(self._values[places])


def split(windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return windows[:, :CONTEXT], windows[:, CONTEXT:]


def read(ask: Ask) -> Reading:
    return Reading(DataLoader(Cut(ask.folder), WINDOWS, shuffle=True, collate_fn=split))


PEER = Peer("DataLoader, whole batches by NumPy", ("torch",), read, write, sets=("W",))

"""The hand-written DataLoader by someone who has profiled it: whole batches, filled by NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from peers.asking import BATCH, Ask, Peer, Pooled, Reading, pad, shape_of


class Sequences(Dataset[np.ndarray]):
    """Plain arrays and integers: slices of ``np.memmap`` cost more. A batch is one call."""

    def __init__(self, folder: Path, name: str) -> None:
        dtype = np.int32 if name == "S" else np.float32
        mapped = np.memmap(folder / "values", dtype=dtype, mode="c")
        self._values = mapped.view(np.ndarray).reshape(-1, *shape_of(name))
        offsets = np.fromfile(folder / "offsets", dtype=np.int64)
        self._edges, self.lengths = offsets.tolist(), np.diff(offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> np.ndarray:
        return self._values[self._edges[number] : self._edges[number + 1]]

    def __getitems__(self, numbers: list[int]) -> list[np.ndarray]:
        values, edges = self._values, self._edges
        return [values[edges[number] : edges[number + 1]] for number in numbers]


def read(ask: Ask) -> Reading:
    dataset = Sequences(ask.folder, ask.name)
    kinds: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    if ask.order == "bucketed":
        kinds = {"batch_sampler": Pooled(dataset.lengths)}
    options = {"collate_fn": pad, "persistent_workers": ask.workers > 0, **kinds}
    return Reading(DataLoader(dataset, num_workers=ask.workers, **options))


PEER = Peer("memmap DataLoader, tuned", ("torch",), read, lacks="no resume; no checks of the data")

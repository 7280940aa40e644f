"""The hand-written peer: values and offsets in memory-mapped files, ``pad_sequence``, DataLoader.

It is what people write by hand and what beats the packaged toolkits. Everything is a module's own,
so that worker processes can be started in any way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from samples import BATCH, Data
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

Change = Callable[[np.ndarray], np.ndarray]


class Sequences(Dataset[torch.Tensor]):
    """Sequences of two memory-mapped files.

    Args:
        data: Data set that was written.
        change: Applied to each sequence.
        tuned: With plain arrays and integers in place of ``np.memmap``, whose slices cost more.
    """

    def __init__(self, data: Data, change: Change | None = None, tuned: bool = False) -> None:
        shape = (-1, data.width) if data.width else (-1,)
        mapped = np.memmap(data.values, dtype=data.dtype, mode="c").reshape(shape)
        offsets = np.memmap(data.offsets, dtype=np.int64, mode="r")
        self._values = np.asarray(mapped).view(np.ndarray) if tuned else mapped
        self._edges: Any = offsets.tolist() if tuned else np.asarray(offsets)
        self._change = change

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, number: int) -> torch.Tensor:
        row = self._values[self._edges[number] : self._edges[number + 1]]
        return torch.from_numpy(row if self._change is None else self._change(row))


def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded values and lengths."""
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def loader(
    data: Data,
    *,
    batches: list[list[int]] | None = None,
    change: Change | None = None,
    tuned: bool = False,
    workers: int = 0,
    method: str | None = None,
) -> DataLoader[Any]:
    """Return the DataLoader: random batches, or those that are given.

    Args:
        data: Data set that was written.
        batches: Numbers of the sequences of each batch.
        change: Applied to each sequence.
        tuned: See ``Sequences``.
        workers: Worker processes, kept from epoch to epoch.
        method: Start method.
    """
    make_loader = partial(
        DataLoader, Sequences(data, change, tuned), collate_fn=collate, num_workers=workers,
        multiprocessing_context=method, persistent_workers=workers > 0,
    )  # fmt: skip
    return (
        make_loader(batch_size=BATCH, shuffle=True)
        if batches is None
        else make_loader(batch_sampler=batches)
    )

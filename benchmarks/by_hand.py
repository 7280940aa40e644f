"""The hand-written peer: values and offsets in memory-mapped files, ``pad_sequence``, DataLoader.

It is what people write by hand and what beats the packaged toolkits. Everything is a module's own,
so that worker processes can be started in any way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch
from common import BATCH, Data, planned
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

Change = Callable[[np.ndarray], np.ndarray]


class Sequences(Dataset[torch.Tensor]):
    """Sequences of two memory-mapped files.

    Args:
        data: What was written.
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
    """Give padded values and lengths."""
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def loader(
    data: Data,
    order: str,
    *,
    change: Change | None = None,
    tuned: bool = False,
    workers: int = 0,
    method: str | None = None,
) -> DataLoader[Any]:
    """Give the DataLoader: the batches that seqdata makes, or as many random ones."""
    sequences = Sequences(data, change, tuned)
    context, kept = (method, True) if workers else (None, False)
    if order == "random":
        return DataLoader(
            sequences, BATCH, shuffle=True, collate_fn=collate, num_workers=workers,
            multiprocessing_context=context, persistent_workers=kept,
        )  # fmt: skip
    return DataLoader(
        sequences, batch_sampler=planned(data, order), collate_fn=collate, num_workers=workers,
        multiprocessing_context=context, persistent_workers=kept,
    )  # fmt: skip


def peer(data: Data, order: str, **options: Any) -> Generator[Any, None, None]:
    """Give batches, epoch after epoch."""
    made = loader(data, order, **options)
    while True:
        yield from made

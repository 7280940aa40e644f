"""Batches made by hand, as a loader makes them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from seqdata import SequenceBatch


def make_batch(
    rows: list[dict[str, Tensor]],
    *,
    padding: float = 0.0,
    wider: int = 0,
    weight: list[float] | None = None,
    ids: list[int] | None = None,
    rows_of_update: float | None = None,
    tokens_of_update: int | None = None,
) -> SequenceBatch:
    """Pad ragged fields ("x", "targets") and stack the others."""
    lengths = torch.tensor([len(row["x"]) for row in rows])
    width = int(lengths.max()) + wider
    data = {}
    for name in rows[0]:
        if rows[0][name].dim() == 0:
            data[name] = torch.stack([row[name] for row in rows])
            continue
        first = rows[0][name]
        data[name] = torch.full((len(rows), width, *first.shape[1:]), padding).to(first.dtype)
        for number, row in enumerate(rows):
            data[name][number, : len(row[name])] = row[name]
    weights = torch.ones(len(rows)) if weight is None else torch.tensor(weight)
    tokens = int(lengths[weights > 0].sum())
    total = tokens if tokens_of_update is None else tokens_of_update
    counted = float(weights.sum()) if rows_of_update is None else rows_of_update
    return SequenceBatch(
        data=data,
        lengths=lengths,
        ids=torch.arange(len(rows)) if ids is None else torch.tensor(ids),
        weight=weights,
        start=torch.zeros(len(rows), dtype=torch.int64),
        num_tokens=tokens,
        global_num_tokens=tokens,
        update_num_tokens=total,
        loss_scale=1 / total if total else 0.0,
        sequence_scale=1 / counted if counted else 0.0,
        padded_length=width,
    )


class Batches:
    """A loader: the same batches each epoch."""

    def __init__(self, batches: list[SequenceBatch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SequenceBatch]:
        return iter(self.batches)

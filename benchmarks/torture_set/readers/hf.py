"""Hugging Face datasets: ``save_to_disk``, and its map-style set under a stateful DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torture_set.asking import Ask, Library, Reading, Rows, collate, unpack_all
from torture_set.truth import BATCH, SHARDS


def load() -> None:
    import datasets
    import torchdata.stateful_dataloader  # noqa: F401

    datasets.disable_progress_bars()


def write(folder: Path, rows: Rows) -> None:
    import datasets

    features = datasets.Features(
        {"id": datasets.Value("string"), "x": datasets.List(datasets.Value("int32")),
         "y": datasets.Value("int64")}
    )  # fmt: skip
    dataset = datasets.Dataset.from_list(list(rows), features=features)
    dataset.save_to_disk(str(folder), num_shards=SHARDS)


def read(ask: Ask) -> Reading:
    import datasets
    import torch
    from torch.utils.data import DistributedSampler, RandomSampler

    data = datasets.load_from_disk(str(ask.folder)).with_format("numpy")
    sampler: Any = None
    if ask.world > 1:
        sampler = DistributedSampler(data, ask.world, ask.rank, shuffle=ask.shuffle, seed=3)
    elif ask.shuffle:  # torchdata's own sampler draws other orders with workers than without
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
    return under_loader(data, ask, sampler=sampler)


def _collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch; the library hands integers out as int64, however they were written."""
    return collate([{**sample, "x": sample["x"].astype(np.int32)} for sample in samples])


def under_loader(data: Any, ask: Ask, **options: Any) -> Reading:
    """Return batches by torchdata's DataLoader, which keeps states."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(3)
    options = {"num_workers": ask.workers, "collate_fn": _collate, **options}
    loader = StatefulDataLoader(data, batch_size=BATCH, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(unpack_all(loader), loader.state_dict)


LIBRARY = Library(("datasets", "torchdata"), load, write, read)

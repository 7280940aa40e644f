"""Hugging Face ``datasets``: a map-style dataset of Arrow under a StatefulDataLoader."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from samples import Samples

from peers.asking import BATCH, Ask, Peer, Pooled, Reading, pad, shape_of


def write(folder: Path, samples: Samples) -> None:
    """Frames as flat lists: nested ones are read much more slowly."""
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    width = samples.values[0].size
    offsets = pa.array(samples.offsets * width, pa.int64())
    column = pa.LargeListArray.from_arrays(offsets, pa.array(samples.values.reshape(-1)))
    lengths = pa.array(np.diff(samples.offsets))
    datasets.Dataset(pa.table({"x": column, "length": lengths})).save_to_disk(str(folder))


def _collate(rows: list[dict[str, Any]], shape: tuple[int, ...]) -> tuple[Any, Any]:
    return pad([row["x"].reshape(-1, *shape) for row in rows])


def read(ask: Ask) -> Reading:
    import datasets
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    dtype, stored = np.int32 if ask.name == "S" else np.float32, str(ask.folder)
    dataset: Any = datasets.load_from_disk(stored)
    lengths = np.asarray(dataset.with_format("numpy")["length"][:])
    dataset = dataset.select_columns("x").with_format("numpy", dtype=dtype)
    if ask.order == "bucketed":
        kinds: dict[str, Any] = {"batch_sampler": Pooled(lengths)}
    else:
        drawn = torch.Generator().manual_seed(ask.seed)
        kinds = {"batch_size": BATCH, "sampler": RandomSampler(dataset, generator=drawn)}
    options = {"collate_fn": partial(_collate, shape=shape_of(ask.name)), **kinds}
    options["persistent_workers"] = ask.workers > 0
    loader = StatefulDataLoader(dataset, num_workers=ask.workers, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(loader, loader.state_dict if ask.order == "random" else None)


PEER = Peer(
    "datasets", ("datasets", "torchdata"), read, write,
    lacks="resume by torchdata; buckets by a sampler of one's own",
)  # fmt: skip

"""MosaicML streaming: ``MDSWriter``, and a local ``StreamingDataset``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samples import Samples

from peers.asking import BATCH, Ask, Peer, Reading, let_torchvision_load, pad


def write(folder: Path, samples: Samples) -> None:
    let_torchvision_load()
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"x": "ndarray"}) as sink:
        for row in samples.dicts():
            sink.write(row)


def _collate(rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    return pad([row["x"] for row in rows])


def read(ask: Ask, remote: str | None = None) -> Reading:
    let_torchvision_load()
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # of a reading that has ended
    places = {"local": str(ask.folder), "remote": remote}
    dataset = StreamingDataset(**places, batch_size=BATCH, shuffle=True, shuffle_seed=ask.seed)
    options: dict[str, Any] = {"num_workers": ask.workers, "collate_fn": _collate}
    options["persistent_workers"] = ask.workers > 0
    loader = StreamingDataLoader(dataset, batch_size=BATCH, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(loader, loader.state_dict)


PEER = Peer(
    "MosaicML streaming", ("mosaicml-streaming",), read, write, orders=("random",),
    lacks="no buckets",
)  # fmt: skip

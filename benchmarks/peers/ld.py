"""litdata: ``optimize``, ``StreamingDataset`` and ``StreamingDataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from samples import Samples

from peers.asking import BATCH, Ask, Peer, Reading, pad


def write(folder: Path, samples: Samples) -> None:
    from litdata import optimize

    optimize(
        fn=partial(_every, samples), inputs=[0], output_dir=str(folder), chunk_bytes="64MB",
        num_workers=1, start_method="fork", verbose=False,
    )  # fmt: skip


def _every(samples: Samples, _: int) -> Iterator[dict[str, Any]]:
    yield from samples.dicts()


def _collate(rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    return pad([row["x"] for row in rows])


def read(ask: Ask, **places: Any) -> Reading:
    from litdata import StreamingDataLoader, StreamingDataset

    places = places or {"input_dir": str(ask.folder)}
    dataset = StreamingDataset(**places, shuffle=True, seed=ask.seed)
    options: dict[str, Any] = {"num_workers": ask.workers, "collate_fn": _collate}
    options["persistent_workers"] = ask.workers > 0
    loader = StreamingDataLoader(dataset, batch_size=BATCH, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(loader, loader.state_dict)


PEER = Peer(
    "litdata", ("litdata",), read, write, orders=("random",),
    lacks="no buckets; ranks drop what does not divide",
)  # fmt: skip

"""seqdata, as it is without options: an Arrow store, and tar shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torture_set.asking import Ask, Library, Reading, Rows
from torture_set.truth import BATCH, SHARD_BYTES, digest


def load() -> None:
    import seqdata_webdataset  # noqa: F401
    import torch  # noqa: F401


def write(folder: Path, rows: Rows, form: str = "arrow") -> None:
    from seqdata import write_store

    size = SHARD_BYTES if form == "arrow" else 4 * SHARD_BYTES  # a member takes 1 KiB of its own
    write_store(folder, rows, format=form, shard_bytes=size, progress=False)


def read(ask: Ask) -> Reading:
    from seqdata import Fixed, Loader, World

    loader = Loader(
        str(ask.folder), Fixed(BATCH, shuffle=ask.shuffle), world=World(ask.rank, ask.world),
        num_workers=ask.workers,
    )  # fmt: skip
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(_batches(loader), loader.state_dict, lambda: loader.worker_pids)


def _batches(loader: Any) -> Any:
    for batch in loader:
        keys = loader.store.keys(batch)
        rows = zip(
            keys, batch["x"].numpy(), batch.lengths, batch["y"], batch.weight.tolist(), strict=True
        )
        yield [(k, digest(x[: int(n)], int(y))) for k, x, n, y, weight in rows if weight]


LIBRARY = Library(("lightning-seqdata", "seqdata-webdataset"), load, write, read)

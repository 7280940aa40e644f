"""litdata: ``optimize``, ``StreamingDataset`` and ``StreamingDataLoader``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torture_set.asking import Ask, Hostile, Library, Payload, Reading, Rows, collate, unpack_all
from torture_set.truth import BATCH, SHARD_BYTES


def load() -> None:
    import litdata  # noqa: F401


def write(folder: Path, rows: Rows) -> None:
    from litdata import optimize

    optimize(
        fn=partial(_every, rows), inputs=[0], output_dir=str(folder), chunk_bytes=SHARD_BYTES,
        num_workers=1, start_method="fork", verbose=False,
    )  # fmt: skip


def _every(rows: Rows, _: int) -> Rows:
    yield from rows


def write_hostile(folder: Path, rows: Rows, _: str, payload: Payload) -> None:
    write(folder, ({"x": row["x"], "extra": payload} for row in rows))


def read(ask: Ask) -> Reading:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(ask.folder), shuffle=ask.shuffle, seed=3)
    options: dict[str, Any] = {"num_workers": ask.workers, "collate_fn": collate}
    loader = StreamingDataLoader(data, batch_size=BATCH, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(unpack_all(loader), loader.state_dict)


def read_hostile(folder: Path) -> None:
    from litdata import StreamingDataset

    for _ in StreamingDataset(str(folder)):
        pass


LIBRARY = Library(("litdata",), load, write, read, Hostile(write_hostile, read_hostile))

"""MosaicML Streaming: ``MDSWriter``, and a ``StreamingDataset`` that copies into a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torture_set.asking import Ask, Hostile, Library, Payload, Reading, Rows, collate, unpack_all
from torture_set.truth import BATCH, SHARD_BYTES

_LIBRARIES: list[Any] = []


def load() -> None:
    """Import; torchvision, which it imports, cannot load beside a torch without CUDA."""
    import torch

    if torch.version.cuda is None and not _LIBRARIES:
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _LIBRARIES[0].define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
    import streaming  # noqa: F401


def write(folder: Path, rows: Rows, hashes: list[str] | None = None) -> None:
    from streaming import MDSWriter

    columns = {"id": "str", "x": "ndarray", "y": "int"}
    options: dict[str, Any] = {"columns": columns, "size_limit": SHARD_BYTES, "hashes": hashes}
    with MDSWriter(out=str(folder), **options) as sink:
        for row in rows:
            sink.write(row)


def write_hostile(folder: Path, rows: Rows, _: str, payload: Payload) -> None:
    """Whoever writes the index says how each column is decoded."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"x": "ndarray", "extra": "pkl"}) as sink:
        for row in rows:
            sink.write({"x": row["x"], "extra": payload})


def read(ask: Ask, validate: str | None = None) -> Reading:
    from streaming import StreamingDataLoader

    data = _open(ask, shuffle=ask.shuffle, shuffle_seed=3, validate_hash=validate)
    options: dict[str, Any] = {"num_workers": ask.workers, "collate_fn": collate}
    loader = StreamingDataLoader(data, batch_size=BATCH, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(unpack_all(loader), loader.state_dict)


def _open(ask: Ask, **options: Any) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    if ask.world == 1:
        clean_stale_shared_memory()  # of a case before this one, which was killed
    local = ask.cache / "local"
    return StreamingDataset(remote=str(ask.folder), local=str(local), batch_size=BATCH, **options)


def read_hostile(folder: Path) -> None:
    from streaming import StreamingDataset

    local = folder.with_name("local")
    for _ in StreamingDataset(remote=str(folder), local=str(local), batch_size=BATCH):
        pass


LIBRARY = Library(("mosaicml-streaming",), load, write, read, Hostile(write_hostile, read_hostile))

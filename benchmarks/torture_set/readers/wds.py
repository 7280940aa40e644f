"""webdataset: ``ShardWriter``, and the pipeline of its guide."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from torture_set.asking import Ask, Hostile, Library, Payload, Reading, Rows, collate, unpack_all
from torture_set.truth import BATCH, COUNT, SHARDS

_EACH = -(-COUNT // SHARDS)


def load() -> None:
    import torch.utils.data  # noqa: F401
    import webdataset  # noqa: F401


def write(folder: Path, rows: Rows) -> None:
    from webdataset import ShardWriter

    folder.mkdir()
    with ShardWriter(str(folder / "shard-%06d.tar"), maxcount=_EACH, verbose=0) as sink:
        for row in rows:
            sink.write({"__key__": row["id"], "x.npy": row["x"], "y.cls": row["y"]})


def write_hostile(folder: Path, rows: Rows, ending: str, payload: Payload) -> None:
    from webdataset import TarWriter

    folder.mkdir()
    with TarWriter(str(folder / "shard-000000.tar")) as sink:
        for row in rows:
            named = {"__key__": row["id"], "x.npy": row["x"]}
            sink.write({**named, ending: pickle.dumps(payload)})


def read(ask: Ask) -> Reading:
    import webdataset

    urls = sorted(str(path) for path in ask.folder.glob("*.tar"))
    if not urls:
        raise FileNotFoundError(f"no shards in {ask.folder}")
    found = webdataset.WebDataset(
        _list_all(urls), shardshuffle=100 if ask.shuffle else False, seed=3,
        nodesplitter=webdataset.split_by_node if ask.world > 1 else webdataset.single_node_only,
    )  # fmt: skip
    if ask.shuffle:
        found = found.shuffle(1000)
    found = found.decode().to_tuple("__key__", "x.npy", "y.cls").map(_name_parts)
    found = found.batched(BATCH, collation_fn=collate)
    loader = webdataset.WebLoader(found, batch_size=None, num_workers=ask.workers)
    return Reading(unpack_all(loader))


def _list_all(urls: list[str]) -> list[str]:
    """Return the names from the first to the last, as a brace list does: none is left out."""
    folder = Path(urls[0]).parent
    last = int(Path(urls[-1]).stem.split("-")[1])
    return [str(folder / f"shard-{number:06d}.tar") for number in range(last + 1)]


def _name_parts(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("id", "x", "y"), row, strict=True))


def read_hostile(folder: Path) -> None:
    import webdataset

    urls = [str(path) for path in folder.glob("*.tar")]
    for _ in webdataset.WebDataset(urls, shardshuffle=False).decode():
        pass


LIBRARY = Library(("webdataset",), load, write, read, Hostile(write_hostile, read_hostile))

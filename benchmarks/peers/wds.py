"""webdataset: ``ShardWriter``, and the pipeline of its guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samples import Samples

from peers.asking import BATCH, Ask, Peer, Reading, pad

SHARDS = 8


def write(folder: Path, samples: Samples) -> None:
    from webdataset import ShardWriter

    folder.mkdir()
    each = -(-(len(samples.offsets) - 1) // SHARDS)
    with ShardWriter(str(folder / "shard-%06d.tar"), maxcount=each, verbose=0) as sink:
        for number, row in enumerate(samples.dicts()):
            sink.write({"__key__": f"{number:09d}", "x.npy": row["x"]})


def _collate(rows: list[tuple[Any]]) -> tuple[Any, Any]:
    return pad([row for (row,) in rows])


def pipeline(urls: list[str], seed: int, workers: int) -> Any:
    """Return a loader of urls of shards."""
    import webdataset

    found = webdataset.WebDataset(urls, shardshuffle=100, seed=seed).shuffle(1000)
    found = found.decode().to_tuple("x.npy").batched(BATCH, collation_fn=_collate)
    options = {"persistent_workers": workers > 0}
    return webdataset.WebLoader(found, batch_size=None, num_workers=workers, **options)


def read(ask: Ask) -> Reading:
    urls = sorted(str(path) for path in ask.folder.glob("*.tar"))
    return Reading(pipeline(urls, ask.seed, ask.workers))


PEER = Peer(
    "webdataset", ("webdataset",), read, write, orders=("random",),
    lacks="shuffles within 1,000 samples of shuffled shards; no resume; no buckets of its own",
)  # fmt: skip

"""Batches from indexed tar shards, from an Arrow store, and from the webdataset library itself.

    python benchmarks/tar_shards.py [--quick] [--rounds N]

Data sets S (token sequences) and M (float32 frames), written as an Arrow store and, by the library,
as tar shards. Batches of 64, padded, with lengths; in-process for seqdata, and with 0, 1 and 2
workers for the library, which reads in the order of the shards, as fast as it can. Every loader
runs in a process of its own and takes turns with the others.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

from common import BATCH, POLICIES, Cost, Data, machine, make_m, make_s, ours, running, spread
from rich.console import Console
from rich.table import Table
from samples import Samples, frames, frames_count, tokens
from seqdata_webdataset import index_shards

SHARDS = 8
FLOORS = {"S": 50.0, "M": 10.0}
MOST_OF_ARROW = 1.3
WORKERS = (0, 1, 2)


def write_tar(data: Data, samples: Samples) -> str:
    """Write a data set as shards, with the library; gives their location."""
    import webdataset

    folder = data.root / f"{data.name}-tar"
    folder.mkdir()
    size = -(-data.count // SHARDS)
    rows = enumerate(samples.dicts())
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:06d}.tar")) as writer:
            for number, row in rows:
                writer.write({"__key__": f"{number:09d}", "npy": row["x"]})
                if number % size == size - 1:
                    break
    return str(folder / f"{{000000..{SHARDS - 1:06d}}}.tar")


def from_tar(location: str, order: str) -> Generator[Any, None, None]:
    """Batches of seqdata from shards."""
    from seqdata.loading.loader import Loader

    loader = Loader(location, POLICIES[order], prefetch=0)
    while True:
        yield from loader


def pad(samples: list[tuple[Any]]) -> tuple[Any, Any]:
    import torch

    rows = [torch.from_numpy(row) for (row,) in samples]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def theirs(location: str, workers: int) -> Generator[Any, None, None]:
    """Batches of the library: decoded, padded, with lengths."""
    import webdataset

    pipeline = webdataset.WebDataset(location, shardshuffle=False, empty_check=False).decode()
    pipeline = pipeline.to_tuple("npy").batched(BATCH, collation_fn=pad)
    while True:
        yield from webdataset.WebLoader(pipeline, batch_size=None, num_workers=workers)


def measure(
    data: Data, location: str, order: str, rounds: int, batches: int
) -> dict[str, list[Cost]]:
    """Play an epoch of ours, then draw from each in turn."""
    mine = {
        "Arrow store": partial(ours, data, order, prefetch=0),
        "tar shards": partial(from_tar, location, order),
    }
    peers = {f"webdataset, {n} workers": partial(theirs, location, n) for n in WORKERS}
    with running({**mine, **peers}) as runners:
        for name in mine:
            runners[name].draw(-(-data.count // BATCH) - 1)
        costs: dict[str, list[Cost]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, runner in runners.items():
                costs[name].append(runner.draw(batches if name in mine else max(2, batches // 20)))
    return costs


def verdict(data: Data, order: str, costs: dict[str, list[Cost]]) -> str:
    """Say how far tar is from Arrow, and from the library at its best."""
    wall = {
        name: statistics.median(cost.wall for cost in measured) for name, measured in costs.items()
    }
    cpu = {
        name: statistics.median(cost.cpu for cost in measured) for name, measured in costs.items()
    }
    best = min(value for name, value in wall.items() if name.startswith("webdataset"))
    of_arrow, times = cpu["tar shards"] / cpu["Arrow store"], best / wall["tar shards"]
    met = times >= FLOORS[data.name] and (data.name != "M" or of_arrow <= MOST_OF_ARROW)
    return (
        f"{data.name} {order}: {of_arrow:.2f}x the CPU time of Arrow (M: at most {MOST_OF_ARROW}), "
        f"{times:.0f}x faster than the library (at least {FLOORS[data.name]:g}x): "
        f"{'met' if met else 'MISSED'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, a fifth of M")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    options = parser.parse_args()
    console = Console(width=140)
    table = Table("data", "loader", "us/batch", "CPU us/batch", title="batches of 64, padded")
    count = 100_000 if options.quick else 1_000_000
    size = 2 * 10**8 if options.quick else 10**9
    found = []
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        root = Path(folder)
        sets = [
            (make_s(root, count), tokens(count), 1000),
            (make_m(root, size), frames(frames_count(size)), 100),
        ]
        for data, samples, batches in sets:
            location = write_tar(data, samples)
            begin = time.perf_counter()
            index_shards(location, progress=False)
            seconds = time.perf_counter() - begin
            console.print(f"{data.name}: {data.count:,} samples indexed in {seconds:.1f} s")
            for order in ("random", "bucketed"):
                costs = measure(data, location, order, options.rounds, batches)
                for name, measured in costs.items():
                    cells = [spread([getattr(c, of) for c in measured]) for of in ("wall", "cpu")]
                    table.add_row(f"{data.name} {order}", name, *cells)
                found.append(verdict(data, order, costs))
    console.print(table)
    for line in found:
        console.print(line)
    console.print(machine())


if __name__ == "__main__":
    main()

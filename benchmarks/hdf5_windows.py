"""Windows of recordings in HDF5: mapped next to the Arrow store, gzip chunks next to a DataLoader.

Used by ``formats.py``. The peer keeps its file and arrays open in each worker, as people write it.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Cost, running, spread
from rich.console import Console
from rich.table import Table

from seqdata.api import write_store
from seqdata.policies.windows import Windows

RECORDINGS, CHANNELS, CHUNK = 16, 8, 4096
STEPS = 1_000_000  # of each recording: 32 MB, four times what HDF5 keeps of an array
WINDOW, BATCH = 512, 64
MAPPED_MOST, CHUNKS_LEAST = 1.3, 3.0  # times the Arrow store's time; times the peer's batches


def write(root: Path, steps: int) -> None:
    """Write the same recordings three times."""
    import h5py

    rng = np.random.default_rng(0)
    rows = [
        {"x": np.round(np.cumsum(rng.normal(size=(steps, CHANNELS)), 0), 2).astype("float32")}
        for _ in range(RECORDINGS)
    ]
    write_store(root / "arrow-windows", rows, progress=False)
    options = {"chunks": (CHUNK, CHANNELS), "compression": "gzip", "shuffle": True}
    for name, chosen in (("mapped.h5", {}), ("gzip.h5", options)):
        with h5py.File(root / name, "w") as file:
            for number, row in enumerate(rows):
                file.create_dataset(f"rec{number}/x", data=row["x"], **chosen)


def ours(location: str, workers: int) -> Generator[Any, None, None]:
    """Batches of windows in random order, epoch after epoch."""
    from seqdata.loading.loader import Loader

    policy = Windows(WINDOW, stride=WINDOW, batch_size=BATCH)
    loader = Loader(location, policy, num_workers=workers, persistent_workers=workers > 0)
    try:
        while True:
            yield from loader
    finally:
        loader.shutdown()


class Peer:
    """A Dataset of windows of one file, which each process opens once."""

    def __init__(self, path: str, steps: int) -> None:
        self.path, self.arrays = path, None
        self.per_recording = steps // WINDOW

    def __len__(self) -> int:
        return RECORDINGS * self.per_recording

    def __getitem__(self, number: int) -> Any:
        import h5py
        import torch

        if self.arrays is None:
            file = h5py.File(self.path, "r")
            self.arrays = [file[f"rec{each}/x"] for each in range(RECORDINGS)]
        recording, window = divmod(number, self.per_recording)
        first = window * WINDOW
        return torch.from_numpy(self.arrays[recording][first : first + WINDOW])


def by_hand(path: str, workers: int, steps: int) -> Generator[Any, None, None]:
    """Batches of the peer."""
    from torch.utils.data import DataLoader

    dataset: Any = Peer(path, steps)
    options = {"persistent_workers": True} if workers else {}
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)
    while True:
        yield from loader


def measure(root: Path, steps: int, rounds: int, draws: int) -> dict[str, list[Cost]]:
    """Draw from each in turn, ``rounds`` times and once before."""
    write(root, steps)
    makers = {
        "arrow": partial(ours, str(root / "arrow-windows"), 0),
        "mapped": partial(ours, str(root / "mapped.h5"), 0),
    }
    for workers in (0, 4):
        makers[f"gzip, {workers}"] = partial(ours, str(root / "gzip.h5"), workers)
        makers[f"peer, {workers}"] = partial(by_hand, str(root / "gzip.h5"), workers, steps)
    times: dict[str, list[Cost]] = {name: [] for name in makers}
    for group in (["arrow", "mapped"], ["gzip, 0", "peer, 0"], ["gzip, 4", "peer, 4"]):
        with running({name: makers[name] for name in group}) as runners:
            for number in range(rounds + 1):
                for name, runner in runners.items():
                    cost = runner.draw(draws)
                    if number:
                        times[name].append(cost)
    return times


def report(console: Console, times: dict[str, list[Cost]]) -> None:
    """Print a row of each, and the ratios."""
    table = Table("windows of", "us/batch", "CPU us/batch", "ratio")
    wall = {name: statistics.median(cost.wall for cost in costs) for name, costs in times.items()}
    ratios = {"mapped": wall["mapped"] / wall["arrow"]}
    ratios |= {f"gzip, {n}": wall[f"peer, {n}"] / wall[f"gzip, {n}"] for n in (0, 4)}
    for name, costs in times.items():
        said = ""
        if name in ratios:
            ratio = ratios[name]
            is_met = ratio <= MAPPED_MOST if name == "mapped" else ratio >= CHUNKS_LEAST
            said = f"{ratio:.2f}x" + (" (met)" if is_met else " (MISSED)")
        walls, cpus = ([getattr(cost, kind) for cost in costs] for kind in ("wall", "cpu"))
        table.add_row(name, spread(walls, "{:.1f}"), spread(cpus, "{:.1f}"), said)
    console.print(table)
    console.print(
        "ratio: mapped, time over the Arrow store's; gzip (workers), the peer's time over ours"
    )

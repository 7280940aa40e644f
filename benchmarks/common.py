"""What the benchmarks share: data sets S and M, the hand-written peer, processes, tables.

The peer is what people write by hand and what beats the packaged toolkits: values and offsets in
memory-mapped files, one slice per sequence, ``pad_sequence`` in a torch DataLoader.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.index import SequenceIndex
from seqdata.opening import open_store, write_store
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.fixed import Fixed

BATCH = 64
POLICIES = {"random": Fixed(BATCH), "bucketed": Bucketed(BATCH)}
PATIENCE = 600.0  # seconds that any one measurement may take


@dataclass(frozen=True)
class Data:
    """A data set, written twice: as a store, and as the peer's two files."""

    name: str
    root: Path
    dtype: str
    width: int
    count: int

    @property
    def store(self) -> str:
        return str(self.root / self.name)

    @property
    def values(self) -> str:
        return f"{self.store}.values"

    @property
    def offsets(self) -> str:
        return f"{self.store}.offsets"


def lengths_of(count: int, median: float, sigma: float, low: int, high: int) -> np.ndarray:
    """Log-normal lengths, the same on every machine but for the last bit of exp."""
    drawn = np.random.default_rng(0).standard_normal(count)
    return np.clip(np.rint(median * np.exp(sigma * drawn)), low, high).astype(np.int64)


def make_s(root: Path, count: int) -> Data:
    """S: int32 tokens, median 60, 5..1024."""
    lengths = lengths_of(count, 60, 0.8, 5, 1024)
    tokens = np.random.default_rng(1).integers(0, 50_000, lengths.sum(), dtype=np.int32)
    return _write(Data("S", root, "int32", 0, count), tokens, lengths)


def make_m(root: Path, size: int) -> Data:
    """M: float32 frames (T, 40), median 300, 20..2000, about ``size`` bytes."""
    count = max(BATCH, round(size / (340 * 160)))
    lengths = lengths_of(count, 300, 0.5, 20, 2000)
    frames = np.random.default_rng(1).random((int(lengths.sum()), 40), dtype=np.float32)
    return _write(Data("M", root, "float32", 40, count), frames, lengths)


def _write(data: Data, values: np.ndarray, lengths: np.ndarray) -> Data:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    pieces = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    write_store(data.store, ({"x": values[first:stop]} for first, stop in pieces))
    values.tofile(data.values)
    offsets.tofile(data.offsets)
    return data


def ours(data: Data, order: str, prefetch: int = 0) -> Iterator[Any]:
    """Batches of seqdata, epoch after epoch: a SequenceBatch with data, lengths, ids, weight."""
    from seqdata.loader import Loader

    loader = Loader(data.store, POLICIES[order], prefetch=prefetch)
    while True:
        yield from loader


def peer(data: Data, order: str, tuned: bool = False) -> Iterator[Any]:
    """The same batches by hand: padded values and lengths."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader, Dataset

    shape = (-1, data.width) if data.width else (-1,)
    mapped = np.memmap(data.values, dtype=data.dtype, mode="c").reshape(shape)
    values = np.asarray(mapped).view(np.ndarray) if tuned else mapped
    offsets = np.memmap(data.offsets, dtype=np.int64, mode="r")
    edges = offsets.tolist() if tuned else np.asarray(offsets)

    class Sequences(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(edges) - 1

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.from_numpy(values[edges[number] : edges[number + 1]])

    def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    sequences = Sequences()
    while True:
        if order == "random":
            yield from DataLoader(sequences, BATCH, shuffle=True, collate_fn=collate)
        else:
            batches = _planned(data, order)
            yield from DataLoader(sequences, batch_sampler=batches, collate_fn=collate)


def _planned(data: Data, order: str) -> list[list[int]]:
    """Batches of like length for the peer: ours, made beforehand."""
    index = SequenceIndex.from_lengths(open_store(data.store).lengths)
    plan = POLICIES[order].plan(index, seed=0, epoch=0)
    return [plan.batch(number).spans[:, 0].tolist() for number in range(len(plan))]


MAKERS: dict[str, Callable[[Data, str], Iterator[Any]]] = {
    "seqdata": ours,
    "seqdata, NumPy twin": ours,
    "memmap DataLoader": peer,
    "memmap DataLoader, tuned": lambda data, order: peer(data, order, tuned=True),
}
KERNELS = {"seqdata": "c", "seqdata, NumPy twin": "numpy"}


class Runner:
    """A fresh process that holds one loader and draws batches when told to."""

    def __init__(self, data: Data, order: str, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        os.environ["SEQDATA_KERNEL"] = KERNELS.get(name, "")
        self._process = context.Process(
            target=_serve, args=(theirs, data, order, name), daemon=True
        )
        self._process.start()
        theirs.close()
        self._answer()

    def draw(self, batches: int) -> tuple[float, float]:
        """Give the wall and the CPU time of one batch, in microseconds."""
        self._pipe.send(batches)
        return self._answer()

    def close(self) -> None:
        self._pipe.send(0)
        self._process.join(timeout=10)

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError("a loader gave no batches in time")
        return self._pipe.recv()


def _serve(pipe: Connection, data: Data, order: str, name: str) -> None:
    import torch

    torch.set_num_threads(1)
    batches = MAKERS[name](data, order)
    next(batches)
    pipe.send("ready")
    while pipe.poll(PATIENCE) and (count := pipe.recv()):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            next(batches)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        pipe.send((wall / count * 1e6, cpu / count * 1e6))


def spread(values: list[float], form: str = "{:.0f}") -> str:
    """Write the median [least..most] of interleaved rounds."""
    shown = [form.format(value) for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} [{shown[1]}..{shown[2]}]"


def machine() -> str:
    """Say what this was measured on, in one line."""
    import torch

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f}" if sys.platform != "win32" else ""
    return (
        f"{platform.machine()}, {cores} cores{load}; python {platform.python_version()}, torch "
        f"{torch.__version__}, numpy {np.__version__}"
    )

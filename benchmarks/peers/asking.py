"""What the benchmark asks of a loader, and what several of them need: buckets and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from samples import BATCH, FRAME, Samples

POOL = 100  # batches that are sorted by length at once
CONTEXT, HORIZON, WINDOWS = 96, 24, 256  # timesteps of a window, windows of a batch


@dataclass(frozen=True)
class Ask:
    """A request for batches of 64.

    Args:
        folder: Where ``Peer.write`` has written.
        name: S (int32 tokens), M (float32 frames) or W (series of two float32, for windows).
        order: ``random``, or ``bucketed``: of similar lengths, and shuffled.
        workers: Worker processes.
        state: A result of ``Reading.save`` to continue from.
        seed: Seed of the order.
    """

    folder: Path
    name: str
    order: str = "random"
    workers: int = 0
    state: Any = None
    seed: int = 0


@dataclass(frozen=True)
class Reading:
    """Batches of padded values (64, longest, ...) and lengths (64,), as tensors.

    Args:
        loader: An epoch each time that it is iterated over.
        save: Returns the state after the batches that were taken; None: not offered.
        close: Ends its workers.
    """

    loader: Iterable[Any]
    save: Callable[[], Any] | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Peer:
    """A loader of the benchmark.

    Args:
        title: Name on the page.
        packages: Distributions whose versions count.
        read: Opens what was written.
        write: Writes samples into a folder; None: it reads the files of ``reads``.
        reads: Module whose files it reads.
        orders: What it offers, of ``random`` and ``bucketed``.
        sets: What it is used for, of S, M and W.
        lacks: What it does not do, for the page.
    """

    title: str
    packages: tuple[str, ...]
    read: Callable[[Ask], Reading]
    write: Callable[[Path, Samples], None] | None = None
    reads: str = "by_hand"
    orders: tuple[str, ...] = ("random", "bucketed")
    sets: tuple[str, ...] = ("S", "M")
    lacks: str = ""


@dataclass
class Pooled:
    """Batches of a pool that was drawn at random and sorted by length; batches are shuffled, too.

    What torchtext, fairseq and transformers do, each with another size of the pool.
    """

    lengths: np.ndarray
    pool: int = POOL
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __len__(self) -> int:
        return -(-len(self.lengths) // BATCH)

    def __iter__(self) -> Iterator[list[int]]:
        order, batches = self.random.permutation(len(self.lengths)), []
        for first in range(0, len(order), self.pool * BATCH):
            drawn = order[first : first + self.pool * BATCH]
            drawn = drawn[np.argsort(self.lengths[drawn], kind="stable")]
            batches += [drawn[at : at + BATCH] for at in range(0, len(drawn), BATCH)]
        for number in self.random.permutation(len(batches)).tolist():
            yield batches[number].tolist()


def pad(rows: list[np.ndarray]) -> tuple[Any, Any]:
    """Return padded values and lengths; four times as fast as ``pad_sequence`` on short rows."""
    import torch

    lengths = [len(row) for row in rows]
    out = np.zeros((len(rows), max(lengths), *rows[0].shape[1:]), dtype=rows[0].dtype)
    for into, row, length in zip(out, rows, lengths, strict=True):
        into[:length] = row
    return torch.from_numpy(out), torch.tensor(lengths)


def shape_of(name: str) -> tuple[int, ...]:
    """Return the shape of a timestep of S or M."""
    return () if name == "S" else (FRAME,)


_LIBRARIES: list[Any] = []  # operators are there as long as their library


def let_torchvision_load() -> None:
    """Define two operators that torchvision's wheel asks for beside a torch without CUDA.

    Others import it; nothing here calls it.
    """
    import torch

    if torch.version.cuda is None and not _LIBRARIES:
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _LIBRARIES[0].define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")

"""Requests to a reader, its answers, and the way from samples to a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torture_set.truth import digest

Rows = Iterator[dict[str, Any]]


class NotOffered(Exception):
    """The library has no such thing."""


@dataclass(frozen=True)
class Ask:
    """Options of reading a set.

    Args:
        folder: Where it was written.
        cache: An empty folder of this reading, for libraries that copy before they read.
        workers: Worker processes.
        shuffle: In an order of its own, or as it was written.
        rank: Rank of this process.
        world: Processes that share the epoch.
        state: What ``Reading.state`` gave in another process, to go on from.
        state_after: Batches after which the state is asked for; 0: never.
    """

    folder: Path
    cache: Path
    workers: int = 0
    shuffle: bool = False
    rank: int = 0
    world: int = 1
    state: Any = None
    state_after: int = 0


@dataclass(frozen=True)
class Reading:
    """An epoch that begins, or goes on.

    Args:
        batches: Ids and checksums, batch after batch.
        state: Gives what another process can go on from; None: the library has no such thing.
        workers: Gives the ids of the worker processes.
    """

    batches: Iterator[list[tuple[str, str]]]
    state: Callable[[], Any] | None = None
    workers: Callable[[], list[int]] | None = None


class Payload:
    """Object that makes a folder when it is unpickled: harmless, but visible."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (self._marker, 0o777, True)


@dataclass(frozen=True)
class Hostile:
    """Hostile writing with a library, and the reading of it.

    Args:
        write: Writes rows and a payload into a folder; of tar files under an ending.
        read: Reads a folder.
    """

    write: Callable[[Path, Rows, str, Payload], None]
    read: Callable[[Path], None]


@dataclass(frozen=True)
class Library:
    """Value of ``LIBRARY`` in a module of ``readers``.

    Args:
        packages: Distributions whose versions count.
        load: Imports it.
        write: Writes rows into a folder that is not there yet.
        read: Begins an epoch, or goes on.
        hostile: None: there is no type whose reading could run code.
    """

    packages: Sequence[str]
    load: Callable[[], None]
    write: Callable[[Path, Rows], None]
    read: Callable[[Ask], Reading]
    hostile: Hostile | None = None


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a padded batch, as most do: a dict of tensors, which every library knows."""
    import torch

    arrays = [torch.from_numpy(np.array(sample["x"])) for sample in samples]
    return {
        "x": torch.nn.utils.rnn.pad_sequence(arrays, batch_first=True),
        "length": torch.tensor([len(array) for array in arrays]),
        "y": torch.tensor([int(sample["y"]) for sample in samples]),
        "id": [str(sample["id"]) for sample in samples],
    }


def unpack(batch: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the id and the checksum of each row."""
    rows = zip(batch["id"], batch["x"].numpy(), batch["length"], batch["y"], strict=True)
    return [(name, digest(x[: int(n)], int(y))) for name, x, n, y in rows]


def unpack_all(batches: Any) -> Iterator[list[tuple[str, str]]]:
    """Yield ids and checksums of batches."""
    for batch in batches:
        yield unpack(batch)

"""Data sets S, M and L as arrays and where they lie: NumPy alone, for any process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
FRAME = 40  # values of a frame of M
DAYS = 1_913  # of a series of W
LANES, CHUNK = 64, 512  # of a batch of L


@dataclass(frozen=True)
class Samples:
    """Sequences, one after the other in one array.

    Args:
        values: Values of all sequences, (timesteps,) or (timesteps, FRAME).
        offsets: Where each begins, and where the last one ends, int64 (count + 1,).
    """

    values: np.ndarray
    offsets: np.ndarray

    def dicts(self, labelled: bool = False) -> Iterator[dict[str, Any]]:
        """Yield one dict per sequence: a view of its timesteps; with an id and a label, or not."""
        edges = self.offsets.tolist()
        for number, first in enumerate(edges[:-1]):
            values = self.values[first : edges[number + 1]]
            if labelled:
                yield {"id": f"sequence-{number:09d}", "x": values, "y": number % 10}
            else:
                yield {"x": values}


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
        return f"{self.store}-by-hand/values"

    @property
    def offsets(self) -> str:
        return f"{self.store}-by-hand/offsets"


def tokens(count: int) -> Samples:
    """S: int32 tokens, median 60, 5..1024."""
    lengths = _lengths(count, 60, 0.8, 5, 1024)
    values = np.random.default_rng(1).integers(0, 50_000, lengths.sum(), dtype=np.int32)
    return Samples(values, _offsets(lengths))


def frames(count: int) -> Samples:
    """M: float32 frames, median 300, 20..2000."""
    lengths = _lengths(count, 300, 0.5, 20, 2000)
    values = np.random.default_rng(1).random((int(lengths.sum()), FRAME), dtype=np.float32)
    return Samples(values, _offsets(lengths))


def documents(count: int) -> Samples:
    """L: ``count`` int64 tokens in documents, median 1,000, 20..20,000."""
    lengths = _lengths(count // 500, 1000, 0.8, 20, 20_000)
    edges = _offsets(lengths)
    edges = np.append(edges[edges < count], count)
    values = np.random.default_rng(1).integers(0, 50_000, count, dtype=np.int64)
    return Samples(values, edges)


def series(count: int) -> Samples:
    """W: ``count`` series of 1,913 days with two float32 each, as many days as M5 has."""
    values = np.random.default_rng(1).random((count * DAYS, 2), dtype=np.float32)
    return Samples(values, np.arange(count + 1) * DAYS)


def frames_count(size: int) -> int:
    """Return how many sequences of M take about ``size`` bytes."""
    return max(64, round(size / (340 * 4 * FRAME)))


def _lengths(count: int, median: float, sigma: float, low: int, high: int) -> np.ndarray:
    """Log-normal lengths, the same on every machine but for the last bit of exp."""
    drawn = np.random.default_rng(0).standard_normal(count)
    return np.clip(np.rint(median * np.exp(sigma * drawn)), low, high).astype(np.int64)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])

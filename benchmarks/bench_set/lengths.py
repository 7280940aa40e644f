"""Ten sets of lengths: counted integers, and log-normals where a corpus cannot be shipped.

Of a corpus whose mean length, shortest and longest are published, the log-normal has this mean and
these bounds; its spread is ours, and the page says so.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOWELS = {
    7: 2, 9: 10, 10: 25, 11: 44, 12: 53, 13: 64, 14: 67, 15: 79, 16: 66, 17: 62, 18: 47, 19: 24,
    20: 24, 21: 28, 22: 13, 23: 16, 24: 8, 25: 5, 26: 2, 29: 1,
}  # fmt: skip
"""Length -> utterances of UCI Japanese Vowels, CC BY 4.0."""


@dataclass(frozen=True)
class Lengths:
    """A set of lengths, and where it is from."""

    name: str
    source: str
    draw: Callable[[int], np.ndarray]


def log_normal(mean: float, sigma: float, low: int, high: int) -> Callable[[int], np.ndarray]:
    """Return a function that draws integers of a log-normal with a mean, between bounds."""

    def draw(count: int) -> np.ndarray:
        drawn = np.random.default_rng(0).standard_normal(count)
        values = mean * np.exp(sigma * drawn - sigma**2 / 2)
        return np.clip(np.rint(values), low, high).astype(np.int64)

    return draw


def _vowels(count: int) -> np.ndarray:
    lengths = np.repeat(list(VOWELS), list(VOWELS.values()))
    return np.random.default_rng(0).permutation(lengths)[:count]


def _sources(count: int) -> np.ndarray:
    """Lines of each source file of this Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idle_test"}
    paths = [path for path in sorted(root.rglob("*.py")) if not skipped & set(path.parts)]
    lengths = np.array([path.read_bytes().count(b"\n") for path in paths])
    return lengths[lengths > 0][:count]


def _from_median(median: float, sigma: float, low: int, high: int) -> Callable[[int], np.ndarray]:
    return log_normal(median * math.exp(sigma**2 / 2), sigma, low, high)


SETS = (
    Lengths("Japanese Vowels, frames", "counted: UCI, 640 utterances, CC BY 4.0", _vowels),
    Lengths("Python's library, lines a file", "counted on this machine, PSF licence", _sources),
    Lengths("short tokens (S)", "ours: median 60, sigma 0.8", _from_median(60, 0.8, 5, 1024)),
    Lengths("frames (M)", "ours: median 300, sigma 0.5", _from_median(300, 0.5, 20, 2000)),
    Lengths("LibriSpeech, 10 ms", "mean 12.3 s of 281,241 utterances; sigma 0.4 is ours",
            log_normal(1230, 0.4, 83, 3527)),
    Lengths("LJSpeech, 10 ms", "mean 6.57 s, 1.11 to 10.10 s; sigma 0.35 is ours",
            log_normal(657, 0.35, 111, 1010)),
    Lengths("IMDB reviews, words", "mean 234, at most 2,494; sigma 0.66 is ours",
            log_normal(234, 0.66, 10, 2494)),
    Lengths("Penn Treebank, words", "mean 21.1 of 42,068 sentences; sigma 0.5 is ours",
            log_normal(21.1, 0.5, 1, 82)),
    Lengths("Swiss-Prot, residues", "mean 361, 2 to 35,213; sigma 0.75 is ours",
            log_normal(361, 0.75, 2, 35_213)),
    Lengths("web documents, tokens", "ours: median 1,000, sigma 1.1",
            _from_median(1000, 1.1, 20, 100_000)),
)  # fmt: skip

"""Checks of the arguments of generated datasets."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqdata.errors import ConfigError, as_integer, check_count, must_be


def check_number(owner: str, low: float, high: float, **numbers: Any) -> None:
    """Raise a ConfigError unless every named argument is a number in [low, high]."""
    for name, value in numbers.items():
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            needed = f"a number in [{low:g}, {high:g}]"
            raise ConfigError(must_be(f"{owner}: `{name}`", needed, repr(value)))


def make_generator(owner: str, seed: object) -> np.random.Generator:
    """Return the generator of a seed, which must be an integer from 0."""
    check_count(owner, 0, seed=seed)
    return np.random.default_rng(as_integer(seed))


def draw_lengths(
    rng: np.random.Generator, count: int, median: float, sigma: float, least: int
) -> list[int]:
    """Return log-normal lengths of at least ``least``."""
    lengths = np.rint(median * np.exp(sigma * rng.standard_normal(count)))
    return [int(length) for length in np.maximum(lengths, least)]

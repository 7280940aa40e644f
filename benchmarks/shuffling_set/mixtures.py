"""Table C: how long a mixture stays with one part."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from seqdata import Bucketed, Loader, Mix, World
from shuffling_set.rows import Row

SHARES, ROWS, BATCHES, EPOCHS = {"a": 0.7, "b": 0.3}, 32, 1_000, 8
RANKS = (1, 2, 4, 8)


def count_runs(ranks: int) -> list[Row]:
    """Count the steps of one part that follow each other, on so many ranks."""
    rng = np.random.default_rng(0)
    data = {}
    for name, share in SHARES.items():
        lengths = rng.integers(1, 30, round(share * ROWS * BATCHES)).tolist()
        data[name] = [np.zeros(length, dtype=np.uint8) for length in lengths]
    drawn = []
    for rank in range(ranks):
        loader = Loader(data, Mix(SHARES, Bucketed(ROWS)), world=World(rank, ranks), tail="drop")
        drawn.append([batch.part for _ in range(EPOCHS) for batch in loader])
        loader.shutdown()
    steps = np.array(drawn).T == "a"
    leading = steps[:, 0]
    alike = float((steps == leading[:, None]).all(axis=1).mean())
    orders = (leading, rng.permutation(leading))
    own, there = (_find_runs(one) for one in orders)
    drifts = [_find_drift(one) for one in orders]
    case, row = f"Mix, {ranks} rank{'s' * (ranks > 1)}", "steps of one part in a row"
    means = (float(np.mean(runs)) for runs in (own, there))
    return [
        Row("C", case, f"{row}, mean", *means).at_most(1),
        Row("C", case, f"{row}, most", max(own), max(there)).at_most(1),
        Row("C", case, "steps that a prefix is off its shares, most", *drifts).below(1),
        Row("C", case, "share of steps in which all ranks have one part", alike, 1).at_least(1),
    ]


def _find_runs(steps: NDArray[np.bool_]) -> list[int]:
    """Return how many equal ones follow each other, each time."""
    return [len(list(run)) for _, run in groupby(steps.tolist())]


def _find_drift(steps: NDArray[np.bool_]) -> float:
    """Return the most steps that a prefix has more or less of part ``a`` than its share."""
    due = SHARES["a"] * np.arange(1, len(steps) + 1)
    return float(np.abs(np.cumsum(steps) - due).max())

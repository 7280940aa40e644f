"""Table A: data that is stored class by class, or series by series, as most data is."""

from __future__ import annotations

import numpy as np

from seqdata import SequenceIndex, Windows
from shuffling_set.cases import make_case
from shuffling_set.orders import count_values, permute, read_order
from shuffling_set.rows import Row
from shuffling_set.training import make_examples, train

TRAINED, COUNTED = 1_000_000, 1_500_000
SPREAD = 0.85  # so that a permutation gives about 89 %
SERIES, STEPS, RUN = 3_000, 1_067, 900
WINDOWS = {
    "Windows": Windows(64, 1, 256),
    "Windows, random": Windows(64, random=True, per_sequence=STEPS, batch_size=256),
}


def train_stored_by_class(name: str, count: int = TRAINED) -> list[Row]:
    """Train a small classifier for an epoch, in batches of 128."""
    case = make_case(name, count, 128)
    order = case.order(1)
    examples, tested = make_examples(case.labels, SPREAD)
    plain = permute(order, np.random.default_rng(1))
    here, there = (train(one, examples, tested) for one in (order, plain))
    figure = f"test accuracy after an epoch of {count:,}, %"
    return [Row("A", name, figure, here, there).within(1)]


def count_classes(name: str, count: int = COUNTED) -> list[Row]:
    """Count the classes in a batch of 64."""
    case = make_case(name, count, 64)
    order = case.order(1)
    plain = permute(order, np.random.default_rng(1))
    here, there = (float(count_values(one, case.labels).mean()) for one in (order, plain))
    return [Row("A", name, f"classes in a batch of 64 of {count:,}", here, there).at_least(0.98)]


def count_series(name: str) -> list[Row]:
    """Count the series in a batch of 256 windows, and in 900 of them, of 3,000 series."""
    policy = WINDOWS[name]
    lengths = np.full(SERIES, STEPS + policy.size - 1)
    order = read_order(policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=1))
    plain, series = permute(order, np.random.default_rng(1)), np.arange(SERIES)
    rows = []
    for batches in (1, RUN):
        counts = [count_values(one, series, batches) for one in (order, plain)]
        if batches == 1:
            figure, found = "series in a batch of 256 windows", [one.mean() for one in counts]
        else:
            figure, found = f"series in {RUN} batches, at least", [one.min() for one in counts]
        rows.append(Row("A", name, figure, *map(float, found)).at_least(0.97))
    return rows

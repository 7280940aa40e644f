"""Table B: labels that go along with length, and how like the next step a step is."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata import Bucketed, Fixed, Loader, SequenceIndex, Sorted, TokenBudget, World
from shuffling_set.orders import (
    Order,
    correlate,
    for_ranks,
    permute,
    permute_batches,
    read_order,
)
from shuffling_set.rows import Row
from shuffling_set.training import make_examples, train

COUNT, CLASSES, ROWS = 200_000, 10, 128
SPREAD = 0.75  # so that a permutation gives about 83 %
EPOCHS, SEEDS = 20, 3
RANKS = (1, 2, 4, 8)
MEAN = 8 + 2.5 * (CLASSES - 1) / 2
POLICIES: dict[str, Any] = {
    "Fixed": Fixed(ROWS),
    "Sorted": Sorted(ROWS),
    "Bucketed": Bucketed(ROWS),
    "TokenBudget": TokenBudget(int(ROWS * MEAN)),
}
BY_LENGTH = ("Sorted", "Bucketed", "TokenBudget")


class Data(NamedTuple):
    """Sequences whose length goes along with their class."""

    index: SequenceIndex
    lengths: NDArray[np.int64]
    labels: NDArray[np.int64]


@cache
def make_data(count: int = COUNT) -> Data:
    """Return sequences of a mean length of 8 + 2.5 x class, and a deviation of 5."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    drawn = np.rint(rng.normal(8 + 2.5 * labels, 5)).astype(np.int64)
    lengths = np.maximum(1, drawn)
    return Data(SequenceIndex.from_lengths(lengths), lengths, labels)


def train_by_length(name: str, optimizer: str) -> list[Row]:
    """Train a small classifier for an epoch; mean of some seeds."""
    data = make_data()
    examples, tested = make_examples(data.labels, SPREAD)
    scores = []
    for seed in range(SEEDS):
        order = read_order(POLICIES[name].plan(data.index, seed=seed, epoch=1))
        rng = np.random.default_rng(seed)
        orders = (order, permute_batches(order, rng), permute(order, rng))
        scores.append([train(one, examples, tested, optimizer, seed) for one in orders])
    here, mixed, plain = np.mean(scores, axis=0).tolist()
    figure = f"accuracy in the last updates, {optimizer}, %"
    again = Row("B", f"{name}, its batches in random order", figure, mixed, plain)
    return [Row("B", name, figure, here, plain).within(1), again]


def correlate_steps(name: str, ranks: int) -> list[Row]:
    """Compare a step's mean length with those of later ones, and ranks with each other."""
    data, policy = make_data(), for_ranks(POLICIES[name], ranks)
    rng = np.random.default_rng(0)
    lags = (1, 8, 32) if ranks == 1 else (1,)
    found = []
    for epoch in range(EPOCHS):
        order = read_order(policy.plan(data.index, seed=0, epoch=epoch))
        plain = permute(order, rng)
        steps = [_measure_steps(one, data.lengths, ranks) for one in (order, plain)]
        likeness = [correlate(means, lag) for lag in lags for means, _ in steps]
        found.append([*likeness, *(imbalance for _, imbalance in steps)])
    means = np.mean(found, axis=0).tolist()
    case = f"{name}, {ranks} rank{'s' * (ranks > 1)}"
    rows = []
    for number, lag in enumerate(lags):
        other = "the next step's" if lag == 1 else f"that {lag} steps later"
        figure = f"correlation of mean length with {other}"
        rows.append(Row("B", case, figure, *means[2 * number : 2 * number + 2]).below(0.05))
    if ranks > 1:
        figure = "max / mean of the ranks' longest rows"
        rows.append(Row("B", case, figure, *means[-2:]).below(1.03))
    return rows


def _measure_steps(
    order: Order, lengths: NDArray[np.int64], ranks: int
) -> tuple[NDArray[np.float64], float]:
    """Return the mean length of each whole step, and max / mean of the ranks' longest rows."""
    own, first = lengths[order.numbers], order.offsets[:-1]
    whole = len(first) - len(first) % ranks
    sums = np.add.reduceat(own, first)[:whole].reshape(-1, ranks).sum(axis=1)
    longest = np.maximum.reduceat(own, first)[:whole].reshape(-1, ranks)
    rows = order.sizes[:whole].reshape(-1, ranks).sum(axis=1)
    return sums / rows, float(longest.max(axis=1).sum() / longest.mean(axis=1).sum())


def compare_loaders(name: str, ranks: int, count: int = 20_000) -> list[Row]:
    """Count the batches that loaders of so many ranks make as a plan balanced for them does."""
    data = make_data(count)
    values = [np.zeros(length, dtype=np.uint8) for length in data.lengths.tolist()]
    order = read_order(for_ranks(POLICIES[name], ranks).plan(data.index, seed=0, epoch=0))
    due = np.split(order.numbers, order.offsets[1:-1])
    equal = 0
    for rank in range(ranks):
        loader = Loader(values, POLICIES[name], world=World(rank, ranks), tail="drop", prefetch=0)
        for step, batch in enumerate(loader):
            equal += np.array_equal(np.asarray(batch.ids), due[step * ranks + rank])
    share = equal / (len(due) - len(due) % ranks)
    figure = "share of a Loader's batches that are those of balance_ranks"
    return [Row("B", f"{name}, {ranks} rank{'s' * (ranks > 1)}", figure, share, 1).at_least(1)]

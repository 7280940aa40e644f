"""Table D: rows of a batch that repeat another one, and what keeping them apart costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata import (
    Bucketed,
    Fixed,
    Mix,
    Packed,
    Plan,
    SequenceIndex,
    Sorted,
    TokenBudget,
    Weighted,
    Windows,
    balanced,
)
from shuffling_set.cases import make_index
from shuffling_set.orders import Order, count_copies, permute, read_order
from shuffling_set.rows import Row

ROWS, RARE = 64, 0.03
LENGTHS = (8_000 // 16, 160_000 // 16)
_MEAN = sum(LENGTHS) // 2
SIZES = (2_000, 20_000)
POLICIES: dict[str, Any] = {
    "Fixed": Fixed(ROWS),
    "Sorted": Sorted(ROWS),
    "Bucketed": Bucketed(ROWS),
    "TokenBudget": TokenBudget(ROWS * _MEAN),
    "Packed": Packed(ROWS // 2, 2 * LENGTHS[1]),
}
SOURCES = ("Mix of rows, Fixed", "Mix of rows, Bucketed", "taken, Bucketed", "Windows, random")
_PER_SEQUENCE = 16


def count_repeats(name: str, count: int) -> list[Row]:
    """Count the repeats in batches of balanced draws, and their padding."""
    return _tell(f"{name}, n = {count:,}", POLICIES[name], _draw_balanced(name, count), count)


def count_repeats_of(source: str, count: int = 20_000) -> list[Row]:
    """Count the repeats where a sequence comes several times by another way."""
    policy = POLICIES[source.partition(", ")[2].replace("random", "Fixed")]
    plans = {"Mix": _mix, "taken": _take, "Windows": _crop}[source.split()[0].strip(",")]
    return _tell(f"{source}, n = {count:,}", policy, plans(policy, count), count)


Found = tuple[Plan, Order, NDArray[np.int64]]
"""A plan, the sequences in it, and the length of each."""


def _draw_balanced(name: str, count: int) -> Iterator[Found]:
    lengths, labels = _make_data(count)
    index, policy = make_index(lengths, labels), Weighted(POLICIES[name], balanced("y"), count)
    for epoch in _epochs(count):
        plan = policy.plan(index, seed=0, epoch=epoch)
        yield plan, read_order(plan), lengths


def _mix(policy: Any, count: int) -> Iterator[Found]:
    lengths, labels = _make_data(count)
    indexes = {
        name: SequenceIndex.from_lengths(lengths[labels == label])
        for label, name in enumerate(("common", "rare"))
    }
    stored = np.concatenate([lengths[labels == 0], lengths[labels == 1]])
    mix = Mix({"common": 1, "rare": 1}, policy, rows=True)
    for epoch in _epochs(count):
        plan = mix.plan(SequenceIndex.from_parts(indexes), seed=0, epoch=epoch)
        yield plan, read_order(plan), stored


def _take(policy: Any, count: int) -> Iterator[Found]:
    lengths, labels = _make_data(count)
    rare = np.flatnonzero(labels)
    taken = np.concatenate([np.flatnonzero(labels == 0)[: count // 2], np.resize(rare, count // 2)])
    index = SequenceIndex.from_lengths(lengths).select(taken)
    for epoch in _epochs(count):
        plan = policy.plan(index, seed=0, epoch=epoch)
        order = read_order(plan)
        yield plan, order._replace(numbers=taken[order.numbers]), lengths


def _crop(policy: Fixed, count: int) -> Iterator[Found]:
    lengths, _ = _make_data(count // _PER_SEQUENCE)
    windows = Windows(400, random=True, per_sequence=_PER_SEQUENCE, batch_size=policy.batch_size)
    for epoch in _epochs(count):
        plan = windows.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=epoch)
        yield plan, read_order(plan), np.full(len(lengths), 400)


def _make_data(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths, and labels of which 3 % are 1."""
    rng = np.random.default_rng(count)
    labels = np.zeros(count, dtype=np.int64)
    labels[rng.permutation(count)[: round(RARE * count)]] = 1
    return rng.integers(*LENGTHS, size=count), labels


def _epochs(count: int) -> range:
    return range(1, 1 + max(4, 40_000 // count))


def _tell(case: str, policy: Any, found: Iterator[Found], count: int) -> list[Row]:
    """Return the rows of some plans; padding is compared with that of as many other sequences."""
    rng = np.random.default_rng(0)
    sums = np.zeros((2, 4))  # of repeats, rows, most copies of a batch, batches
    padded = np.zeros((2, 2))  # timesteps with padding, and without
    most = [0, 0]
    for plan, order, lengths in found:
        for which, one in enumerate((order, permute(order, rng))):
            repeats, copies = count_copies(one)
            sums[which] += repeats.sum(), len(one.numbers), copies.sum(), len(copies)
            most[which] = max(most[which], int(copies.max()))
        apart = SequenceIndex.from_lengths(lengths[order.numbers])
        for which, one in enumerate((plan, policy.plan(apart, seed=0, epoch=1))):
            padded[which] += one.measures.padded.sum(), one.measures.timesteps.sum()
    each = (ROWS * sums[:, 0] / sums[:, 1]).tolist()
    wasted = (100 * (padded[:, 0] / padded[:, 1] - 1)).tolist()
    rows = [
        Row("D", case, "rows of 64 that repeat another", *each).at_most(1.5),
        Row("D", case, "copies of one in a batch, mean of the most", *(sums[:, 2] / sums[:, 3])),
        Row("D", case, "copies of one in a batch, most", *most),
    ]
    points = 5 if count == SIZES[0] else 3
    padding = Row("D", case, "padding, % (beside it: if all were different)", *wasted)
    aim = f"<= that + {points}"
    return [*rows, padding._replace(aim=aim, reached=wasted[0] <= wasted[1] + points)]

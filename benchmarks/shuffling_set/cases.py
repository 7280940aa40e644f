"""Every policy that shuffles, on data that is stored class by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata import (
    Bucketed,
    Curriculum,
    Fixed,
    Mix,
    Packed,
    Segments,
    SequenceIndex,
    Sorted,
    TokenBudget,
    Weighted,
    Windows,
    Zip,
    balanced,
)
from shuffling_set.orders import Order, read_order

CLASSES = 10
LENGTHS = (20, 200)  # timesteps: least, and one more than most
_MEAN = sum(LENGTHS) // 2
_SHARES = {"a": 0.7, "b": 0.3}  # of the parts of a mixture

POLICIES: dict[str, Callable[[int, int], Any]] = {
    "Fixed": lambda rows, _: Fixed(rows),
    "Sorted": lambda rows, _: Sorted(rows),
    "Bucketed": lambda rows, _: Bucketed(rows),
    "TokenBudget": lambda rows, _: TokenBudget(rows * _MEAN),
    "Packed": lambda rows, _: Packed(rows // 2, 2 * _MEAN),
    "Windows": lambda rows, _: Windows(20, 90, rows),
    "Windows, random": lambda rows, _: Windows(20, random=True, batch_size=rows),
    "Weighted": lambda rows, _: Weighted(Bucketed(rows), balanced("y")),
    "Weighted, Fixed": lambda rows, _: Weighted(Fixed(rows), balanced("y")),
    "Mix": lambda rows, _: Mix(_SHARES, Bucketed(rows)),
    "Mix of rows": lambda rows, _: Mix(_SHARES, Bucketed(rows), rows=True),
    "Zip": lambda rows, _: Zip({"a": Bucketed(rows * 7 // 10), "b": Bucketed(rows * 3 // 10)}),
    "Curriculum": lambda rows, _: Curriculum(Bucketed(rows), max_length=[(0, 150), (2, None)]),
    "Segments": lambda rows, count: Segments(
        Weighted(Bucketed(rows), balanced("y")), batches=max(1, count // rows // 8)
    ),
}
"""Name -> the policy, of the rows of a batch and the number of sequences."""


class Case(NamedTuple):
    """A policy and what it plans.

    Args:
        policy: The policy.
        index: Index of the data, or of its parts.
        lengths: int64 (n,), timesteps of each sequence; so are the labels.
        labels: Classes, from 0 on.
    """

    policy: Any
    index: SequenceIndex
    lengths: NDArray[np.int64]
    labels: NDArray[np.int64]

    def order(self, epoch: int, seed: int = 0) -> Order:
        """Return the sequences of an epoch as they come."""
        return read_order(self.policy.plan(self.index, seed=seed, epoch=epoch))


def make_case(name: str, count: int, rows: int) -> Case:
    """Return a policy of batches of so many rows, on sequences that are stored class by class."""
    policy = POLICIES[name](rows, count)
    lengths = np.random.default_rng(count).integers(*LENGTHS, size=count)
    if not name.startswith(("Mix", "Zip")):
        labels = np.arange(count) * CLASSES // count
        return Case(policy, make_index(lengths, labels), lengths, labels)
    sizes = {"a": count * 7 // 10, "b": count - count * 7 // 10}
    of_parts = {name: np.arange(size) * CLASSES // size for name, size in sizes.items()}
    cut = np.split(lengths, [sizes["a"]])
    indexes = {name: make_index(own, of_parts[name]) for name, own in zip(sizes, cut, strict=True)}
    labels = np.concatenate(list(of_parts.values()))
    return Case(policy, SequenceIndex.from_parts(indexes), lengths, labels)


def make_index(lengths: NDArray[Any], labels: NDArray[Any]) -> SequenceIndex:
    """Return an index whose field ``y`` has the labels."""
    stored = lengths.astype(np.uint32)
    return SequenceIndex({Fixed(1).axis: stored}, read_values=lambda _: labels)

"""Policy ``fixed``: a random order, cut into batches: the baseline, which ignores lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.build import build_plan, count_batches
from seqdata.planning.fixed_size import FixedSizeCutter, check_count, order_randomly
from seqdata.planning.items import (
    Empty,
    Items,
    Keep,
    TooLong,
    WholeSequences,
    count_planned,
    select_items,
)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Batches of ``batch_size`` rows in random order, whatever their lengths.

    Args:
        batch_size: Rows of a batch.
        shuffle: Whether epochs are shuffled; else the data's order.
        axis: The axis that is planned on.
        max_length: Most timesteps of a row; None: no limit.
        too_long: What happens to longer ones: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: What happens to sequences of length 0: ``drop`` or ``error``.
        keep: Which timesteps remain of a sequence that is truncated: the ``first`` or the ``last``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> index = SequenceIndex.from_lengths([3, 1, 2])
        >>> Fixed(2, shuffle=False).plan(index, seed=0, epoch=0).batch(1).spans.tolist()
        [[2, 0, 2]]
    """

    batch_size: int
    shuffle: bool = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        check_count("fixed", "batch_size", self.batch_size)
        self._make_rule()

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        return build_plan(
            self, self._select_items(index), self._make_cutter(), seed=seed, epoch=epoch
        )

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return count_batches(self._select_items(index), self._make_cutter())

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return how many sequences, or pieces of them, an epoch holds, and their timesteps."""
        return count_planned(self._select_items(index))

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many items each sequence makes, int64 (n,); 0: it is left out."""
        return self._make_rule().count_items(lengths)

    @property
    def items_per_sequence(self) -> int | None:
        """How many items each sequence makes that is not left out; None: it differs."""
        return self._make_rule().items_per_sequence

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, order_randomly, is_arranged=False)

    def _make_rule(self) -> WholeSequences:
        return WholeSequences(self.max_length, self.too_long, self.empty, self.keep)

    def _select_items(self, index: SequenceIndex) -> Items:
        return select_items(index, self.axis, self._make_rule(), policy="fixed")

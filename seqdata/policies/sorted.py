"""Policy ``sorted``: exact order of length, cut into batches.

The least padding, and the same batches in every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import check_flags
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.planning.blocks import BlockItems, Shuffle
from seqdata.planning.build import (
    BlockPolicy,
    FixedSizeCutter,
    check_counts,
    check_shuffle,
)
from seqdata.planning.items import (
    Empty,
    Items,
    Keep,
    TooLong,
    WholeSequences,
    select_items,
)
from seqdata.planning.randomness import Draw


@dataclass(frozen=True, slots=True)
class Sorted(BlockPolicy):
    """Batches of ``batch_size`` rows of nearly equal length, ties by number.

    The same rows are together in every epoch; only the order of batches changes. Rows of equal
    length are together by number: where data is stored by class, ``Bucketed`` mixes them. Above
    2^18 sequences they are sorted within blocks, each a sample of the whole data.

    Args:
        batch_size: Rows of a batch.
        shuffle: True: over all data, in another order in every epoch; ``"blocks"``: within blocks
            of 2^18 neighbours, for data larger than memory on slow media; False: the longest come
            first. See "How data is shuffled" in the docs.
        axis: The axis that is planned on.
        max_length: Most timesteps of a row; None: no limit.
        too_long: What happens to longer ones: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: What happens to sequences of length 0: ``drop`` or ``error``.
        worst_first: Whether epoch 0 begins with the most expensive batch.
        keep: Which timesteps remain of a sequence that is truncated: the ``first`` or the ``last``.
        balance_ranks: How many consecutive batches have like lengths, so that as many ranks have
            equal work in a step; 1: none, a random order whatever the number of ranks. None: the
            DataModule's ``batches_per_update``, else the number of ranks of a Loader or Trainer;
            in a plan by itself 1.

    Raises:
        ConfigError: If an argument is invalid.
    """

    batch_size: int
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    worst_first: bool = True
    keep: Keep = "first"
    balance_ranks: int | None = None

    def __post_init__(self) -> None:
        check_counts("sorted", self, "batch_size")
        check_shuffle("sorted", self.shuffle)
        check_flags("policy 'sorted'", worst_first=self.worst_first)
        check_counts("sorted", self, "max_length", "balance_ranks", optional=True)
        self._make_rule()

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, _order_by_length, is_arranged=True)

    def _make_rule(self) -> WholeSequences:
        return WholeSequences(self.max_length, self.too_long, self.empty, self.keep)

    def _select_items(self, index: SequenceIndex) -> Items:
        return select_items(index, self.axis, self._make_rule(), policy="sorted")


def _order_by_length(items: BlockItems, draw: Draw | None, block: int) -> NDArray[np.int64]:
    del draw, block  # the same batches every epoch
    return items.lengths

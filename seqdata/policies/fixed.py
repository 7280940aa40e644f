"""Policy ``fixed``: a random order, cut into batches: the baseline, which ignores lengths."""

from __future__ import annotations

from dataclasses import dataclass

from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.planning.blocks import Shuffle
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


@dataclass(frozen=True, slots=True)
class Fixed(BlockPolicy):
    """Batches of ``batch_size`` rows in random order, whatever their lengths.

    Args:
        batch_size: Rows of a batch.
        shuffle: True: over all data, in another order in every epoch; ``"blocks"``: within blocks
            of 2^18 neighbours, for data larger than memory on slow media; False: the data's order.
            See "How data is shuffled" in the docs.
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
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        check_counts("fixed", self, "batch_size")
        check_shuffle("fixed", self.shuffle)
        check_counts("fixed", self, "max_length", optional=True)
        self._make_rule()

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, None, is_arranged=False)

    def _make_rule(self) -> WholeSequences:
        return WholeSequences(self.max_length, self.too_long, self.empty, self.keep)

    def _select_items(self, index: SequenceIndex) -> Items:
        return select_items(index, self.axis, self._make_rule(), policy="fixed")

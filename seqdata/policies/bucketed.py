"""Policy ``bucketed``: sorted by length with a little noise, then cut into batches.

There are no bucket edges to choose: one percent of noise on the length gives a sequence other
neighbours in every epoch, and the number of batches stays ceil(n / batch_size).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import PlanError, check_flags
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
from seqdata.planning.randomness import Draw, Purpose

_SCALE = 1 << 30  # lengths are scaled by this, in integers: `log` differs between CPUs
_NOISE = _SCALE // 100
_MAX_LENGTH = 1 << 32  # longer ones, scaled, would not fit 63 bits


@dataclass(frozen=True, slots=True)
class Bucketed(BlockPolicy):
    """Batches of ``batch_size`` rows of similar length, different ones in every epoch.

    Args:
        batch_size: Rows of a batch.
        shuffle: True: over all data, in another order in every epoch; ``"blocks"``: within blocks
            of 2^18 neighbours, for data larger than memory on slow media; False: exact order,
            longest first. See "How data is shuffled" in the docs.
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
        check_counts("bucketed", self, "batch_size")
        check_shuffle("bucketed", self.shuffle)
        check_flags("policy 'bucketed'", worst_first=self.worst_first)
        check_counts("bucketed", self, "max_length", "balance_ranks", optional=True)
        self._make_rule()

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, _make_noisy_lengths, is_arranged=True)

    def _make_rule(self) -> WholeSequences:
        return WholeSequences(self.max_length, self.too_long, self.empty, self.keep)

    def _select_items(self, index: SequenceIndex) -> Items:
        return select_items(index, self.axis, self._make_rule(), policy="bucketed")


def _make_noisy_lengths(items: BlockItems, draw: Draw | None, block: int) -> NDArray[np.int64]:
    """Return lengths with noise, int64 (n,); copies of a sequence have the same."""
    lengths = items.lengths
    if draw is None:
        return lengths
    if int(lengths.max(initial=0)) >= _MAX_LENGTH:
        raise PlanError(
            f"policy 'bucketed': a sequence has {int(lengths.max())} timesteps, but must have "
            "fewer than "
            "2**32. Set `max_length`, or use 'tbptt' for very long sequences."
        )
    raw = draw.raw(Purpose.NOISE, len(lengths), block) % np.uint64(2 * _NOISE)
    noise = raw.astype(np.int64) - _NOISE
    if items.copies is not None:
        noise = noise[items.copies.firsts]
    return lengths * (_SCALE + noise)

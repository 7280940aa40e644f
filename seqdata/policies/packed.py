"""Policy ``packed``: several whole sequences in each row, rows of one length.

For attention over documents laid one behind another (collator ``varlen``) and for language models.
Which lengths share a row follows from the histogram alone, so every epoch has the same number of
rows; which sequences of these lengths do is drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.plan_table import running
from seqdata.planning.bin_packing import Slots, pack
from seqdata.planning.blocks import MAX_BLOCK, Block, Count, Cut, histogram
from seqdata.planning.build import count_blocks, plan_blocks
from seqdata.planning.fixed_size import check_count, longest_first
from seqdata.planning.items import Empty, Items, Keep, TooLong, WholeSequences, select
from seqdata.planning.randomness import Draw, Purpose


@dataclass(frozen=True, slots=True)
class Packed:
    """Batches of ``rows`` rows that hold whole sequences, up to ``row_length`` timesteps each.

    Args:
        rows: Rows of a batch.
        row_length: Most timesteps of a row.
        shuffle: Whether epochs are shuffled.
        axis: The axis that is planned on.
        max_length: Most timesteps of a sequence; None: the row's.
        too_long: What happens to longer ones: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: What happens to sequences of length 0: ``drop`` or ``error``.
        keep: Which timesteps remain of a sequence that is truncated: the ``first`` or the ``last``.

    Raises:
        ConfigError: If an argument cannot be meant.
    """

    rows: int
    row_length: int
    shuffle: bool = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        check_count("packed", "rows", self.rows)
        check_count("packed", "row_length", self.row_length)
        if self.max_length is not None and self.max_length > self.row_length:
            raise ConfigError(
                f"policy 'packed': `max_length` is {self.max_length}, must not exceed "
                f"`row_length`={self.row_length}; lower it or lengthen the rows"
            )
        self._rule()

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        return plan_blocks(self, self._items(index), self._cutter(), seed=seed, epoch=epoch)

    def num_batches(self, index: SequenceIndex) -> int:
        """Give the number of batches of every epoch."""
        return count_blocks(self._items(index), self._cutter())

    def _cutter(self) -> Rows:
        return Rows(self.rows, self.row_length)

    def _rule(self) -> WholeSequences:
        return WholeSequences(
            self.max_length or self.row_length, self.too_long, self.empty, self.keep
        )

    def _items(self, index: SequenceIndex) -> Items:
        limit = "max_length" if self.max_length else "row_length"
        return select(index, self.axis, self._rule(), policy="packed", limit=limit)


@dataclass(frozen=True, slots=True)
class Rows:
    """Pack a block's items into rows and cut these every few."""

    rows: int
    row_length: int
    arranged: bool = False
    max_block: int = MAX_BLOCK

    @property
    def block_items(self) -> int:
        """Items of a block where there is more than one."""
        return self.max_block

    def counts(self, items: Items, blocks: Sequence[Block]) -> list[Count]:
        """Count each block's batches from the histogram of its lengths."""
        counts = []
        for block in blocks:
            slots = pack(*histogram(items, block), self.row_length)
            batches = -(-(len(slots.rows) - 1) // self.rows)
            counts.append(Count(batches, self.rows * self.row_length))
        return counts

    def cut(self, lengths: NDArray[np.int64], draw: Draw | None, block: int) -> Cut:
        """Pack a block's items; which one of a length comes where is drawn, and the rows' order."""
        members = longest_first(lengths)
        if draw is not None:
            members = draw.permutation(Purpose.MEMBERS, len(lengths), block)
            members = members[longest_first(lengths[members])]
        ranked = lengths[members]
        edges = np.flatnonzero(np.diff(ranked, prepend=-1))
        counts = np.diff(np.append(edges, len(ranked)))
        slots = pack(ranked[edges], counts, self.row_length)
        placed = np.empty_like(members)
        placed[longest_first(slots.lengths)] = members  # both from the longest
        rows = slots.rows
        if draw is not None:
            placed, rows = _shuffled(placed, slots, draw, block)
        offsets = np.arange(0, len(rows) - 1, self.rows, dtype=np.int64)
        return Cut(placed, np.append(offsets, len(rows) - 1), rows)


def _shuffled(
    placed: NDArray[np.int64], slots: Slots, draw: Draw, block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle the rows, and the sequences inside each."""
    sizes = np.diff(slots.rows)
    order = draw.permutation(Purpose.GROUPS, len(sizes), block)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(order))  # row -> its turn
    mixed = draw.permutation(Purpose.MIX, len(placed), block)
    places = mixed[np.argsort(np.repeat(turn, sizes)[mixed], kind="stable")]
    return placed[places], running(sizes[order])

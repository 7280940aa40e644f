"""Planning by blocks: no step computes or holds more than one block of a data set.

A block is a fixed run of neighbouring items. Its members never change, so its number of batches
does not either; blocks and their insides are shuffled. A ``Cutter`` says how one block becomes
batches; all else about an epoch is here: which batches of which block come when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, PlanBatch, offsets_from_sizes
from seqdata.planning.items import Items
from seqdata.planning.randomness import Draw, Purpose, group_size, shuffle_batches

MAX_BLOCK_ITEMS = 1 << 18
_CACHED_BLOCKS = 3


class BlockBatches(NamedTuple):
    """A block's batches.

    Attributes:
        members: int64 (n,), the block's items in the order of rows.
        offsets: int64 (batches+1,), batch -> rows.
        rows: int64 (r+1,), row -> members; None: each member is a row.
    """

    members: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None


class BlockCost(NamedTuple):
    """A block before it is planned: its number of batches, and the highest cost of one."""

    batches: int
    cost: int


class Cutter(Protocol):
    """How the items of one block become batches. Hashable: it is the key of cached counts."""

    @property
    def is_arranged(self) -> bool:
        """Whether batches are ordered by their longest row (``order.shuffle_batches``)."""
        ...

    @property
    def max_block(self) -> int:
        """Most items that are planned as one block."""
        ...

    @property
    def block_items(self) -> int:
        """Items of a block where there is more than one."""
        ...

    def count_batches(self, items: Items, blocks: Sequence[Block]) -> list[BlockCost]:
        """Count each block's batches, from the histogram of its lengths alone."""
        ...

    def cut(self, lengths: NDArray[np.int64], draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches; without a draw, unshuffled."""
        ...


class Block(NamedTuple):
    """Items ``first:stop``, planned at once."""

    number: int
    first: int
    stop: int


class BlockRange(NamedTuple):
    """Batches ``first:stop`` of a block's own order, one after another."""

    block: int
    first: int
    stop: int


def split_blocks(items: Items, cutter: Cutter) -> list[Block]:
    """Return the blocks of the items; only the last may be short."""
    size = len(items) if len(items) <= cutter.max_block else cutter.block_items
    starts = range(0, len(items), max(1, size))
    return [Block(k, edge, min(edge + size, len(items))) for k, edge in enumerate(starts)]


def compute_block_costs(items: Items, cutter: Cutter) -> list[BlockCost]:
    """Return the number of batches of every block, counted once per index."""
    blocks = split_blocks(items, cutter)
    key = ("counts", items.axis, items.rule, items.cost, cutter)
    return items.index.remember(key, lambda: cutter.count_batches(items, blocks))


def histogram(items: Items, block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the items of a block by length.

    Returns:
        Lengths, int64 (k,), decreasing; how many items have each, int64 (k,).
    """
    lengths = items.sizes(items.spans(block.first, block.stop))
    if int(lengths.max(initial=0)) > 4 * MAX_BLOCK_ITEMS:  # a table of all lengths would be larger
        values, counts = np.unique(lengths, return_counts=True)
    else:
        table = np.bincount(lengths)
        values = np.flatnonzero(table)
        counts = table[values]
    return values[::-1], counts[::-1]


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The batches of an epoch, made block by block."""

    items: Items
    cutter: Cutter
    draw: Draw
    shuffle: bool
    lead_block: int
    blocks: list[Block]
    ranges: list[BlockRange]
    offsets: list[int] = field(init=False)
    _cache: dict[int, ArrayTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        sizes = [part.stop - part.first for part in self.ranges]
        object.__setattr__(self, "offsets", list(accumulate(sizes, initial=0)))

    def __len__(self) -> int:
        return self.offsets[-1]

    def batch(self, number: int) -> PlanBatch:
        """Return one batch in O(batch), or O(block) if its block is not cached."""
        block_range, number_in_block = self._locate(number)
        return self._block_table(block_range.block).batch(number_in_block)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one range as a table of their own."""
        block_range, number_in_block = self._locate(first)
        table = self._block_table(block_range.block)
        return table.slice(number_in_block, number_in_block + stop - first)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return scored timesteps and rows that are not idle of batches ``first:stop``."""
        timesteps = rows = 0
        while first < stop:
            block_range, number_in_block = self._locate(first)
            upto = min(block_range.stop, number_in_block + stop - first)
            more = self._block_table(block_range.block).totals(number_in_block, upto, overlap)
            timesteps, rows = timesteps + more[0], rows + more[1]
            first += upto - number_in_block
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, range by range."""
        for block_range in self.ranges:
            yield self._block_table(block_range.block).slice(block_range.first, block_range.stop)

    def prepare(self, number: int) -> int:
        """Make a batch's block; return the first batch after it in another range."""
        self._block_table(self._locate(number)[0].block)
        return self.offsets[bisect_right(self.offsets, number)]

    def _locate(self, number: int) -> tuple[BlockRange, int]:
        i = bisect_right(self.offsets, number) - 1
        block_range = self.ranges[i]
        return block_range, block_range.first + number - self.offsets[i]

    def _block_table(self, number: int) -> ArrayTable:
        table = self._cache.get(number)
        if table is None:
            table = self._make_block_table(number)
            for old in list(self._cache)[: 1 - _CACHED_BLOCKS]:  # a reader thread may do the same
                self._cache.pop(old, None)
            self._cache[number] = table
        return table

    def _make_block_table(self, number: int) -> ArrayTable:
        block = self.blocks[number]
        spans = self.items.spans(block.first, block.stop, self.draw)
        sizes = self.items.sizes(spans)
        cut = self.cutter.cut(sizes, self.draw if self.shuffle else None, number)
        spans = spans.take(cut.members, axis=0)  # 20 times faster than spans[members]
        if not (self.shuffle and self.cutter.is_arranged):
            return ArrayTable(spans, cut.rows, cut.offsets)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        lead = None
        if number == self.lead_block:
            lead = int(np.argmax(longest * np.diff(cut.offsets)))
        return _reorder_batches(
            spans, cut.offsets, shuffle_batches(longest, self.draw, block=number, lead=lead)
        )


def make_block_table(
    items: Items, cutter: Cutter, draw: Draw, *, shuffle: bool, worst_first: bool
) -> BlockTable:
    """Return the table of an epoch: which batches of which block come when.

    The full groups of all blocks come first, then the blocks' remainders in the same order of
    blocks, so that groups and steps stay aligned; the short block is last in both. With
    ``worst_first`` and in epoch 0 the group that holds the most expensive batch leads.
    """
    blocks, counts = split_blocks(items, cutter), compute_block_costs(items, cutter)
    if not shuffle:
        ranges = [BlockRange(block.number, 0, counts[block.number].batches) for block in blocks]
        return BlockTable(items, cutter, draw, False, -1, blocks, ranges)
    lead = -1
    if worst_first and draw.epoch == 0 and cutter.is_arranged and blocks:
        lead = _find_costliest_block(items, cutter, draw, counts)
    ranges = _order_ranges(
        blocks, [count.batches for count in counts], lead, cutter.is_arranged, draw
    )
    return BlockTable(items, cutter, draw, True, lead, blocks, ranges)


def _find_costliest_block(
    items: Items, cutter: Cutter, draw: Draw, counts: Sequence[BlockCost]
) -> int:
    """Return the block with the most expensive batch, cutting only those that may hold it."""
    blocks = split_blocks(items, cutter)
    if len(blocks) == 1:
        return 0
    costliest, highest_cost = -1, -1
    for number in sorted(range(len(blocks)), key=lambda number: -counts[number].cost):
        if counts[number].cost <= highest_cost:
            break
        block = blocks[number]
        sizes = items.sizes(items.spans(block.first, block.stop, draw))
        cut = cutter.cut(sizes, draw, number)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        cost = int((longest * np.diff(cut.offsets)).max())
        if cost > highest_cost:
            costliest, highest_cost = number, cost
    return costliest


def _order_ranges(
    blocks: list[Block], batches: list[int], lead: int, grouped: bool, draw: Draw
) -> list[BlockRange]:
    sizes = [group_size(count) if grouped else 1 for count in batches]
    grouped_batches = [count - count % size for count, size in zip(batches, sizes, strict=True)]
    has_short = len(blocks) > 1 and _count_items(blocks[-1]) < _count_items(blocks[0])
    full = len(blocks) - has_short
    order = draw.permutation(Purpose.BLOCKS, full).tolist()
    lead_ranges = []  # one group of the short block, where it must lead: the others stay aligned
    if 0 <= lead < full:
        order = [lead, *(number for number in order if number != lead)]
    elif lead >= 0:
        lead_ranges = [BlockRange(lead, 0, min(sizes[lead], grouped_batches[lead]))]
    order += range(full, len(blocks))
    starts = {part.block: part.stop for part in lead_ranges}
    groups = [
        BlockRange(number, starts.get(number, 0), grouped_batches[number]) for number in order
    ]
    rests = [BlockRange(number, grouped_batches[number], batches[number]) for number in order]
    return [part for part in [*lead_ranges, *groups, *rests] if part.stop > part.first]


def _count_items(block: Block) -> int:
    return block.stop - block.first


def _reorder_batches(
    spans: NDArray[np.int64], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> ArrayTable:
    """Put batches into an order."""
    sizes = np.diff(offsets)[order]
    ordered_offsets = offsets_from_sizes(sizes)
    number_in_batch = np.arange(int(ordered_offsets[-1])) - np.repeat(ordered_offsets[:-1], sizes)
    members = np.repeat(offsets[:-1][order], sizes) + number_in_batch
    return ArrayTable(spans.take(members, axis=0), None, ordered_offsets)

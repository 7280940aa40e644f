"""Planning by blocks: no step computes or holds more than one block of a dataset.

A block's members never change, so its number of batches does not either; blocks and their insides
are shuffled. Above ``MAX_BLOCK_ITEMS`` items there are several, each a sample of the whole data:
short runs of neighbouring items are distributed over blocks by a fixed permutation, so that a batch
draws from everything, as with one permutation of all items. (Blocks of neighbours,
``shuffle="blocks"``, read less where data is larger than memory, and mix less.) A ``Cutter`` makes
batches of a block; all else about an epoch is here: the order of the batches of all blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.index import Copies
from seqdata.plan import PLAN_VERSION
from seqdata.plan_table import ArrayTable, BatchTable, PlanBatch, join_tables, offsets_from_sizes
from seqdata.planning.batch_order import order_batches
from seqdata.planning.items import Items
from seqdata.planning.randomness import Draw, KeyedPermutation, Purpose

MAX_BLOCK_ITEMS = 1 << 18
_CACHED_BLOCKS = 3
_MAX_RUN = 16  # neighbouring sequences that are read with one another
_MIN_RUNS = 1 << 13  # of a block, at least: fewer would not be a sample
_MAX_SEARCHED = 1 << 21  # sequences among which any item is found at little cost

Shuffle = bool | Literal["blocks"]
"""Whether epochs are shuffled: over all data, in blocks of neighbours, or not at all."""


class BlockItems(NamedTuple):
    """The items of a block.

    Attributes:
        lengths: int64 (n,), cost of each item as a row: its timesteps, or a cost of its own.
        copies: Items that have the same sequence; None: all have different sequences.
    """

    lengths: NDArray[np.int64]
    copies: Copies | None = None


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
    """Rule by which items of a block become batches. Hashable: it is the key of cached counts."""

    @property
    def is_arranged(self) -> bool:
        """Whether batches are ordered by their longest row (``batch_order``)."""
        ...

    @property
    def max_block(self) -> int:
        """Maximum number of items that are planned as one block."""
        ...

    @property
    def block_items(self) -> int:
        """Number of items of a block, if there are several blocks."""
        ...

    def count_batches(self, blocks: Blocks) -> list[BlockCost]:
        """Return number of batches and highest cost of each block, by the lengths alone."""
        ...

    def cut(self, items: BlockItems, draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches; without a draw, unshuffled."""
        ...


class Block(NamedTuple):
    """Items ``first:stop`` of the order in which items are distributed over blocks."""

    number: int
    first: int
    stop: int


@dataclass(frozen=True, eq=False)
class Blocks(Sequence[Block]):
    """The blocks of all items; only the last may be short.

    Attributes:
        items: The items.
        size: Number of items of a block.
        run: Number of neighbouring items that stay together in a block; 0: all items of a block
            are neighbours.
    """

    items: Items
    size: int
    run: int

    def __len__(self) -> int:
        return -(-len(self.items) // max(1, self.size))

    def __getitem__(self, number: int) -> Block:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        first = number * self.size
        return Block(number, first, min(first + self.size, len(self.items)))

    @property
    def short(self) -> int:
        """Index of the block that is shorter than the others; -1: there is none."""
        return len(self) - 1 if len(self) > 1 and len(self.items) % self.size else -1

    def spans(self, block: Block, draw: Draw | None = None) -> NDArray[np.int64]:
        """Return the spans of a block's items, int64 (n, 3), in the data's order."""
        if not self.run or len(self) == 1:
            return self.items.spans(block.first, block.stop, draw)
        return self.items.spans_at(self._find_members(block), draw)

    def sizes(self, block: Block) -> NDArray[Any]:
        """Return the cost of each item of a block as a row, integers (n,), in any order."""
        stored = self.items.stored_sizes
        if stored is None or not self.run or len(self) == 1:
            return self.items.sizes(self.spans(block))
        low, high = block.first // self.run, block.stop // self.run
        runs = stored[: self._run_order.count * self.run].reshape(-1, self.run)
        sizes = runs.take(self._run_order.apply(np.arange(low, high)), axis=0).reshape(-1)
        return np.concatenate([sizes, stored[high * self.run : block.stop]])

    def find(self, item: int) -> int:
        """Return the index of the block that an item belongs to."""
        if self.run and item < self._run_order.count * self.run:
            run, offset = divmod(item, self.run)
            item = int(self._run_order.invert(np.array([run]))[0]) * self.run + offset
        return item // self.size

    def _find_members(self, block: Block) -> NDArray[np.int64]:
        """Return the indices of a block's items in increasing order, int64 (n,)."""
        low, high = block.first // self.run, block.stop // self.run
        runs = np.sort(self._run_order.apply(np.arange(low, high)))
        members = (runs[:, np.newaxis] * self.run + np.arange(self.run)).reshape(-1)
        rest = np.arange(high * self.run, block.stop)  # fewer than a run, the last of all items
        return np.concatenate([members, rest]) if len(rest) else members

    @cached_property
    def _run_order(self) -> KeyedPermutation:
        """Position among the runs of all blocks, block by block -> the run."""
        return KeyedPermutation(len(self.items) // max(1, self.run), PLAN_VERSION)


def split_blocks(items: Items, cutter: Cutter, shuffle: Shuffle) -> Blocks:
    """Return the blocks of the items: samples of the data if ``shuffle`` is True, or neighbours."""
    size = len(items) if len(items) <= cutter.max_block else cutter.block_items
    return Blocks(items, size, _choose_run(items, size) if shuffle is True else 0)


def _choose_run(items: Items, size: int) -> int:
    """Return the number of neighbouring items that stay together in a block."""
    is_cheap = len(items.index) <= _MAX_SEARCHED  # to find any item
    most = items.rule.run_items if is_cheap else _MAX_RUN
    if items.index.has_copies or size < _MIN_RUNS:
        return 1
    run = math.gcd(size, most)
    while size // run < _MIN_RUNS:
        run //= 2
    return run


def compute_block_costs(blocks: Blocks, cutter: Cutter) -> list[BlockCost]:
    """Return number of batches and highest cost of every block, computed once per index."""
    items = blocks.items
    key = ("counts", items.axis, items.rule, items.cost, cutter, blocks.run)
    return items.index.remember(key, lambda: cutter.count_batches(blocks))


def count_lengths(lengths: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the histogram of lengths.

    Returns:
        Lengths in decreasing order, int64 (k,), and the number of items of each, int64 (k,).
    """
    if int(lengths.max(initial=0)) > 4 * MAX_BLOCK_ITEMS:  # a table of all lengths would be larger
        values, counts = np.unique(lengths, return_counts=True)
    else:
        table = np.bincount(lengths)
        values = np.flatnonzero(table)
        counts = table[values]
    return values[::-1], counts[::-1]


class _Ranges(NamedTuple):
    """Runs of batches, each of one block, in the order of an epoch.

    Attributes:
        table: int64 (n, 3): block, first batch, one past the last batch.
        stretches: int64 (m,), the first range of each stretch: the batches of a block, among which
            lie some of the short block.
    """

    table: NDArray[np.int64]
    stretches: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockTable(BatchTable):
    """The batches of an epoch, made block by block.

    Attributes:
        blocks: The blocks.
        cutter: Rule by which a block becomes batches.
        draw: The epoch's randomness.
        shuffle: Kind of shuffling of the epoch.
        group: Number of consecutive batches of similar lengths.
        lead_block: The block whose most expensive batch leads; -1: none.
        ranges: Order of the batches of all blocks.
    """

    blocks: Blocks
    cutter: Cutter
    draw: Draw
    shuffle: Shuffle
    group: int
    lead_block: int
    ranges: _Ranges
    _edges: list[int] = field(init=False)  # range -> its first batch in the epoch
    _stretches: list[int] = field(init=False)  # stretch -> the same
    _cache: dict[int, ArrayTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        table, stretches = self.ranges
        edges = offsets_from_sizes(table[:, 2] - table[:, 1])
        object.__setattr__(self, "_edges", edges.tolist())
        object.__setattr__(self, "_stretches", [*edges[stretches].tolist(), int(edges[-1])])

    @property
    def items(self) -> Items:
        """The items that are planned."""
        return self.blocks.items

    def __len__(self) -> int:
        return self._edges[-1]

    def batch(self, number: int) -> PlanBatch:
        """Return one batch in O(batch), or O(block) if its block is not cached."""
        block, number_in_block, _ = self._locate(number)
        return self._block_table(block).batch(number_in_block)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one stretch as a table of their own."""
        parts = [
            self._block_table(block).slice(low, high) for block, low, high in self._cut(first, stop)
        ]
        return parts[0] if len(parts) == 1 else join_tables(parts)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
        timesteps = rows = 0
        for block, low, high in self._cut(first, stop):
            more = self._block_table(block).totals(low, high, overlap)
            timesteps, rows = timesteps + more[0], rows + more[1]
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, stretch by stretch."""
        for first, stop in pairwise(self._stretches):
            yield self.slice(first, stop)

    def prepare(self, number: int) -> int:
        """Make the blocks of a batch's stretch; return the first batch after it."""
        stretch = bisect_right(self._stretches, number) - 1
        first, stop = self._stretches[stretch : stretch + 2]
        low, high = (bisect_right(self._edges, batch) for batch in (first, stop - 1))
        for block in set(self.ranges.table[low - 1 : high, 0].tolist()):
            self._block_table(block)
        return stop

    def _cut(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield batches ``first:stop`` by block: its index, first batch and one past the last."""
        while first < stop:
            block, low, end = self._locate(first)
            high = low + min(stop, end) - first
            yield block, low, high
            first += high - low

    def _locate(self, number: int) -> tuple[int, int, int]:
        """Return a batch's block, its index there, and the first batch of the next range."""
        i = bisect_right(self._edges, number) - 1
        block, first, _ = self.ranges.table[i].tolist()
        return block, first + number - self._edges[i], self._edges[i + 1]

    def _block_table(self, block: int) -> ArrayTable:
        table = self._cache.get(block)
        if table is None:
            table = self._make_block_table(block)
            others = [old for old in self._cache if old != self.blocks.short]
            for old in others[: 1 - _CACHED_BLOCKS]:  # a reader thread may do the same
                self._cache.pop(old, None)
            self._cache[block] = table
        return table

    def _make_block_table(self, block: int) -> ArrayTable:
        spans = self.blocks.spans(self.blocks[block], self.draw)
        sizes = self.items.sizes(spans)
        block_items = BlockItems(sizes, self.items.find_copies(spans))
        cut = self.cutter.cut(block_items, self.draw if self.shuffle else None, block)
        spans = spans.take(cut.members, axis=0)  # 20 times faster than spans[members]
        if not (self.shuffle and self.cutter.is_arranged):
            return ArrayTable(spans, cut.rows, cut.offsets)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        lead = None
        if block == self.lead_block:
            lead = int(np.argmax(longest * np.diff(cut.offsets)))
        order = order_batches(longest, self.draw, block=block, group=self.group, lead=lead)
        return _reorder_batches(spans, cut.offsets, order)


def make_block_table(
    items: Items,
    cutter: Cutter,
    draw: Draw,
    *,
    shuffle: Shuffle,
    group: int = 1,
    worst_first: bool = False,
) -> BlockTable:
    """Return the table of an epoch, with the batches of all blocks in training order.

    The full groups of all blocks come first: blocks in random order, with the groups of the short
    block spread among those of the others. Then come the blocks' remainders, fewer batches than a
    group each, so that groups and steps stay aligned. With ``worst_first`` and in epoch 0 the group
    that holds the most expensive batch leads.

    Args:
        items: The items to plan.
        cutter: Rule by which a block becomes batches.
        draw: The epoch's randomness.
        shuffle: Kind of shuffling of the epoch.
        group: Number of consecutive batches of similar lengths, if the cutter orders by length.
        worst_first: Whether epoch 0 begins with the most expensive batch.
    """
    blocks = split_blocks(items, cutter, shuffle)
    costs = compute_block_costs(blocks, cutter)
    counts = np.array([cost.batches for cost in costs], dtype=np.int64)
    if not shuffle or not len(blocks):
        whole = np.stack([np.arange(len(counts)), np.zeros_like(counts), counts], axis=1)
        ranges = _Ranges(whole, np.arange(len(whole)))
        return BlockTable(blocks, cutter, draw, False, 1, -1, ranges)
    lead = -1
    if worst_first and draw.epoch == 0 and cutter.is_arranged:
        lead = _find_costliest_block(blocks, cutter, draw, costs, group)
    rests = counts % group
    if not cutter.is_arranged:
        group = 1
        rests = np.zeros_like(counts)
        if blocks.short >= 0:
            rests[-1] = 1  # it may have fewer rows
    ranges = _order_ranges(blocks, counts, rests, group, lead, draw)
    return BlockTable(blocks, cutter, draw, shuffle, group, lead, ranges)


def _find_costliest_block(
    blocks: Blocks, cutter: Cutter, draw: Draw, costs: Sequence[BlockCost], group: int
) -> int:
    """Return the block with the most expensive batch, cutting only those that may hold it.

    Blocks of fewer batches than a group have none that could lead, unless all are such.
    """
    if len(blocks) == 1:
        return 0
    candidates = [block for block, cost in enumerate(costs) if cost.batches >= group]
    costliest, highest_cost = -1, -1
    for block in sorted(candidates or range(len(blocks)), key=lambda k: -costs[k].cost):
        if costs[block].cost <= highest_cost:
            break
        spans = blocks.spans(blocks[block], draw)
        sizes = blocks.items.sizes(spans)
        cut = cutter.cut(BlockItems(sizes, blocks.items.find_copies(spans)), draw, block)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        cost = int((longest * np.diff(cut.offsets)).max())
        if cost > highest_cost:
            costliest, highest_cost = block, cost
    return costliest


def _order_ranges(
    blocks: Blocks,
    counts: NDArray[np.int64],
    rests: NDArray[np.int64],
    group: int,
    lead: int,
    draw: Draw,
) -> _Ranges:
    """Return the order of the batches of all blocks.

    Args:
        blocks: The blocks.
        counts: int64 (blocks,), number of batches of each block.
        rests: int64 (blocks,), number of batches of each block that come last.
        group: Number of batches that stay together.
        lead: The block that leads; -1: none.
        draw: The epoch's randomness.
    """
    short = blocks.short if blocks.run else -1
    played = len(blocks) - (short >= 0)  # one after another
    order = draw.permutation(Purpose.BLOCKS, played)
    if 0 <= lead < played:
        order = np.concatenate([[lead], order[order != lead]])
    groups = (counts - rests) // group
    first_group = int(lead == short >= 0 and groups[lead] > 0)  # it leads; the rest is spread
    pieces = _spread_short_block(groups, order, short, first_group, is_led=lead >= 0, draw=draw)
    pieces[:, 1:] *= group
    last = np.append(order, short) if short >= 0 else order
    if lead == short >= 0 and not groups.any():
        last = np.roll(last, 1)
    tail = np.stack([last, counts[last] - rests[last], counts[last]], axis=1)
    table = np.concatenate([pieces, tail])
    table = table[table[:, 2] > table[:, 1]]
    main = np.flatnonzero(table[:, 0] != short)  # a stretch begins where these change
    changes = main[np.flatnonzero(np.diff(table[main, 0], prepend=-1))]
    own = np.flatnonzero((table[:, 0] == short) & (table[:, 2] == counts[short]))  # its remainder
    starts = np.unique(np.concatenate([[0], changes, own])) if len(table) else changes
    return _Ranges(table, starts)


def _spread_short_block(
    groups: NDArray[np.int64],
    order: NDArray[np.int64],
    short: int,
    first: int,
    *,
    is_led: bool,
    draw: Draw,
) -> NDArray[np.int64]:
    """Return ranges of groups, int64 (n, 3): blocks in order, the short one spread among them.

    Args:
        groups: int64 (blocks,), number of groups of each block.
        order: The blocks that come one after another.
        short: The block whose groups are spread evenly, at random within equal intervals; -1: none.
        first: Number of its groups that lead.
        is_led: Whether nothing may come before the first group.
        draw: The epoch's randomness.
    """
    starts = offsets_from_sizes(groups[order])
    count, room = int(groups[short]) - first if short >= 0 else 0, int(starts[-1]) + 1
    lows = np.arange(count) * room // max(1, count)
    widths = np.maximum(np.arange(1, count + 1) * room // max(1, count) - lows, 1)
    raw = draw.raw(Purpose.SHORT_GROUPS, count) if count else np.empty(0, dtype=np.uint64)
    drawn = lows + (raw % widths.astype(np.uint64)).astype(np.int64)
    if is_led and not first:
        drawn = np.maximum(drawn, min(1, room - 1))
    cuts = np.unique(np.concatenate([starts, drawn]))
    owner = np.searchsorted(starts, cuts[:-1], side="right") - 1
    own_firsts = cuts[:-1] - starts[owner]
    pieces = np.stack([order[owner], own_firsts, own_firsts + np.diff(cuts)], axis=1)
    positions, begins, sizes = np.unique(drawn, return_index=True, return_counts=True)
    begins = begins + first
    own = np.stack([np.full_like(positions, short), begins, begins + sizes], axis=1)
    keys = np.concatenate([2 * cuts[:-1] + 1, 2 * positions])
    ranges = np.concatenate([pieces, own])[np.argsort(keys, kind="stable")]
    if first:
        ranges = np.concatenate([[[short, 0, first]], ranges])
    return ranges


def _reorder_batches(
    spans: NDArray[np.int64], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> ArrayTable:
    """Return the batches as a table, in another order."""
    sizes = np.diff(offsets)[order]
    ordered_offsets = offsets_from_sizes(sizes)
    number_in_batch = np.arange(int(ordered_offsets[-1])) - np.repeat(ordered_offsets[:-1], sizes)
    members = np.repeat(offsets[:-1][order], sizes) + number_in_batch
    return ArrayTable(spans.take(members, axis=0), None, ordered_offsets)

"""Plan by blocks: no step costs or holds more than one block of a data set.

A block is a fixed run of neighbouring items. Its members never change, so its number of batches
does not either; blocks and their insides are shuffled. A ``Cutter`` says how one block becomes
batches; everything else about an epoch is here: which part of which block is played when.
Place in the flow: items -> blocks -> Plan. Reads: lengths, a block at a time. Makes: batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, PlanBatch, running
from seqdata.planning.items import Items
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.shuffle import arrange, group_size

MAX_BLOCK = 1 << 18
_KEPT_BLOCKS = 3


class Cut(NamedTuple):
    """A block's batches.

    Attributes:
        members: int64 (n,), the block's items in the order of rows.
        offsets: int64 (batches+1,), batch -> rows.
        rows: int64 (r+1,), row -> members; None: each member is a row.
    """

    members: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None


class Count(NamedTuple):
    """What is known of a block before it is planned: its batches, and the most that one costs."""

    batches: int
    cost: int


class Cutter(Protocol):
    """How the items of one block become batches. Hashable: counts are remembered under it."""

    @property
    def arranged(self) -> bool:
        """Whether batches are ordered by their longest row (``order.arrange``)."""
        ...

    @property
    def max_block(self) -> int:
        """Most items that are planned as one block."""
        ...

    @property
    def block_items(self) -> int:
        """Items of a block where there is more than one."""
        ...

    def counts(self, items: Items, blocks: Sequence[Block]) -> list[Count]:
        """Count each block's batches, from the histogram of its lengths alone."""
        ...

    def cut(self, lengths: NDArray[np.int64], draw: Draw | None, block: int) -> Cut:
        """Cut a block's items into batches; without a draw, unshuffled."""
        ...


class Block(NamedTuple):
    """Items ``first:stop``, planned at once."""

    number: int
    first: int
    stop: int


class Part(NamedTuple):
    """Batches ``first:stop`` of a block's own order, played one after another."""

    block: int
    first: int
    stop: int


def blocks_of(items: Items, cutter: Cutter) -> list[Block]:
    """Cut the items into blocks; only the last may be short."""
    size = len(items) if len(items) <= cutter.max_block else cutter.block_items
    edges = range(0, len(items), max(1, size))
    return [Block(k, edge, min(edge + size, len(items))) for k, edge in enumerate(edges)]


def counts_of(items: Items, cutter: Cutter) -> list[Count]:
    """Count the batches of every block, once per index."""
    blocks = blocks_of(items, cutter)
    key = ("counts", items.axis, items.rule, items.cost, cutter)
    return items.index.remember(key, lambda: cutter.counts(items, blocks))


def histogram(items: Items, block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the items of a block by length.

    Returns:
        Lengths, int64 (k,), falling; how many items have each, int64 (k,).
    """
    lengths = items.sizes(items.spans(block.first, block.stop))
    if int(lengths.max(initial=0)) > 4 * MAX_BLOCK:  # a table of all lengths would be larger
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
    parts: list[Part]
    edges: list[int] = field(init=False)
    _recent: dict[int, ArrayTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        sizes = [part.stop - part.first for part in self.parts]
        object.__setattr__(self, "edges", list(accumulate(sizes, initial=0)))

    def __len__(self) -> int:
        return self.edges[-1]

    def batch(self, number: int) -> PlanBatch:
        """Give one batch in O(batch), or O(block) where its block is not at hand."""
        part, inside = self._find(number)
        return self._block(part.block).batch(inside)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Give scored timesteps and rows that are not idle of batches ``first:stop``."""
        timesteps = rows = 0
        while first < stop:
            part, inside = self._find(first)
            upto = min(part.stop, inside + stop - first)
            more = self._block(part.block).totals(inside, upto, overlap)
            timesteps, rows = timesteps + more[0], rows + more[1]
            first += upto - inside
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Give all batches in order, part by part."""
        for part in self.parts:
            yield self._block(part.block).part(part.first, part.stop)

    def prepare(self, number: int) -> int:
        """Make a batch's block; give the first batch after it that lies in another part."""
        self._block(self._find(number)[0].block)
        return self.edges[bisect_right(self.edges, number)]

    def _find(self, number: int) -> tuple[Part, int]:
        place = bisect_right(self.edges, number) - 1
        part = self.parts[place]
        return part, part.first + number - self.edges[place]

    def _block(self, number: int) -> ArrayTable:
        table = self._recent.get(number)
        if table is None:
            table = self._make_block(number)
            for old in list(self._recent)[: 1 - _KEPT_BLOCKS]:  # a reader thread may do the same
                self._recent.pop(old, None)
            self._recent[number] = table
        return table

    def _make_block(self, number: int) -> ArrayTable:
        block = self.blocks[number]
        spans = self.items.spans(block.first, block.stop, self.draw)
        sizes = self.items.sizes(spans)
        cut = self.cutter.cut(sizes, self.draw if self.shuffle else None, number)
        spans = spans.take(cut.members, axis=0)  # 20 times faster than spans[members]
        if not (self.shuffle and self.cutter.arranged):
            return ArrayTable(spans, cut.rows, cut.offsets)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        lead = None
        if number == self.lead_block:
            lead = int(np.argmax(longest * np.diff(cut.offsets)))
        return _reordered(spans, cut.offsets, arrange(longest, self.draw, block=number, lead=lead))


def block_table(
    items: Items, cutter: Cutter, draw: Draw, *, shuffle: bool, worst_first: bool
) -> BlockTable:
    """Lay out an epoch: which part of which block is played when.

    The full groups of all blocks come first, then the blocks' remainders in the same order of
    blocks, so that groups and steps stay aligned; the short block is last in both. With
    ``worst_first`` and in epoch 0 the group that holds the most expensive batch leads.
    """
    blocks, counts = blocks_of(items, cutter), counts_of(items, cutter)
    if not shuffle:
        parts = [Part(block.number, 0, counts[block.number].batches) for block in blocks]
        return BlockTable(items, cutter, draw, False, -1, blocks, parts)
    lead = -1
    if worst_first and draw.epoch == 0 and cutter.arranged and blocks:
        lead = _dearest(items, cutter, draw, counts)
    parts = _parts(blocks, [count.batches for count in counts], lead, cutter.arranged, draw)
    return BlockTable(items, cutter, draw, True, lead, blocks, parts)


def _dearest(items: Items, cutter: Cutter, draw: Draw, counts: Sequence[Count]) -> int:
    """Find the block that holds the most expensive batch, cutting only those that may hold it."""
    blocks = blocks_of(items, cutter)
    if len(blocks) == 1:
        return 0
    found, most = -1, -1
    for number in sorted(range(len(blocks)), key=lambda number: -counts[number].cost):
        if counts[number].cost <= most:
            break
        block = blocks[number]
        sizes = items.sizes(items.spans(block.first, block.stop, draw))
        cut = cutter.cut(sizes, draw, number)
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        cost = int((longest * np.diff(cut.offsets)).max())
        if cost > most:
            found, most = number, cost
    return found


def _parts(
    blocks: list[Block], batches: list[int], lead: int, grouped: bool, draw: Draw
) -> list[Part]:
    sizes = [group_size(count) if grouped else 1 for count in batches]
    whole = [count - count % size for count, size in zip(batches, sizes, strict=True)]
    has_short = len(blocks) > 1 and _size(blocks[-1]) < _size(blocks[0])
    full = len(blocks) - has_short
    order = draw.permutation(Purpose.BLOCKS, full).tolist()
    early = []  # one group of the short block, where it must lead: the others stay aligned
    if 0 <= lead < full:
        order = [lead, *(number for number in order if number != lead)]
    elif lead >= 0:
        early = [Part(lead, 0, min(sizes[lead], whole[lead]))]
    order += range(full, len(blocks))
    begins = {part.block: part.stop for part in early}
    groups = [Part(number, begins.get(number, 0), whole[number]) for number in order]
    rests = [Part(number, whole[number], batches[number]) for number in order]
    return [part for part in [*early, *groups, *rests] if part.stop > part.first]


def _size(block: Block) -> int:
    return block.stop - block.first


def _reordered(
    spans: NDArray[np.int64], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> ArrayTable:
    """Put batches into an order."""
    sizes = np.diff(offsets)[order]
    edges = running(sizes)
    inside = np.arange(int(edges[-1])) - np.repeat(edges[:-1], sizes)
    members = np.repeat(offsets[:-1][order], sizes) + inside
    return ArrayTable(spans.take(members, axis=0), None, edges)

"""Policy ``packed``: several whole sequences in each row, rows of one length.

For attention over concatenated documents (collator ``varlen``) and for language models. The lengths
that share a row follow from the histogram alone, so every epoch has the same number of rows; the
sequences of these lengths are drawn for every epoch.

Lengths are packed by best fit decreasing, over the histogram. Equal lengths are placed together, so
the work grows with the number of different lengths, not of items.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.index import DEFAULT_AXIS
from seqdata.plan_table import offsets_from_sizes
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    BlockBatches,
    BlockCost,
    BlockItems,
    Blocks,
    Shuffle,
    count_lengths,
)
from seqdata.planning.build import (
    SequencePolicy,
    order_longest_first,
)
from seqdata.planning.items import Empty, Keep, TooLong
from seqdata.planning.randomness import Draw, Purpose


class PackedRowsLayout(NamedTuple):
    """Positions of items, row by row.

    Attributes:
        lengths: int64 (n,), timesteps of the item at each position.
        offsets: int64 (r+1,), row -> positions.
    """

    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]


class _RowContent(NamedTuple):
    """The content of rows: ``repeats`` items of ``length`` after the ``previous`` content."""

    length: int
    repeats: int
    previous: _RowContent | None


class _EqualRows(NamedTuple):
    """Rows of equal content."""

    num_rows: int
    content: _RowContent | None


@dataclass(slots=True)
class _RowBins:
    """Rows by their free room."""

    by_room: dict[int, list[_EqualRows]] = field(default_factory=dict)
    rooms: list[int] = field(default_factory=list)  # rising

    def add(self, room: int, equal_rows: _EqualRows) -> None:
        if not equal_rows.num_rows:
            return
        if room not in self.by_room:
            self.by_room[room] = []
            insort(self.rooms, room)
        self.by_room[room].append(equal_rows)

    def take_tightest(self, length: int) -> tuple[int, _EqualRows] | None:
        """Take the rows with the least room that holds ``length``."""
        i = bisect_left(self.rooms, length)
        if i == len(self.rooms):
            return None
        room = self.rooms[i]
        equal_rows = self.by_room[room].pop()
        if not self.by_room[room]:
            del self.by_room[room], self.rooms[i]
        return room, equal_rows

    def iter_rows(self) -> Iterator[_EqualRows]:
        for room in self.rooms:
            yield from self.by_room[room]


def pack_lengths(
    lengths: NDArray[np.int64], counts: NDArray[np.int64], row_length: int
) -> PackedRowsLayout:
    """Pack items into as few rows as best fit decreasing finds.

    Args:
        lengths: int64 (k,), decreasing, at most ``row_length``.
        counts: int64 (k,), how many items have each length.
        row_length: Timesteps of a row.

    Returns:
        The positions in the rows; as many of each length as there are items of it.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms", MIT, 1973 (best fit decreasing).
    """
    bins = _RowBins()
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        remaining = count
        while remaining:
            candidate = bins.take_tightest(length)
            if candidate is None:
                rows = -(-remaining // (row_length // length))
                candidate = row_length, _EqualRows(rows, None)
            remaining = _place_items(bins, *candidate, length, remaining)
    return _make_layout(bins)


def _place_items(
    bins: _RowBins, room: int, equal_rows: _EqualRows, length: int, remaining: int
) -> int:
    """Put items of one length into rows, as many as fit; return how many items are left."""
    each = room // length
    full = min(equal_rows.num_rows, remaining // each)
    bins.add(room - each * length, _EqualRows(full, _RowContent(length, each, equal_rows.content)))
    remaining -= full * each
    untouched = equal_rows.num_rows - full
    if untouched and remaining:  # fewer than `each`: one row takes them
        bins.add(
            room - remaining * length,
            _EqualRows(1, _RowContent(length, remaining, equal_rows.content)),
        )
        untouched, remaining = untouched - 1, 0
    bins.add(room, _EqualRows(untouched, equal_rows.content))
    return remaining


def _make_layout(bins: _RowBins) -> PackedRowsLayout:
    lengths: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    sizes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for equal_rows in bins.iter_rows():
        row_lengths = _content_lengths(equal_rows.content)
        lengths.append(np.tile(row_lengths, equal_rows.num_rows))
        sizes.append(np.full(equal_rows.num_rows, len(row_lengths), dtype=np.int64))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(sizes))])
    return PackedRowsLayout(np.concatenate(lengths), offsets)


def _content_lengths(content: _RowContent | None) -> NDArray[np.int64]:
    lengths = []
    while content is not None:
        lengths.append(np.full(content.repeats, content.length, dtype=np.int64))
        content = content.previous
    return np.concatenate(lengths[::-1])


@dataclass(frozen=True, slots=True)
class Packed(SequencePolicy):
    """Batches of ``rows`` rows with several complete sequences in each row.

    Args:
        rows: Number of rows of a batch.
        row_length: Maximum number of timesteps of a row.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps the same rows in every epoch. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses.
        max_length: Maximum number of timesteps of a sequence; None: ``row_length``.
        too_long: Treatment of longer sequences: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        keep: Which timesteps of a truncated sequence remain, the ``first`` or the ``last``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import Loader, Packed
        >>> documents = [[1, 2, 3], [4], [5, 6], [7, 8]]
        >>> (batch,) = Loader(documents, Packed(rows=2, row_length=4))
        >>> tuple(batch["x"].shape), int(batch.mask.sum())
        ((2, 4), 8)
    """

    _name: ClassVar[str] = "packed"
    _row_limit: ClassVar[str | None] = "row_length"

    rows: int
    row_length: int
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        self._check_options("rows", "row_length")
        if self.max_length is not None and self.max_length > self.row_length:
            needed = f"at most `row_length` ({self.row_length})"
            remedy = "Reduce it, or increase `row_length`"
            raise ConfigError(
                must_be("policy 'packed': `max_length`", needed, str(self.max_length), remedy)
            )

    @property
    def items_per_sequence(self) -> int | None:
        """None: the number of batches depends on lengths."""
        return None

    def _make_cutter(self) -> PackedRowsCutter:
        return PackedRowsCutter(self.rows, self.row_length)


@dataclass(frozen=True, slots=True)
class PackedRowsCutter:
    """Rule that packs a block's items into rows, ``rows`` of them in a batch."""

    rows: int
    row_length: int
    is_arranged: bool = False
    max_block: int = MAX_BLOCK_ITEMS

    @property
    def block_items(self) -> int:
        """Number of items of a block, if there are several blocks."""
        return self.max_block

    def count_batches(self, blocks: Blocks) -> list[BlockCost]:
        """Return number of batches and highest cost of each block, by the histogram of lengths."""
        counts = []
        for block in blocks:
            layout = pack_lengths(*count_lengths(blocks.sizes(block)), self.row_length)
            batches = -(-(len(layout.offsets) - 1) // self.rows)
            counts.append(BlockCost(batches, self.rows * self.row_length))
        return counts

    def cut(self, items: BlockItems, draw: Draw | None, block: int) -> BlockBatches:
        """Pack a block's items; the order of equal lengths and that of rows are random."""
        lengths = items.lengths
        members = order_longest_first(lengths)
        if draw is not None:
            members = draw.permutation(Purpose.MEMBERS, len(lengths), block)
            members = members[order_longest_first(lengths[members])]
        ranked = lengths[members]
        starts = np.flatnonzero(np.diff(ranked, prepend=-1))
        counts = np.diff(np.append(starts, len(ranked)))
        layout = pack_lengths(ranked[starts], counts, self.row_length)
        placed = np.empty_like(members)
        placed[order_longest_first(layout.lengths)] = members  # both from the longest
        row_offsets = layout.offsets
        if draw is not None:
            placed, row_offsets = _shuffle_rows(placed, layout, draw, block)
        offsets = np.arange(0, len(row_offsets) - 1, self.rows, dtype=np.int64)
        return BlockBatches(placed, np.append(offsets, len(row_offsets) - 1), row_offsets)


def _shuffle_rows(
    placed: NDArray[np.int64], layout: PackedRowsLayout, draw: Draw, block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle the rows, and the sequences inside each."""
    sizes = np.diff(layout.offsets)
    order = draw.permutation(Purpose.GROUPS, len(sizes), block)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))  # row -> its position in the new order
    shuffled = draw.permutation(Purpose.MIX, len(placed), block)
    positions = shuffled[np.argsort(np.repeat(rank, sizes)[shuffled], kind="stable")]
    return placed[positions], offsets_from_sizes(sizes[order])

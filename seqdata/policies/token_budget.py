"""Policy ``token-budget``: as many rows as fit a budget of padded timesteps.

Sorted sequences are divided from the longest on into *length buckets*, runs that are batched
together. The size of a bucket follows from the histogram of lengths alone, so every epoch has the
same number of batches although its rows are mixed again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, must_be
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.planning.batch_order import distribute_copies, lengthen_copies
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    Block,
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
from seqdata.planning.items import (
    Cost,
    Empty,
    Items,
    Keep,
    TooLong,
)
from seqdata.planning.randomness import Draw, Purpose


@dataclass(frozen=True, slots=True)
class TokenBudget(SequencePolicy):
    """Batches of at most ``max_tokens`` timesteps, padding included.

    Args:
        max_tokens: Maximum number of timesteps of a batch after padding: rows x longest row.
        max_rows: Maximum number of rows of a batch; None: no limit.
        cost: Cost of a row. None: its length along the axis; ``max``: its length along its longest
            axis, so that no tensor exceeds the budget; or ``cost(lengths_of) -> int64 (n,)`` with
            lengths by axis.
        min_batches: Minimum number of batches of a bucket, except for the shortest sequences: more
            batches mix more and pad more.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps a fixed order, longest first. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses.
        max_length: Maximum number of timesteps of a row; None: ``max_tokens``.
        too_long: Treatment of longer sequences: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        worst_first: Whether epoch 0 begins with the most expensive batch.
        keep: Which timesteps of a truncated sequence remain, the ``first`` or the ``last``.
        balance_ranks: Number of consecutive batches of similar lengths, so that this number of
            ranks has equal work in a step. 1 gives a random order for any number of ranks. None
            means ``batches_per_update`` of the DataModule if set, otherwise the number of ranks of
            the Loader or Trainer, or 1 if ``plan`` is called directly.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import SequenceIndex, TokenBudget
        >>> index = SequenceIndex.from_lengths([10] * 4 + [5] * 8)
        >>> plan = TokenBudget(20).plan(index, seed=0, epoch=0)
        >>> sorted(len(plan.batch(number).spans) for number in range(len(plan)))
        [2, 2, 4, 4]
    """

    _name: ClassVar[str] = "token-budget"
    _row_limit: ClassVar[str | None] = "max_tokens"

    max_tokens: int
    max_rows: int | None = None
    min_batches: int = 2
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    worst_first: bool = True
    cost: Literal["max"] | Cost | None = None
    keep: Keep = "first"
    balance_ranks: int | None = None

    def __post_init__(self) -> None:
        self._check_options("max_tokens", "min_batches", optional_counts=("max_rows",))
        if self.max_length is not None and self.max_length > self.max_tokens:
            raise ConfigError(
                "policy 'token-budget': `max_length` must be at most "
                f"`max_tokens={self.max_tokens}`, but is {self.max_length}. Lower it, or raise "
                "the budget."
            )
        if not (self.cost in (None, "max") or callable(self.cost)):
            raise ConfigError(
                must_be(
                    "policy 'token-budget': `cost`", "'max', a function or None", f"{self.cost!r}"
                )
            )

    @property
    def items_per_sequence(self) -> int | None:
        """None: the number of batches depends on lengths."""
        return None

    def _make_cutter(self) -> LengthBuckets:
        return LengthBuckets(self.max_tokens, self.max_rows, self.min_batches)

    def _find_cost(self) -> Cost | None:
        return _longest_axis if self.cost == "max" else self.cost

    def _select_items(self, index: SequenceIndex) -> Items:
        items, cost = SequencePolicy._select_items(self, index), self._find_cost()
        if cost is not None:
            key = ("costly", items.axis, items.rule, cost, self.max_tokens)
            index.remember(key, lambda: _refuse_costly(items, self))
        return items


def _longest_axis(lengths_of: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    longest: NDArray[np.int64] = np.maximum.reduce(list(lengths_of.values()))
    return longest


def _refuse_costly(items: Items, policy: TokenBudget) -> None:
    """Raise if an item exceeds the budget along another axis, which is not cut here."""
    for first in range(0, len(items), MAX_BLOCK_ITEMS):
        spans = items.spans(first, first + MAX_BLOCK_ITEMS)
        sizes = items.sizes(spans)
        if len(sizes) and int(sizes.min()) < 1:
            number = int(np.argmin(sizes))
            raise ConfigError(
                "policy 'token-budget': `cost` must be at least 1 for every row, but is "
                f"{int(sizes[number])} for sequence {items.index.names(spans[[number], 0])}. "
                "Change the function."
            )
        too_costly = np.flatnonzero(sizes > policy.max_tokens)
        if len(too_costly):
            number = int(too_costly[0])
            raise PlanError(
                f"policy 'token-budget': sequence {items.index.names(spans[[number], 0])} costs "
                f"{int(sizes[number])}, more than `max_tokens={policy.max_tokens}`. Raise it, or "
                "filter the data."
            )


@dataclass(frozen=True, slots=True)
class LengthBuckets:
    """Rule that cuts a block into buckets, and buckets into batches."""

    max_tokens: int
    max_rows: int | None
    min_batches: int
    is_arranged: bool = True
    max_block: int = MAX_BLOCK_ITEMS

    @property
    def block_items(self) -> int:
        """Number of items of a block, if there are several blocks."""
        return self.max_block

    def count_batches(self, blocks: Blocks) -> list[BlockCost]:
        """Return number of batches and highest cost of each block, by the histogram of lengths."""
        counts = []
        for block in blocks:
            tops, rows, sizes = self.walk(*count_lengths(self._find_sizes(blocks, block)))
            cost = int((tops * np.minimum(rows, sizes)).max(initial=0))
            counts.append(BlockCost(int((-(-sizes // rows)).sum()), cost))
        return counts

    def walk(
        self, lengths: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Divide the histogram into buckets, from the longest items on.

        Args:
            lengths: int64 (k,), decreasing.
            counts: int64 (k,), number of items of each length.

        Returns:
            Longest item, rows of a batch and number of items of each bucket, int64 (buckets,) each.
        """
        falling = (-lengths).tolist()  # rising, for bisect
        cumulative = np.cumsum(counts).tolist()  # items at least as long as each length
        total = cumulative[-1] if cumulative else 0
        buckets, done = [], 0
        while done < total:
            top = -falling[bisect_left(cumulative, done + 1)]
            rows = min(self.max_rows or total, self.max_tokens // top)
            least = -(-49 * top // 50)  # 0.98 * top, rounded up, in integers
            i = bisect_left(falling, -least + 1)  # lengths before it are at least `least`
            nearby = cumulative[i - 1] - done
            batches = max(self.min_batches, nearby // rows)
            size = min(batches * rows, total - done)
            buckets.append((top, rows, size))
            done += size
        table = np.array(buckets, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    def _find_sizes(self, blocks: Blocks, block: Block) -> NDArray[Any]:
        if not blocks.items.index.has_copies:
            return blocks.sizes(block)
        spans = blocks.spans(block)
        return self._lengthen(
            BlockItems(blocks.items.sizes(spans), blocks.items.find_copies(spans))
        )

    def _lengthen(self, items: BlockItems) -> NDArray[np.int64]:
        """Return the lengths that buckets are made of, which differ for copies of a sequence."""
        if items.copies is None:
            return items.lengths
        order = order_longest_first(items.lengths)
        return lengthen_copies(items.lengths, order, items.copies, self.max_tokens)

    def cut(self, items: BlockItems, draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches, shuffled within their bucket."""
        lengths, count = self._lengthen(items), len(items.lengths)
        if draw is None:
            members = order_longest_first(lengths)
        else:
            members = draw.permutation(Purpose.MEMBERS, count, block)
            members = members[order_longest_first(lengths[members])]
        ranked = lengths[members]
        firsts = np.flatnonzero(np.diff(ranked, prepend=-1))  # first position of each length
        _, rows, sizes = self.walk(ranked[firsts], np.diff(np.append(firsts, count)))
        if draw is not None:
            bucket = np.repeat(np.arange(len(sizes)), sizes)
            shuffled = draw.permutation(Purpose.MIX, count, block)
            if items.copies is None:
                members = members[shuffled[np.argsort(bucket[shuffled], kind="stable")]]
            else:
                members = distribute_copies(members, shuffled, items.copies, bucket, rows, sizes)
        starts = np.cumsum(sizes) - sizes
        batches = -(-sizes // rows)
        number_in_bucket = np.arange(int(batches.sum())) - np.repeat(
            np.cumsum(batches) - batches, batches
        )
        offsets = np.repeat(starts, batches) + number_in_bucket * np.repeat(rows, batches)
        return BlockBatches(members, np.append(offsets, count).astype(np.int64))

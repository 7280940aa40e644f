"""Cuts a block's items every ``batch_size`` rows: shared by Fixed, Sorted, Bucketed and Windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.planning.blocks import MAX_BLOCK_ITEMS, Block, BlockBatches, BlockCost
from seqdata.planning.items import Items
from seqdata.planning.randomness import MAX_GROUP_SIZE, Draw, Purpose

Ordering = Callable[[NDArray[np.int64], Draw | None, int], NDArray[np.int64]]
"""``(lengths, draw, block) -> members``: the order in which a block's items are cut."""


@dataclass(frozen=True, slots=True)
class FixedSizeCutter:
    """Cut every ``batch_size`` items of an order.

    Attributes:
        batch_size: Rows of a batch.
        ordering: How a block's items are ordered before they are cut.
        is_arranged: Whether batches are then ordered by their longest row.
        max_block: Most items that are planned as one block.
    """

    batch_size: int
    ordering: Ordering
    is_arranged: bool
    max_block: int = MAX_BLOCK_ITEMS

    @property
    def block_items(self) -> int:
        """The largest multiple of 64 batches of at most ``max_block`` items, or 64 batches."""
        unit = MAX_GROUP_SIZE * self.batch_size
        return max(unit, self.max_block // unit * unit)

    def count_batches(self, items: Items, blocks: Sequence[Block]) -> list[BlockCost]:
        """Count each block's batches; costs are upper bounds, from the longest item nearby."""
        return [
            BlockCost(
                -(-(block.stop - block.first) // self.batch_size),
                items.peak(block.first, block.stop)
                * min(self.batch_size, block.stop - block.first),
            )
            for block in blocks
        ]

    def cut(self, lengths: NDArray[np.int64], draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches."""
        members = self.ordering(lengths, draw, block)
        starts = np.arange(0, len(members), self.batch_size, dtype=np.int64)
        return BlockBatches(members, np.append(starts, len(members)))


def order_longest_first(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of decreasing length, ties by number, int64 (n,)."""
    top = int(lengths.max(initial=0))
    rank = (top - lengths).astype(np.uint16 if top < 1 << 16 else np.int64)  # 16 bits: radix sort
    return np.argsort(rank, kind="stable")


def order_randomly(lengths: NDArray[np.int64], draw: Draw | None, block: int) -> NDArray[np.int64]:
    """Return a random order, or without a draw the data's, int64 (n,)."""
    if draw is None:
        return np.arange(len(lengths))
    return draw.permutation(Purpose.MEMBERS, len(lengths), block)


def check_count(policy: str, name: str, value: object, *, least: int = 1) -> None:
    """Raise if an option that counts something is invalid.

    Raises:
        ConfigError: If it is not an integer of at least ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            must_be(f"policy {policy!r}: `{name}`", f"an integer of at least {least}", repr(value))
        )

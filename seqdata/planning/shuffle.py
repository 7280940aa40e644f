"""The order of a block's batches: equal work for the ranks of a step, without an order of length.

Batches are sorted by their longest row and cut into groups; groups are shuffled, and inside a group
halves are shuffled recursively (64, 32, … 1). So W neighbours at an aligned position are neighbours
in length for every W that divides the group, while lengths differ at random from group to group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqdata.planning.randomness import Draw, Purpose

MAX_GROUP_SIZE = 64
_MIN_GROUPS = 16  # at least this many groups: fewer could not be shuffled


def group_size(batches: int) -> int:
    """Return largest power of two that is at most 64 and at most ``batches / 16`` (but >= 1)."""
    limit = min(MAX_GROUP_SIZE, batches // _MIN_GROUPS)
    return 1 << (limit.bit_length() - 1) if limit else 1


def shuffle_batches(
    longest: NDArray[np.int64], draw: Draw, *, block: int, lead: int | None
) -> NDArray[np.int64]:
    """Return the order of a block's batches.

    Args:
        longest: int64 (batches,), timesteps of each batch's longest row.
        draw: The epoch's randomness.
        block: Number of the block.
        lead: Batch that must come first, with its group; None for none.

    Returns:
        int64 (batches,), the numbers of the batches in training order: whole groups, then the
        ``batches % group`` remaining ones.
    """
    count = len(longest)
    ranked = np.argsort(-longest, kind="stable")
    size = group_size(count)
    remainder_size = count % size
    lead_position = None if lead is None else int(np.flatnonzero(ranked == lead)[0])
    remainder_start = _draw_remainder_start(count, remainder_size, lead_position, draw, block)
    remainder = ranked[remainder_start : remainder_start + remainder_size]
    grouped = np.concatenate(
        [ranked[:remainder_start], ranked[remainder_start + remainder_size :]]
    ).reshape(-1, size)
    if lead_position is not None and lead_position >= remainder_start + remainder_size:
        lead_position -= remainder_size
    grouped = _shuffle_groups(grouped, lead_position, draw, block)
    return np.concatenate([grouped.reshape(-1), _shuffle_remainder(remainder, draw, block)])


def _draw_remainder_start(
    count: int, remainder_size: int, lead_position: int | None, draw: Draw, block: int
) -> int:
    """Draw where the remainder, a slice of ranked batches without ``lead_position``, begins."""
    if not remainder_size:
        return 0
    if lead_position is None:
        return draw.below(Purpose.REMAINDER, count - remainder_size + 1, block)
    before = max(0, lead_position - remainder_size + 1)
    after = max(0, count - remainder_size - lead_position)
    drawn = draw.below(Purpose.REMAINDER, before + after, block)
    return drawn if drawn < before else lead_position + 1 + drawn - before


def _shuffle_groups(
    grouped: NDArray[np.int64], lead_position: int | None, draw: Draw, block: int
) -> NDArray[np.int64]:
    groups, size = grouped.shape  # place: flat position of the batch that leads
    coins = _draw_coins(draw, Purpose.HALVES, (groups, max(1, size - 1)), block)
    order = draw.permutation(Purpose.GROUPS, groups, block)
    if lead_position is not None:
        leading, member = divmod(lead_position, size)
        _move_to_front(coins[leading], member, size)
        order = np.concatenate([[leading], order[order != leading]])
    positions = _target_positions(coins, size)  # (groups, size)
    shuffled = np.empty_like(grouped)
    np.put_along_axis(shuffled, positions, grouped, axis=1)
    return shuffled[order]


def _shuffle_remainder(remainder: NDArray[np.int64], draw: Draw, block: int) -> NDArray[np.int64]:
    if len(remainder) < 2:
        return remainder
    size = 1 << (len(remainder) - 1).bit_length()
    coins = _draw_coins(draw, Purpose.LAST_HALVES, (1, size - 1), block)
    positions = _target_positions(coins, size)[0, : len(remainder)]
    return remainder[np.argsort(positions, kind="stable")]


def _draw_coins(
    draw: Draw, purpose: Purpose, shape: tuple[int, int], block: int
) -> NDArray[np.int64]:
    raw = draw.raw(purpose, shape[0] * shape[1], block)
    return (raw >> np.uint64(63)).astype(np.int64).reshape(shape)


def _target_positions(coins: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return where each of ``size`` neighbours goes when a coin per tree node swaps its halves.

    Nodes are numbered breadth first: the root 0, its halves 1 and 2, …
    """
    numbers = np.arange(size)
    positions = np.zeros((len(coins), size), dtype=np.int64)
    half, first_node = size // 2, 0
    while half:
        nodes = first_node + numbers // (2 * half)
        side = (numbers // half) & 1
        positions += (side ^ coins[:, nodes]) * half
        first_node = 2 * first_node + 1
        half //= 2
    return positions


def _move_to_front(coins: NDArray[np.int64], member: int, size: int) -> None:
    """Set the coins on the way to member ``member`` so that it comes first."""
    half, first_node = size // 2, 0
    while half:
        coins[first_node + member // (2 * half)] = (member // half) & 1
        first_node = 2 * first_node + 1
        half //= 2

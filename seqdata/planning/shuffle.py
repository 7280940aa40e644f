"""The order of a block's batches: like work for the ranks of a step, no length order to be seen.

Batches are sorted by their longest row and cut into groups; groups are shuffled, and inside a group
halves are shuffled recursively (64, 32, … 1). So W neighbours on an aligned place are neighbours in
length for every W that divides the group, while from group to group lengths jump at random.
Place in the flow: used by ``blocks``. Reads: the longest row of each batch. Makes: a permutation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqdata.planning.randomness import Draw, Purpose

MAX_GROUP = 64
_SHARE_OF_BATCHES = 16  # at least this many groups, or nothing would be left to shuffle


def group_size(batches: int) -> int:
    """Give the largest power of two that is at most 64 and at most ``batches / 16`` (but >= 1)."""
    limit = min(MAX_GROUP, batches // _SHARE_OF_BATCHES)
    return 1 << (limit.bit_length() - 1) if limit else 1


def arrange(
    longest: NDArray[np.int64], draw: Draw, *, block: int, lead: int | None
) -> NDArray[np.int64]:
    """Order the batches of a block.

    Args:
        longest: int64 (batches,), timesteps of each batch's longest row.
        draw: The epoch's randomness.
        block: Number of the block.
        lead: Batch that must come first, its group with it; None for no such wish.

    Returns:
        int64 (batches,), the numbers of the batches in training order: whole groups, then the
        ``batches % group`` remaining ones.
    """
    count = len(longest)
    ranked = np.argsort(-longest, kind="stable")
    size = group_size(count)
    rest = count % size
    place = None if lead is None else int(np.flatnonzero(ranked == lead)[0])
    cut = _cut_out(count, rest, place, draw, block)
    remainder = ranked[cut : cut + rest]
    grouped = np.concatenate([ranked[:cut], ranked[cut + rest :]]).reshape(-1, size)
    if place is not None and place >= cut + rest:
        place -= rest
    grouped = _shuffle_groups(grouped, place, draw, block)
    return np.concatenate([grouped.reshape(-1), _shuffle_remainder(remainder, draw, block)])


def _cut_out(count: int, rest: int, place: int | None, draw: Draw, block: int) -> int:
    """Draw where the remainder, a slice of the ranked batches, begins; it leaves ``place`` out."""
    if not rest:
        return 0
    if place is None:
        return draw.below(Purpose.REMAINDER, count - rest + 1, block)
    before = max(0, place - rest + 1)
    after = max(0, count - rest - place)
    drawn = draw.below(Purpose.REMAINDER, before + after, block)
    return drawn if drawn < before else place + 1 + drawn - before


def _shuffle_groups(
    grouped: NDArray[np.int64], place: int | None, draw: Draw, block: int
) -> NDArray[np.int64]:
    groups, size = grouped.shape  # place: flat position of the batch that leads
    coins = _coins(draw, Purpose.HALVES, (groups, max(1, size - 1)), block)
    order = draw.permutation(Purpose.GROUPS, groups, block)
    if place is not None:
        leading, inside = divmod(place, size)
        _aim(coins[leading], inside, size)
        order = np.concatenate([[leading], order[order != leading]])
    places = _places(coins, size)  # (groups, size)
    shuffled = np.empty_like(grouped)
    np.put_along_axis(shuffled, places, grouped, axis=1)
    return shuffled[order]


def _shuffle_remainder(remainder: NDArray[np.int64], draw: Draw, block: int) -> NDArray[np.int64]:
    if len(remainder) < 2:
        return remainder
    size = 1 << (len(remainder) - 1).bit_length()
    coins = _coins(draw, Purpose.LAST_HALVES, (1, size - 1), block)
    places = _places(coins, size)[0, : len(remainder)]
    return remainder[np.argsort(places, kind="stable")]


def _coins(draw: Draw, purpose: Purpose, shape: tuple[int, int], block: int) -> NDArray[np.int64]:
    raw = draw.raw(purpose, shape[0] * shape[1], block)
    return (raw >> np.uint64(63)).astype(np.int64).reshape(shape)


def _places(coins: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Say where each of ``size`` neighbours goes when a coin per tree node swaps its halves.

    Nodes are numbered breadth first: the root 0, its halves 1 and 2, …
    """
    numbers = np.arange(size)
    places = np.zeros((len(coins), size), dtype=np.int64)
    half, first_node = size // 2, 0
    while half:
        nodes = first_node + numbers // (2 * half)
        side = (numbers // half) & 1
        places += (side ^ coins[:, nodes]) * half
        first_node = 2 * first_node + 1
        half //= 2
    return places


def _aim(coins: NDArray[np.int64], inside: int, size: int) -> None:
    """Set the coins on the way to member ``inside`` so that it comes first."""
    half, first_node = size // 2, 0
    while half:
        coins[first_node + inside // (2 * half)] = (inside // half) & 1
        first_node = 2 * first_node + 1
        half //= 2

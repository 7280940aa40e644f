"""Copies of a sequence go to different batches, where there are enough of about its length.

A sequence that is drawn several times has equal lengths, so an order of length puts its copies side
by side, into one batch. The j-th copy therefore goes j batches further up, to longer ones: a batch
never gets longer by it, and padding grows by little, since a copy moves only to batches that are
longer by at most a quarter of the mean length. Where there are fewer such batches than copies, each
takes equally many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqdata.index import Copies

_MOST_LONGER = 4  # a quarter of the mean: 3 % of padding on average if half of the rows are copies


def spread_copies(
    members: NDArray[np.int64], keys: NDArray[np.int64], copies: Copies, rows: int
) -> NDArray[np.int64]:
    """Return an order of length in which copies are far enough apart to be in different batches.

    Args:
        members: int64 (n,), the items from the longest on.
        keys: int64 (n,), by what they were ordered.
        copies: Which items are of one sequence.
        rows: Items of a batch.
    """
    step = rows + rows // 4  # others move, too: a batch's width need not be enough
    ranks = _move_up(keys[members], copies.numbers[members], np.int64(step))
    return members[np.argsort(ranks, kind="stable")]


def lengthen_copies(
    lengths: NDArray[np.int64], order: NDArray[np.int64], copies: Copies, max_tokens: int
) -> NDArray[np.int64]:
    """Return lengths by which copies come to different batches of a budget, int64 (n,).

    None is less than the item's own, so that what fits by it fits.

    Args:
        lengths: int64 (n,), of the items.
        order: int64 (n,), the items from the longest on.
        copies: Which items are of one sequence.
        max_tokens: Most timesteps of a batch.
    """
    ranked = lengths[order]
    rows = max_tokens // np.maximum(ranked, 1)
    ranks = _move_up(ranked, copies.numbers[order], np.maximum(rows, 1))
    result = np.empty_like(lengths)
    result[order] = ranked[ranks]
    return result


def deal_copies(
    members: NDArray[np.int64],
    shuffled: NDArray[np.int64],
    copies: Copies,
    bucket: NDArray[np.int64],
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return an order in which the copies in a bucket are dealt to its batches in turn, int64 (n,).

    Args:
        members: int64 (n,), the items from the longest on, bucket by bucket.
        shuffled: int64 (n,), a random permutation.
        copies: Which items are of one sequence.
        bucket: int64 (n,), the bucket of each place.
        rows: int64 (buckets,), rows of a bucket's batches; its last may have fewer.
        sizes: int64 (buckets,), items of a bucket.
    """
    in_turn = members[np.lexsort((shuffled[copies.firsts[members]], bucket))]
    batches = -(-sizes // rows)
    last_rows = sizes - (batches - 1) * rows
    starts = np.cumsum(sizes) - sizes
    numbers = np.arange(len(members)) - starts[bucket]
    whole = (
        numbers - (batches * last_rows)[bucket]
    )  # of the turns that the last batch takes no part in
    is_late = whole >= 0
    turns = np.where(is_late, batches[bucket] - 1, batches[bucket])
    turn, batch = np.divmod(np.where(is_late, whole, numbers), np.maximum(turns, 1))
    place = batch * rows[bucket] + turn + np.where(is_late, last_rows[bucket], 0)
    dealt = np.empty_like(members)
    dealt[starts[bucket] + place] = in_turn
    return dealt


def _move_up(
    ranked: NDArray[np.int64], copy_numbers: NDArray[np.int64], steps: NDArray[np.int64] | np.int64
) -> NDArray[np.int64]:
    """Return the rank that each item goes to, int64 (n,).

    Args:
        ranked: int64 (n,), lengths, decreasing.
        copy_numbers: int64 (n,), which copy of its sequence each is.
        steps: Ranks from one batch to the next.
    """
    ranks = np.arange(len(ranked))
    most_longer = int(ranked.mean()) // _MOST_LONGER if len(ranked) else 0
    highest = np.searchsorted(-ranked, -(ranked + most_longer))
    batches: NDArray[np.int64] = (ranks - highest) // np.asarray(steps, dtype=np.int64)
    moved: NDArray[np.int64] = ranks - copy_numbers % (batches + 1) * steps
    return moved

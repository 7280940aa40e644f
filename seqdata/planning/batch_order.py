"""The order of a block's batches, and of rows in them: equal work for ranks, copies apart.

Batches are sorted by their longest row and cut into groups of as many as a step has ranks; groups
are shuffled, and inside a group halves are shuffled recursively. So the ranks of a step have rows
of like lengths, while lengths differ at random from step to step. One rank gets a random order:
each batch is a group. (Groups larger than a step train a model on runs of like batches: where
labels go along with length, that costs accuracy.)

Copies of a sequence go to different batches, where there are enough of about its length. A sequence
that is drawn several times has equal lengths, so an order of length puts its copies side by side,
into one batch. The j-th copy therefore goes j batches further up, to longer ones: a batch never
gets longer by it, and padding grows by little, since a copy moves only to batches that are longer
by at most a quarter of the mean length. Where there are fewer such batches than copies, each takes
equally many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import Copies
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    DrawnBatch,
    PartLabel,
    PlanBatch,
    concat_ranges,
    offsets_from_sizes,
)
from seqdata.planning.randomness import Draw, Purpose


def order_batches(
    longest: NDArray[np.int64], draw: Draw, *, block: int, group: int, lead: int | None
) -> NDArray[np.int64]:
    """Return the order of a block's batches.

    Args:
        longest: int64 (batches,), number of timesteps of each batch's longest row.
        draw: The epoch's randomness.
        block: Index of the block.
        group: Number of consecutive batches of similar lengths.
        lead: Index of the batch that must come first, with its group; None: no such batch.

    Returns:
        Indices of the batches in training order, int64 (batches,): whole groups, then the
        ``batches % group`` remaining batches, a random slice of the order of length.
    """
    count = len(longest)
    if group == 1:
        order = draw.permutation(Purpose.GROUPS, count, block)
        return order if lead is None else np.concatenate([[lead], order[order != lead]])
    ranked = np.argsort(-longest, kind="stable")
    remainder_size = count % group
    lead_position = None if lead is None else int(np.flatnonzero(ranked == lead)[0])
    if count < group:
        return _shuffle_remainder(ranked, lead_position, draw, block)
    remainder_start = _draw_remainder_start(count, remainder_size, lead_position, draw, block)
    remainder = ranked[remainder_start : remainder_start + remainder_size]
    grouped = np.concatenate(
        [ranked[:remainder_start], ranked[remainder_start + remainder_size :]]
    ).reshape(-1, group)
    if lead_position is not None and lead_position >= remainder_start + remainder_size:
        lead_position -= remainder_size
    grouped = _shuffle_groups(grouped, lead_position, draw, block)
    return np.concatenate([grouped.reshape(-1), _shuffle_remainder(remainder, None, draw, block)])


def _draw_remainder_start(
    count: int, remainder_size: int, lead_position: int | None, draw: Draw, block: int
) -> int:
    """Draw the start of the remainder, a slice of ranked batches without ``lead_position``."""
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
    """Return the groups in random order, halves swapped at random inside each, the lead first."""
    groups, group = grouped.shape
    size = _round_up(group)
    coins = _draw_coins(draw, Purpose.HALVES, (groups, size - 1), block)
    order = draw.permutation(Purpose.GROUPS, groups, block)
    if lead_position is not None:
        leading, member = divmod(lead_position, group)
        _move_to_front(coins[leading], member, size)
        order = np.concatenate([[leading], order[order != leading]])
    positions = _target_positions(coins, size)[:, :group]
    members = np.argsort(positions, axis=1, kind="stable")  # gaps close, where it is no power of 2
    shuffled: NDArray[np.int64] = np.take_along_axis(grouped, members, axis=1)[order]
    return shuffled


def _shuffle_remainder(
    remainder: NDArray[np.int64], lead_position: int | None, draw: Draw, block: int
) -> NDArray[np.int64]:
    if len(remainder) < 2:
        return remainder
    size = _round_up(len(remainder))
    coins = _draw_coins(draw, Purpose.LAST_HALVES, (1, size - 1), block)
    if lead_position is not None:
        _move_to_front(coins[0], lead_position, size)
    positions = _target_positions(coins, size)[0, : len(remainder)]
    return remainder[np.argsort(positions, kind="stable")]


def _round_up(count: int) -> int:
    """Return the least power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()


def _draw_coins(
    draw: Draw, purpose: Purpose, shape: tuple[int, int], block: int
) -> NDArray[np.int64]:
    raw = draw.raw(purpose, shape[0] * shape[1], block)
    return (raw >> np.uint64(63)).astype(np.int64).reshape(shape)


def _target_positions(coins: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the positions of ``size`` neighbours after a coin per tree node swaps its halves.

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
    """Set the coins on the path to ``member`` so that it comes first."""
    half, first_node = size // 2, 0
    while half:
        coins[first_node + member // (2 * half)] = (member // half) & 1
        first_node = 2 * first_node + 1
        half //= 2


_MOST_LONGER = 4  # a quarter of the mean: 3 % of padding on average if half of the rows are copies


def spread_copies(
    members: NDArray[np.int64], keys: NDArray[np.int64], copies: Copies, rows: int
) -> NDArray[np.int64]:
    """Return an order of length in which copies are far enough apart to be in different batches.

    Args:
        members: int64 (n,), the items in decreasing order of length.
        keys: int64 (n,), sort keys of that order, by item.
        copies: Items that have the same sequence.
        rows: Number of items of a batch.
    """
    step = rows + rows // 4  # others move, too: a batch's width need not be enough
    ranks = _move_up(keys[members], copies.numbers[members], np.int64(step))
    return members[np.argsort(ranks, kind="stable")]


def lengthen_copies(
    lengths: NDArray[np.int64], order: NDArray[np.int64], copies: Copies, max_tokens: int
) -> NDArray[np.int64]:
    """Return lengths that put copies into different batches of a budget, int64 (n,).

    No length is below that of its item, so that what fits by it fits.

    Args:
        lengths: int64 (n,), lengths of the items.
        order: int64 (n,), the items in decreasing order of length.
        copies: Items that have the same sequence.
        max_tokens: Maximum number of timesteps of a batch.
    """
    ranked = lengths[order]
    rows = max_tokens // np.maximum(ranked, 1)
    ranks = _move_up(ranked, copies.numbers[order], np.maximum(rows, 1))
    result = np.empty_like(lengths)
    result[order] = ranked[ranks]
    return result


def distribute_copies(
    members: NDArray[np.int64],
    shuffled: NDArray[np.int64],
    copies: Copies,
    bucket: NDArray[np.int64],
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return an order that distributes the copies in a bucket over its batches, int64 (n,).

    Args:
        members: int64 (n,), the items in decreasing order of length, bucket by bucket.
        shuffled: int64 (n,), a random permutation.
        copies: Items that have the same sequence.
        bucket: int64 (n,), the bucket of each position.
        rows: int64 (buckets,), rows of a bucket's batches; its last batch may have fewer.
        sizes: int64 (buckets,), items of each bucket.
    """
    in_turn = members[np.lexsort((shuffled[copies.firsts[members]], bucket))]
    batches = -(-sizes // rows)
    last_rows = sizes - (batches - 1) * rows
    starts = np.cumsum(sizes) - sizes
    numbers = np.arange(len(members)) - starts[bucket]
    # position among the turns that the last batch takes no part in
    whole = numbers - (batches * last_rows)[bucket]
    is_late = whole >= 0
    turns = np.where(is_late, batches[bucket] - 1, batches[bucket])
    turn, batch = np.divmod(np.where(is_late, whole, numbers), np.maximum(turns, 1))
    position = batch * rows[bucket] + turn + np.where(is_late, last_rows[bucket], 0)
    distributed = np.empty_like(members)
    distributed[starts[bucket] + position] = in_turn
    return distributed


def _move_up(
    ranked: NDArray[np.int64], copy_numbers: NDArray[np.int64], steps: NDArray[np.int64] | np.int64
) -> NDArray[np.int64]:
    """Return the rank that each item goes to, int64 (n,).

    Args:
        ranked: int64 (n,), lengths in decreasing order.
        copy_numbers: int64 (n,), index of each item among the copies of its sequence.
        steps: Number of ranks from one batch to the next.
    """
    ranks = np.arange(len(ranked))
    most_longer = int(ranked.mean()) // _MOST_LONGER if len(ranked) else 0
    highest = np.searchsorted(-ranked, -(ranked + most_longer))
    batches: NDArray[np.int64] = (ranks - highest) // np.asarray(steps, dtype=np.int64)
    moved: NDArray[np.int64] = ranks - copy_numbers % (batches + 1) * steps
    return moved


@dataclass(frozen=True, eq=False, slots=True)
class DescendingRows(BatchTable):
    """The batches of another table, with the rows of each in descending length.

    Rows of equal length keep their order.

    Attributes:
        table: The other table; its rows are not lanes.
    """

    table: BatchTable

    def __len__(self) -> int:
        return len(self.table)

    def batch(self, number: int) -> PlanBatch:
        """Return one batch."""
        batch = self.table.batch(number)
        return _take_rows(batch, self._order(number))

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        return _sort_rows(self.table.slice(first, stop))

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, as arrays."""
        yield from map(_sort_rows, self.table.tables())

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
        return self.table.totals(first, stop, overlap)

    def prepare(self, number: int) -> int:
        """Make the block of a batch, if it has one; return the first batch of the next block."""
        return self.table.prepare(number)

    def scale(self, number: int) -> float:
        """Return the ratio of the length of a batch's chunks to the usual one."""
        return self.table.scale(number)

    def label(self, numbers: Sequence[int]) -> list[PartLabel] | None:
        """Return the part of each of these batches, or of each of their rows."""
        labels = self.table.label(numbers)
        if labels is None or not any(isinstance(label.part, list) for label in labels):
            return labels
        found = []
        for number, label in zip(numbers, labels, strict=True):
            order = self._order(number).tolist() if isinstance(label.part, list) else []
            found.append(PartLabel(*(_take_labels(each, order) for each in label)))
        return found

    def locate_parts(self, number: int) -> Mapping[str, tuple[int, int]] | None:
        """Return the positions of a mixture's parts before a batch; None without such parts."""
        return self.table.locate_parts(number)

    def drawn_batch(self, number: int) -> DrawnBatch | None:
        """Return the drawn sequences, and a batch as positions among them; None without draws."""
        drawn = self.table.drawn_batch(number)
        if drawn is None:
            return None
        batch = PlanBatch(drawn.spans, self.table.batch(number).rows)
        return drawn._replace(spans=_take_rows(batch, self._order(number)).spans)

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches, one batch after another; None: all 1."""
        if self.table.row_weights(numbers[:1]) is None:
            return None
        found = [(self.table.row_weights([number]), self._order(number)) for number in numbers]
        return np.concatenate([weights[order] for weights, order in found if weights is not None])

    def _order(self, number: int) -> NDArray[np.int64]:
        """Return the row of the other table at each place of a batch, int64 (r,)."""
        return np.argsort(-self.table.batch(number).lengths, kind="stable")


def _take_labels(values: Any, order: list[int]) -> Any:
    return [values[row] for row in order] if isinstance(values, list) else values


def _take_rows(batch: PlanBatch, order: NDArray[np.int64]) -> PlanBatch:
    """Return the rows of a batch in another order."""
    if batch.rows is None:
        return PlanBatch(batch.spans[order], None)
    offsets = offsets_from_sizes(np.diff(batch.rows)[order])
    return PlanBatch(batch.spans[concat_ranges(batch.rows[:-1][order], offsets)], offsets)


def _sort_rows(table: ArrayTable) -> ArrayTable:
    """Return batches with the rows of each in descending length."""
    lengths = table.row_lengths()
    batches = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    order = np.lexsort((-lengths, batches))  # stable
    spans, rows = _take_rows(PlanBatch(table.spans, table.rows), order)
    return ArrayTable(spans, rows, table.offsets)


def sort_within_batches(plan: Plan) -> Plan:
    """Return a plan with the rows of each batch in descending length; rows of lanes stay.

    The fingerprint, the report and the order of batches are those of the given plan.
    """
    if plan.lanes:
        return plan
    origin = PlanOrigin(lambda: plan.fingerprint, lambda _: plan.report)
    return plan.with_table(DescendingRows, origin)

"""Assignment of sequences to lanes that end together, mixed again in every epoch.

The number of sequences of each size in a lane follows from the histogram of sizes alone: longest
first into the lane with the least load (LPT: R. L. Graham, "Bounds on multiprocessing timing
anomalies", 1969). An epoch draws the sequences of each size, swaps the tails of lanes after
positions of similar time, and shuffles the order within each lane and the lanes.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import offsets_from_sizes
from seqdata.planning.build import order_longest_first
from seqdata.planning.randomness import Draw, Purpose

_MAX_ONE_BY_ONE = 8  # up to this many equal sequences per lane are assigned one after the other
_MAX_CANDIDATES = 1 << 10  # positions of a lane that are tried for a swap


class LaneAssignment(NamedTuple):
    """The lane of each sequence, by decreasing size.

    Attributes:
        lanes: Integers (n,), lane of each sequence.
        loads: int64 (L,), total size of each lane.
    """

    lanes: NDArray[Any]
    loads: NDArray[np.int64]


class LaneQueues(NamedTuple):
    """The sequences of each lane, one lane after the other.

    Attributes:
        members: int64 (n,), indices of the assigned sequences.
        offsets: int64 (L+1,), lane -> members.
    """

    members: NDArray[np.int64]
    offsets: NDArray[np.int64]


class SwapLimits(NamedTuple):
    """The limits of a swap between two lanes.

    Attributes:
        max_load: Maximum load of a lane.
        step_load: Load of a step: a lane above ``max_load - step_load`` determines the number of
            steps, and there always is one.
        slack: Maximum excess of a lane after the swap over the fuller of the two before it.
    """

    max_load: int
    step_load: int = 1
    slack: int = 0


def assign_lanes(sizes: NDArray[np.int64], lanes: int) -> LaneAssignment:
    """Assign sizes to lanes, largest first, each to the least loaded lane, ties to the first.

    Args:
        sizes: int64 (n,), at least 1 each, in any order.
        lanes: Number of lanes.
    """
    values, counts = np.unique(sizes, return_counts=True)
    loads = np.zeros(lanes, dtype=np.int64)
    dtype = np.uint16 if lanes <= 1 << 16 else np.uint32
    assigned: list[NDArray[Any]] = [np.empty(0, dtype=dtype)]
    for value, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        assign = _assign_one_by_one if count <= _MAX_ONE_BY_ONE * lanes else _assign_by_level
        assigned.append(assign(loads, value, count).astype(dtype))
    return LaneAssignment(np.concatenate(assigned), loads)


def _assign_one_by_one(loads: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Assign ``count`` equal sizes and add them to ``loads``; return their lanes."""
    heap = list(zip(loads.tolist(), range(len(loads)), strict=True))
    heapq.heapify(heap)
    lanes = np.empty(count, dtype=np.int64)
    for i in range(count):
        load, lane = heap[0]
        heapq.heapreplace(heap, (load + size, lane))
        lanes[i] = lane
    loads += size * np.bincount(lanes, minlength=len(loads))
    return lanes


def _assign_by_level(loads: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Assign all equal sizes at once, by the level up to which every lane is filled."""
    low, high = int(loads.min()), int(loads.max()) + size * count
    while low < high:  # the lowest level below which there is room for all
        level = (low + high) // 2
        if int(_capacity(loads, level, size).sum()) >= count:
            high = level
        else:
            low = level + 1
    each = _capacity(loads, low - 1, size)
    last = np.flatnonzero((loads < low) & ((low - 1 - loads) % size == 0))
    each[last[: count - int(each.sum())]] += 1
    loads += size * each
    return np.repeat(np.arange(len(loads)), each)


def _capacity(loads: NDArray[np.int64], level: int, size: int) -> NDArray[np.int64]:
    """Return the number of sizes that begin below a level in each lane, int64 (L,)."""
    return np.maximum(0, -((loads - level) // size))


def make_queues(
    sizes: NDArray[np.int64], assignment: LaneAssignment, draw: Draw | None, limits: SwapLimits
) -> LaneQueues:
    """Return the queues of an epoch.

    Args:
        sizes: int64 (n,), sizes of the sequences in the data's order.
        assignment: Lanes of sequences of these sizes.
        draw: The epoch's randomness; None: every lane reads in the data's order.
        limits: Limits of the swaps between lanes.
    """
    count, lanes = len(sizes), len(assignment.loads)
    if draw is None:
        ranked = order_longest_first(sizes)
        ranked = ranked[np.lexsort((ranked, assignment.lanes))]
        return LaneQueues(
            ranked, offsets_from_sizes(np.bincount(assignment.lanes, minlength=lanes))
        )
    ranked = draw.permutation(Purpose.MEMBERS, count)
    ranked = ranked[order_longest_first(sizes[ranked])]
    shuffled = draw.permutation(Purpose.MIX, count)
    shuffled = shuffled[np.argsort(assignment.lanes[shuffled], kind="stable")]
    result = LaneQueues(
        ranked[shuffled], offsets_from_sizes(np.bincount(assignment.lanes, minlength=lanes))
    )
    for turn in range(lanes.bit_length()):
        result = _swap_tails(result, sizes, draw, turn, limits)
    return _reorder_lanes(result, draw.permutation(Purpose.LANES, lanes))


def _swap_tails(
    queues: LaneQueues, sizes: NDArray[np.int64], draw: Draw, turn: int, limits: SwapLimits
) -> LaneQueues:
    """Swap the tails after positions of similar time between random pairs of lanes."""
    lanes = len(queues.offsets) - 1
    pairs = draw.permutation(Purpose.PAIRS, lanes, turn).tolist()
    words = draw.raw(Purpose.CUTS, lanes, turn).tolist()
    time_offsets = offsets_from_sizes(sizes[queues.members])
    first, stop = queues.offsets[:-1].copy(), queues.offsets[1:].copy()  # bounds of tails, by lane
    head_stop = queues.offsets[1:].copy()  # ends of heads, by lane
    for first_lane, second_lane in zip(pairs[::2], pairs[1::2], strict=False):
        cuts = _find_swap(
            time_offsets, queues.offsets, first_lane, second_lane, words[first_lane], limits
        )
        if cuts is None:
            first[first_lane] = first[second_lane] = stop[first_lane] = stop[second_lane] = 0
            continue
        head_stop[first_lane], head_stop[second_lane] = cuts
        first[first_lane], first[second_lane] = cuts[1], cuts[0]
        stop[first_lane], stop[second_lane] = (
            queues.offsets[second_lane + 1],
            queues.offsets[first_lane + 1],
        )
    if lanes % 2:
        first[pairs[-1]] = stop[pairs[-1]] = 0
    starts = np.stack([queues.offsets[:-1], first], axis=1).reshape(-1)
    range_sizes = np.stack([head_stop - queues.offsets[:-1], stop - first], axis=1).reshape(-1)
    return LaneQueues(
        queues.members[_concat_ranges(starts, range_sizes)],
        offsets_from_sizes(range_sizes.reshape(-1, 2).sum(axis=1)),
    )


def _find_swap(
    time_offsets: NDArray[np.int64],
    lane_offsets: NDArray[np.int64],
    first_lane: int,
    second_lane: int,
    word: int,
    limits: SwapLimits,
) -> tuple[int, int] | None:
    """Return positions in two lanes after which tails may be swapped; None: there are none."""
    low, high = int(lane_offsets[first_lane]), int(lane_offsets[first_lane + 1])
    base = int(lane_offsets[second_lane])
    first_times, second_times = (
        time_offsets[low : high + 1] - time_offsets[low],
        time_offsets[base : int(lane_offsets[second_lane + 1]) + 1],
    )
    first_load, second_load = int(first_times[-1]), int(second_times[-1] - second_times[0])
    max_load = min(limits.max_load, max(first_load, second_load) + limits.slack)
    candidates = first_times[1:-1]  # inside the lane: at its ends whole lanes would be swapped
    skip = word % max(1, len(candidates) - _MAX_CANDIDATES + 1)
    candidates = candidates[skip : skip + _MAX_CANDIDATES]
    matches = np.searchsorted(
        second_times, candidates + (second_times[0] - (max_load - second_load))
    )
    matches = np.minimum(matches, len(second_times) - 1)
    match_times = second_times[matches] - second_times[0]
    first_after, second_after = (
        candidates + second_load - match_times,
        match_times + first_load - candidates,
    )
    is_allowed = (first_after <= max_load) & (second_after <= max_load)
    min_load = limits.max_load - limits.step_load
    if max(first_load, second_load) > min_load:
        is_allowed &= np.maximum(first_after, second_after) > min_load
    allowed = np.flatnonzero(is_allowed)
    if not len(allowed):
        return None
    chosen = int(allowed[(word >> 32) % len(allowed)])
    return low + 1 + skip + chosen, base + int(matches[chosen])


def _reorder_lanes(queues: LaneQueues, order: NDArray[np.int64]) -> LaneQueues:
    """Return the lanes in another order."""
    sizes = np.diff(queues.offsets)[order]
    return LaneQueues(
        queues.members[_concat_ranges(queues.offsets[:-1][order], sizes)], offsets_from_sizes(sizes)
    )


def _concat_ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of ranges, one range after another, int64."""
    offsets = offsets_from_sizes(sizes)
    return np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], sizes)

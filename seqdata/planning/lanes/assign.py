"""Pack sequences into lanes that end together, and mix them anew in every epoch.

Which lane holds how many sequences of which size follows from the histogram of sizes alone: longest
first into the lane that has least (LPT: R. L. Graham, "Bounds on multiprocessing timing anomalies",
1969). An epoch draws which sequences of a size they are, lets lanes exchange what follows two
places of like time, and shuffles the order inside each lane and the lanes. Place in the flow: used
by policy ``tbptt``. Reads: sizes of sequences. Makes: a queue of sequences for every lane.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import running
from seqdata.planning.fixed_size import longest_first
from seqdata.planning.randomness import Draw, Purpose

_ONE_BY_ONE = 8  # up to so many equal sequences per lane they are dealt one after the other
_TRIED = 1 << 10  # places of a lane that are tried for an exchange


class Dealt(NamedTuple):
    """Places for sequences, by falling size.

    Attributes:
        lanes: Integers (n,), lane of each place.
        loads: int64 (L,), what each lane holds in all.
    """

    lanes: NDArray[Any]
    loads: NDArray[np.int64]


class Queues(NamedTuple):
    """What each lane reads, one lane behind the other.

    Attributes:
        members: int64 (n,), places of the sequences in what was dealt.
        edges: int64 (L+1,), lane -> members.
    """

    members: NDArray[np.int64]
    edges: NDArray[np.int64]


class Limits(NamedTuple):
    """What an exchange between two lanes must keep.

    Attributes:
        most: No lane holds more.
        unit: A lane that holds more than ``most - unit`` makes the epoch as long as it is: there is
            one.
        slack: How much more than the fuller of the two a lane may hold afterwards.
    """

    most: int
    unit: int = 1
    slack: int = 0


def deal(sizes: NDArray[np.int64], lanes: int) -> Dealt:
    """Deal sizes to lanes, largest first, each to the lane that holds least; ties to the first.

    Args:
        sizes: int64 (n,), in any order, each at least 1.
        lanes: How many there are.
    """
    values, counts = np.unique(sizes, return_counts=True)
    loads = np.zeros(lanes, dtype=np.int64)
    kind = np.uint16 if lanes <= 1 << 16 else np.uint32
    dealt: list[NDArray[Any]] = [np.empty(0, dtype=kind)]
    for value, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        give = _one_by_one if count <= _ONE_BY_ONE * lanes else _all_at_once
        dealt.append(give(loads, value, count).astype(kind))
    return Dealt(np.concatenate(dealt), loads)


def _one_by_one(loads: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Deal ``count`` equal sizes and add them to ``loads``; give their lanes."""
    heap = list(zip(loads.tolist(), range(len(loads)), strict=True))
    heapq.heapify(heap)
    taken = np.empty(count, dtype=np.int64)
    for place in range(count):
        load, lane = heap[0]
        heapq.heapreplace(heap, (load + size, lane))
        taken[place] = lane
    loads += size * np.bincount(taken, minlength=len(loads))
    return taken


def _all_at_once(loads: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Do the same by the level up to which every lane is filled."""
    low, high = int(loads.min()), int(loads.max()) + size * count
    while low < high:  # the least level below which there is room for all
        level = (low + high) // 2
        if int(_room(loads, level, size).sum()) >= count:
            high = level
        else:
            low = level + 1
    each = _room(loads, low - 1, size)
    last = np.flatnonzero((loads < low) & ((low - 1 - loads) % size == 0))
    each[last[: count - int(each.sum())]] += 1
    loads += size * each
    return np.repeat(np.arange(len(loads)), each)


def _room(loads: NDArray[np.int64], level: int, size: int) -> NDArray[np.int64]:
    """Give how many sizes each lane takes that begin below a level, int64 (L,)."""
    return np.maximum(0, -((loads - level) // size))


def queues(sizes: NDArray[np.int64], dealt: Dealt, draw: Draw | None, limits: Limits) -> Queues:
    """Fill the places of an epoch.

    Args:
        sizes: int64 (n,), of the sequences in the data's order.
        dealt: Where sequences of these sizes go.
        draw: The epoch's randomness; None: every lane reads in the data's order.
        limits: What lanes may hold after exchanges.

    Returns:
        The lanes in the order of the epoch.
    """
    count, lanes = len(sizes), len(dealt.loads)
    if draw is None:
        ranked = longest_first(sizes)
        ranked = ranked[np.lexsort((ranked, dealt.lanes))]
        return Queues(ranked, running(np.bincount(dealt.lanes, minlength=lanes)))
    ranked = draw.permutation(Purpose.MEMBERS, count)
    ranked = ranked[longest_first(sizes[ranked])]
    mixed = draw.permutation(Purpose.MIX, count)
    mixed = mixed[np.argsort(dealt.lanes[mixed], kind="stable")]
    made = Queues(ranked[mixed], running(np.bincount(dealt.lanes, minlength=lanes)))
    for turn in range(lanes.bit_length()):
        made = _exchanged(made, sizes, draw, turn, limits)
    return _reordered(made, draw.permutation(Purpose.LANES, lanes))


def _exchanged(
    made: Queues, sizes: NDArray[np.int64], draw: Draw, turn: int, limits: Limits
) -> Queues:
    """Let random pairs of lanes exchange what follows two places of like time."""
    lanes = len(made.edges) - 1
    pairs = draw.permutation(Purpose.PAIRS, lanes, turn).tolist()
    words = draw.raw(Purpose.CUTS, lanes, turn).tolist()
    ends = running(sizes[made.members])
    first, stop = made.edges[:-1].copy(), made.edges[1:].copy()  # of what follows, by lane
    heads = made.edges[1:].copy()  # where what stays ends, by lane
    for one, other in zip(pairs[::2], pairs[1::2], strict=False):
        places = _places(ends, made.edges, one, other, words[one], limits)
        if places is None:
            first[one] = first[other] = stop[one] = stop[other] = 0
            continue
        heads[one], heads[other] = places
        first[one], first[other] = places[1], places[0]
        stop[one], stop[other] = made.edges[other + 1], made.edges[one + 1]
    if lanes % 2:
        first[pairs[-1]] = stop[pairs[-1]] = 0
    begins = np.stack([made.edges[:-1], first], axis=1).reshape(-1)
    sizes_of = np.stack([heads - made.edges[:-1], stop - first], axis=1).reshape(-1)
    return Queues(
        made.members[_runs(begins, sizes_of)], running(sizes_of.reshape(-1, 2).sum(axis=1))
    )


def _places(
    ends: NDArray[np.int64], edges: NDArray[np.int64], one: int, other: int, word: int,
    limits: Limits,
) -> tuple[int, int] | None:  # fmt: skip
    """Find a place in each of two lanes behind which they may exchange all; None: there is none."""
    low, high = int(edges[one]), int(edges[one + 1])
    base = int(edges[other])
    mine, theirs = ends[low : high + 1] - ends[low], ends[base : int(edges[other + 1]) + 1]
    load, loaded = int(mine[-1]), int(theirs[-1] - theirs[0])
    most = min(limits.most, max(load, loaded) + limits.slack)
    tried = mine[1:-1]  # inside the lane: at its edges whole lanes would change places
    skip = word % max(1, len(tried) - _TRIED + 1)
    tried = tried[skip : skip + _TRIED]
    found = np.searchsorted(theirs, tried + (theirs[0] - (most - loaded)))
    found = np.minimum(found, len(theirs) - 1)
    at = theirs[found] - theirs[0]
    after, later = tried + loaded - at, at + load - tried
    good = (after <= most) & (later <= most)
    least = limits.most - limits.unit
    if max(load, loaded) > least:
        good &= np.maximum(after, later) > least
    choice = np.flatnonzero(good)
    if not len(choice):
        return None
    chosen = int(choice[(word >> 32) % len(choice)])
    return low + 1 + skip + chosen, base + int(found[chosen])


def _reordered(made: Queues, order: NDArray[np.int64]) -> Queues:
    """Put the lanes into an order."""
    sizes = np.diff(made.edges)[order]
    return Queues(made.members[_runs(made.edges[:-1][order], sizes)], running(sizes))


def _runs(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give ``begins[0], begins[0]+1, …`` for each of many runs, int64."""
    edges = running(sizes)
    return np.arange(int(edges[-1])) + np.repeat(begins - edges[:-1], sizes)

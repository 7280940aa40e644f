"""Packing lanes: longest first into the emptiest, in bulk as one by one; exchanges keep the end."""

import heapq
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqdata.planning.lane_assignment import SwapLimits, assign_lanes, make_queues
from seqdata.planning.randomness import Draw

sizes_of = st.lists(st.integers(1, 30), max_size=60)


def plainly(sizes, lanes):
    """Pack in the fewest lines."""
    heap = [(0, lane) for lane in range(lanes)]
    for size in sorted(sizes, reverse=True):
        load, lane = heap[0]
        heapq.heapreplace(heap, (load + size, lane))
    return [load for load, _ in sorted(heap, key=lambda one: one[1])]


@given(sizes_of, st.integers(1, 7))
def test_lanes_hold_what_packing_one_by_one_gives(sizes, lanes):
    assigned = assign_lanes(np.array(sizes, dtype=np.int64), lanes)
    assert assigned.loads.tolist() == plainly(sizes, lanes)
    held = np.bincount(assigned.lanes, weights=sorted(sizes, reverse=True), minlength=lanes)
    assert held.tolist() == assigned.loads.tolist()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 200)), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_many_equal_sizes_are_assigned_at_once_as_one_by_one(runs, lanes):
    sizes = [size for size, count in runs for _ in range(count)]
    assigned = assign_lanes(np.array(sizes, dtype=np.int64), lanes)
    assert assigned.loads.tolist() == plainly(sizes, lanes)
    held = np.bincount(assigned.lanes, weights=sorted(sizes, reverse=True), minlength=lanes)
    assert held.tolist() == assigned.loads.tolist()


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 5),
    st.sampled_from(((1, 0), (1, 4), (6, 6))),
)  # fmt: skip
def test_an_epoch_holds_every_sequence_once_and_ends_when_every_other_does(
    lengths, lanes, epoch, law
):
    unit, slack = law
    sizes = np.array(lengths, dtype=np.int64)
    assigned = assign_lanes(sizes, lanes)
    most = -(-int(assigned.loads.max()) // unit) * unit
    made = make_queues(sizes, assigned, Draw(3, epoch), SwapLimits(most, unit, slack))
    assert sorted(made.members.tolist()) == list(range(len(sizes)))
    edges = made.offsets.tolist()
    loads = [int(sizes[made.members[a:b]].sum()) for a, b in pairwise(edges)]
    assert len(loads) == lanes
    assert most - unit < max(loads) <= most

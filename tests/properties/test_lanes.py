"""Plans dealt by rows: every lane goes on, on any world, also where rows hold several spans."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata_testing.generators import indexes, lane_policies, world_sizes
from seqdata_testing.lane_metadata import check_heads
from seqdata_testing.lanes import check_lanes
from seqdata_testing.plans import check_covers, check_table
from seqdata_testing.sharing import check_elastic, check_resume, check_shares
from tests.properties.counts import AT_NIGHT, examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night
MOST_STEPS = 10_000 if settings().max_examples > AT_NIGHT else 120  # of a plan that is drawn


@st.composite
def planned(draw):
    """Draw a plan of lanes, perhaps over the lengths of targets; and what it is planned over."""
    policy, index = draw(lane_policies()), draw(indexes(most=60))
    shift = draw(st.sampled_from((0, 0, 1, 2)))
    index = index.shifted("time", shift) if shift else index
    plan = policy.plan(index, seed=draw(st.integers(0, 99)), epoch=draw(st.integers(0, 3)))
    assert len(plan) == policy.num_batches(index)
    assume(len(plan) <= MOST_STEPS)
    return plan, index


@pytest.mark.shows("I6")
@examples(25, here=40)
@given(planned())
@pytest.mark.slow
def test_lanes_read_sequences_whole_and_in_order_and_are_reset_where_they_begin(drawn):
    check_lanes(*drawn)
    check_covers(*drawn)
    check_heads(drawn[0])


@pytest.mark.shows("I6")
@examples(2, here=30)
@given(planned(), st.integers(2, 5))
@pytest.mark.slow
def test_every_rank_is_told_the_same_of_its_lanes(drawn, size):
    check_table(drawn[0])
    check_heads(drawn[0], size)


@st.composite
def streams(draw):
    """Draw documents laid end to end, cut into equal columns, and these into chunks."""
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=20))
    lanes, chunk = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    ends = np.cumsum(sizes)
    edges = [lane * int(ends[-1]) // lanes for lane in range(lanes + 1)]
    steps = -(-max(b - a for a, b in pairwise(edges)) // chunk)
    spans, rows = [], [0]
    for step in range(steps):
        for lane in range(lanes):
            low = min(edges[lane] + step * chunk, edges[lane + 1])
            spans += pieces(low, min(low + chunk, edges[lane + 1]), ends)
            rows.append(len(spans))
    offsets = np.arange(steps + 1) * lanes
    plan = Plan(np.reshape(spans, (-1, 3)), rows, offsets, lanes, carry=True)
    return plan, SequenceIndex.from_lengths(sizes)


def pieces(low, high, ends):
    """Cut a run of the stream where documents end; an idle row has one empty span."""
    found = []
    while low < high:
        number = int(np.searchsorted(ends, low, side="right"))
        begin = int(ends[number - 1]) if number else 0
        stop = min(high, int(ends[number]))
        found.append((number, low - begin, stop - begin))
        low = stop
    return found or [(0, 0, 0)]


@pytest.mark.shows("I6")
@examples(3, here=50)
@given(streams(), world_sizes(), st.lists(st.integers(0, 40), max_size=3), st.integers(0, 40))
@pytest.mark.slow
def test_rows_of_several_spans_are_dealt_whole(drawn, size, cuts, first):
    plan, index = drawn
    check_table(plan)
    check_lanes(plan, index)
    check_covers(plan, index)
    check_shares(plan, size, first=min(first, len(plan)))
    check_resume(plan, size, sorted(min(cut, len(plan)) for cut in cuts))


@pytest.mark.shows("I6")
@examples(3, here=50)
@given(streams(), st.lists(st.tuples(world_sizes(), st.integers(0, 9)), min_size=2, max_size=5))
@pytest.mark.slow
def test_rows_of_several_spans_survive_any_worlds(drawn, legs):
    check_elastic(drawn[0], legs)


@examples(3, here=50)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 7), world_sizes(), st.integers(0, 9))
@pytest.mark.slow
def test_context_of_overlapping_chunks_is_counted_for_nobody(length, chunk, overlap, size, first):
    advance = max(1, chunk - overlap)
    overlap = chunk - advance
    starts = range(0, max(1, length - overlap), advance)
    spans = [(0, start, min(start + chunk, length)) for start in starts]
    plan = Plan(spans, offsets=range(len(spans) + 1), lanes=1, overlap=overlap)
    index = SequenceIndex.from_lengths([length])
    check_table(plan)
    check_covers(plan, index)
    check_lanes(plan, index)
    check_shares(plan, size, first=min(first, len(plan)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_rank_owns_neighbouring_lanes_from_floor_to_floor(size):
    plan = Plan([(lane, 0, 1) for lane in range(5)], offsets=[0, 5], lanes=5)
    check_shares(plan, size)

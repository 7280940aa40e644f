"""Chunks cover a lane: each timestep is scored once, whatever chunks have in common."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqdata.planning.lanes.step_table import Chunks, UnevenChunks

SIZES = st.integers(1, 9).flatmap(lambda chunk: st.tuples(st.just(chunk), st.integers(1, chunk)))


def cut(length, chunk, advance):
    """Return the chunks of a sequence as a loop would cut it."""
    found = [(0, min(chunk, length))]
    while found[-1][1] < length:
        start = len(found) * advance
        found.append((start, min(start + chunk, length)))
    return found


@given(SIZES, st.integers(1, 60))
def test_there_are_as_many_as_it_takes_to_reach_the_end(sizes, length):
    assert Chunks(*sizes).count_chunks(np.array([length])).tolist() == [len(cut(length, *sizes))]


@given(SIZES, st.integers(1, 60))
def test_what_the_first_chunks_score_is_how_far_they_reach(sizes, length):
    chunks, found = Chunks(*sizes), cut(length, *sizes)
    counts = np.arange(len(found) + 1)
    scored = chunks.count_scored(counts, np.full(len(counts), length))
    assert scored.tolist() == [0, *(stop for _, stop in found)]


@given(SIZES, st.integers(0, 9))
def test_a_lane_was_read_up_to_the_end_of_the_chunk_before(sizes, step):
    chunk, advance = sizes
    before = Chunks(*sizes).offsets_before(np.array([step])).tolist()
    assert before == [(step - 1) * advance + chunk if step else 0]


def test_neighbours_overlap_by_what_is_not_new():
    assert (Chunks(8, 5).overlap, Chunks(8, 8).overlap) == (3, 0)
    assert Chunks(8, 5).scale(3) == 1.0


def test_uneven_chunks_end_where_their_lengths_add_up_to():
    uneven = UnevenChunks(4, np.array([0, 3, 8, 12]))
    assert uneven.count_chunks(np.array([0, 1, 3, 4, 8, 9, 12])).tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert uneven.offsets_before(np.array([0, 1, 3])).tolist() == [0, 3, 12]
    assert [uneven.scale(step) for step in range(3)] == [0.75, 1.25, 1.0]
    assert uneven.overlap == 0

"""What lanes read, against a walk over the timesteps one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.planning.lanes import (
    Chunks,
    UnevenChunks,
    count_live_before,
    make_column_offsets,
    make_queued_lanes,
    make_stream_lanes,
)

LENGTHS = np.array([5, 2, 9, 1, 4])
NUMBERS = np.array([30, 10, 50, 20, 40])
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])


def rows_of(table, lanes):
    """Return the timesteps (sequence, timestep) of each row, by step and lane."""
    edges = range(len(table.spans) + 1) if table.rows is None else table.rows.tolist()
    rows = [
        [(n, t) for n, start, stop in table.spans[low:high].tolist() for t in range(start, stop)]
        for low, high in itertools.pairwise(edges)
    ]
    return [rows[first : first + lanes] for first in range(0, len(rows), lanes)]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_lane_of_a_stream_is_a_run_of_its_timesteps(lanes, overlap):
    stream = [(n, t) for n, length in zip(NUMBERS, LENGTHS, strict=True) for t in range(length)]
    edges = make_column_offsets(len(stream), lanes)
    assert edges.tolist() == [lane * len(stream) // lanes for lane in range(lanes + 1)]
    found = make_stream_lanes(NUMBERS, OFFSETS, edges, Chunks(3, 3 - overlap))
    expected = []
    for step in range(found.steps):
        row = []
        for first, stop in itertools.pairwise(edges):
            begin = first + step * (3 - overlap)
            is_live = step == 0 or begin + overlap < stop
            row.append(stream[begin : min(begin + 3, stop)] if is_live else [])
        expected.append(row)
    assert rows_of(found.lay_out(0, found.steps), lanes) == expected
    assert rows_of(found.lay_out(1, 2), lanes) == expected[1:2]


def test_a_stream_is_extended_by_what_is_read_past_each_row():
    found = make_stream_lanes(NUMBERS, OFFSETS, np.array([0, 10, 20]), Chunks(5, 5), lookahead=1)
    narrow, wide = (rows_of(table, 2) for table in (found.lay_out(0, 2), found.extend(0, 2)))
    assert [[row[:5] for row in step] for step in wide] == narrow
    assert all(len(row) == 6 for step in wide for row in step)


def test_queued_sequences_have_rows_of_their_own():
    chunks, lane_offsets = Chunks(4, 3), np.array([0, 2, 5])
    chunk_counts = chunks.count_chunks(LENGTHS)
    steps = max(chunk_counts[:2].sum(), chunk_counts[2:].sum())
    found = make_queued_lanes(NUMBERS, LENGTHS, lane_offsets, chunks, int(steps))
    expected = [[], []]
    for lane, members in enumerate((range(2), range(2, 5))):
        for member in members:
            for chunk in range(chunk_counts[member]):
                stop = min(3 * chunk + 4, LENGTHS[member])
                expected[lane].append([(NUMBERS[member], t) for t in range(3 * chunk, stop)])
        expected[lane] += [[]] * (int(steps) - len(expected[lane]))  # idle
    table = rows_of(found.lay_out(0, int(steps)), 2)
    assert table == [list(step) for step in zip(*expected, strict=True)]
    scored = found.count_scored(np.arange(int(steps) + 1))
    read = [{t for lane in expected for row in lane[:step] for t in row} for step in range(99)]
    assert scored.tolist() == list(map(len, read[: len(scored)]))
    assert found.extend(0, 1) is None


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


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.lists(st.integers(0, 12)))
def test_rows_that_are_not_idle_are_counted(loads, steps):
    told = count_live_before(np.array(loads), np.array(steps, dtype=np.int64))
    assert told.tolist() == [sum(min(load, step) for load in loads) for step in steps]

"""Lengths are packed into few rows: each has its place once, and no row is too long."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.policies.packed import pack_lengths


def packed(sizes, row_length):
    """Return the rows that lengths are packed into, as lists."""
    lengths, counts = np.unique(np.asarray(sizes, dtype=np.int64), return_counts=True)
    layout = pack_lengths(lengths[::-1], counts[::-1], row_length)
    return [part.tolist() for part in np.split(layout.lengths, layout.offsets[1:-1])]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 50))
def test_every_length_has_its_place_once_and_rows_are_no_longer_than_they_may_be(sizes, row_length):
    rows = packed(sizes, row_length)
    assert sorted(size for row in rows for size in row) == sorted(sizes)
    assert max(map(sum, rows)) <= row_length
    assert all(rows)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_no_two_rows_would_fit_into_one(sizes):
    rows = sorted(map(sum, packed(sizes, 30)))
    assert len(rows) == 1 or rows[0] + rows[1] > 30


def test_lengths_that_fill_rows_exactly_leave_no_room():
    assert sorted(packed([6, 4, 7, 3, 5, 5], 10)) == [[5, 5], [6, 4], [7, 3]]


def test_the_row_with_the_least_room_is_taken():
    assert sorted(packed([8, 6, 2], 10)) == [[6], [8, 2]]


@pytest.mark.parametrize("sizes", list(combinations_with_replacement([2, 3, 5], 4)), ids=str)
def test_equal_lengths_are_placed_as_one_by_one(sizes):
    assert packed(sizes, 7) == sorted(one_by_one(sizes, 7), key=lambda row: 7 - sum(row))


def one_by_one(sizes, row_length):
    """Best fit decreasing, as the book has it."""
    rows = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= row_length]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


def test_no_lengths_are_no_rows():
    layout = pack_lengths(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 10)
    assert (layout.lengths.tolist(), layout.offsets.tolist()) == ([], [0])

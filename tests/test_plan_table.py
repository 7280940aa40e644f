"""Batches as arrays: slices, strides, lanes and cuts hold the rows that lists of them would."""

import itertools

import numpy as np
import pytest

from seqdata.errors import PlanError
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    PlanBatch,
    compute_row_lengths,
    concat_tables,
    join_rows,
    offsets_from_sizes,
)

# Batches of rows of spans (sequence, start, stop).
BATCHES = [
    [[(0, 0, 4)], [(1, 0, 2), (2, 0, 3)]],
    [[(3, 0, 1)]],
    [[(4, 2, 6), (5, 0, 1)], [(6, 0, 5)], [(7, 0, 2)]],
]


def table_of(batches, lanes=0):
    rows = [row for batch in batches for row in batch]
    spans = [span for row in rows for span in row]
    row_offsets = offsets_from_sizes(np.array([len(row) for row in rows]))
    offsets = offsets_from_sizes(np.array([len(batch) for batch in batches]))
    return ArrayTable.from_arrays(spans, row_offsets, offsets, lanes)


def batches_of(table):
    """Return the batches of a table as lists."""
    found = []
    for number in range(len(table)):
        spans, rows = table.batch(number)
        edges = range(len(spans) + 1) if rows is None else rows.tolist()
        own = [tuple(span) for span in spans.tolist()]
        found.append([own[low:high] for low, high in itertools.pairwise(edges)])
    return found


class Unsliceable(BatchTable):
    """A table that makes one batch at a time."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def batch(self, number):
        return self.table.batch(number)

    def totals(self, first, stop, overlap):
        return self.table.totals(first, stop, overlap)

    def tables(self):
        return self.table.tables()

    def prepare(self, number):
        return self.table.prepare(number)


def test_a_table_has_the_batches_that_it_is_made_of():
    assert batches_of(table_of(BATCHES)) == BATCHES


@pytest.mark.parametrize(("first", "stop"), [(0, 3), (1, 3), (0, 1), (2, 3)])
@pytest.mark.parametrize("wrap", [lambda table: table, Unsliceable])
def test_a_slice_has_the_batches_between(first, stop, wrap):
    found = wrap(table_of(BATCHES)).slice(first, stop)
    assert batches_of(found) == BATCHES[first:stop]


def test_rows_are_joined_where_any_part_has_them():
    spans = [np.zeros((2, 3), np.int64), np.zeros((3, 3), np.int64)]
    assert join_rows([None, None], spans) is None
    assert join_rows([None, np.array([0, 1, 3])], spans).tolist() == [0, 1, 2, 3, 5]


def test_every_so_many_batches_up_to_so_many_rows():
    table = table_of(BATCHES)
    assert batches_of(table.every(2, 100)) == BATCHES[::2]
    assert batches_of(table.every(2, 4)) == BATCHES[:1]
    assert batches_of(table.every(1, 3)) == BATCHES[:2]
    assert batches_of(table.every(1, 1)) == BATCHES[:1]  # the first one whatever it has


@pytest.mark.parametrize("joined", [True, False])
def test_lanes_are_the_same_rows_of_every_batch(joined):
    rows = [[[(lane + 3 * step, 0, lane + 1)] for lane in range(3)] for step in range(2)]
    table = table_of(rows, lanes=3)
    if not joined:
        table = ArrayTable.from_arrays(table.spans, None, table.offsets, 3)
    assert batches_of(table.select_lanes(1, 3, 3)) == [batch[1:3] for batch in rows]
    assert table.select_lanes(0, 3, 3) is table


def test_rows_are_cut_to_some_of_their_timesteps():
    table = table_of([[[(0, 2, 5), (1, 0, 4)], [(2, 1, 3)]]])
    found = table.cut_rows(np.array([1, 2]), np.array([5, 2]))
    assert batches_of(found) == [[[(0, 3, 5), (1, 0, 2)], [(2, 3, 3)]]]


def test_timesteps_and_rows_are_counted_without_the_overlap():
    table = table_of(BATCHES)
    assert table.row_lengths().tolist() == [4, 5, 1, 5, 5, 2]
    assert table.totals(0, 3, 0) == (22, 6)
    assert table.totals(2, 3, 3) == (9, 3)  # only span (4, 2, 6) has timesteps before it
    assert compute_row_lengths(table.spans, None).tolist() == [4, 2, 3, 1, 4, 1, 5, 2]


def test_rows_of_a_batch_are_a_batch():
    batch = PlanBatch(np.array([(0, 0, 4), (1, 0, 2), (2, 0, 3)]), np.array([0, 1, 3]))
    assert batch.lengths.tolist() == [4, 5]
    assert batch.slice(1, 2).spans.tolist() == [[1, 0, 2], [2, 0, 3]]
    assert batch.slice(1, 2).rows.tolist() == [0, 2]


def test_tables_of_nothing_join_to_nothing():
    empty = ArrayTable(np.empty((0, 3), np.int64), None, np.zeros(1, np.int64))
    assert len(concat_tables(empty)) == 0


@pytest.mark.parametrize(
    ("spans", "rows", "offsets", "lanes", "said"),
    [
        ([(0, 0, 1)], None, None, 0, "`offsets` must be the first row of each batch, but is None"),
        ([(0, 0, 1)], None, [0, 2], 0, "`offsets` must begin with 0 and end with 1"),
        ([(0, 0, 1)] * 2, [0, 3, 2], [0, 2], 0, "`rows` must be non-decreasing"),
        ([(0, 2, 1)], None, [0, 1], 0, "every span must have 0 <= start <= stop"),
        ([(0, 0, 1)], None, [0, 1], 2, "every batch must have exactly 2 rows, one per lane"),
        ([(0, 0, 1)], None, [0, 0, 1], 0, "batch 0 must have at least one row, but has none"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(spans, rows, offsets, lanes, said):
    with pytest.raises(PlanError, match=said):
        ArrayTable.from_arrays(spans, rows, offsets, lanes)

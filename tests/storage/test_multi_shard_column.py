"""Columns of several shards as one: each piece is copied once, from where it lies."""

import numpy as np
import pytest

from seqdata.protocols import Field
from seqdata.storage import multi_shard_column
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.columns import BufferSource, SpanColumn
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.multi_shard_column import MultiShardColumn, assign_owners, join_columns


def spans_of(values, bounds):
    """A column over one shard of sequences that lie one behind another."""
    offsets = np.array(bounds)
    lengths = np.diff(offsets)
    layout = ShardLayout("/d", ("a",), [0, len(lengths)], {"time": lengths})
    source = BufferSource.from_arrays("x", Field("int64"), layout, [values], [offsets])
    spans = np.stack([np.arange(len(lengths)), np.zeros_like(lengths), lengths], axis=1)
    return SpanColumn(source, spans)


@pytest.fixture
def column():
    first = spans_of(np.arange(6), [0, 1, 3, 6])
    second = spans_of(np.arange(10, 14), [0, 2, 4])
    owner, index, _ = assign_owners(np.array([4, 9, 4, 4, 9]))
    return MultiShardColumn([first, second], owner, index)


def filled(column):
    bounds = np.append(0, np.cumsum(column.lengths))
    out = np.full(bounds[-1], -1)
    column.fill(out, bounds, None)
    return out.tolist()


def test_pieces_come_in_the_order_of_the_batch(column):
    assert column.lengths.tolist() == [1, 2, 2, 3, 2]
    assert [piece.tolist() for piece in column] == [[0], [10, 11], [1, 2], [3, 4, 5], [12, 13]]
    assert filled(column) == [0, 10, 11, 1, 2, 3, 4, 5, 12, 13]


def test_mapped_pieces_are_copied_once(column, monkeypatch):
    monkeypatch.delattr(MultiShardColumn, "_fill_through_copies")
    assert len(filled(column)) == 10


def test_columns_that_cannot_be_cut_are_filled_as_a_whole():
    arrays = ArrayColumn(np.dtype(np.int64), (), [np.arange(2), np.arange(5, 6)])
    owner, index, _ = assign_owners(np.array([0, 1, 0, 1]))
    mixed = MultiShardColumn([arrays, spans_of(np.arange(3), [0, 1, 3])], owner, index)
    assert filled(mixed) == [0, 1, 0, 5, 1, 2]


def test_texts_and_arrays_are_joined_as_what_they_are():
    owner, index, _ = assign_owners(np.array([1, 0, 1]))
    found = [{"t": ["b"]}, {"t": ["a", "c"]}]
    assert join_columns(found, ["t"], owner, index) == {"t": ["a", "b", "c"]}
    assert multi_shard_column.assign_owners(np.array([2]))[0].tolist() == [0]

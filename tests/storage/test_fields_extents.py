"""Fields whose values lie anywhere in a file: read in place by begins and ends in bytes."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource, SpanColumn
from seqdata.storage.data_location import ShardLayout

FILE = np.arange(64, dtype=np.uint8)
BEGINS, ENDS = np.array([33, 8]), np.array([45, 16])  # the first where no number may lie


def source(begins=BEGINS, ends=ENDS):
    layout = ShardLayout("/d", ("a.bin",), [0, 2], {"time": np.array([3, 2])})
    return BufferSource.over("x", Field("<i4"), layout, [FILE], [(begins, ends)])


def spans(*rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def values(first, count):
    return FILE[first : first + 4 * count].copy().view("<i4").tolist()


def test_pieces_and_what_is_filled_are_the_timesteps_of_the_span():
    column = SpanColumn(source(), spans([0, 1, 3], [1, 0, 1]))
    assert column[0].tolist() == values(37, 2)
    assert column[1].tolist() == values(8, 1)
    assert column[0].flags.aligned
    out = np.zeros(3, dtype="<i4")
    column.fill(out, np.array([0, 2, 3]), None)
    assert out.tolist() == values(37, 2) + values(8, 1)


@pytest.mark.parametrize("read", [lambda column: column[0], lambda column: fill(column)])
def test_timesteps_that_are_not_there_are_refused(read):
    text = r"sequence 1, field 'x': timesteps must be in 0..2, but 0..3 were requested"
    with pytest.raises(ConfigError, match=text):
        read(SpanColumn(source(), spans([1, 0, 3])))


@pytest.mark.parametrize("read", [lambda column: column[0], lambda column: fill(column)])
@pytest.mark.parametrize(("begin", "end"), [(60, 72), (33, 41), (-4, 8)])
def test_extents_that_do_not_hold_the_sequence_are_a_damage_with_its_place(read, begin, end):
    text = rf'sequence 0, field "x", bytes .*: must have 12 bytes, but is at {begin}..{end} of 64'
    with pytest.raises(CorruptSampleError, match=text):
        read(SpanColumn(source(np.array([begin, 8]), np.array([end, 16])), spans([0, 0, 3])))


def test_texts_lie_anywhere_too():
    layout = ShardLayout("/d", ("a.bin",), [0, 2], {})
    file = np.frombuffer(b"..two.one", dtype=np.uint8)
    extents = [(np.array([6, 2]), np.array([9, 5]))]
    texts = BufferSource.over("t", Field("str", (), None), layout, [file], extents)
    assert texts.take([0, 1]) == ["one", "two"]


def fill(column):
    out = np.zeros(int(column.lengths.sum()), dtype=column.dtype)
    column.fill(out, np.concatenate([[0], np.cumsum(column.lengths)]), None)

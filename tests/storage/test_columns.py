"""Columns over buffers: values anywhere in a file, read in place by begins and ends in bytes."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource, SpanColumn
from seqdata.storage.data_location import ShardLayout

FILE = np.arange(64, dtype=np.uint8)
BEGINS, ENDS = np.array([33, 8]), np.array([45, 16])  # the first where no number may lie


def source(begins=BEGINS, ends=ENDS):
    layout = ShardLayout("/d", ("a.bin",), [0, 2], {"time": np.array([3, 2])})
    return BufferSource.from_files("x", Field("<i4"), layout, [FILE], [(begins, ends)])


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
    texts = BufferSource.from_files("t", Field("str", (), None), layout, [file], extents)
    assert texts.take([0, 1]) == ["one", "two"]


def fill(column):
    out = np.zeros(int(column.lengths.sum()), dtype=column.dtype)
    column.fill(out, np.concatenate([[0], np.cumsum(column.lengths)]), None)


def texts_of(content, *edges, field="str"):
    layout = ShardLayout("/d", ("a.bin",), [0, len(edges) - 1], {})
    values = [np.frombuffer(content, np.uint8)]
    return BufferSource.from_arrays(
        "t", Field(field, (), None), layout, values, [np.array(edges)], [100]
    )


def test_bytes_that_are_not_text_are_named_with_their_place():
    text = r'sequence 1, field "t", bytes 102\.\.104: must be UTF-8 text, but is not .* at byte 1'
    with pytest.raises(DecodeError, match=text):
        texts_of(b"okx\xffok", 0, 2, 4, 6).take([0, 1, 2])
    assert texts_of(b"okx\xffok", 0, 2, 4, 6).take([2, 0]) == ["ok", "ok"]
    assert texts_of(b"okx\xff", 0, 2, 4, field="bytes").take([1]) == [b"x\xff"]


def test_an_array_of_another_dtype_is_not_filled():
    with pytest.raises(ValueError, match=r"/d: field 'x': `out` must be int32, but is int64. Pass"):
        SpanColumn(source(), spans([0, 0, 1])).fill(np.zeros(1, np.int64), np.array([0, 1]), None)


def test_a_column_knows_its_pieces_and_can_be_cut():
    column = SpanColumn(source(), spans([0, 1, 3], [1, 0, 1], [0, 0, 0]))
    assert (len(column), column.lengths.tolist(), column.shape) == (3, [2, 1, 0], ())
    part = column.slice(1, 3)
    assert [piece.tolist() for piece in (part[0], part[1])] == [values(8, 1), []]


def test_a_sequence_that_does_not_exist_is_refused():
    for number in (-1, 2):
        with pytest.raises(ConfigError, match=rf"must be in \[0, 2\), but is {number}"):
            source().find(number)
        with pytest.raises(ConfigError, match=rf"must be in \[0, 2\), but is {number}"):
            source().is_readable(number)
    assert source().is_readable(1)

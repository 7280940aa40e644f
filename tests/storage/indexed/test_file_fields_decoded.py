"""Fields that are decoded value by value: few of them are kept, and each is checked."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.fields import RAW
from seqdata.storage.indexed import file_fields
from seqdata.storage.indexed.file_fields import make_decoded
from seqdata.storage.indexed.indexed_format import IndexedField

CONTENT = np.arange(12, dtype=np.uint8)
BEGINS, SIZES = np.array([0, 3, 3, 8]), np.array([3, 0, 5, 4])
DEFAULT = object()


def make(lengths=(3, 0, 5, 4), decode=DEFAULT, axis="time"):
    """Return a source whose values are their bytes times ten, and the calls of its decoder."""
    calls = []

    def times_ten(raw, shard, at, place):
        calls.append((shard, at))
        return raw.astype(np.int16) * 10

    layout = ShardLayout("/d", ("a", "b"), [0, 2, 4], {"time": np.array(lengths)})
    ends = BEGINS + SIZES
    extents = [(BEGINS[:2], ends[:2]), (BEGINS[2:], ends[2:])]
    stored = BufferSource.from_files("x", RAW, layout, [CONTENT, CONTENT], extents)
    wanted = IndexedField(
        name="x", member="x", field=Field("int16", (), axis), access="decode",
        decode=times_ten if decode is DEFAULT else decode,
    )  # fmt: skip

    def find_file(number):
        return 10 + number // 2, number % 2

    return make_decoded(wanted, stored, find_file), calls


def spans(*rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def test_pieces_are_parts_of_decoded_values():
    source, calls = make()
    column = source.column(spans([2, 1, 3], [0, 0, 3], [1, 0, 0], [2, 4, 5]))
    assert [piece.tolist() for piece in column] == [[40, 50], [0, 10, 20], [], [70]]
    assert column.dtype == np.int16
    assert calls == [
        (11, 0),
        (10, 0),
        (10, 1),
    ]  # file, number in it; the first is not decoded again
    assert not any(piece.flags.writeable for piece in column)  # they are views of what is kept
    assert len(source.decode(3).values) == 4
    assert (source.texts, source.field.dtype) == (None, "int16")


@pytest.mark.parametrize(("limit", "value"), [("CACHED", 2), ("CACHED_BYTES", 50)])
def test_no_more_values_are_kept_than_there_is_room_for(limit, value, monkeypatch):
    monkeypatch.setattr(file_fields, limit, value)
    source, calls = make()
    for number in (0, 2, 3, 3):
        source.column(spans([number, 0, 1]))
        assert len(source.cache._units) <= 2
    assert calls == [(10, 0), (11, 0), (11, 1)]  # the newest is there
    source.column(spans([0, 0, 1]))
    assert len(calls) == 4  # the oldest is not


def test_a_single_value_may_be_larger_than_the_room(monkeypatch):
    monkeypatch.setattr(file_fields, "CACHED_BYTES", 1)
    source, calls = make()
    for _ in range(2):
        assert source.column(spans([0, 0, 3]))[0].tolist() == [0, 10, 20]
    assert len(calls) == 1


def test_a_value_has_the_timesteps_that_were_counted():
    source, _ = make(lengths=(3, 0, 4, 4))
    text = (
        r'sequence 2, field "x", bytes 3\.\.8: must have 4 timesteps, as counted before, but has 5'
    )
    with pytest.raises(CorruptSampleError, match=text):
        source.column(spans([2, 0, 1]))


def test_a_value_without_an_axis_is_one_timestep():
    source, _ = make(axis=None, decode=lambda raw, *_: raw.sum(dtype=np.int16)[None])
    assert source.column(spans([2, 0, 1]))[0].tolist() == [25]
    source, _ = make(axis=None)
    with pytest.raises(CorruptSampleError, match="must have 1 timesteps, as counted before"):
        source.column(spans([2, 0, 1]))


@pytest.mark.parametrize("span", [(2, 0, 6), (2, -1, 1), (4, 0, 0), (-1, 0, 0)])
def test_spans_that_do_not_exist_are_refused_before_anything_is_decoded(span):
    source, calls = make()
    with pytest.raises(ConfigError, match="Use a plan that was made for this data"):
        source.column(spans([0, 0, 1], span))
    assert calls == []


def test_a_field_needs_a_decoder():
    source, _ = make(decode=None)
    with pytest.raises(DecodeError, match=r"must have a decoder, but has none\. Report it"):
        source.column(spans([0, 0, 1]))

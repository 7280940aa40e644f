"""Fields that are decoded unit by unit: the spans are copied, a few units are kept."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.decoded_source import DecodedColumn, DecodedSource, UnitCache

UNITS = [([0, 2, 2], [1, 2]), ([0, 3], [3, 4, 5])]  # offsets and values of two units


def make(field=Field("int16"), lengths=(2, 0, 3), limit=1 << 20):  # noqa: B008
    calls = []

    def decode(unit):
        calls.append(unit)
        offsets, values = UNITS[unit]
        if field.axis is None and field.dtype == "int16":
            return DecodedColumn(np.array([[10], [20]][unit] * 2, np.int16)[: 2 - unit], None)
        return DecodedColumn(np.array(values, field.dtype), np.array(offsets, np.int64))

    layout = ShardLayout("/d", ("a#0", "a#1"), [0, 2, 3], {"time": np.array(lengths)})
    return DecodedSource("x", field, layout, decode, UnitCache(limit)), calls


def spans(*rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def test_spans_come_in_their_order_and_each_unit_is_decoded_once():
    source, calls = make()
    column = source.column(spans([2, 1, 3], [0, 0, 1], [1, 0, 0], [2, 0, 1], [0, 0, 2]))
    assert [piece.tolist() for piece in column] == [[4, 5], [1], [], [3], [1, 2]]
    assert calls == [0, 1]
    assert (source.texts, source.stored) == (None, None)
    source.column(spans([0, 0, 1]))
    assert calls == [0, 1]


def test_what_is_returned_is_a_copy_of_the_span():
    source, _ = make()
    piece = source.column(spans([2, 0, 3]))[0]
    piece[:] = 0
    assert source.column(spans([2, 0, 3]))[0].tolist() == [3, 4, 5]


def test_a_value_per_sequence_is_one_timestep():
    source, _ = make(Field("int16", (), None))
    assert [piece.tolist() for piece in source.column(spans([2, 0, 1], [0, 0, 1]))] == [[20], [10]]


def texts(*contents, dtype="str"):
    raw = b"".join(contents)
    offsets = np.cumsum([0, *map(len, contents)])
    layout = ShardLayout("/d", ("a",), [0, len(contents)], {})
    column = DecodedColumn(np.frombuffer(raw, np.uint8), offsets)
    return DecodedSource("t", Field(dtype, (), None), layout, lambda unit: column, UnitCache())


def test_texts_are_objects():
    source = texts(b"one", b"", "zwölf".encode())
    assert source.column(spans([2, 0, 1], [0, 0, 1])) == ["zwölf", "one"]
    assert source.take([1, 1]) == ["", ""]
    assert source.texts is source
    assert source.is_readable(0)
    values, offsets = source.read_bytes(np.array([2, 0]))
    assert (values.tobytes(), offsets.tolist()) == ("zwölfone".encode(), [0, 6, 9])
    assert texts(b"\xff", dtype="bytes").take([0]) == [b"\xff"]


def test_bytes_that_are_not_text_are_named():
    text = r'sequence 1, field "t": must be UTF-8 text, but is not .* at byte 1\). Restore the file'
    with pytest.raises(DecodeError, match=text):
        texts(b"ok", b"o\xff").take([0, 1])


def test_a_unit_holds_what_was_counted():
    source, _ = make(lengths=(2, 0, 4))
    text = r'sequence 2, field "x": must have 4 timesteps, as counted before, but has 3: the file'
    with pytest.raises(CorruptSampleError, match=text):
        source.column(spans([2, 0, 1]))


@pytest.mark.parametrize("span", [(3, 0, 0), (-1, 0, 0), (0, 0, 3), (0, 2, 1)])
def test_spans_that_do_not_exist_are_refused_before_anything_is_decoded(span):
    source, calls = make()
    with pytest.raises(ConfigError, match="Use a plan that was made for this data"):
        source.column(spans(span))
    assert calls == []


def test_only_the_units_that_were_used_last_are_kept():
    cache, calls = UnitCache(limit=100), []

    def unit(number):
        calls.append(number)
        return DecodedColumn(np.zeros(40, dtype=np.uint8), None)

    for number in (0, 1, 0, 2, 0, 1):
        cache.get("x", number, lambda number=number: unit(number))
    assert calls == [0, 1, 2, 1]


def test_a_unit_that_is_larger_than_the_cache_is_kept_alone():
    source, calls = make(limit=1)
    for number in (0, 0, 2, 2, 0):
        source.column(spans([number, 0, 1]))
    assert calls == [0, 1, 0]


def test_the_size_of_a_unit_includes_its_offsets():
    assert DecodedColumn(np.zeros(4, np.uint8), np.zeros(2, np.int64)).nbytes == 20
    assert DecodedColumn(np.zeros(4, np.uint8), None).nbytes == 4

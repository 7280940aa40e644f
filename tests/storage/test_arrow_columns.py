"""Columns of Arrow: what their types say, and values that are decoded or refused by row."""

import numpy as np
import pyarrow as pa
import pytest

from seqdata.errors import CorruptShardError, DecodeError
from seqdata.logical_types import Duration, Timestamp
from seqdata.storage.arrow_columns import (
    ColumnType,
    combine_column,
    convert_column,
    decode_column,
    has_nulls,
    infer_column_type,
    measure_nesting,
    measure_row_lengths,
    read_list_offsets,
)
from seqdata.storage.data_location import DataLocation

PLACE = DataLocation(dataset="/d", shard=0, file="a.arrow", field="x")


STRINGS = ColumnType("int32", ragged=True, plain=False, has_categories=True)
DAYS = ColumnType("int64", ragged=True, plain=False, logical=Timestamp("D"))


@pytest.mark.parametrize(
    ("type_", "column_type"),
    [
        (pa.int16(), ColumnType("int16")),
        (pa.bool_(), ColumnType("bool", plain=False)),
        (pa.string(), ColumnType("str")),
        (pa.string_view(), ColumnType("str", plain=False)),
        (pa.large_binary(), ColumnType("bytes")),
        (pa.binary(4), ColumnType("bytes", plain=False)),
        (pa.list_(pa.float32()), ColumnType("float32", ragged=True)),
        (pa.large_list(pa.list_(pa.int8(), 3)), ColumnType("int8", (3,), ragged=True)),
        (pa.list_(pa.list_(pa.int8())), ColumnType("int8", ragged=True, nested=True)),
        (pa.list_(pa.int8(), 2), ColumnType("int8", (2,))),
        (pa.dictionary(pa.int8(), pa.string()), ColumnType("str", plain=False)),
        (pa.bool8(), ColumnType("bool", plain=False)),
        (pa.uuid(), ColumnType("bytes", plain=False)),
        (pa.fixed_shape_tensor(pa.int8(), (2, 3)), ColumnType("int8", (2, 3), plain=False)),
        (pa.fixed_shape_tensor(pa.int8(), (2, 3), permutation=(1, 0)), None),
        (pa.list_(pa.int8(), 0), None),
        (pa.list_(pa.string()), STRINGS),
        (pa.large_list(pa.dictionary(pa.int8(), pa.string())), STRINGS),
        (pa.list_(pa.binary()), None),
        (pa.timestamp("s"), ColumnType("int64", logical=Timestamp("s"))),
        (pa.list_(pa.date32()), DAYS),
        (pa.duration("ns"), ColumnType("int64", logical=Duration("ns"))),
        (pa.time32("s"), None),
        (pa.dictionary(pa.int8(), pa.list_(pa.int8())), None),
        (pa.list_(pa.list_(pa.list_(pa.int8()))), None),
    ],
)
def test_types_say_what_a_field_is(type_, column_type):
    assert infer_column_type(type_) == column_type
    if column_type is not None:
        assert column_type.is_alike(column_type)
        assert not column_type.is_alike(None)
        assert column_type.is_text == (column_type.dtype in ("str", "bytes"))


def test_storage_does_not_make_another_field():
    assert infer_column_type(pa.string()).is_alike(infer_column_type(pa.string_view()))
    assert not infer_column_type(pa.int8()).is_alike(infer_column_type(pa.int16()))
    assert measure_nesting(pa.int8()) == 1
    assert measure_nesting(pa.list_(pa.list_(pa.int8(), 2))) == 3


def decode(array, width=None):
    return decode_column(PLACE, array, infer_column_type(array.type), width)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, 2], [], [3]]),
        pa.array([[1, 2], [], [3]], pa.large_list(pa.int64())),
        pa.array([[[1, 2]], [], [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2))),
        pa.array([[[1, 2]], [], [[3, 4], [5, 6]]]),
    ],
)
def test_lists_are_values_and_offsets_also_of_a_part(array, first):
    part = array.slice(first)
    column = decode(part, 2 if infer_column_type(array.type).nested else None)
    rows = [
        column.values[a:b].tolist()
        for a, b in zip(column.offsets, column.offsets[1:], strict=False)
    ]
    assert rows == part.to_pylist()
    lengths, widths = measure_row_lengths(PLACE, part, infer_column_type(array.type))
    assert lengths.tolist() == [len(row) for row in rows]
    assert widths == ((2, 2) if infer_column_type(array.type).nested else None)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", "", "zwölf"]),
        pa.array(["a", "", "a text that is longer than a view"], pa.string_view()),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        pa.array([b"ab", b"cd"], pa.binary(2)),
    ],
)
def test_texts_are_bytes_and_offsets(array):
    column = decode(array)
    pairs = zip(column.offsets.tolist(), column.offsets[1:].tolist(), strict=False)
    found = [column.values[a:b].tobytes() for a, b in pairs]
    assert found == [x if isinstance(x, bytes) else x.encode() for x in array.to_pylist()]


def test_values_per_row_have_their_shape():
    vectors = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)).slice(1)
    assert decode(vectors).values.tolist() == [[3, 4], [5, 6]]
    assert decode(pa.array([True, False])).values.tolist() == [True, False]
    tensors = np.arange(12, dtype=np.int8).reshape(2, 2, 3)
    found = decode(pa.FixedShapeTensorArray.from_numpy_ndarray(tensors).slice(1)).values
    assert found.tolist() == tensors[1:].tolist()
    booleans = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2, 0], pa.int8()))
    assert decode(booleans).values.tolist() == [True, False]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([1, None]), r"must not hold missing values, but holds one in row 1\. Fill it"),
        (pa.array([[1], None]), r"holds one in row 1\."),
        (pa.array([[1], [2, None]]), "holds one in row 1 inside its list"),
        (pa.array([[[1]], [[2], None]]), "holds one in row 1 inside its list"),
        (pa.array(["a", None]), "holds one in row 1"),
    ],
)
def test_a_missing_value_is_named_by_its_row(array, text):
    assert has_nulls(array)
    with pytest.raises(DecodeError, match=text):
        decode(array)


def test_timesteps_have_one_width_and_the_one_that_was_counted():
    uneven = pa.array([[[1, 2], [3]]])
    with pytest.raises(
        DecodeError, match="must hold the same number of values per timestep, but holds vec"
    ):
        decode(uneven)
    assert decode(pa.array([[], []], pa.list_(pa.list_(pa.int8())))).values.shape == (0, 0)
    with pytest.raises(
        CorruptShardError, match="but has timesteps whose number of values is not 2"
    ):
        decode(pa.array([[[1, 2]], [[3]]]), 2)


def test_offsets_must_rise():
    values = pa.array([1, 2, 3])
    offsets = pa.py_buffer(np.array([0, 3, 1], np.int32))
    array = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets], children=[values])
    with pytest.raises(CorruptShardError, match="but has offsets that are not ascending"):
        read_list_offsets(PLACE, array)
    assert read_list_offsets(PLACE, pa.array([], pa.list_(pa.int8()))).tolist() == [0]


def rows_of(values, type=None):
    column = convert_column("c", combine_column(pa.table({"c": pa.array(values, type)}), "c"))
    return (
        None if column is None else [np.asarray(column[row]).tolist() for row in range(len(column))]
    )


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2, 3], None),
        ([True, False], None),
        (["a", "b"], None),
        (["a", "b"], pa.string_view()),
        ([], pa.int32()),
        ([[1, 2], [], [3]], pa.list_(pa.int64())),
        ([[1, 2], [], [3]], pa.large_list(pa.int64())),
        ([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        ([[[1, 2], [3, 4]], [[5, 6]]], None),
    ],
)
def test_a_column_of_a_table_is_values_by_row(values, type_):
    assert rows_of(values, type_) == values


def test_codes_and_bytes_of_a_table_are_their_values():
    assert rows_of(pa.array(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert convert_column("c", pa.array(["a", "b"]).dictionary_encode()) == ["a", "b"]
    assert convert_column("c", pa.array([b"a", b""])) == [b"a", b""]


@pytest.mark.parametrize("values", [[{"a": 1}], [[["text"]]]])
def test_a_column_that_cannot_be_a_field_is_none(values):
    assert rows_of(values) is None


@pytest.mark.parametrize(
    ("values", "inside"),
    [
        ([1, None], ""),
        ([[1], None], ""),
        ([[1], [1, None]], " inside its list"),
        ([[[1]], [[1], [None]]], " inside its list"),
        (["a", None], ""),
    ],
)
def test_a_missing_value_of_a_table_is_named_by_its_row_there(values, inside):
    text = (
        rf"table: column 'c': must not hold missing values, but holds one in row 8{inside}\. Fill"
    )
    with pytest.raises(DecodeError, match=text) as caught:
        convert_column("c", pa.array(values), first_row=7)
    assert caught.value.details == {"dataset": "table", "field": "c", "row": 8}


def test_text_that_is_not_utf8_is_named():
    raw = pa.array([b"a", b"\xff"]).view(pa.string())
    with pytest.raises(DecodeError, match="column 'c': must hold text in UTF-8, but does not"):
        convert_column("c", raw)

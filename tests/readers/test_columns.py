"""Columns of tables as arrays: numbers, texts and lists; what is missing or mixed is refused."""

import pyarrow as pa
import pytest

from seqdata.errors import DecodeError, SeqDataWarning
from seqdata.readers.columns import ListColumn, convert_column, parse_list_cells


def convert(values, type=None):
    return convert_column(pa.table({"c": pa.array(values, type)}), "c")


def cells(column):
    assert isinstance(column, ListColumn)
    return [column[row].tolist() for row in range(len(column.offsets) - 1)]


def test_numbers_and_texts_are_taken_as_they_are():
    assert convert([1, 2, 3]).tolist() == [1, 2, 3]
    assert convert([True, False]).tolist() == [True, False]
    assert convert(["a", "b"]) == ["a", "b"]
    assert convert(pa.array(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert convert([], pa.int32()).tolist() == []


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_lists_are_sequences_of_any_length(kind):
    assert cells(convert([[1, 2], [], [3]], kind)) == [[1, 2], [], [3]]


def test_lists_of_lists_are_vectors_per_timestep():
    assert cells(convert([[[1, 2], [3, 4]], [[5, 6]]])) == [[[1, 2], [3, 4]], [[5, 6]]]
    with pytest.raises(DecodeError, match="vectors of 1 to 2 numbers, but must hold equally many"):
        convert([[[1, 2], [3]]])


def test_texts_that_are_lists_are_parsed_where_a_text_file_has_them():
    texts = ["[1, 2.5]", "[]", "[3]"]
    assert convert(texts) == texts
    table = pa.table({"c": texts, "id": texts, "note": ["[1]", "2", "x"]})
    parsed = parse_list_cells(table, ["id"])
    assert cells(convert_column(parsed, "c")) == [[1.0, 2.5], [], [3.0]]
    assert convert_column(parsed, "id") == texts
    assert convert_column(parsed, "note") == ["[1]", "2", "x"]


@pytest.mark.parametrize(
    "values", [[1, None], [[1], None], [[1, None]], [[[1, None]]], ["a", None]]
)
def test_a_missing_value_is_refused(values):
    with pytest.raises(DecodeError, match="column 'c' has 1 missing values"):
        convert(values)


def test_a_column_of_something_else_is_left_out_with_a_warning():
    for values in ([{"a": 1}], [["text"]]):
        with pytest.warns(SeqDataWarning, match="column 'c' is left out: of type"):
            assert convert(values) is None

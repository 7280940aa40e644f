"""What users pass becomes dicts: arrays, tuples, tables and frames; all else is named."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata.storage.inputs import (
    drop_index_columns,
    index_to_columns,
    is_pandas_index,
    is_table,
    normalize_sequences,
    to_arrow_table,
)

ROWS = [{"x": [1, 2], "y": 3}, {"x": [], "y": 4}]


def rows_of(sequences, axes=None):
    rows, _ = normalize_sequences(sequences, axes)
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize(
    "sequences",
    [
        ROWS,
        iter(ROWS),
        pa.table({"x": [[1, 2], []], "y": [3, 4]}),
        pa.table({"x": [[1, 2], []], "y": [3, 4]}).to_batches()[0],
        [pa.table({"x": [[1, 2]], "y": [3]}), pa.table({"x": pa.array([[]], pa.list_(pa.int64())),
                                                        "y": [4]})],
        pa.table({"x": [[9], [1, 2], []], "y": [0, 3, 4]}).slice(1),
        pa.table({"x": pa.array([[1, 2], []], pa.large_list(pa.int64())), "y": [3, 4]}),
        pd.DataFrame({"x": [[1, 2], []], "y": [3, 4]}),
        pd.DataFrame({"x": [np.array([1, 2]), np.array([], int)], "y": [3, 4]}),
    ],
)  # fmt: skip
def test_rows_are_dicts_whatever_they_come_in(sequences):
    assert rows_of(sequences) == ROWS


def test_arrays_and_tuples_get_names():
    assert rows_of([np.arange(2), [5]]) == [{"x": [0, 1]}, {"x": [5]}]
    assert rows_of([(np.arange(2), 7)]) == [{"x": [0, 1], "y": 7}]
    assert rows_of([(1, 2)]) == [{"x": (1, 2)}]  # a tuple of numbers is one sequence


def test_vectors_of_a_table_are_one_value_per_sequence():
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2))
    table = pa.table({"x": [[1], [2]], "v": vectors})
    rows, axes = normalize_sequences(table, {"x": "frames"})
    assert axes == {"v": None, "x": "frames"}
    assert [row["v"].tolist() for row in rows] == [[1.0, 2.0], [3.0, 4.0]]
    nested = pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int64(), 2)))
    assert rows_of(pa.table({"x": nested})) == [{"x": [[1, 2], [3, 4]]}]


def test_categories_and_texts_are_values():
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"x": [[1], [2], [3]], "w": words, "raw": pa.array([b"", b"1", b"2"])})
    assert [row["w"] for row in rows_of(table)] == ["a", "b", "a"]
    assert [row["raw"] for row in rows_of(table)] == [b"", b"1", b"2"]


@pytest.mark.parametrize(
    ("sequences", "text"),
    [
        ({"x": [1]}, "must be an iterable of dicts, arrays or Arrow tables, but is a dict. Put it"),
        ({"x": [1]}, "Put it in a list; if it holds columns, make a dict of each sequence$"),
        ("text", "but is a str. Put it in a list$"),
        (7, "but is a int"),
        ([], "must hold at least one sequence, which determines the fields, but is empty"),
        (["a"], "must hold arrays or dicts, but holds a str: 'a'. Encode text as numbers"),
        ([1, 2], r"but holds numbers, the first is 1. One sequence of numbers .* \[\[1, 2, 3\]\]"),
        ([np.float32(1)], "but holds numbers, the first is"),
        ([np.array(1)], "but holds numbers, the first is"),
        (pa.table({"x": pa.array([], pa.list_(pa.int64()))}), "a table without rows or columns"),
        (pd.DataFrame(index=range(3)), "a table without rows or columns"),
        (pa.table({"t": ["a"], "y": [1]}), r"a column must hold lists .* group='t'\)"),
        ([pa.table({"x": [[1]]}), {"x": [1]}], "tables throughout, but holds a dict after an Arr"),
        (pa.table([[[1]], [[2]]], names=["x", "x"]), "two of the name 'x'. Rename one"),
    ],
)
def test_what_cannot_be_sequences_is_named(sequences, text):
    with pytest.raises(ConfigError, match=text):
        rows_of(sequences)


def test_axes_are_a_dict():
    with pytest.raises(ConfigError, match="`axes` must be a dict"):
        normalize_sequences(ROWS, "time")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            pa.table({"x": [[1], None]}),
            "column 'x': must not hold missing values, but holds one in row 1. F",
        ),
        (
            pa.table({"x": [[1, None]]}),
            "column 'x': must not hold missing values, but holds one in row 0 in",
        ),
        (
            pa.table({"x": [[1]], "t": pa.array([0], pa.time32("s"))}),
            r"type time32\[s\]. Cas",
        ),
        (
            pd.DataFrame({"x": [[1], [2]], "y": pd.array([1, None], "Int64")}),
            "column 'y': must not hold missing values, but",
        ),
    ],
)
def test_what_a_column_cannot_hold_is_named(table, text):
    with pytest.raises(DecodeError, match=text):
        rows_of(table)


def test_a_named_index_of_a_frame_is_a_column_and_an_unnamed_one_is_left_out():
    frame = pd.DataFrame({"x": [[1], [2]]}, index=pd.Index(["a", "b"], name="id"))
    assert rows_of(frame) == [{"id": "a", "x": [1]}, {"id": "b", "x": [2]}]
    assert index_to_columns(frame.rename_axis(None).reset_index(drop=True)).columns.tolist() == [
        "x"
    ]
    with pytest.warns(SeqDataWarning, match=r"the index is dropped: .* frame.rename_axis\('id'\)"):
        index_to_columns(frame.rename_axis(None))
    with pytest.raises(ConfigError, match="two of the name"):
        index_to_columns(frame.assign(id=1))


def test_an_index_that_pandas_wrote_is_left_out():
    names = ["x", "__index_level_0__", ""]
    assert [is_pandas_index(name) for name in names] == [False, True, True]
    with pytest.warns(SeqDataWarning, match="is an index of pandas without a name"):
        assert drop_index_columns(names) == ["x"]


def test_tables_are_recognized_without_their_libraries():
    class DataFrame:
        """Of another library."""

    table = pa.table({"x": [[1]]})
    tables = [table, table.to_batches()[0], table.to_pandas()]
    assert all(map(is_table, tables))
    assert not any(map(is_table, [DataFrame(), [table], {"x": [1]}, None]))
    assert all(to_arrow_table(each).column("x").to_pylist() == [[1]] for each in tables)


def test_an_array_of_many_short_rows_may_be_one_of_timesteps():
    with pytest.warns(
        SeqDataWarning, match=r"shape \(100000, 2\) holds 100,000 sequences of 2 .*: \[array\]"
    ):
        normalize_sequences(np.zeros((100_000, 2)), None)


@pytest.mark.parametrize("shape", [(99_999, 2), (100_000, 17), (100_000, 1, 1)])
def test_other_arrays_are_taken_as_they_are(shape):
    rows, _ = normalize_sequences(np.zeros(shape, "i1"), None)
    assert next(rows)["x"].shape == shape[1:]

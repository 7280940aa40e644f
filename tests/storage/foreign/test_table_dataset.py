"""Files of columns as a dataset: axes, columns that are dropped, and files that are unlike."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from seqdata import open_store
from seqdata.errors import CorruptShardError, DataError, DecodeError, LimitError
from seqdata.storage.arrow_columns import ColumnType
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.table_dataset import check_width, make_fields, open_tables


def tables(tmp_path, *contents, **options):
    for number, content in enumerate(contents):
        content = content if isinstance(content, pa.Table) else pa.table(content)
        parquet.write_table(content, tmp_path / f"{number}.parquet", **options)
    return open_tables(tmp_path)


def test_columns_of_equal_lengths_share_an_axis(tmp_path):
    opened, left_out = tables(tmp_path, {
        "a": [[1], [2, 3]], "b": [[4], [5, 6]], "time": [[7, 8], []], "time_": [[1], []],
        "y": [1, 2],
    })  # fmt: skip
    axes = {name: field.axis for name, field in opened.fields.items()}
    assert axes == {"a": "time", "b": "time", "time": "time_", "time_": "time__", "y": None}
    assert left_out == {}
    assert {axis: lengths.tolist() for axis, lengths in opened.lengths_of.items()} == {
        "time": [1, 2], "time_": [2, 0], "time__": [1, 0],
    }  # fmt: skip


def test_values_are_read_over_files_and_units(tmp_path):
    first = {"id": ["p", "q", "r"], "x": [[1], [2, 3], []]}
    opened, _ = tables(tmp_path, first, {"id": ["s"], "x": [[4]]}, row_group_size=2)
    assert [unit for _, unit in opened.units()] == [0, 1, 0]
    fields = make_fields("/d", opened, "id")
    columns = fields.read(np.array([[3, 0, 1], [1, 1, 2]]), ["x", "id"], "time")
    assert [piece.tolist() for piece in columns["x"]] == [[4], [3]]
    assert columns["id"] == ["s", "q"]
    assert fields.layout.shards == ["0.parquet#0", "0.parquet#1", "1.parquet"]
    assert fields.layout.locate(3).key == "s"


def test_columns_that_cannot_be_fields_are_named_with_the_reason(tmp_path):
    nested = pa.list_(pa.list_(pa.int64()))
    _, left_out = tables(tmp_path, {
        "x": [[1], [2]], "uneven": [[[1], [1, 2]], []], "empty": pa.array([[[], []], [[]]], nested),
        "when": pa.array([0, 1], pa.time64("us")), "__index_level_0__": [0, 1],
    })  # fmt: skip
    assert left_out == {
        "uneven": "1 to 2 numbers per timestep", "empty": "no numbers per timestep",
        "when": "time64[us]", "__index_level_0__": "an unnamed index of pandas",
    }  # fmt: skip


def test_lists_without_any_timestep_are_a_field(tmp_path):
    nested = pa.array([[], []], pa.list_(pa.list_(pa.int64())))
    opened, left_out = tables(tmp_path, {"x": [[1], [2]], "m": nested})
    assert left_out == {}
    assert opened.fields["m"].shape == (1,)


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (({"y": [1]},), "at least one column must hold lists of numbers"),
        (
            ({"e": pa.array([[[], []]], pa.list_(pa.list_(pa.int64())))},),
            r"dropped: 'e' \(no numbers per timestep\)",
        ),
        (({"x": pa.array([], pa.list_(pa.int64()))},), "must have at least one row, but has none"),
        (({"x": [[1]]}, {"x": [[1.5]]}), r"must be .*int64.* as in '0.parquet', but is .*double"),
        (({"x": [[1]]}, {"z": [[1]]}), "but is missing. Write the files with one schema"),
        ((pa.table([[[1]], [[2]]], names=["x", "x"]),), "columns of different names, but two have"),
    ],
)
def test_files_that_cannot_be_a_data_set_are_named(contents, text, tmp_path):
    with pytest.raises(DataError, match=text):
        tables(tmp_path, *contents)


def test_a_unit_has_the_rows_that_were_counted(tmp_path):
    opened, _ = tables(tmp_path, {"x": [[1], [2, 3]]})
    opened.rows[0] = 3
    with pytest.raises(CorruptShardError, match="must have 3 rows, as counted before, but has 2"):
        opened.decode("x", opened.units(), 0)


def test_timesteps_have_a_bound():
    place = DataLocation(dataset="/d", file="a")
    check_width(place, ColumnType("float64", (1 << 20,)))
    with pytest.raises(LimitError, match="declares timesteps of 2147483648 bytes"):
        check_width(place, ColumnType("float64", (1 << 28,)))


def test_a_column_of_later_files_only_is_named(tmp_path):
    opened, left_out = tables(tmp_path, {"x": [[1]]}, {"x": [[2]], "y": [3]})
    assert set(opened.fields) == {"x"}
    assert left_out == {"y": "not in the first file, 0.parquet"}


@pytest.mark.parametrize("type_", [pa.binary(), pa.dictionary(pa.int8(), pa.binary())])
def test_bytes_in_a_column_id_name_nothing_and_may_repeat(tmp_path, type_):
    ids = pa.array([b"a", b"a"], pa.binary()).cast(type_)
    opened, _ = tables(tmp_path, {"x": [[1], [2]], "id": ids})
    assert opened.fields["id"].dtype == "bytes"
    assert open_store(tmp_path).keys([0, 1]) == ["0", "1"]
    with pytest.raises(DecodeError, match="the id must be unique, but 'a' is also the id of"):
        tables(tmp_path, {"x": [[1], [2]], "id": ["a", "a"]})

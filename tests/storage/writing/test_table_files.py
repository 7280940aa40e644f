"""Rows become one file of a table, whole or not at all."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from seqdata.protocols import Field
from seqdata.storage.packing import NUMBER_DTYPES
from seqdata.storage.writing import table_files
from seqdata.storage.writing.table_files import find_table_kind, write_table_file

FIELDS = {
    "id": Field("str", (), None),
    "raw": Field("bytes", (), None),
    "label": Field("int64", (), None),
    "vector": Field("float32", (2, 3), None),
    "steps": Field("uint8", (), "time"),
    "frames": Field("bool", (2,), "time"),
}


def make_rows(count):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, count).tolist()
    return [
        {
            "id": f"ä{number}", "raw": bytes([number % 256, 0]), "label": np.int64(number - 2**62),
            "vector": rng.normal(size=(2, 3)).astype("float32"),
            "steps": rng.integers(0, 256, length).astype("uint8"),
            "frames": rng.random((length, 2)) < 0.5,
        }
        for number, length in enumerate(lengths)
    ]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_rows_are_read_back_as_they_were(tmp_path, monkeypatch, suffix, chunk):
    monkeypatch.setattr(table_files, "_CHUNK_ROWS", chunk)
    rows, path = make_rows(50), tmp_path / "new" / f"t{suffix}"
    write_table_file(path, iter(rows), FIELDS)
    read = pa.parquet.read_table if suffix == ".parquet" else pa.feather.read_table
    table = read(path)
    assert table.column_names == list(FIELDS)
    found = table.to_pylist()
    assert len(found) == len(rows)
    for row, due in zip(found, rows, strict=True):
        assert (row["id"], row["raw"], row["label"]) == (due["id"], due["raw"], due["label"])
        assert all(row[name] == due[name].tolist() for name in ("vector", "steps", "frames"))


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_each_dtype_of_numbers_is_kept(tmp_path, dtype):
    value = np.array([0, 1], dtype)
    fields = {"x": Field(dtype, (), "time"), "y": Field(dtype, (), None)}
    write_table_file(tmp_path / "t.parquet", [{"x": value, "y": value[1]}], fields)
    table = pa.parquet.read_table(tmp_path / "t.parquet")
    assert table["x"].to_pylist() == [value.tolist()]
    assert np.dtype(table.schema.field("y").type.to_pandas_dtype()) == np.dtype(dtype)


def test_lines_of_json_hold_lists_and_numbers(tmp_path):
    fields = {name: FIELDS[name] for name in ("id", "label", "steps")}
    row = {"id": "ä", "label": np.int64(3), "steps": np.array([1, 2], "uint8")}
    write_table_file(tmp_path / "t.jsonl", [row], fields)
    assert json.loads((tmp_path / "t.jsonl").read_text("utf-8")) == {
        "id": "ä", "label": 3, "steps": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".csv"])
def test_an_error_leaves_the_file_that_was_there(tmp_path, suffix):
    def rows():
        yield {"id": "a"}
        raise RuntimeError("no more rows")

    path = tmp_path / f"t{suffix}"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="no more rows"):
        write_table_file(path, rows(), {"id": FIELDS["id"]})
    assert [found.read_text() for found in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.parquet", "parquet"), ("s3://b/a.PQ", "parquet"), ("a.ndjson/", "jsonl"), ("a.csv", "csv"),
     ("a.feather", "arrow"), ("a", None), ("a.v1", None), ("a.parquet/store", None)],
)  # fmt: skip
def test_the_suffix_says_the_kind(name, kind):
    assert find_table_kind(name) == kind

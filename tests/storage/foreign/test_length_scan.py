"""Lengths of foreign files are counted once; what is kept of it is checked before it is used."""

import io

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from seqdata.errors import DecodeError
from seqdata.storage.arrow_columns import infer_column_type
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import write_with_digest
from seqdata.storage.foreign import length_scan
from seqdata.storage.foreign.length_scan import CACHE_PREFIX, scan_lengths
from seqdata.storage.foreign.table_file import open_table_file

TABLE = pa.table({"x": [[1, 2], [], [3]], "m": [[[1, 2]], [], [[3, 4], [5, 6]]], "y": [1, 2, 3]})


@pytest.fixture
def opened(tmp_path):
    parquet.write_table(TABLE, tmp_path / "a.parquet", row_group_size=2)
    place = DataLocation(dataset="/d", shard=0, file="a.parquet")
    return [open_table_file(tmp_path / "a.parquet", place)]


def scan(tmp_path, opened, *names):
    types = {name: infer_column_type(TABLE.schema.field(name).type) for name in names or ("x", "m")}
    return scan_lengths(tmp_path, opened, types, "digest")


def plain(found):
    lengths = {name: lengths.tolist() for name, lengths in found.lengths.items()}
    return found.rows.tolist(), lengths, dict(found.widths)


DUE = ([2, 1], {"x": [2, 0, 1], "m": [1, 0, 2]}, {"m": (2, 2)})


def test_lengths_are_counted_and_kept(tmp_path, opened):
    assert plain(scan(tmp_path, opened)) == DUE
    (cache,) = tmp_path.glob(f"{CACHE_PREFIX}*.npz")
    reads = []

    class Never:
        units, is_mapped = 2, False

        def read_column(self, *call):
            reads.append(call)
            raise AssertionError

    assert plain(scan(tmp_path, [Never()])) == DUE
    assert reads == []
    assert cache.name == f"{CACHE_PREFIX}digest.npz"


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **{name.replace("__", "/"): array for name, array in arrays.items()})
    return file.getvalue()


U8, I8 = np.uint8, np.int64
WHOLE = {"rows": np.array([2, 1]), "lengths__x": np.array([9, 9, 9], U8)}


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense",
        archive(rows=np.array([2, 1])),
        archive(**{**WHOLE, "rows": np.array([3])}),
        archive(**{**WHOLE, "rows": np.array([4, -1])}),
        archive(**{**WHOLE, "rows": np.array([2.0, 1.0])}),
        archive(**{**WHOLE, "lengths__x": np.array([9, 9], U8)}),
        archive(**{**WHOLE, "lengths__x": np.array([9, 9, 9], I8)}),
        archive(**{**WHOLE, "lengths__x": np.array([[9, 9, 9]], U8)}),
        archive(**{**WHOLE, "lengths__x": np.array([None] * 3)}),
    ],
)
def test_what_was_kept_is_counted_again_where_it_cannot_be(content, tmp_path, opened):
    cache = tmp_path / f"{CACHE_PREFIX}digest.npz"
    write_with_digest(cache, archive(**WHOLE))
    assert scan(tmp_path, opened, "x").lengths["x"].tolist() == [9, 9, 9]  # it is used if it fits
    cache.unlink()
    write_with_digest(cache, content)
    assert scan(tmp_path, opened, "x").lengths["x"].tolist() == [2, 0, 1]


def test_without_a_folder_to_write_they_are_counted_each_time(tmp_path, opened):
    folder = tmp_path / "file"
    folder.touch()
    assert plain(scan(folder, opened)) == DUE


def test_each_unit_is_decoded_once_more_to_find_who_shares_an_id(tmp_path, monkeypatch):
    ids = [f"{number % 40}" for number in range(80)]
    table = pa.table({"id": ids, "x": [[1]] * 80})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    files = [open_table_file(tmp_path / "a.parquet", DataLocation(dataset="/d", shard=0))]
    reads = []
    read = length_scan._read_ids
    monkeypatch.setattr(length_scan, "_read_ids", lambda *call: reads.append(call) or read(*call))
    types = {name: infer_column_type(table.schema.field(name).type) for name in ("id", "x")}
    with pytest.raises(DecodeError, match="sequence 40: the id must be unique, but '0' is also"):
        scan_lengths(tmp_path, files, {"x": types["x"]}, "digest", ids=types["id"])
    assert [unit for _, unit, _ in reads] == [*range(8), *range(5)]
    assert not list(tmp_path.glob(f"{CACHE_PREFIX}*"))


def test_ids_of_no_rows_are_unique(tmp_path):
    table = pa.table({"id": pa.array([], "string"), "x": pa.array([], pa.list_(pa.int8()))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema):
        pass  # not one record batch
    files = [open_table_file(tmp_path / "a.arrow", DataLocation(dataset="/d", shard=0))]
    types = {name: infer_column_type(table.schema.field(name).type) for name in ("id", "x")}
    found = scan_lengths(tmp_path, files, {"x": types["x"]}, "digest", ids=types["id"])
    assert plain(found) == ([], {"x": []}, {})

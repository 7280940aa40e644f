"""One file of columns: its format by its first bytes, its version, and errors that name it."""

import os

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from seqdata import open_store
from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch, LimitError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.table_file import (
    VersionedFile,
    detect_format,
    digest_files,
    digest_versions,
    open_table_file,
    read_local_version,
    translate_errors,
)

TABLE = pa.table({"x": [[1, 2], [], [3]], "y": [1, 2, 3]})
PLACE = DataLocation(dataset="/d", shard=0, file="a")


def write_stream(path):
    with pa.ipc.new_stream(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_old_stream(path):
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True)
    with pa.ipc.new_stream(str(path), TABLE.schema, options=options) as writer:
        writer.write_table(TABLE)


WRITERS = {
    "arrow": lambda path: feather.write_feather(TABLE, str(path), compression="uncompressed"),
    "arrow zstd": lambda path: feather.write_feather(TABLE, str(path), compression="zstd"),
    "stream": write_stream,
    "stream old": write_old_stream,
    "parquet": lambda path: parquet.write_table(TABLE, path, row_group_size=2),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_read_by_units(name, tmp_path):
    WRITERS[name](tmp_path / "a")
    assert detect_format(tmp_path / "a", PLACE) == name.partition(" ")[0]
    opened = open_table_file(tmp_path / "a", PLACE)
    assert (opened.name, opened.schema.names) == ("a", ["x", "y"])
    assert opened.is_mapped == (name in ("arrow", "stream", "stream old"))
    rows = [
        row for unit in range(opened.units) for row in opened.read_column(unit, "x").to_pylist()
    ]
    assert rows == [[1, 2], [], [3]]
    unit = opened.locate_unit(0, "x").unit
    assert unit == (0 if opened.units > 1 else None)


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (b"FEA1....", DataError, "must be a Feather file of version 2, but is of version 1. Write"),
        (b"PK..", DataError, "must be an Arrow, Feather or Parquet file, but is not. Convert"),
        (b"", DataError, "must be an Arrow, Feather or Parquet file"),
        (
            b"PAR1" + bytes(20) + b"PAR1",
            CorruptShardError,
            "must be unchanged since it was written",
        ),
        (b"ARROW1\0\0" + bytes(30), CorruptShardError, "Restore"),
        (b"PAR1" + b"\xff" * 8 + b"PAR1", CorruptShardError, "Restore"),
    ],
)
def test_other_files_are_named(content, error, text, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(error, match=text) as caught:
        open_table_file(tmp_path / "a", PLACE)
    assert '/d shard 0 ("a")' in str(caught.value)


def test_a_file_that_was_changed_is_not_read_further(tmp_path):
    path = tmp_path / "a"
    WRITERS["parquet"](path)
    opened = open_table_file(path, PLACE)
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        FingerprintMismatch, match=r"must be the file that was opened .* mtime_ns 1"
    ):
        opened.read_column(0, "x")
    other = VersionedFile(path, PLACE, read_local_version, read_local_version(path))
    assert other.map().size == path.stat().st_size


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (MemoryError("12 GB"), LimitError, r"must fit into memory, but needs more .*\(12 GB\)"),
        (pa.ArrowInvalid("bad\nlines"), CorruptShardError, r"cannot be read \(bad\)\. Restore"),
        (OSError("disk"), CorruptShardError, r"cannot be read \(disk\)"),
        (EOFError(), CorruptShardError, r"cannot be read \(EOFError\)"),
    ],
)
def test_errors_of_pyarrow_name_the_file(raised, error, text):
    with pytest.raises(error, match=text), translate_errors(PLACE):
        raise raised


def test_digests_are_of_content_and_of_versions(tmp_path):
    WRITERS["parquet"](tmp_path / "a")
    first = open_table_file(tmp_path / "a", PLACE)
    os.utime(tmp_path / "a", ns=(1, 1))
    later = open_table_file(tmp_path / "a", PLACE)
    digest = digest_files([first], {"x": 1})
    assert digest == digest_files([later], {"x": 1}) != digest_files([first], {"x": 2})
    assert digest_versions([first], digest) != digest_versions([later], digest)
    assert len(digest) == 32


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_rows_that_pyarrow_leaves_out_without_an_error_are_damage(tmp_path, version):
    """A flipped bit in the header of a page may make PyArrow skip the page, or its end."""
    path = tmp_path / "x.parquet"
    table = pa.table({"x": [[1, 2], [3], [4, 5, 6]]})
    parquet.write_table(
        table, path, compression="none", use_dictionary=False, data_page_version=version
    )
    well, first = path.read_bytes(), parquet.ParquetFile(path).metadata.row_group(0).column(0)
    found = set()
    for bit in range(8 * first.data_page_offset, 8 * (first.data_page_offset + 24)):
        damaged = bytearray(well)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            store = open_store(path)
        except DataError as error:
            found.update(text for text in ("can be read", "pages of 4 of 6") if text in str(error))
        else:
            assert (len(store), store.lengths.sum()) == (3, 6)
    assert found == {"can be read", "pages of 4 of 6"}

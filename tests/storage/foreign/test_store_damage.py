"""Files that others wrote, and what is wrong with them."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    CorruptShardError,
    DataError,
    DecodeError,
)
from seqdata.storage import decoded_source
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.digest_trailer import add_digest
from seqdata.storage.foreign.store import open_foreign

LENGTHS = [3, 0, 5, 1]


def table():
    return pa.table({"x": [[0.5] * length for length in LENGTHS], "y": [1, 2, 3, 4]})


def write_ipc(path, given, *, compression=None, rows=2, stream=False):
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, make(file, given.schema, options=options) as writer:
        for batch in given.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


WRITERS = {
    "file.arrow": lambda path: write_ipc(path, table()),
    "stream.arrow": lambda path: write_ipc(path, table(), stream=True),
    "file.parquet": lambda path: pa.parquet.write_table(table(), path, row_group_size=3),
}


def test_files_without_a_list_column_are_refused(tmp_path):
    pa.parquet.write_table(pa.table({"a": [1], "w": [{"t": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(
        DataError,
        match=r"column must hold lists of numbers or strings: .*; dropped: 'w' .*--group COLUMN",
    ):
        open_store(tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"a": [[[1], [2, 3]]]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="at least one column must hold lists of numbers"):
        open_store(tmp_path / "b.parquet")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_missing_value_is_an_error_that_names_column_and_row(tmp_path, compression):
    given = pa.table({"x": [[1], [2, 3], [4]], "y": [1, None, 2], "z": [[1], [2, None], [4]]})
    write_ipc(tmp_path / "n.arrow", given, compression=compression)
    store = open_store(tmp_path / "n.arrow")
    spans = np.array([[0, 0, 1]])
    assert store.read(spans, ["x"])["x"][0].tolist() == [1]
    with pytest.raises(
        DecodeError, match=r'field "y": must not hold missing values, but holds one in row 1'
    ):
        store.read(spans, ["y"])
    with pytest.raises(
        DecodeError,
        match=r'field "z": must not hold missing values, but holds one in row 1 inside its list',
    ):
        store.read(spans, ["z"])


def test_a_missing_sequence_is_an_error_at_opening(tmp_path):
    write_ipc(tmp_path / "n.arrow", pa.table({"x": [[1], [2], [3], None]}), rows=2)
    with pytest.raises(
        DecodeError,
        match=r'"n.arrow", unit 1\), field "x": must not hold missing values, but .* row 1',
    ) as told:
        open_store(tmp_path / "n.arrow")
    assert told.value.details == {
        "dataset": str(tmp_path / "n.arrow"), "shard": 0, "file": "n.arrow", "unit": 1,
        "field": "x", "row": 1,
    }  # fmt: skip


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_lengths_that_cannot_be_true_are_counted_again(tmp_path, damage):
    WRITERS["file.parquet"](tmp_path / "a.parquet")
    open_store(tmp_path / "a.parquet")
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    if damage is None:
        with np.load(kept) as content:
            changed = dict(content) | {"lengths/x": np.arange(2, dtype=np.uint32)}
        file = io.BytesIO()
        np.savez(file, **changed)
        kept.write_bytes(add_digest(file.getvalue(), kept.name))
    else:
        kept.write_bytes(damage)
    assert open_store(tmp_path / "a.parquet").lengths.tolist() == LENGTHS


def test_lengths_that_cannot_be_kept_are_counted_all_the_same(tmp_path):
    WRITERS["file.parquet"](tmp_path / "a.parquet")
    open_store(tmp_path / "a.parquet")
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    kept.unlink()
    kept.mkdir()  # nothing can be renamed onto it
    assert open_store(tmp_path / "a.parquet").lengths.tolist() == LENGTHS
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [kept.name]


@pytest.mark.parametrize("length", [1, 5])
def test_a_file_that_shrank_or_grew_after_it_was_counted_is_an_error(tmp_path, length):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"x": [[1, 2, 3], [4]]}), path)
    store = open_store(path)
    object.__setattr__(
        store._reader.sources["x"], "decode",
        lambda unit: decoded_source.DecodedColumn(np.arange(6), np.array([0, length, 6])),
    )  # fmt: skip
    with pytest.raises(
        CorruptSampleError, match=f"must have 3 timesteps, as counted before, but has {length}: the"
    ):
        store.read(np.array([[0, 0, 1]]), ["x"])


def test_files_of_other_columns_are_refused(tmp_path):
    pa.parquet.write_table(pa.table({"x": [[1]]}), tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"x": [[1.0]]}), tmp_path / "b.parquet")
    with pytest.raises(
        DataError, match=r'shard 1 \("b.parquet"\), field "x": must be .*, but is list<.*double>'
    ):
        open_store(tmp_path)
    pa.parquet.write_table(pa.table({"z": [[1]]}), tmp_path / "b.parquet")
    with pytest.raises(
        DataError, match=r'shard 1 \("b.parquet"\), field "x": must be .*, but is missing'
    ):
        open_store(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    column = pa.array([[1]])
    write_ipc(tmp_path / "a.arrow", pa.Table.from_arrays([column, column], names=["x", "x"]))
    with pytest.raises(DataError, match="must have columns of different names"):
        open_store(tmp_path / "a.arrow")


def test_arrow_beside_parquet_is_refused(tmp_path):
    WRITERS["file.arrow"](tmp_path / "a.arrow")
    WRITERS["file.parquet"](tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r'"a.arrow"\): must be of the same kind as .a.parquet.'):
        open_store(tmp_path)


def test_a_file_without_rows_is_refused(tmp_path):
    pa.parquet.write_table(table().slice(0, 0), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="must have at least one row, but has none"):
        open_store(tmp_path / "a.parquet")


def test_what_is_not_there_or_holds_no_file_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"must be an Arrow, Feather or Parquet .*, but is not there"
    ):
        open_store(tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"must hold at least one file that ends with .arrow, .feather"
    ):
        open_foreign(tmp_path)


def test_checksums_cannot_be_verified(tmp_path):
    with pytest.raises(
        ConfigError, match="`verify` must be 'off', but is 'always': files that others"
    ):
        open_store(tmp_path / "a.parquet", verify="always")


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"something else")
    with pytest.raises(DataError, match="must be an Arrow, Feather or Parquet file, but is not"):
        open_store(tmp_path / "a.parquet")
    (tmp_path / "b.feather").write_bytes(b"FEA1" + bytes(40))
    with pytest.raises(DataError, match="must be a Feather file of version 2, but is of version 1"):
        open_store(tmp_path / "b.feather")


@pytest.mark.parametrize("name", ["file.arrow", "stream.arrow", "file.parquet"])
def test_a_file_that_was_cut_is_an_error(tmp_path, name):
    WRITERS[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(
        CorruptShardError, match=r"cannot be read .*\. Restore|was cut off|extends beyond the file"
    ):
        open_store(tmp_path / name)


def test_a_code_that_its_dictionary_lacks_is_an_error(tmp_path):
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1, 1], pa.int8()), ["ann", "bob"])
    write_ipc(tmp_path / "a.arrow", table().append_column("who", codes), rows=4)
    raw = (tmp_path / "a.arrow").read_bytes()
    good = np.array([1, 0, 1, 1, 0, 0, 0, 0], np.int8).tobytes()
    place = raw.rindex(good)
    (tmp_path / "a.arrow").write_bytes(raw[:place] + b"\x63" + raw[place + 1 :])
    with pytest.raises(
        CorruptShardError,
        match=r"must be unchanged since it was written, but cannot be read \(.*99.*\)",
    ):
        open_store(tmp_path / "a.arrow").read(np.array([[0, 0, 3]]), ["who"])


def test_a_column_whose_name_is_no_text_is_an_error(tmp_path):
    write_ipc(tmp_path / "a.arrow", pa.table({"abcdef": [[1]]}))
    raw = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(raw.replace(b"abcdef", b"abc\xff\xffd"))
    with pytest.raises(CorruptShardError, match=r"cannot be read \('utf-8' codec .*Restore the"):
        open_store(tmp_path / "a.arrow")


def test_offsets_that_do_not_rise_are_an_error(tmp_path):
    write_ipc(tmp_path / "a.arrow", pa.table({"x": pa.array([[7, 7], [7] * 3])}))
    raw = (tmp_path / "a.arrow").read_bytes()
    good = np.array([0, 2, 5], np.int32).tobytes()
    assert raw.count(good) == 1
    bad = raw.replace(good, np.array([0, 6, 5], np.int32).tobytes())
    (tmp_path / "a.arrow").write_bytes(bad)
    with pytest.raises(
        CorruptShardError,
        match=r'field "x": must be unchanged .*, but has offsets that are not ascending',
    ):
        open_store(tmp_path / "a.arrow")


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    given = pa.table({"x": [[1]], "t": pa.array(["abcd"])})
    for compression in (None, "dictionary"):
        path = tmp_path / f"{compression}.arrow"
        write_ipc(path, given if compression is None else encoded(given))
        path.write_bytes(path.read_bytes().replace(b"abcd", b"ab\xff\xff"))
        with pytest.raises(
            DataError, match=r"must be UTF-8 text, but is not .*|Invalid UTF8 sequence"
        ):
            open_store(path).read(np.array([[0, 0, 1]]), ["t"])


def encoded(given):
    return given.set_column(1, "t", given["t"].dictionary_encode())


def test_pieces_fill_only_what_fits():
    column = ArrayColumn(np.dtype("int64"), (), [np.arange(2)])
    for out, bounds in ((np.empty(1, np.int64), [0, 2]), (np.empty(2, np.int32), [0, 2])):
        with pytest.raises(ValueError, match=r"fill: `out` must be int64 with \d ascending bounds"):
            column.fill(out, np.array(bounds), None)

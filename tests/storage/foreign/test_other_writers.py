"""Sound files that need more than this pyarrow has are not called damage, by any reader."""

import base64
import re
import warnings

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet.encryption
import pytest
from pyarrow import feather, parquet

from seqdata import open_store
from seqdata.errors import CorruptShardError, DataError, DecodeError
from seqdata.readers.source import ReadOptions, find_source
from seqdata.readers.tables import read_arrow, read_parquet
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.untrusted_ipc import _FlatTable, find_batches

TABLE = pa.table({"x": [[1, 2], [3]], "y": [1, 2]})
NO_DAMAGE = r"must hold what pyarrow [\d.]+ reads, but does not \(.*{}.*It need not be damaged"


def save_wide_integers(path):
    frame = pl.DataFrame({"x": [[1, 2], [3]], "y": pl.Series([1, 2], dtype=pl.Int128)})
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_ipc(path)


def save_codec(number):
    def save(path):
        """Write the number of another codec into the metadata of each column."""
        parquet.write_table(TABLE, path, compression="snappy")
        content = bytearray(path.read_bytes())
        begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        for found in re.finditer(rb"\x15\x02\x16", bytes(content[begin:])):
            content[begin + found.start() + 1] = 2 * number
        path.write_bytes(content)

    return save


def save_encoding(path):
    """Write the number of an encoding that there is not into the header of each page."""
    parquet.write_table(
        TABLE, path, use_dictionary=False, compression="none", column_encoding="PLAIN"
    )
    content = path.read_bytes()
    header = rb"\x15\x00\x15..?\x15..?\x2c\x15(.)\x15\x00"
    edited = re.sub(header, lambda found: found[0][:-1] + b"\x28", content, flags=re.S)
    path.write_bytes(edited)


def save_version(version, *, stream):
    def save(path):
        """Write another version of the metadata into each message."""
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(path, TABLE.schema) as writer:
            writer.write_table(TABLE)
        content = bytearray(path.read_bytes())
        begins = [0] if stream else [8]
        if not stream:
            begins += [at for at, *_ in find_batches(DataLocation(dataset=""), memoryview(content))]
        for begin in begins:
            size = int.from_bytes(content[begin + 4 : begin + 8], "little")
            message = _FlatTable.root(memoryview(bytes(content))[begin + 8 : begin + 8 + size])
            at = begin + 8 + message.find_field(0)
            content[at : at + 2] = version.to_bytes(2, "little")
        path.write_bytes(content)

    return save


NEWER = {
    "integers of Polars": ("t.parquet", save_wide_integers, "more than 64 bits not implemented"),
    "integers in Arrow": ("t.arrow", save_wide_integers, "more than 64 bits not implemented"),
    "LZO": ("t.parquet", save_codec(3), "LZO compression"),
    "unknown codec": ("t.parquet", save_codec(9), "Unsupported compression codec"),
    "unknown encoding": ("t.parquet", save_encoding, "Unknown encoding type"),
    "old file": ("t.arrow", save_version(2, stream=False), "Old metadata version not supported"),
    "new file": ("t.feather", save_version(5, stream=False), "Unsupported future MetadataVersion"),
    "old stream": ("t.arrow", save_version(0, stream=True), "Old metadata version not supported"),
    "new stream": ("t.arrow", save_version(9, stream=True), "Unsupported future MetadataVersion"),
}
READERS = {".parquet": read_parquet, ".arrow": read_arrow, ".feather": read_arrow}


@pytest.mark.parametrize("kind", NEWER)
def test_what_pyarrow_lacks_is_not_called_damage(tmp_path, kind):
    name, save, reason = NEWER[kind]
    path = tmp_path / name
    save(path)
    for read in (
        lambda: list(open_store(path)),
        lambda: list(READERS[path.suffix](find_source(path)[0], ReadOptions())),
    ):
        with pytest.raises((DataError, DecodeError), match=NO_DAMAGE.format(reason)) as caught:
            read()
        assert not isinstance(caught.value, CorruptShardError)
        assert "Restore" not in str(caught.value)
        assert name in str(caught.value)


class _Keys(parquet.encryption.KmsClient):
    """Stands for a service of keys, which wraps one by its name."""

    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, name):
        return base64.b64encode(name.encode() + key)

    def unwrap_key(self, wrapped, name):
        return base64.b64decode(wrapped)[len(name) :]


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encryption_is_not_called_damage(tmp_path, plaintext_footer):
    factory = parquet.encryption.CryptoFactory(_Keys)
    configuration = parquet.encryption.EncryptionConfiguration(
        footer_key="0123456789abcdef",
        column_keys={"0123456789abcdee": ["x.list.element"]},
        plaintext_footer=plaintext_footer,
    )
    connection = parquet.encryption.KmsConnectionConfig()
    properties = factory.file_encryption_properties(connection, configuration)
    path = tmp_path / "t.parquet"
    with parquet.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    for read in (open_store, lambda path: list(read_parquet(find_source(path)[0], ReadOptions()))):
        with pytest.raises(DataError, match="must be a Parquet file without encryption") as caught:
            read(path)
        assert not isinstance(caught.value, CorruptShardError)


VECTOR = pa.list_(pa.float32(), 3)
UNTYPED = {
    "lists": (pa.list_(pa.null()), pa.list_(pa.int32()), [[1, 2], []]),
    "long lists": (pa.large_list(pa.null()), pa.list_(pa.float64()), [[1, 2], []]),
    "short lists": (pa.list_(pa.null()), pa.large_list(pa.uint8()), [[1, 2], []]),
    "vectors": (pa.list_(pa.null()), pa.list_(VECTOR), [[[1, 2, 3]], []]),
    "lists of lists": (pa.list_(pa.list_(pa.null())), pa.list_(pa.list_(pa.int64())), [[[1, 2]]]),
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".zstd.arrow"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("kind", UNTYPED)
def test_a_file_whose_lists_are_all_empty_has_the_type_of_the_others(tmp_path, kind, first, suffix):
    untyped, typed, values = UNTYPED[kind]
    parts = [
        pa.table({"x": pa.array([[], []], untyped), "y": [[0], [1, 2]]}),
        pa.table({"x": pa.array(values, typed), "y": [[3]] * len(values)}),
    ]
    for number, part in enumerate(parts if first else parts[::-1]):
        path = tmp_path / f"part-{number}{suffix}"
        if suffix == ".parquet":
            parquet.write_table(part, path)
        else:
            feather.write_feather(part, path, "zstd" if "zstd" in suffix else "uncompressed")
    read = read_parquet if suffix == ".parquet" else read_arrow
    due = [[], [], *values] if first else [*values, [], []]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = open_store(tmp_path)
        rows = list(read(find_source(tmp_path)[0], ReadOptions()))
    assert [row["x"].tolist() for row in store] == due
    assert [row["x"].tolist() for row in rows] == due
    assert {row["x"].dtype for row in rows} == {np.dtype(store.fields["x"].dtype)}


def test_nulls_in_lists_without_a_type_are_missing_values(tmp_path):
    parquet.write_table(pa.table({"x": [[1]]}), tmp_path / "a.parquet")
    untyped = pa.array([[None]], pa.list_(pa.null()))
    parquet.write_table(pa.table({"x": untyped}), tmp_path / "b.parquet")
    with pytest.raises(
        DecodeError, match="must not hold missing values, but holds one in row 0 inside"
    ):
        list(open_store(tmp_path))

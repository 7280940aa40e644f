"""Files of a format are written all or none, with their indexes, by the encoder of the format.

Tar shards show the rest: resumed writing, buckets, orders (plugins/seqdata-webdataset/tests).
"""

from dataclasses import dataclass
from typing import ClassVar

import fsspec
import numpy as np
import pytest

from seqdata.backends import (
    Field,
    FieldIndex,
    FormatBackend,
    IndexedField,
    IndexedFormat,
    ShardEncoder,
    make_shard_index,
    write_files,
)
from seqdata.errors import ConfigError, DecodeError

HEAD = 2  # bytes: the sizes of key and values


@dataclass(frozen=True)
class PairEncoder(ShardEncoder):
    declared: ClassVar = {"x": ("x", "uint8", (), "time")}
    end = b""

    def encode(self, number, key, values):
        pair = key.encode(), values["x"].tobytes()
        return [bytes(map(len, pair)), *pair]


@dataclass(frozen=True)
class Pairs(IndexedFormat):
    name = "pairs"
    identity = ""
    suffixes = (".pairs",)
    packed = ()
    is_nested = True
    needs_command = False
    item = "pair"

    def make_index(self, content, name, place, read_sibling=None):
        keys, ends, begins, sizes, at = b"", [0], [], [], 0
        while at < len(content):
            key_size, size = content[at : at + HEAD].tolist()
            keys += content[at + HEAD : at + HEAD + key_size].tobytes()
            ends.append(len(keys))
            begins.append(at + HEAD + key_size)
            sizes.append(size)
            at = begins[-1] + size
        return make_shard_index(
            name, content, {"x": FieldIndex(np.array(begins), np.array(sizes))},
            keys=np.frombuffer(keys, np.uint8), key_ends=np.array(ends),
        )  # fmt: skip

    def check(self, index):
        pass

    def is_header(self, block):
        return True

    def scan(self, content, place):
        pass

    def fields(self, opened):
        lengths = np.concatenate([index.members["x"].sizes for index in opened.indexes])
        field = Field("uint8", (), "time")
        return [IndexedField(name="x", member="x", field=field, access="place", lengths=lengths)]

    def make_encoder(self, fields):
        assert list(fields) == ["x"]
        return PairEncoder()


BACKEND = FormatBackend(Pairs())
ROWS = [{"id": f"r{n}", "x": np.arange(n, dtype=np.uint8)} for n in range(1, 9)]


def write(location, rows=ROWS, **options):
    return write_files(location, rows, BACKEND, shard_bytes=20, progress=False, **options)


def test_files_are_read_as_they_were_written(tmp_path):
    store = write(tmp_path / "w")
    assert len(store.shards) > 1
    assert [row["x"].tolist() for row in store] == [row["x"].tolist() for row in ROWS]
    assert store.keys(range(8)) == [row["id"] for row in ROWS]
    assert BACKEND(tmp_path / "w", progress=False).fingerprint == store.fingerprint


def test_sequences_without_ids_are_numbered(tmp_path):
    store = write(tmp_path / "w", [{"x": row["x"]} for row in ROWS])
    assert store.keys([0, 7]) == ["000000000", "000000007"]


def test_files_are_replaced_only_if_asked(tmp_path):
    write(tmp_path / "w")
    with pytest.raises(
        ConfigError, match=r"must be an empty folder, but holds 'shard-000000\.pairs'"
    ):
        write(tmp_path / "w", ROWS[:2])
    assert len(write(tmp_path / "w", ROWS[:2], overwrite=True)) == 2
    assert sorted(path.name for path in (tmp_path / "w").glob("*.pairs")) == ["shard-000000.pairs"]


def test_an_id_that_occurs_twice_leaves_nothing(tmp_path):
    with pytest.raises(DecodeError, match="r1"):
        write(tmp_path / "w", [*ROWS, ROWS[0]])
    assert not list((tmp_path / "w").glob("*.pairs"))


def test_files_go_to_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/w"
    try:
        store = write(url)
        assert [row["x"].tolist() for row in store] == [row["x"].tolist() for row in ROWS]
    finally:
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)

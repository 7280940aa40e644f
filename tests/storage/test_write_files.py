"""Files of a format are written all or none, with their indexes, by the encoder of the format.

Tar shards show the rest: resumed writing, buckets, orders (plugins/seqdata-webdataset/tests).
"""

import os
import resource
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
from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError

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
ENDS = {0, 3, 4, 6, 7}  # rows that are the first or the last of a file


def write(location, rows=ROWS, **options):
    return write_files(location, rows, BACKEND, shard_bytes=20, progress=False, **options)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    (tmp_path / "w" / "seqdata-index" / "shard-000002.pairs.idx").touch()
    assert len(write(tmp_path / "w", ROWS[:2], overwrite=True)) == 2
    assert sorted(content(tmp_path / "w")) == ["index.idx", "shard-000000.pairs", "shards.json"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_where_the_renaming_of_files_stops_the_same_call_goes_on(tmp_path, monkeypatch, overwrite):
    """Files that are in place already are not written again, whichever rename was the last."""
    folder, rename = tmp_path / "w", os.replace
    write(tmp_path / "whole")
    stops = 0
    while True:
        if overwrite:
            write(folder, ROWS[:3])
        done = []

        def replace(source, target, done=done, limit=stops):
            if folder in target.parents and ".seqdata-tmp" not in str(target):
                if len(done) == limit:
                    raise OSError("disk is gone")
                done.append(target.name)
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            try:
                write(folder, overwrite=overwrite)
                break
            except OSError:
                assert len(done) == stops
        with pytest.raises(IncompleteDatasetError, match="was not finished writing"):
            BACKEND(folder)
        kept = [{**row, "x": row["x"] + (number not in ENDS)} for number, row in enumerate(ROWS)]
        write(folder, kept, overwrite=overwrite)  # only the ends of shards are compared
        assert content(folder) == content(tmp_path / "whole")
        for path in [*(folder / "seqdata-index").iterdir(), *folder.glob("*.pairs")]:
            path.unlink()
        (folder / "seqdata-index").rmdir()
        stops += 1
    assert done[-2:] == ["index.idx", "shards.json"]
    assert stops == len(list(folder.glob("*.pairs"))) + 2


@pytest.mark.parametrize("given", [list, iter])
def test_the_note_on_sequences_that_may_not_end_is_for_those_that_are_not_counted(tmp_path, given):
    """A limit of the size of files stands for a full disk: the system call fails likewise."""
    rows = [{"x": np.full(250, 1, dtype=np.uint8)}] * 400
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(IncompleteDatasetError, match="File too large") as caught:
            write_files(tmp_path, given(rows), BACKEND, shard_bytes=90_000, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    notes = getattr(caught.value, "__notes__", [])
    assert any("it is not known how many" in note for note in notes) == (given is iter)


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

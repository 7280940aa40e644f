"""Copies of remote shards that are damaged on this machine: mended from their source."""

import os
from dataclasses import replace

import numpy as np
import pytest
from seqdata_webdataset import open_webdataset

from seqdata import CorruptSampleError, Remote
from seqdata.protocols import Field
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.stores import digest_of
from seqdata_testing.waiting import patient

DECODED = {"json": {"a": Field("int64", (), "a")}}


class Source:
    """A folder that is served; some bodies of shards are wrong."""

    def __init__(self, folder):
        self.answer = folder_of(folder)
        self.wrong = 0

    def __call__(self, asked):
        answer = self.answer(asked)
        if self.wrong > 0 and asked.method == "GET" and asked.path.endswith(".tar"):
            self.wrong -= 1
            answer = replace(answer, body=bytes(255 - one for one in answer.body))
        return answer


@pytest.fixture
def web(folder):
    source = Source(folder)
    with served(source) as made:
        yield f"{made.url}/x-{{000..002}}.tar", source


def turn(path, first, stop):
    """Turn bytes of a file around where it lies: readers have it mapped."""
    with open(path, "r+b") as file:
        content = bytearray(file.read())
        content[first:stop] = bytes(255 - one for one in content[first:stop])
        file.seek(0)
        file.write(content)


@pytest.mark.parametrize(("first", "stop"), [(0, None), (512, -2048)])  # headers too; values only
@pytest.mark.parametrize("schema", [None, DECODED])
def test_a_damaged_copy_is_mended(web, folder, tmp_path, caplog, first, stop, schema):
    remote = Remote(cache_dir=tmp_path / "shard-cache")
    due = digest_of(open_webdataset(folder, schema=schema))
    store = open_webdataset(web[0], remote=remote, schema=schema, verify="always")
    assert digest_of(store) == due
    shards = [one for one in remote.folder.iterdir() if one.stat().st_size > 10_000]
    assert len(shards) == 3
    for reader in ("that has it mapped", "another run"):
        for path in shards:
            turn(path, first, stop)
        caplog.clear()
        if reader == "another run":
            for kept in (tmp_path / "cache").rglob("lengths-*"):
                kept.unlink()  # so lengths are counted by decoding
            store = open_webdataset(web[0], remote=remote, schema=schema)
        assert digest_of(store) == due
        told = [one for one in caplog.messages if "is damaged and is downloaded again" in one]
        assert len(told) == len(shards)


@pytest.mark.parametrize("name", ["mel.npy", "txt"])
def test_members_that_came_wrong_by_ranges_are_brought_again(web, folder, tmp_path, caplog, name):
    remote = Remote(how="ranges", cache_dir=tmp_path / "shard-cache", retry_seconds=patient(2))
    spans = np.zeros((30, 3), dtype=np.int64)
    spans[:, 0] = np.arange(30)
    local = open_webdataset(folder)
    spans[:, 2] = local.lengths
    store = open_webdataset(web[0], remote=remote)
    store.read(spans, ["mean.npy"])
    web[1].wrong = 3
    column, due = store.read(spans, [name])[name], local.read(spans, [name])[name]
    for row in range(30):
        assert np.array_equal(column[row], due[row])
    assert [one for one in caplog.messages if "the local copy was wrong" in one]
    web[1].wrong = 1000
    fresh = open_webdataset(web[0], remote=remote)
    web[1].wrong = 0
    fresh.read(spans, ["mean.npy"])
    web[1].wrong = 1000
    with pytest.raises(CorruptSampleError):
        fresh.read(spans, [name])[name][0]


def test_indexes_and_shards_that_are_kept_for_the_user_do_not_meet(
    web, folder, tmp_path, monkeypatch
):
    """Both are in the user's cache by default; a small one lets shards go, and never an index."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEQDATA_CACHE")
    for path in (folder / "seqdata-index").iterdir():
        path.unlink()
    open_webdataset(web[0], index="build", progress=False)
    remote = Remote(cache_bytes=100_000)
    store = open_webdataset(web[0], remote=remote)
    indexes = sorted((tmp_path / "home").rglob("*.idx"))
    assert [path.name for path in indexes] == ["index.idx"]
    for one in indexes:
        os.utime(one, ns=(0, 0))
    for number in (15, 25, 15):
        store.read(np.array([[number, 0, 0]]), ["txt"])
    assert len([one for one in remote.folder.iterdir() if one.stat().st_size > 10_000]) == 1
    assert sorted((tmp_path / "home").rglob("*.idx")) == indexes

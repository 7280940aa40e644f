"""Copies of remote shards that are damaged on this machine are dropped, and fetched again."""

import os
from contextlib import suppress
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


def until_right(look):
    """Look as often as there are shards: each error drops what is damaged of one at least."""
    for _ in range(3):
        with suppress(CorruptSampleError):
            assert look()
            return
    pytest.fail("there was damage left")


def shards_in(remote):
    found = [one for one in remote.folder.iterdir() if one.stat().st_size > 10_000]
    assert len(found) == 3
    return found


def test_a_copy_with_damaged_ends_is_fetched_again_when_it_is_opened(web, folder, tmp_path, caplog):
    remote = Remote(cache_dir=tmp_path / "shard-cache")
    due = digest_of(open_webdataset(folder))
    assert digest_of(open_webdataset(web[0], remote=remote)) == due
    for path in shards_in(remote):
        turn(path, 0, None)
    assert digest_of(open_webdataset(web[0], remote=remote)) == due
    assert len([one for one in caplog.messages if "is damaged and was dropped" in one]) == 3


@pytest.mark.parametrize("schema", [None, DECODED])
def test_a_copy_with_damaged_values_is_an_error_that_names_it_and_is_fetched_by_the_next_opening(
    web, folder, tmp_path, schema
):
    remote = Remote(cache_dir=tmp_path / "shard-cache")
    due = digest_of(open_webdataset(folder, schema=schema))
    store = open_webdataset(web[0], remote=remote, schema=schema, verify="always")
    assert digest_of(store) == due
    for path in shards_in(remote):
        turn(path, 512, -2048)
    with pytest.raises(CorruptSampleError, match=r"a copy in the cache, .*, which was dropped\."):
        digest_of(store)  # it has them mapped
    assert len([one for one in remote.folder.iterdir() if one.stat().st_size > 10_000]) == 2
    for kept in (tmp_path / "cache").rglob("lengths-*"):
        kept.unlink()  # so lengths are counted by decoding
    until_right(lambda: digest_of(open_webdataset(web[0], remote=remote, schema=schema)) == due)


@pytest.mark.parametrize("name", ["mel.npy", "txt"])
def test_members_that_came_wrong_by_ranges_are_an_error_and_come_again(web, folder, tmp_path, name):
    remote = Remote(how="ranges", cache_dir=tmp_path / "shard-cache", retry_seconds=patient(2))
    spans = np.zeros((30, 3), dtype=np.int64)
    spans[:, 0] = np.arange(30)
    local = open_webdataset(folder)
    spans[:, 2] = local.lengths
    store = open_webdataset(web[0], remote=remote)
    store.read(spans, ["mean.npy"])
    web[1].wrong = 1000
    with pytest.raises(CorruptSampleError, match="Read them again first"):
        store.read(spans, [name])[name][0]
    web[1].wrong = 0
    due = local.read(spans, [name])[name]

    def is_right():
        column = store.read(spans, [name])[name]
        return all(np.array_equal(column[row], due[row]) for row in range(30))

    until_right(is_right)


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
    assert len(indexes) == 3
    for one in indexes:
        os.utime(one, ns=(0, 0))
    for number in (15, 25, 15):
        store.read(np.array([[number, 0, 0]]), ["txt"])
    assert len([one for one in remote.folder.iterdir() if one.stat().st_size > 10_000]) == 1
    assert sorted((tmp_path / "home").rglob("*.idx")) == indexes

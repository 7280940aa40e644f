"""A copy that is damaged on this machine is made right again; a damaged source is an error."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqdata import CorruptSampleError, CorruptShardError, Fixed, Loader, Remote, open_store
from seqdata.errors import DataError
from seqdata.storage.remote.copy_repair import CopyRepair
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.waiting import patient
from tests.storage.remote.cached import folder_in
from tests.storage.remote.samples import read_all, spans_of, write


@pytest.mark.parametrize("damaged", [(True, False), (False, True), (True, True)])
def test_copies_are_looked_at_again_until_all_are_as_their_sources(damaged):
    """One of them may be the damaged one, and be damaged again later."""
    looked = []

    def look(number):
        looked.append(number)
        return len(looked) <= 2 and damaged[number]

    repair = CopyRepair([lambda: look(0), lambda: look(1)])
    assert [repair(DataError("wrong")) for _ in range(4)] == [True, True, False, False]
    assert looked == [0, 1, 0, 1]


def test_a_source_that_differs_each_time_is_not_asked_for_ever():
    repair = CopyRepair([lambda: True])
    assert [repair(DataError("wrong")) for _ in range(10)] == [True] * 8 + [False] * 2


class Source:
    """A folder that is served; bodies of shards are wrong for a while."""

    def __init__(self, folder):
        self.answer = folder_of(folder)
        self.wrong = 0  # bodies
        self.turned = 255
        self.other = 0  # 1: each is wrong in another way

    def __call__(self, asked):
        answer = self.answer(asked)
        if self.wrong > 0 and asked.method == "GET" and asked.path.endswith(".arrow"):
            self.wrong -= 1
            self.turned += self.other
            answer = replace(answer, body=bytes((self.turned - one) % 256 for one in answer.body))
        return answer


@pytest.fixture
def web(tmp_path):
    """Gives (local store, its server, what is served)."""
    local = write(tmp_path / "store")
    source = Source(tmp_path / "store")
    with served(source) as made:
        yield local, made, source


def opened(web, tmp_path, how="cache", **options):
    remote = Remote(how=how, cache_dir=tmp_path / "cache", retry_seconds=patient(2))
    return open_store(web[1].url, remote=remote, **options)


def damage(tmp_path, sizes):
    """Turn every byte of the cached files of these sizes around; returns their names."""
    names = []
    for path in folder_in(tmp_path).iterdir():
        if path.stat().st_size in sizes:
            with open(path, "r+b") as file:  # where it lies: readers have it mapped
                content = bytes(255 - one for one in file.read())
                file.seek(0)
                file.write(content)
            names.append(path.name)
    return names


def sizes_of(local, part):
    """The sizes of the files of a store that no other part has."""
    if part == "lengths":
        return {os.path.getsize(Path(local.location) / one.file)
                for one in local.manifest.lengths.values()}  # fmt: skip
    shards = local.manifest.shards
    return {one.bytes if part == "shards" else one.checksums.bytes for one in shards}


def mended(caplog):
    return [one for one in caplog.messages if "is damaged and is downloaded again" in one]


@pytest.mark.parametrize(
    ("part", "verify"),
    [
        ("shards", "first_read"),
        ("shards", "always"),
        ("sums", "first_read"),
        ("lengths", "first_read"),
        pytest.param("sums", "always", marks=pytest.mark.nightly),
        pytest.param("lengths", "always", marks=pytest.mark.nightly),
    ],
)
def test_a_copy_that_was_damaged_between_two_runs_is_mended(web, tmp_path, caplog, part, verify):
    due = read_all(web[0])
    assert read_all(opened(web, tmp_path)) == due
    names = damage(tmp_path, sizes_of(web[0], part))
    assert names
    store = opened(web, tmp_path, verify=verify)
    assert read_all(store) == due
    assert len(mended(caplog)) == len(names)
    caplog.clear()
    assert read_all(opened(web, tmp_path)) == due
    assert not mended(caplog)


def test_a_copy_that_is_damaged_while_it_is_mapped_is_mended_for_all_who_have_it(
    web, tmp_path, caplog
):
    due = read_all(web[0])
    stores = [opened(web, tmp_path, verify="always") for _ in range(2)]
    for store in stores:
        assert read_all(store) == due  # all shards are open, as one source
    names = damage(tmp_path, sizes_of(web[0], "shards"))
    assert [read_all(store) == due for store in stores] == [True, True]
    assert len(mended(caplog)) == len(names)
    assert stores[0].keys([7]) == web[0].keys([7])


def test_worker_processes_mend_too(web, tmp_path):
    read_all(opened(web, tmp_path))
    damage(tmp_path, sizes_of(web[0], "shards"))
    loader = Loader(opened(web, tmp_path), Fixed(16), seed=1, num_workers=2)
    try:
        for ours, due in zip(loader, Loader(web[0], Fixed(16), seed=1), strict=True):
            assert ours["x"].equal(due["x"])
            assert ours["text"] == due["text"]
    finally:
        loader.shutdown()


@pytest.mark.parametrize(("name", "wrong"), [("x", 3), ("text", 3), ("text", 1), ("id", 3)])
def test_bytes_that_came_wrong_by_ranges_are_brought_again(web, tmp_path, caplog, name, wrong):
    store = opened(web, tmp_path, "ranges")
    spans = spans_of(web[0])
    store.read(spans, ["label"])  # what the shards are is known from here on
    web[2].wrong = wrong
    column = store.read(spans, [name])[name]
    assert web[2].wrong == 0
    due = web[0].read(spans, [name])[name]
    for row in range(len(spans)):
        assert np.array_equal(column[row], due[row])
    assert [one for one in caplog.messages if "the local copy was wrong" in one]
    web[2].wrong = 1
    assert opened(web, tmp_path, "ranges").keys([3]) == ["utt-3"]  # a footer
    web[2].wrong = 1000
    with pytest.raises(CorruptShardError, match="must have a footer of digest"):
        opened(web, tmp_path, "ranges").keys([3])


@pytest.mark.parametrize("other", [0, 1])
def test_a_source_that_gives_wrong_bytes_each_time_is_an_error(web, tmp_path, other):
    store = opened(web, tmp_path, "ranges")
    web[2].other = other
    spans = spans_of(web[0])
    store.read(spans, ["label"])
    web[2].wrong = 1000
    for name in ("x", "text"):
        with pytest.raises(CorruptSampleError, match=r"[Rr]estore it, or write the store again"):
            store.read(spans, [name])[name][0]


def test_a_source_that_is_another_is_an_error(web, tmp_path, caplog):
    read_all(opened(web, tmp_path))
    damage(tmp_path, sizes_of(web[0], "shards"))
    web[2].wrong = 1000
    with pytest.raises(
        CorruptShardError, match=r"must have sha256 .*, but has .*: it was replaced or is damaged"
    ):
        read_all(opened(web, tmp_path))
    assert mended(caplog)


def test_a_wrong_checksum_at_the_source_is_an_error_and_looked_at_once(web, tmp_path, monkeypatch):
    """The shard is what the manifest says; its checksums are not those of its bytes."""
    store = opened(web, tmp_path)
    looks = []
    monkeypatch.setattr(
        "seqdata.storage.remote.file_cache._has_digest",
        lambda content, digest: looks.append(digest) or True,
    )
    spans = spans_of(web[0])
    columns = store.read(spans, ["x"])
    damage(tmp_path, sizes_of(web[0], "shards"))
    for _ in range(3):
        with pytest.raises(CorruptSampleError, match=r"[Rr]estore it, or write the store again"):
            columns["x"][0]
    assert len(looks) == 2  # the shard and its checksums


def test_a_copy_that_is_removed_and_damaged_is_fetched_by_the_next_run(web, tmp_path):
    due = read_all(web[0])
    store = opened(web, tmp_path, verify="always")
    read_all(store)
    damage(tmp_path, sizes_of(web[0], "shards"))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CorruptSampleError):
        read_all(store)
    assert read_all(opened(web, tmp_path)) == due


@pytest.mark.parametrize("size", [0, 100])
def test_a_copy_that_was_cut_off_is_told_in_the_log_and_downloaded_again(
    web, tmp_path, caplog, size
):
    due = read_all(web[0])
    assert read_all(opened(web, tmp_path)) == due
    sizes = sizes_of(web[0], "shards")
    paths = [path for path in folder_in(tmp_path).iterdir() if path.stat().st_size in sizes]
    for path in paths:
        os.truncate(path, size)
    assert read_all(opened(web, tmp_path)) == due
    told = mended(caplog)
    assert sorted(path.name in one for path in paths for one in told).count(True) == len(paths)
    assert len(told) == len(paths) > 0
    caplog.clear()
    assert read_all(opened(web, tmp_path)) == due
    assert not mended(caplog)

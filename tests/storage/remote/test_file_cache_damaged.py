"""A damaged copy is dropped, with an error that names it, and fetched again by the next opening."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqdata import CorruptSampleError, CorruptShardError, Fixed, Loader, Remote, open_store
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.waiting import patient
from tests.storage.remote.cached import folder_in
from tests.storage.remote.samples import read_all, spans_of, write


class Source:
    """A folder that is served; bodies of shards are wrong for a while."""

    def __init__(self, folder):
        self.answer = folder_of(folder)
        self.wrong = 0  # bodies

    def __call__(self, asked):
        answer = self.answer(asked)
        if self.wrong > 0 and asked.method == "GET" and asked.path.endswith(".arrow"):
            self.wrong -= 1
            answer = replace(answer, body=bytes(255 - one for one in answer.body))
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


def dropped(caplog):
    return [one for one in caplog.messages if "is damaged and was dropped" in one]


def read_damaged(store):
    """Return the error of the first sequence of a store that cannot be read."""
    with pytest.raises(CorruptSampleError) as error:
        read_all(store)
    return error.value


@pytest.mark.parametrize("verify", ["first_read", "always"])
@pytest.mark.parametrize("part", ["shards", "sums"])
def test_a_damaged_copy_is_an_error_that_names_it_and_is_fetched_by_the_next_opening(
    web, tmp_path, caplog, part, verify
):
    due = read_all(web[0])
    assert read_all(opened(web, tmp_path)) == due
    names = damage(tmp_path, sizes_of(web[0], part))
    for _ in names:  # a copy each time
        error = read_damaged(opened(web, tmp_path, verify=verify))
        shard = web[0].manifest.shards[error.details["shard"]]
        path = folder_in(tmp_path) / shard.sha256
        assert not path.exists()
        text = str(error)
        assert f'("{shard.file}"), sequence {error.details["sequence"]}' in text
        assert f'field "{error.details["field"]}"' in text
        assert (
            f"it was read from a copy in the cache, {path}, which was dropped. Open the store "
            "again first: it is fetched again" in text
        )
        assert any(str(path) in line for line in dropped(caplog))
    caplog.clear()
    assert read_all(opened(web, tmp_path, verify=verify)) == due
    assert not dropped(caplog)


def test_damaged_lengths_are_fetched_again_when_the_store_is_opened(web, tmp_path, caplog):
    due = read_all(web[0])
    assert read_all(opened(web, tmp_path)) == due
    names = damage(tmp_path, sizes_of(web[0], "lengths"))
    assert read_all(opened(web, tmp_path)) == due
    assert len(dropped(caplog)) == len(names) > 0
    caplog.clear()
    assert read_all(opened(web, tmp_path)) == due
    assert not dropped(caplog)


def test_a_copy_that_is_damaged_while_it_is_mapped_is_an_error_for_all_who_have_it(web, tmp_path):
    due = read_all(web[0])
    stores = [opened(web, tmp_path, verify="always") for _ in range(2)]
    for store in stores:
        assert read_all(store) == due  # all shards are open, as one source
    damage(tmp_path, sizes_of(web[0], "shards"))
    for store in stores:
        assert "which was dropped" in str(read_damaged(store))


def test_errors_of_worker_processes_name_the_copy_too(web, tmp_path):
    read_all(opened(web, tmp_path))
    damage(tmp_path, sizes_of(web[0], "shards"))
    loader = Loader(opened(web, tmp_path), Fixed(16), seed=1, num_workers=2)
    try:
        with pytest.raises(CorruptSampleError, match="which was dropped"):
            list(loader)
    finally:
        loader.shutdown()


def test_a_copy_that_cannot_be_removed_is_named(web, tmp_path, monkeypatch):
    read_all(opened(web, tmp_path))
    damage(tmp_path, sizes_of(web[0], "shards"))

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    text = str(read_damaged(opened(web, tmp_path)))
    assert "which cannot be removed (Permission denied). Remove it, then open the store" in text


@pytest.mark.parametrize("name", ["x", "text", "id"])
def test_bytes_that_came_wrong_by_ranges_are_an_error_and_come_again(web, tmp_path, name):
    store = opened(web, tmp_path, "ranges")
    spans = spans_of(web[0])
    store.read(spans, ["label"])  # what the shards are is known from here on
    web[2].wrong = 1000
    for _ in range(2):
        with pytest.raises(CorruptSampleError, match=r"were dropped\. Read them again first"):
            store.read(spans, [name])[name][0]
    web[2].wrong = 0
    due = web[0].read(spans, [name])[name]
    for _ in range(len(web[0].manifest.shards)):  # one each time
        try:
            column = store.read(spans, [name])[name]
            assert all(np.array_equal(column[row], due[row]) for row in range(len(spans)))
            break
        except CorruptSampleError:
            continue
    else:
        pytest.fail("the bytes did not come again")


def test_a_footer_that_came_wrong_once_is_read_again(web, tmp_path):
    web[2].wrong = 1
    assert opened(web, tmp_path, "ranges").keys([3]) == ["utt-3"]
    web[2].wrong = 1000
    with pytest.raises(CorruptShardError, match="must have a footer with SHA-256"):
        opened(web, tmp_path, "ranges").keys([3])


def test_a_source_that_is_damaged_too_is_an_error_of_the_next_opening(web, tmp_path):
    read_all(opened(web, tmp_path))
    damage(tmp_path, sizes_of(web[0], "shards"))
    read_damaged(opened(web, tmp_path))
    web[2].wrong = 1000
    with pytest.raises(
        CorruptShardError, match=r"must have sha256 .*, but has .*: it was replaced or is damaged"
    ):
        read_all(opened(web, tmp_path))


def test_a_copy_that_is_removed_and_damaged_is_fetched_by_the_next_run(web, tmp_path):
    due = read_all(web[0])
    store = opened(web, tmp_path, verify="always")
    read_all(store)
    damage(tmp_path, sizes_of(web[0], "shards"))
    shutil.rmtree(tmp_path / "cache")
    read_damaged(store)
    assert read_all(opened(web, tmp_path)) == due


@pytest.mark.parametrize("size", [0, 100])
def test_a_copy_that_was_cut_off_is_named_in_the_log_and_downloaded_again(
    web, tmp_path, caplog, size
):
    due = read_all(web[0])
    assert read_all(opened(web, tmp_path)) == due
    sizes = sizes_of(web[0], "shards")
    paths = [path for path in folder_in(tmp_path).iterdir() if path.stat().st_size in sizes]
    for path in paths:
        os.truncate(path, size)
    assert read_all(opened(web, tmp_path)) == due
    logged = dropped(caplog)
    assert sorted(path.name in one for path in paths for one in logged).count(True) == len(paths)
    assert len(logged) == len(paths) > 0
    caplog.clear()
    assert read_all(opened(web, tmp_path)) == due
    assert not dropped(caplog)

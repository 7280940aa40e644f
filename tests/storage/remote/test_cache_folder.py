"""The folder of the cache: its own, apart from the user's files, removed at any time."""

import errno
import os
import shutil
import threading

import pytest

from seqdata import Bucketed, CacheError, Loader, Remote, open_store, write_store
from seqdata.storage import file_lock
from seqdata.storage.remote import cache_folder as folder_module
from seqdata.storage.remote import file_cache as cache_module
from seqdata.storage.remote.file_cache import CacheRequest
from seqdata_testing.waiting import patient
from tests.storage.remote.cached import SIZE, cache_at, files_in, first, folder_in


def test_a_folder_of_the_user_s_keeps_its_files(web, tmp_path):
    mine = tmp_path / "cache"
    mine.mkdir()
    given = {"thesis.txt": b"old" * 1000, "0" * 64: b"a digest of mine", "index": None}
    for name, content in given.items():
        (mine / name).mkdir() if content is None else (mine / name).write_bytes(content)
        os.utime(mine / name, ns=(0, 0))
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE)
    for name in "abcd":
        cache.acquire(CacheRequest(name))
    kept = {one.name: one.read_bytes() if one.is_file() else None for one in mine.iterdir()}
    assert kept.pop("seqdata-shards") is None
    assert kept == given


@pytest.mark.parametrize("name", ["thesis.txt", "CACHEDIR.TAG"])
def test_a_folder_of_that_name_with_other_files_is_refused(web, tmp_path, name):
    folder_in(tmp_path).mkdir(parents=True)
    (folder_in(tmp_path) / name).write_bytes(b"mine")
    with pytest.raises(
        CacheError, match=rf"must be empty or a cache of seqdata, but holds '{name}'"
    ):
        cache_at(web, tmp_path).acquire(CacheRequest("a"))
    assert os.listdir(folder_in(tmp_path)) == [name]
    assert (folder_in(tmp_path) / name).read_bytes() == b"mine"


def test_what_others_put_into_the_folder_is_neither_counted_nor_removed(web, tmp_path):
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE)
    cache.acquire(CacheRequest("a"))
    (folder_in(tmp_path) / "notes").write_bytes(bytes(2 * SIZE))
    os.utime(folder_in(tmp_path) / "notes", ns=(0, 0))
    (folder_in(tmp_path) / ("0" * 64)).mkdir()  # the index of a plugin was such a folder once
    for name in "bcd":
        cache.acquire(CacheRequest(name))
    assert "notes" in files_in(tmp_path)
    assert len(files_in(tmp_path)) == 4


def test_a_cache_whose_marker_is_gone_is_still_its_own(web, tmp_path):
    cache = cache_at(web, tmp_path)
    cache.acquire(CacheRequest("a"))
    for left in ("removed", "emptied"):
        marker = folder_in(tmp_path) / "CACHEDIR.TAG"
        marker.unlink() if left == "removed" else marker.write_bytes(b"")
        assert first(cache.acquire(CacheRequest("b"))) == 1
        assert marker.read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize("number", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_locks_says_what_to_set(web, tmp_path, monkeypatch, number):
    def flock(descriptor, kind):
        raise OSError(getattr(errno, number), "no locks")

    cache = cache_at(web, tmp_path)
    cache.acquire(CacheRequest("a"))
    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    told = r"must support flock, .* but has no locks \(.*\)\. Pass Remote\(cache_dir=...\) with"
    for name in "ab":  # one that is there, one that is not
        with pytest.raises(CacheError, match=told):
            cache.acquire(CacheRequest(name))
    assert len(files_in(tmp_path)) == 1
    with pytest.raises(CacheError, match=told):
        write_store("memory://lockless/store", [{"x": [1.0]}], remote=cache.remote)


def removed(tmp_path):
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


STEPS = {  # those of the cache, after each of which the folder may be gone
    cache_module: (
        "prepare_folder", "lock_partial", "open_cache_file", "remove_orphan", "list_entries",
        "evict", "is_still_at", "try_lock", "download", "_map_cached", "move_into_place",
        "_open_cached",
    ),
    folder_module: ("_write_marker", "open_cache_file", "try_lock", "is_still_at"),
    os: ("replace", "open", "scandir"),
}  # fmt: skip


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("where", [pytest.param("before", marks=pytest.mark.nightly), "after"])
@pytest.mark.parametrize(
    ("module", "step"), [(module, step) for module, steps in STEPS.items() for step in steps]
)
def test_the_folder_may_be_removed_at_any_step(
    web, tmp_path, monkeypatch, module, step, where, times
):
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE)
    known, left = getattr(module, step), [times]

    def step_and_removal(*arguments, **options):
        hit = left[0] > 0 and threading.current_thread() is threading.main_thread()
        left[0] -= hit
        if hit and where == "before":
            removed(tmp_path)
        given = known(*arguments, **options)
        if hit and where == "after":
            removed(tmp_path)
        return given

    for name in "ab":
        cache.acquire(CacheRequest(name))
    monkeypatch.setattr(module, step, step_and_removal)
    for name in "bca":
        held = cache.acquire(CacheRequest(name))
        assert bytes(memoryview(held.mapping)) == bytes(["abcd".index(name)]) * SIZE
    assert left[0] < times or step == "evict"  # it may have been removed before it was full


@pytest.mark.slow
def test_the_folder_may_be_removed_over_and_over_while_a_store_is_read(store_of_many, tmp_path):
    local, made, _, _ = store_of_many
    ended, rounds = threading.Event(), []

    def remove():
        while not ended.is_set():
            removed(tmp_path)
            rounds.append(1)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(3):
            store = open_store(made.url, remote=Remote(cache_dir=tmp_path / "cache"))
            for batch, due in zip(
                Loader(store, Bucketed(16), seed=0),
                Loader(local, Bucketed(16), seed=0),
                strict=True,
            ):
                assert batch["x"].equal(due["x"])
    finally:
        ended.set()
        remover.join(patient())
    assert len(rounds) > 1


@pytest.mark.parametrize("problem", [FileNotFoundError, FileExistsError])
def test_a_folder_that_is_removed_while_it_is_made_is_made_again(tmp_path, monkeypatch, problem):
    write, tries = folder_module._write_marker, []

    def fail_once(folder):
        tries.append(folder)
        if len(tries) == 1:
            raise problem(errno.ENOENT, "gone")
        write(folder)

    monkeypatch.setattr(folder_module, "_write_marker", fail_once)
    assert folder_module.prepare_folder(tmp_path / "cache").is_dir()
    assert len(tries) == 2


def test_a_lock_that_is_held_for_too_long_is_gone_without(tmp_path):
    entered = threading.Event()

    def enter():
        with folder_module.cache_lock(tmp_path, timeout=0.0):
            entered.set()

    with folder_module.cache_lock(tmp_path, timeout=0.0):
        thread = threading.Thread(target=enter, daemon=True)
        thread.start()
        assert entered.wait(patient())
        thread.join(patient())

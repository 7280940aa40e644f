"""The cache: fetched once, bounded, never wrong, whatever dies or is full."""

import os
import random
import re
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqdata import Bucketed, CacheError, Loader, Remote, open_store
from seqdata.errors import CorruptShardError, FingerprintMismatch
from seqdata.storage import file_lock
from seqdata.storage.remote import cache_folder
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults import network
from seqdata_testing.faults.limits import small_files
from seqdata_testing.waiting import patient
from tests.preloaded import python
from tests.storage.remote.cached import SIZE, cache_at, files_in, first, folder_in
from tests.storage.remote.samples import read_all, spans_of

FILLING = Path(__file__).with_name("filling.py")


def test_a_file_is_fetched_once_and_found_again(web, tmp_path):
    cache = cache_at(web, tmp_path)
    assert first(cache.acquire(CacheRequest("b"))) == 1
    gets = [one for one in web.requests if one[0] == "GET"]
    assert first(cache.acquire(CacheRequest("b"))) == 1
    assert [one for one in web.requests if one[0] == "GET"] == gets
    assert list(files_in(tmp_path).values()) == [SIZE]


def test_files_of_one_name_size_and_tag_in_two_folders_are_two_files(tmp_path):
    for folder, value in (("old", 1), ("new", 2)):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "b").write_bytes(bytes([value]) * 1000)
    source = network.folder_of(tmp_path / "data")

    def answer(asked):
        found = source(asked)
        headers = [(name, '"1"' if name == "ETag" else value) for name, value in found.headers]
        return replace(found, headers=tuple(headers))

    with network.served(answer) as server:
        for folder, value in (("old", 1), ("new", 2), ("old", 1)):
            files = make_remote_files(
                f"{server.url}/{folder}", Remote(cache_dir=tmp_path / "cache")
            )
            assert first(make_cache(files).acquire(CacheRequest("b"))) == value


@pytest.mark.parametrize(
    ("error", "remedy"), [(None, "Restore it, or"), (FingerprintMismatch, "Open the dataset again")]
)
def test_another_size_than_expected_has_the_remedy_of_its_cause(web, tmp_path, error, remedy):
    request = CacheRequest("b", size=10, sha256="0" * 64, error=error)
    text = rf"must have 10 bytes, but has {SIZE}\. {remedy}"
    with pytest.raises(error or CorruptShardError, match=text):
        cache_at(web, tmp_path).acquire(request)


def name_of(cache, name):
    return cache.acquire(CacheRequest(name)).path.name


def test_the_cache_stays_bounded_and_drops_what_was_not_used_for_longest(web, tmp_path):
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE + 100)
    names = [name_of(cache, name) for name in "ab"]
    for age, name in enumerate(names):  # a was fetched long before b, both long ago
        os.utime(folder_in(tmp_path) / name, ns=(age, age))
    assert name_of(cache, "a") == names[0]  # and is used now
    third = name_of(cache, "c")
    assert set(files_in(tmp_path)) == {names[0], third}
    assert sum(files_in(tmp_path).values()) <= 2 * SIZE + 100
    web.requests.clear()
    name_of(cache, "a")
    assert not [path for method, path in web.requests if method == "GET"]


def test_what_is_read_is_never_removed(web, tmp_path):
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE, stall_seconds=patient(0.3))
    held = cache.acquire(CacheRequest("a"))
    view = np.frombuffer(held.mapping, dtype=np.uint8)
    path = held.path
    del held  # the array holds it
    for name in "bcd":
        assert first(cache.acquire(CacheRequest(name))) == "abcd".index(name)
    assert path.exists()
    assert (view == 0).all()
    del view
    cache.acquire(CacheRequest("b"))
    assert not path.exists()


def test_a_file_is_renamed_into_place_while_nobody_counts(web, tmp_path, monkeypatch):
    """Where another one lists the folder meanwhile, it may see neither of the two names."""
    cache, found, replace = cache_at(web, tmp_path), [], os.replace

    def replace_if_locked(source, target):
        descriptor = os.open(Path(target).with_name(".lock"), os.O_RDWR)
        try:
            found.append(file_lock.lock(descriptor))
        finally:
            os.close(descriptor)
        replace(source, target)

    cache.acquire(CacheRequest("a"))  # makes the folder, and its marker
    monkeypatch.setattr(os, "replace", replace_if_locked)
    cache.acquire(CacheRequest("b"))
    assert found == [False, False]  # its digest, and itself


def test_a_file_is_flushed_before_it_has_its_name(web, tmp_path, monkeypatch):
    """After a power failure a file of the right size that was not flushed may hold zeros."""
    cache, done = cache_at(web, tmp_path), []
    cache.acquire(CacheRequest("a"))  # makes the folder, and its marker
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("flushed", path.name, path.is_dir() or path.read_bytes()[-1:]))
        fsync(descriptor)

    def note_replace(source, target):
        if Path(source).suffix == ".part":  # not that of its digest
            done.append(("renamed", Path(source).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    partial = f"{name_of(cache, 'b')}.part"
    folder = folder_in(tmp_path).name
    assert done == [("flushed", partial, b"\1"), ("renamed", partial), ("flushed", folder, True)]
    name_of(cache, "b")
    assert len(done) == 3  # not again for what is there


def test_no_room_is_an_error_that_says_what_would_help(web, tmp_path):
    cache = cache_at(web, tmp_path, cache_bytes=2 * SIZE, stall_seconds=patient(0.2))
    held = [cache.acquire(CacheRequest(name)) for name in "ab"]
    text = r"must have 1048576 bytes free, but only 0 of 2097152 are: the rest is being read"
    with pytest.raises(CacheError, match=text) as caught:
        cache.acquire(CacheRequest("c"))
    assert caught.value.details["needed"] == SIZE
    released = []
    with pytest.raises(CacheError):
        cache.acquire(CacheRequest("c"), None, lambda: released.append(1))
    assert released
    held.clear()
    assert first(cache.acquire(CacheRequest("c"))) == 2
    kept = files_in(tmp_path)
    text = r"must hold a file of 1048576 bytes, but holds 100 at most\. Raise Remote"
    with pytest.raises(CacheError, match=text):
        cache_at(web, tmp_path, cache_bytes=100).acquire(CacheRequest("d"))
    assert files_in(tmp_path) == kept  # nothing goes for what has no room anyway


def test_a_folder_that_cannot_be_written_to_is_an_error(web, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        CacheError, match=r"must be a folder that can be created and written to, .*\. Pass"
    ):
        cache_at(web, tmp_path).acquire(CacheRequest("a"))


@pytest.mark.parametrize("size", [0, 100, SIZE + 1])
def test_a_cached_file_of_another_size_is_fetched_again(web, tmp_path, size):
    cache = cache_at(web, tmp_path)
    path = cache.acquire(CacheRequest("b")).path
    os.truncate(path, size)
    held = cache.acquire(CacheRequest("b"))
    assert bytes(memoryview(held.mapping)) == bytes([1]) * SIZE
    assert path.stat().st_size == SIZE


def test_threads_that_want_the_same_file_fetch_it_once(web, tmp_path):
    cache, found = cache_at(web, tmp_path), []
    threads = [
        threading.Thread(target=lambda: found.append(first(cache.acquire(CacheRequest("d")))))
        for _ in range(6)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(patient())
    assert found == [3] * 6
    assert len([one for one in web.requests if one == ("GET", "/d")]) == 1


def begun(web, tmp_path, names, most=1 << 30):
    arguments = [python(), FILLING, web.url, tmp_path / "cache", names, str(most)]
    child = subprocess.Popen(
        [str(one) for one in arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return child


def go(child):
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("go\n")
    child.stdin.flush()


def ended(child):
    out, _ = child.communicate(timeout=patient())
    return out.split("\n")[:-1]


def right(lines):
    return all(line == f"{line[0]} {'abcd'.index(line[0])} {SIZE} 1" for line in lines)


def race(web, tmp_path):
    """Two cold processes, and room for three files of four; gives what they have seen."""
    both = [begun(web, tmp_path, names, 3 * SIZE) for names in ("a,b,c,d,a", "a,d,c,b,a")]
    for child in both:
        go(child)
    found = [ended(child) for child in both]
    assert [child.returncode for child in both] == [0, 0]
    return found


@pytest.mark.slow
def test_two_cold_processes_share_what_they_fetch(web, tmp_path):
    both = [begun(web, tmp_path, "a,b") for _ in range(2)]
    for child in both:
        go(child)
    found = [ended(child) for child in both]
    assert found[0] == found[1] == [f"a 0 {SIZE} 1", f"b 1 {SIZE} 1"]
    gets = sorted(path for method, path in web.requests if method == "GET")
    assert gets == ["/a", "/b"]


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_two_processes_and_eviction_under_them_never_read_what_is_wrong(web, tmp_path, rounds):
    for _ in range(rounds):
        for lines in race(web, tmp_path):
            assert len(lines) == 5
            assert right(lines)


def killed(web, tmp_path, instant):
    """A filling process killed after some seconds; then another one must find all right."""
    child = begun(web, tmp_path, "a,b,c,d", 4 * SIZE)
    go(child)
    time.sleep(instant)
    child.kill()
    child.communicate(timeout=patient())
    cache = cache_at(web, tmp_path, cache_bytes=4 * SIZE, stall_seconds=patient(2))
    for number, name in enumerate("abcd"):
        content = np.frombuffer(cache.acquire(CacheRequest(name)).mapping, dtype=np.uint8)
        assert (content == number).all()
    assert not [name for name in files_in(tmp_path) if name.endswith(".part")]
    for path in folder_in(tmp_path).iterdir():
        path.unlink()


@pytest.mark.parametrize("runs", [2, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_process_killed_while_it_fills_leaves_nothing_wrong(web, tmp_path, runs):
    drawn = random.Random(0)
    web.fault = network.slow(4 * SIZE)
    for _ in range(runs):
        killed(web, tmp_path, drawn.uniform(0, 0.35))


def test_the_temporary_file_of_who_was_killed_at_the_end_goes_with_the_next_reading(web, tmp_path):
    held = cache_at(web, tmp_path).acquire(CacheRequest("a"))
    partial = held.path.with_name(f"{held.path.name}.part")
    partial.write_bytes(b"half")
    with partial.open("r+b") as file:
        assert file_lock.lock(file.fileno())  # its writer lives
        assert first(cache_at(web, tmp_path).acquire(CacheRequest("a"))) == 0
        assert partial.exists()
    assert first(cache_at(web, tmp_path).acquire(CacheRequest("a"))) == 0
    assert list(files_in(tmp_path)) == [held.path.name]


def test_no_temporary_file_is_made_for_a_file_that_is_there(web, tmp_path, monkeypatch):
    held = cache_at(web, tmp_path).acquire(CacheRequest("a"))
    partial = held.path.with_name(f"{held.path.name}.part")
    made = []
    known = cache_folder.open_cache_file
    monkeypatch.setattr(
        cache_folder, "open_cache_file", lambda *a, **k: made.append(a) or known(*a, **k)
    )
    assert cache_folder.lock_partial(partial, held.path, 1.0) is None
    assert made == []  # not for a moment: who is killed in it leaves it


def test_a_full_disk_is_an_error_that_says_how_much_is_free(web, tmp_path):
    undo = small_files(SIZE // 2)
    try:
        with pytest.raises(
            CacheError,
            match=r"a file must not be larger than `ulimit -f` allows .* \(File too large\)",
        ):
            cache_at(web, tmp_path).acquire(CacheRequest("a"))
    finally:
        undo()
    assert files_in(tmp_path) == {}
    assert first(cache_at(web, tmp_path).acquire(CacheRequest("a"))) == 0


def test_a_store_larger_than_the_cache_is_read_through_it(store_of_many, tmp_path):
    local, made, largest, others = store_of_many
    most = 2 * largest + others
    remote = Remote(cache_dir=tmp_path / "cache", cache_bytes=most, stall_seconds=patient(5))
    store = open_store(made.url, remote=remote)
    for number in range(0, len(local), 3):
        one = spans_of(local, [number])
        assert read_all(store, one) == read_all(local, one)
        assert sum(files_in(tmp_path).values()) <= most


@pytest.mark.filterwarnings("ignore:loader. shuffle=True draws each batch from all")
@pytest.mark.parametrize(
    "room", [None, 0, 1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3)), 5]
)
def test_a_batch_of_more_shards_than_there_is_room_for_is_read_by_ranges(
    store_of_many, tmp_path, caplog, room
):
    local, made, largest, others = store_of_many
    most = 1 if room is None else room * largest + others
    remote = Remote(cache_dir=tmp_path / "cache", cache_bytes=most)
    store = open_store(made.url, remote=remote)
    batches = Loader(store, Bucketed(16), seed=0, prefetch=0)
    for batch, due in zip(batches, Loader(local, Bucketed(16), seed=0), strict=True):
        assert batch.ids.tolist() == due.ids.tolist()
        assert batch["x"].equal(due["x"])
        assert batch["text"] == due["text"]
        assert sum(files_in(tmp_path).values()) <= remote.cache_bytes
    lines = [one.getMessage() for one in caplog.records if "by ranges, each" in one.getMessage()]
    assert len(lines) == 1
    assert re.search(rf"needs \d+ shards, but the cache of {remote.cache_bytes} bytes", lines[0])
    column = store.read(spans_of(local, [0]), ["x"])["x"]
    value = column[0]  # its shard is mapped, so that reading ahead cannot make room of it
    held = [one for one in files_in(tmp_path).values() if one > 25_000]
    assert bool(held) == bool(room)  # what there is room for is in the cache
    assert len(value) == int(local.lengths[0])

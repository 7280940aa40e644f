"""Locks of the cache: none outlives its reason, and nobody waits for one without a bound."""

import os
import threading
from contextlib import contextmanager

import pytest

from seqdata.storage import file_lock
from seqdata.storage.remote import cache_folder
from seqdata.storage.remote.cache_folder import (
    cache_lock,
    lock_partial,
    move_into_place,
    open_cache_file,
)
from seqdata.storage.remote.file_cache import CacheRequest
from seqdata_testing.waiting import patient
from tests.storage.remote.cached import SIZE, cache_at, files_in, first


@contextmanager
def open_again(path):
    descriptor = open_cache_file(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Child:
    """A process that was forked now, with all open files, and waits."""

    def __init__(self):
        self._read, self._write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._write)
            os.read(self._read, 1)
            os._exit(0)

    def end(self):
        os.close(self._write)
        os.close(self._read)
        os.waitpid(self._pid, 0)


def test_the_lock_for_counting_is_not_left_to_a_child_process(tmp_path):
    with cache_lock(tmp_path, 1.0):
        child = Child()
    try:
        with open_again(tmp_path / ".lock") as descriptor:
            assert file_lock.lock(descriptor)
    finally:
        child.end()


def test_the_lock_of_a_file_that_was_renamed_meanwhile_is_not_left_to_a_child_process(
    tmp_path, monkeypatch
):
    partial, path, children = tmp_path / "a.part", tmp_path / "a", []
    partial.write_bytes(b"content")
    is_still_at = cache_folder.is_still_at

    def rename_first(descriptor, name):
        if not children:
            os.replace(partial, path)  # as the process does that wrote it, and is killed then
            children.append(Child())
        return is_still_at(descriptor, name)

    monkeypatch.setattr(cache_folder, "is_still_at", rename_first)
    try:
        assert lock_partial(partial, path, 1.0) is None
        with open_again(path) as descriptor:
            assert file_lock.lock(descriptor, shared=True)
    finally:
        children[0].end()


def test_who_gets_the_lock_of_a_finished_file_does_not_write_to_it(tmp_path, monkeypatch):
    partial, path = tmp_path / "a.part", tmp_path / "a"
    partial.write_bytes(b"content")
    with open_again(partial) as mine, open_again(partial) as its:
        assert file_lock.lock(mine)
        known, took = file_lock.lock, []

        def lock(descriptor, *, shared=False):
            """Lock as ``flock`` may: the exclusive lock ends before the shared one begins."""
            if descriptor == mine and shared and not took:
                file_lock.unlock_and_close(os.dup(mine))
                took.append(known(its))
                assert not cache_folder.is_still_at(its, partial)
                assert not known(mine, shared=True)
                file_lock.unlock_and_close(os.dup(its))
                return False
            return known(descriptor, shared=shared)

        monkeypatch.setattr(file_lock, "lock", lock)
        move_into_place(partial, path, mine)
        assert took == [True]
        with open_again(path) as another:
            assert not known(another)  # it is held by a shared lock
            assert known(another, shared=True)


@pytest.mark.slow
def test_a_file_whose_lock_never_ends_is_fetched_again(web, tmp_path):
    cache = cache_at(web, tmp_path, stall_seconds=0.05)
    path = cache.acquire(CacheRequest("b")).path
    found = []
    with open_again(path) as descriptor:
        assert file_lock.lock(descriptor)  # as a process that was stopped before it removed it
        thread = threading.Thread(
            target=lambda: found.append(first(cache.acquire(CacheRequest("b")))), daemon=True
        )
        thread.start()
        thread.join(timeout=patient(30.0))
    assert found == [1]
    assert list(files_in(tmp_path).values()) == [SIZE]

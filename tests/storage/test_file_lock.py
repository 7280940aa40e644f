"""A lock on an open file ends with its process; its owner is known where it is written down."""

import errno
import os
import subprocess
import sys

import pytest

from seqdata.storage import file_lock
from seqdata.storage.file_lock import (
    LockOwner,
    NoLocksError,
    hold_folder,
    is_alive,
    is_free,
    lock,
    read_owner,
    record_owner,
    unlock,
)
from seqdata_testing.waiting import patient


@pytest.fixture
def opened(tmp_path):
    """Returns descriptors of one file, each of its own opening."""
    made = []

    def open_():
        made.append(os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT))
        return made[-1]

    yield open_
    for descriptor in made:
        os.close(descriptor)


def test_a_lock_is_held_by_one_or_shared_by_those_who_say_so(opened):
    first, second = opened(), opened()
    assert lock(first)
    assert not lock(second)
    assert not lock(second, shared=True)
    assert lock(first, shared=True)  # in place of the other
    assert lock(second, shared=True)
    assert not lock(second)


def test_who_unlocks_leaves_no_owner(opened, tmp_path):
    first, second = opened(), opened()
    assert lock(first)
    record_owner(first)
    assert read_owner(tmp_path / ".lock").pid == os.getpid()
    assert not is_free(tmp_path / ".lock")
    unlock(first)
    assert lock(second)
    assert read_owner(tmp_path / ".lock") is None
    assert is_free(tmp_path / ".lock")


def test_a_file_that_says_nothing_has_no_owner(tmp_path):
    path = tmp_path / ".lock"
    assert read_owner(path) is None
    assert not is_free(path)  # it is not there
    for text in ("one two", "host pid 3", "a b c d"):
        path.write_text(text)
        assert read_owner(path) is None
    path.write_bytes(b"\xff\xfe")
    assert (read_owner(path), is_free(path)) == (None, False)


def test_an_owner_lives_as_long_as_its_process(opened, tmp_path):
    record_owner(opened())
    mine = read_owner(tmp_path / ".lock")
    assert mine.is_local
    assert is_alive(mine)
    assert not is_alive(mine._replace(started="0"))  # another process of its number
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(patient())
    assert not is_alive(mine._replace(pid=child.pid))


def test_an_owner_that_cannot_be_seen_may_be_alive():
    assert is_alive(None)
    elsewhere = LockOwner("another-machine", 1, "0")
    assert not elsewhere.is_local
    assert is_alive(elsewhere)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_says_so_and_unlocks_all_the_same(opened, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    with pytest.raises(NoLocksError, match=os.strerror(number)):
        lock(opened())
    unlock(opened())


def test_another_error_stays_what_it_is(monkeypatch, opened):
    def refuse(descriptor, operation):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    for call in (lock, unlock):
        with pytest.raises(OSError, match="broken"):
            call(opened())


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    with hold_folder(tmp_path) as first:
        with hold_folder(tmp_path) as second, hold_folder(tmp_path) as third:
            assert (first, second, third) == (True, False, False)
        with hold_folder(tmp_path) as second:
            assert not second  # who was refused has taken nothing from the first
    with hold_folder(tmp_path) as second:
        assert second
    with pytest.raises(FileNotFoundError), hold_folder(tmp_path / "gone"):
        pass


def test_a_child_process_does_not_keep_the_lock_of_a_folder(tmp_path, monkeypatch):
    """It has the descriptor, too, so that closing it here does not unlock."""
    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(file_lock.os, "close", kept.append)
        with hold_folder(tmp_path):
            pass
    with hold_folder(tmp_path) as is_held:
        assert is_held
    for descriptor in kept:
        os.close(descriptor)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF])
def test_a_folder_that_cannot_be_locked_counts_as_held(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))  # EBADF: of NFS

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    with hold_folder(tmp_path) as first, hold_folder(tmp_path) as second:
        assert first
        assert second

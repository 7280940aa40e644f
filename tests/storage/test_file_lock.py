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

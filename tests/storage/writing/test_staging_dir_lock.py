"""Whose a folder aside is: a lock that is held counts as long as its owner may live."""

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from seqdata import ConfigError, open_store, write_store
from seqdata.storage import file_lock
from seqdata.storage.writing import staging_dir
from seqdata.storage.writing.staging_dir import (
    WriterLockedError,
    create_staging_dir,
    find_staging_dirs,
    release_lock,
    take_over_staging_dir,
)
from seqdata_testing.waiting import patient

HOST = socket.gethostname()


@pytest.fixture
def held(tmp_path):
    """Yield a folder whose lock is held, as a child of its owner would hold it."""
    folder, lock = create_staging_dir(tmp_path)
    yield folder
    release_lock(lock)


@pytest.fixture
def ended():
    """Yield a process that has ended, and nobody has asked for its status yet."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    process.stdout.close()
    process.wait(timeout=patient())


def check_taken_over(root, folder):
    mine, lock = take_over_staging_dir(root, folder)
    assert mine != folder
    assert find_staging_dirs(root) == [mine]
    with open(mine / "lock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert (mine / "lock").read_text().split()[:2] == [HOST, str(os.getpid())]
    release_lock(lock)


def test_a_folder_that_nobody_holds_is_taken_over_under_a_new_name(tmp_path):
    folder, lock = create_staging_dir(tmp_path)
    release_lock(lock)
    check_taken_over(tmp_path, folder)


@pytest.mark.parametrize("owner", ["", "elsewhere 1 1", "elsewhere", f"{HOST} x y"])
def test_a_lock_counts_where_nobody_knows_whether_its_owner_lives(tmp_path, held, owner):
    (held / "lock").write_text(owner)
    with pytest.raises(WriterLockedError):
        take_over_staging_dir(tmp_path, held)


def test_a_lock_counts_while_its_owner_lives(tmp_path, held):
    with pytest.raises(WriterLockedError):
        take_over_staging_dir(tmp_path, held)


def test_children_of_a_dead_owner_do_not_keep_its_lock(tmp_path, held, ended):
    (held / "lock").write_text(f"{HOST} {ended.pid} 1")
    check_taken_over(tmp_path, held)


def test_another_process_of_the_same_number_is_not_the_owner(tmp_path, held):
    (held / "lock").write_text(f"{HOST} {os.getpid()} 1")  # began at another time
    check_taken_over(tmp_path, held)


def test_a_number_that_no_process_has_is_a_dead_owner(tmp_path, held, ended):
    ended.wait(timeout=patient())
    (held / "lock").write_text(f"{HOST} {ended.pid} 1")
    check_taken_over(tmp_path, held)


def test_a_folder_that_is_gone_was_taken_by_somebody_else(tmp_path):
    with pytest.raises(WriterLockedError):
        take_over_staging_dir(tmp_path, tmp_path / ".seqdata-tmp-gone")


@pytest.fixture(params=["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def lockless(request, monkeypatch):
    """A file system without locks."""

    def flock(descriptor, kind):
        raise OSError(getattr(errno, request.param), "no locks")

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)


def test_without_locks_a_writer_has_its_folder_while_it_lives(tmp_path, lockless, ended):
    folder, lock = create_staging_dir(tmp_path)
    with pytest.raises(WriterLockedError) as caught:
        take_over_staging_dir(tmp_path, folder)
    assert not caught.value.remedy  # it lives on this machine, so waiting helps
    release_lock(lock)
    mine, lock = take_over_staging_dir(tmp_path, folder)
    assert find_staging_dirs(tmp_path) == [mine]
    release_lock(lock)
    (mine / "lock").write_text(f"{HOST} {ended.pid} 1")
    other, lock = take_over_staging_dir(tmp_path, mine)
    assert (other / "lock").read_text().split()[:2] == [HOST, str(os.getpid())]
    release_lock(lock)


def test_without_locks_a_folder_without_an_owner_is_taken_from_who_begins(
    tmp_path, lockless, monkeypatch
):
    """A writer that was killed at its very beginning leaves one; so does one that is at it."""
    known = staging_dir.record_owner

    def own(descriptor):
        monkeypatch.setattr(staging_dir, "record_owner", known)
        (begun,) = find_staging_dirs(tmp_path)
        taken.append(take_over_staging_dir(tmp_path, begun))
        known(descriptor)

    taken = []
    monkeypatch.setattr(staging_dir, "record_owner", own)
    with pytest.raises(WriterLockedError):
        create_staging_dir(tmp_path)
    ((mine, lock),) = taken
    assert find_staging_dirs(tmp_path) == [mine]
    release_lock(lock)


@pytest.mark.parametrize("owner", ["elsewhere 1 1", "elsewhere"])
def test_without_locks_an_owner_that_cannot_be_seen_says_what_to_remove(tmp_path, lockless, owner):
    folder, lock = create_staging_dir(tmp_path)
    os.close(lock)
    (folder / "lock").write_text(owner)
    told = rf"another process is writing here. .*\. Remove {folder} if that process has ended"
    with pytest.raises(ConfigError, match=told):
        write_store(tmp_path, [{"x": [1.0]}], progress=False)


def test_a_store_is_written_and_gone_on_with_without_locks(tmp_path, lockless):
    def broken():
        yield from ({"x": [float(i)] * 100} for i in range(50))
        raise KeyError("an end")

    def whole():
        yield from ({"x": [float(i)] * 100} for i in range(60))

    with pytest.raises(KeyError):
        write_store(tmp_path / "store", broken(), shard_bytes=4000, progress=False)
    assert find_staging_dirs(tmp_path / "store")
    write_store(tmp_path / "store", whole(), shard_bytes=4000, progress=False)
    assert len(open_store(tmp_path / "store")) == 60
    assert not find_staging_dirs(tmp_path / "store")

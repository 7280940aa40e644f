"""Locks on open files, and the process that holds a lock.

A lock ends with the process that holds it. Some file systems have no locks (NFS without its lock
service, some of FUSE): there only the owner that is recorded in the file counts. Place in the flow:
below writing and the cache. Reads: lock files. Makes: locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# fields of /proc/PID/stat after the name: state, start time
_STATE_FIELD, _START_FIELD = 0, 19
_FREE = "free"
_LOCK_FILE_BYTES = 512  # bytes of a lock file


class NoLocksError(Exception):
    """The file system has no locks; callers turn it into an error that names the location."""


class LockOwner(NamedTuple):
    """A process that holds a lock: its host, its pid and its start time."""

    host: str
    pid: int
    started: str

    @property
    def is_local(self) -> bool:
        """True if it runs on this machine."""
        return self.host == socket.gethostname()


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock an open file without waiting; return whether it is locked.

    Args:
        descriptor: The file, opened to read and write.
        shared: Whether other shared locks may be held at the same time.

    Raises:
        NoLocksError: If the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise
        raise NoLocksError(os.strerror(error.errno)) from error
    return True


def unlock(descriptor: int) -> None:
    """Unlock, also for child processes that inherited the lock, and remove the recorded owner."""
    _write(descriptor, _FREE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise


@contextmanager
def hold_folder(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder; yield False if another process holds it, else True.

    It is also True on a file system without locks.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    is_held = True
    try:
        with suppress(NoLocksError, OSError):  # NFS locks only what is opened to write
            is_held = lock(descriptor)
        yield is_held
    finally:
        unlock_and_close(descriptor)


def unlock_and_close(descriptor: int) -> None:
    """Close a file and release its lock, also for child processes that inherited it.

    A lock ends otherwise with the last of the processes that have the open file.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def record_owner(descriptor: int) -> None:
    """Record this process as the owner of a lock."""
    pid = os.getpid()
    _write(descriptor, f"{socket.gethostname()} {pid} {_read_start_time(pid)}")


def read_owner(path: Path) -> LockOwner | None:
    """Return the recorded owner of a lock file; None if there is none."""
    try:
        host, pid, began = path.read_text("utf-8").split()
        return LockOwner(host, int(pid), began)
    except (OSError, ValueError):  # not recorded yet, or taken over
        return None


def is_free(path: Path) -> bool:
    """Return whether a lock file has no recorded owner, or its owner has released it."""
    try:
        return path.read_text("utf-8").strip() in ("", _FREE)
    except (OSError, ValueError):
        return False


def is_alive(owner: LockOwner | None) -> bool:
    """Return whether an owner may still be running; True if that cannot be known."""
    if owner is None or not owner.is_local:
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _read_start_time(owner.pid) == owner.started


def _write(descriptor: int, text: str) -> None:
    """Write into a lock file in one call: readers see the old content or the new one."""
    os.pwrite(descriptor, text.encode().ljust(_LOCK_FILE_BYTES), 0)


def _read_start_time(pid: int) -> str:
    """Return the start time of a process in ticks; ``dead`` if it ended, ``-`` if not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            values = file.read().rpartition(b")")[2].split()
    except OSError:
        return "-"
    return "dead" if values[_STATE_FIELD] in (b"Z", b"X") else values[_START_FIELD].decode()

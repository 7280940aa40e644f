"""Locks on open files, and who holds one: a process of this machine, which may have ended.

A lock ends with the process that holds it. Some file systems have no locks (NFS without its lock
service, some of FUSE): there only the owner counts that is written into the file. Place in the
flow: below writing and the cache. Reads: lock files. Makes: locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import NamedTuple

_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_STATE_FIELD, _START_FIELD = (
    0,
    19,
)  # places in /proc/PID/stat after the name: state, time of the start
_FREE = "free"
_LOCK_FILE_BYTES = 512  # bytes of a lock file


class NoLocksError(Exception):
    """The file system has no locks; becomes an error with words where the place is known."""


class LockOwner(NamedTuple):
    """A process that holds a lock: its machine, its number and when it began."""

    host: str
    pid: int
    started: str

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == socket.gethostname()


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, without waiting; whether that worked.

    Args:
        descriptor: Of the file, opened to read and write.
        shared: Whether others may hold it, too, who say so as well.

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
    """Unlock, also for child processes that inherited the lock; the file names no owner then."""
    _write(descriptor, _FREE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise


def record_owner(descriptor: int) -> None:
    """Write down that this process holds a lock."""
    pid = os.getpid()
    _write(descriptor, f"{socket.gethostname()} {pid} {_read_start_time(pid)}")


def read_owner(path: Path) -> LockOwner | None:
    """Return who wrote itself down as the owner of a lock file; None if nobody did."""
    try:
        host, pid, began = path.read_text("utf-8").split()
        return LockOwner(host, int(pid), began)
    except (OSError, ValueError):  # not written yet, or taken over
        return None


def is_free(path: Path) -> bool:
    """Return whether nobody has written itself down in a lock file, or has let it go since."""
    try:
        return path.read_text("utf-8").strip() in ("", _FREE)
    except (OSError, ValueError):
        return False


def is_alive(owner: LockOwner | None) -> bool:
    """Return whether an owner may still be there; True where that cannot be known."""
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
    """Write into a lock file at once: whoever reads it sees the old text or the new one."""
    os.pwrite(descriptor, text.encode().ljust(_LOCK_FILE_BYTES), 0)


def _read_start_time(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; ``-`` where it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            facts = file.read().rpartition(b")")[2].split()
    except OSError:
        return "-"
    return "dead" if facts[_STATE_FIELD] in (b"Z", b"X") else facts[_START_FIELD].decode()

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

_NONE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_STATE, _BEGAN = 0, 19  # places in /proc/PID/stat after the name: state, time of the start
_FREE = "free"
_SIZE = 512  # bytes of a lock file


class NoLocksError(Exception):
    """The file system has no locks; becomes an error with words where the place is known."""


class Owner(NamedTuple):
    """A process that holds a lock: its machine, its number and when it began."""

    host: str
    pid: int
    began: str

    @property
    def is_here(self) -> bool:
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
        if error.errno not in _NONE:
            raise
        raise NoLocksError(os.strerror(error.errno)) from error
    return True


def unlock(descriptor: int) -> None:
    """Unlock, also for child processes that inherited the lock; the file names no owner then."""
    _write(descriptor, _FREE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _NONE:
            raise


def own(descriptor: int) -> None:
    """Write down that this process holds a lock."""
    pid = os.getpid()
    _write(descriptor, f"{socket.gethostname()} {pid} {_began(pid)}")


def owner_of(path: Path) -> Owner | None:
    """Return who wrote itself down as the owner of a lock file; None if nobody did."""
    try:
        host, pid, began = path.read_text("utf-8").split()
        return Owner(host, int(pid), began)
    except (OSError, ValueError):  # not written yet, or taken over
        return None


def is_free(path: Path) -> bool:
    """Return whether nobody has written itself down in a lock file, or has let it go since."""
    try:
        return path.read_text("utf-8").strip() in ("", _FREE)
    except (OSError, ValueError):
        return False


def lives(owner: Owner | None) -> bool:
    """Return whether an owner may still be there; True where that cannot be known."""
    if owner is None or not owner.is_here:
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _began(owner.pid) == owner.began


def _write(descriptor: int, text: str) -> None:
    """Write into a lock file at once: whoever reads it sees the old text or the new one."""
    os.pwrite(descriptor, text.encode().ljust(_SIZE), 0)


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; ``-`` where it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            facts = file.read().rpartition(b")")[2].split()
    except OSError:
        return "-"
    return "dead" if facts[_STATE] in (b"Z", b"X") else facts[_BEGAN].decode()

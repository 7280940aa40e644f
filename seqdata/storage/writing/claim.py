"""One writer at a time: a lock that a dead writer's child processes do not keep.

A process that was forked inherits the lock of its parent and may outlive it, so beside the lock its
owner is written down, and where that one is gone the lock counts no more. Whoever takes a folder
over renames it: what still writes there by the old name finds nothing. Place in the flow: below
``commit``. Reads: a folder. Makes: a lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import uuid
from pathlib import Path

ASIDE = ".seqdata-tmp-"
_LOCK = "lock"
_STATE, _BEGAN = 0, 19  # places in /proc/PID/stat after the name: state, time of the start


class TakenError(Exception):
    """Another writer has the folder; becomes a ConfigError where the place is known."""


def unfinished(root: Path) -> list[Path]:
    """Give the folders aside that writers left or work in."""
    return sorted(root.glob(f"{ASIDE}*"))


def new_folder(root: Path) -> tuple[Path, int]:
    """Make a folder aside, and give it with its lock."""
    folder = _name(root)
    folder.mkdir()
    return folder, _hold(folder)


def take_over(root: Path, folder: Path) -> tuple[Path, int]:
    """Give a folder that a writer left under a new name, with its lock.

    Raises:
        TakenError: If a writer works in it.
    """
    mine = _name(root)
    try:
        descriptor = _hold(folder, owned=False)
    except BlockingIOError as error:
        if _lives(_owner(folder)):
            raise TakenError from error
        descriptor = None  # only children of a dead writer hold it
    except FileNotFoundError as error:  # somebody else has just taken it
        raise TakenError from error
    try:
        os.rename(folder, mine)
    except OSError as error:
        if descriptor is not None:
            let_go(descriptor)
        if error.errno == errno.ENOENT:
            raise TakenError from error
        raise
    if descriptor is None:
        (mine / _LOCK).unlink()
        return mine, _hold(mine)
    _own(descriptor)
    return mine, descriptor


def let_go(lock: int) -> None:
    """Unlock, also for child processes that inherited the lock."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _name(root: Path) -> Path:
    return root / f"{ASIDE}{uuid.uuid4().hex}"


def _hold(folder: Path, *, owned: bool = True) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    if owned:
        _own(descriptor)
    return descriptor


def _own(descriptor: int) -> None:
    """Write down who holds a lock."""
    pid = os.getpid()
    text = f"{socket.gethostname()} {pid} {_began(pid)}\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _owner(folder: Path) -> tuple[str, int, str] | None:
    """Give (machine, process, its start) of who wrote itself down; None: nobody did."""
    try:
        host, pid, began = (folder / _LOCK).read_text("utf-8").split()
        return host, int(pid), began
    except (OSError, ValueError):  # just being written, or taken over
        return None


def _lives(owner: tuple[str, int, str] | None) -> bool:
    """Tell whether an owner may still be there; yes where nobody can know."""
    if owner is None or owner[0] != socket.gethostname():
        return True
    _, pid, began = owner
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _began(pid) == began


def _began(pid: int) -> str:
    """Give when a process began, in the kernel's ticks; ``-`` where it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            facts = file.read().rpartition(b")")[2].split()
    except OSError:
        return "-"
    return "dead" if facts[_STATE] in (b"Z", b"X") else facts[_BEGAN].decode()

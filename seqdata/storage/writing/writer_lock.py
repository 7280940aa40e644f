"""One writer at a time: a lock that a dead writer's child processes do not keep.

A process that was forked inherits the lock of its parent and may outlive it, so beside the lock its
owner is written down, and where that one is gone the lock counts no more. On a file system without
locks the owner alone counts. Whoever takes a folder over renames it: what still writes there by the
old name finds nothing. Place in the flow: below ``commit``. Reads: a folder. Makes: a lock.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from seqdata.storage.file_lock import NoLocksError, is_free, lives, lock, own, owner_of, unlock

ASIDE = ".seqdata-tmp-"
_LOCK = "lock"


class TakenError(Exception):
    """Another writer has the folder; becomes a ConfigError where the place is known.

    Args:
        remedy: What helps where the writer has ended, as nobody here can tell; empty: not needed.
    """

    def __init__(self, remedy: str = "") -> None:
        super().__init__(remedy)
        self.remedy = remedy


def unfinished(root: Path) -> list[Path]:
    """Give the folders aside that writers left or work in."""
    return sorted(root.glob(f"{ASIDE}*"))


def new_folder(root: Path) -> tuple[Path, int]:
    """Make a folder aside, and give it with its lock.

    Raises:
        TakenError: If another writer has taken it before it was known whose it is.
    """
    folder = _name(root)
    folder.mkdir()
    try:
        descriptor = _hold(folder)
    except FileNotFoundError as error:
        raise TakenError from error
    if not folder.exists():
        os.close(descriptor)
        raise TakenError
    return folder, descriptor


def take_over(root: Path, folder: Path) -> tuple[Path, int]:
    """Give a folder that a writer left under a new name, with its lock.

    Raises:
        TakenError: If a writer works in it.
    """
    mine = _name(root)
    descriptor: int | None = None
    try:
        descriptor = _opened(folder)
        if not _is_left(folder, descriptor):
            os.close(descriptor)
            descriptor = None  # only children of a dead writer hold it
        os.rename(folder, mine)
    except BaseException as error:
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(error, FileNotFoundError):  # somebody else has just taken it
            raise TakenError from error
        raise
    if descriptor is None:
        (mine / _LOCK).unlink()
        return mine, _hold(mine)
    own(descriptor)
    return mine, descriptor


def let_go(descriptor: int) -> None:
    """Unlock, also for child processes that inherited the lock."""
    unlock(descriptor)
    os.close(descriptor)


def _name(root: Path) -> Path:
    return root / f"{ASIDE}{uuid.uuid4().hex}"


def _opened(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _hold(folder: Path) -> int:
    """Lock a folder that nobody else knows, and write down that it is this process's."""
    descriptor = _opened(folder)
    try:
        lock(descriptor)
    except NoLocksError:
        pass  # the owner counts
    except OSError:
        os.close(descriptor)
        raise
    own(descriptor)
    return descriptor


def _is_left(folder: Path, descriptor: int) -> bool:
    """Return whether the lock of a folder is ours now; False if its dead owner's children hold it.

    Raises:
        TakenError: If its owner lives, or may.
    """
    path = folder / _LOCK
    try:
        if lock(descriptor):
            return True
        remedy = ""
    except NoLocksError:
        if is_free(path):
            return True
        remedy = f"remove {folder} if that process has ended, which cannot be seen from here"
    owner = owner_of(path)
    if lives(owner):
        here = owner is not None and owner.is_here
        raise TakenError("" if here else remedy)
    return bool(remedy)

"""One writer at a time: a lock that a dead writer's child processes do not keep.

A process that was forked inherits the lock of its parent and may outlive it, so beside the lock its
owner is written down, and where that one is gone the lock counts no more. On a file system without
locks the owner alone counts. Whoever takes a folder over renames it: what still writes there by the
old name finds nothing.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from seqdata.storage.file_lock import (
    NoLocksError,
    is_alive,
    is_free,
    lock,
    read_owner,
    record_owner,
    unlock,
)

STAGING_PREFIX = ".seqdata-tmp-"
_LOCK_FILE = "lock"


class WriterLockedError(Exception):
    """Another writer has the folder; becomes a ConfigError where the place is known.

    Args:
        remedy: What helps where the writer has ended, as nobody here can tell; empty: not needed.
    """

    def __init__(self, remedy: str = "") -> None:
        super().__init__(remedy)
        self.remedy = remedy


def find_staging_dirs(root: Path) -> list[Path]:
    """Return the folders aside that writers left or work in."""
    return sorted(root.glob(f"{STAGING_PREFIX}*"))


def create_staging_dir(root: Path) -> tuple[Path, int]:
    """Make a folder aside, and give it with its lock.

    Raises:
        WriterLockedError: If another writer has taken it before it was known whose it is.
    """
    folder = _make_path(root)
    folder.mkdir()
    try:
        descriptor = _lock_new(folder)
    except FileNotFoundError as error:
        raise WriterLockedError from error
    if not folder.exists():
        os.close(descriptor)
        raise WriterLockedError
    return folder, descriptor


def take_over_staging_dir(root: Path, folder: Path) -> tuple[Path, int]:
    """Return a folder that a writer left under a new name, with its lock.

    Raises:
        WriterLockedError: If a writer works in it.
    """
    staging_dir = _make_path(root)
    descriptor: int | None = None
    try:
        descriptor = _open_lock_file(folder)
        if not _is_abandoned(folder, descriptor):
            os.close(descriptor)
            descriptor = None  # only children of a dead writer hold it
        os.rename(folder, staging_dir)
    except BaseException as error:
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(error, FileNotFoundError):  # somebody else has just taken it
            raise WriterLockedError from error
        raise
    if descriptor is None:
        (staging_dir / _LOCK_FILE).unlink()
        return staging_dir, _lock_new(staging_dir)
    record_owner(descriptor)
    return staging_dir, descriptor


def release_lock(descriptor: int) -> None:
    """Unlock, also for child processes that inherited the lock."""
    unlock(descriptor)
    os.close(descriptor)


def _make_path(root: Path) -> Path:
    return root / f"{STAGING_PREFIX}{uuid.uuid4().hex}"


def _open_lock_file(folder: Path) -> int:
    return os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _lock_new(folder: Path) -> int:
    """Lock a folder that nobody else knows, and write down that it is this process's."""
    descriptor = _open_lock_file(folder)
    try:
        lock(descriptor)
    except NoLocksError:
        pass  # the owner counts
    except OSError:
        os.close(descriptor)
        raise
    record_owner(descriptor)
    return descriptor


def _is_abandoned(folder: Path, descriptor: int) -> bool:
    """Return whether the lock of a folder is ours now; False if its dead owner's children hold it.

    Raises:
        WriterLockedError: If its owner lives, or may.
    """
    path = folder / _LOCK_FILE
    try:
        if lock(descriptor):
            return True
        remedy = ""
    except NoLocksError:
        if is_free(path):
            return True
        remedy = f"remove {folder} if that process has ended, which cannot be seen from here"
    owner = read_owner(path)
    if is_alive(owner):
        is_local = owner is not None and owner.is_local
        raise WriterLockedError("" if is_local else remedy)
    return bool(remedy)

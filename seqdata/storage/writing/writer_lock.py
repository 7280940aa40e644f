"""One writer at a time: a lock that a dead writer's child processes do not keep.

A forked process inherits the lock of its parent and may outlive it, so the owner of the lock is
recorded, too, and once it has ended the lock no longer counts. On a file system without locks only
the recorded owner counts. A writer that takes over a folder renames it: processes that still write
to the old name find nothing.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
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
    """Another writer has the folder; callers turn it into a ConfigError that names the location.

    Args:
        remedy: The remedy if the writer has ended, which cannot be checked here; empty: not needed.
    """

    def __init__(self, remedy: str = "") -> None:
        super().__init__(remedy)
        self.remedy = remedy


def find_staging_dirs(root: Path) -> list[Path]:
    """Return the staging directories that writers left or work in."""
    return sorted(root.glob(f"{STAGING_PREFIX}*"))


def create_staging_dir(root: Path) -> tuple[Path, int]:
    """Create a staging directory, and return it with its lock.

    Raises:
        WriterLockedError: If another writer took it before its owner was recorded.
    """
    folder = _make_path(root)
    folder.mkdir()
    try:
        descriptor = _lock_new(folder)
    except FileNotFoundError as error:
        raise WriterLockedError from error
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not folder.exists():
        os.close(descriptor)
        raise WriterLockedError
    return folder, descriptor


def take_over_staging_dir(root: Path, folder: Path) -> tuple[Path, int]:
    """Rename a folder that a writer left, and return it with its lock.

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
        if isinstance(error, FileNotFoundError):  # another process has just taken it
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
    """Lock a folder that no other process knows, and record this process as its owner."""
    descriptor = _open_lock_file(folder)
    try:
        with suppress(NoLocksError):  # the recorded owner counts
            lock(descriptor)
        record_owner(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_abandoned(folder: Path, descriptor: int) -> bool:
    """Return whether this process has the lock now; False if a dead owner's children hold it.

    Raises:
        WriterLockedError: If its owner is running, or may be.
    """
    path = folder / _LOCK_FILE
    try:
        if lock(descriptor):
            return True
        remedy = ""
    except NoLocksError:
        if is_free(path):
            return True
        remedy = f"Remove {folder} if that process has ended, which cannot be checked from here"
    owner = read_owner(path)
    if is_alive(owner):
        is_local = owner is not None and owner.is_local
        raise WriterLockedError("" if is_local else remedy)
    return bool(remedy)

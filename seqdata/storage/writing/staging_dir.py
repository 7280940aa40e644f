"""Staging directories: a store is written as a whole or not at all, and by one writer at a time.

Files are written to a staging directory, and renamed into place when all are complete; the manifest
is renamed last and is the commit. While a staging directory exists, writing was not finished: the
next writer continues with it.

A staging directory has a lock. A forked process inherits the lock of its parent and may outlive
it, so the owner of the lock is recorded, too: once it has ended, the lock no longer counts. On a
file system without locks only the recorded owner counts. A writer that takes over a directory
renames it: processes that still write to the old name find nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import ConfigError, must_be
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.file_lock import (
    NoLocksError,
    hold_folder,
    is_alive,
    is_free,
    lock,
    read_owner,
    record_owner,
    unlock,
)
from seqdata.storage.local_files import sync_file, write_atomically

STAGING_PREFIX = ".seqdata-tmp-"
_LOCK_FILE = "lock"
FIRST_PASS = "unshuffled"  # folder in a staging directory: the store of the first of two passes
FACTS_SUFFIX = ".facts"  # suffix of the files that mark a shard as finished
_MOVES_FILE = "moves.json"  # exists from just before the first rename on

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class WriterLockedError(Exception):
    """Another writer has the folder; callers turn it into a ConfigError that names the location.

    Args:
        remedy: The remedy if the writer has ended, which cannot be checked here; empty: not needed.
    """

    def __init__(self, remedy: str = "") -> None:
        super().__init__(remedy)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The names of a store's files in a folder.

    Attributes:
        last: The name of the file that is renamed last: the store exists with it.
        names: The pattern of the other names. Names begin at the store's folder; files lie in it,
            or in the folder of ``last``.
    """

    last: str
    names: re.Pattern[str]


@contextmanager
def open_staging_dir(
    root: Path, files: StoreFiles, *, overwrite: bool, resume: bool = False
) -> Iterator[Path]:
    """Yield a staging directory in ``root``, and remove it at the end, committed or not.

    If writing fails, a directory with finished shards (they have records) or a first pass stays.

    Args:
        root: The store's folder; created if needed.
        files: Which of its files are a store's.
        overwrite: Whether a finished store may be replaced; it is unchanged until ``commit``.
        resume: Whether to continue with the directory that a writer left.

    Raises:
        ConfigError: If there is a finished store, unfinished files, or another writer.
    """
    _check_parents(root)
    _remove_committed(root, files)
    check_target(root, files, overwrite=overwrite)
    was_empty = root.exists() and not any(root.iterdir())
    try:
        make_folder(root)
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise
        raise ConfigError(
            f"{root}: cannot be created ({error.strerror}). Choose another path, or check the "
            "permissions of the folder above it."
        ) from error
    folder, descriptor = _take_staging_dir(root, files, resume=resume)
    must_keep = False
    try:
        _remove_other_staging_dirs(root, folder)
        check_target(root, files, overwrite=overwrite)  # one may have been finished meanwhile
        yield folder
    except BaseException:
        must_keep = _can_continue(folder)
        raise
    finally:
        if not must_keep:
            shutil.rmtree(folder, ignore_errors=True)
        release_lock(descriptor)
        if not was_empty:
            with suppress(OSError):  # it holds a store, or another writer has removed it
                root.rmdir()


def _check_parents(root: Path) -> None:
    """Raise if a folder cannot be created, since it would be below a file or is a dangling link.

    Raises:
        ConfigError: If it cannot.
    """
    if root.is_symlink() and not root.exists():
        raise ConfigError(
            must_be(
                f"{root}:",
                "a folder, or missing",
                f"a link to {os.readlink(root)!r}, which is missing",
                "Create that folder, or remove the link",
            )
        )
    above = next((parent for parent in root.parents if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise ConfigError(
            must_be(
                f"{root}:",
                "in a folder",
                f"below {str(above)!r}, which is a file",
                "Choose another path",
            )
        )


def check_target(root: Path, files: StoreFiles, *, overwrite: bool) -> None:
    """Raise if a store cannot be written to a folder.

    Raises:
        ConfigError: If it is a file, or holds a store or unfinished files.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError(
            must_be(f"{root}:", "a folder, or missing", "a file", "Choose another path")
        )
    if not overwrite:
        _check_no_overwrite(root, files)


def commit(root: Path, folder: Path, files: StoreFiles, moves: Mapping[str, str]) -> None:
    """Rename files and the manifest from the staging directory into place.

    An older store is gone from the first rename on; the new one exists with the last. An
    interrupted commit is undone by the next writer.

    Args:
        root: The store's folder.
        folder: The staging directory, with the manifest.
        files: The names of a store's files.
        moves: Name of a file in the staging directory -> its name in the store.
    """
    last = root / files.last
    last.parent.mkdir(exist_ok=True)
    write_atomically(
        folder / _MOVES_FILE, add_digest(json.dumps(dict(moves)).encode(), _MOVES_FILE)
    )
    old = _find_old(root, files)
    last.unlink(missing_ok=True)
    sync_file(last.parent)
    for name in old:
        (root / name).unlink(missing_ok=True)
    for name, target in moves.items():
        os.replace(folder / name, root / target)
    for changed in {root, last.parent}:
        sync_file(changed)
    os.replace(folder / files.last, last)
    sync_file(last.parent)


def _find_old(root: Path, files: StoreFiles) -> list[str]:
    """Return the names of a store's files but the last one, also in that one's folder."""
    folders = {root, (root / files.last).parent}
    names = [path.relative_to(root).as_posix() for each in folders for path in each.iterdir()]
    return [name for name in names if files.names.fullmatch(name)]


def make_folder(root: Path) -> None:
    """Create a folder, and flush its name, and those of new folders above it, to the disk."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in new:
        sync_file(path.parent)


def _check_no_overwrite(root: Path, files: StoreFiles) -> None:
    if (root / files.last).exists():
        raise ConfigError(
            f"{root}: already holds a store. Choose another folder, or pass `overwrite=True`."
        )
    if root.is_dir() and not find_staging_dirs(root):
        found = sorted(path.name for path in root.iterdir() if files.names.fullmatch(path.name))
        if found:
            raise ConfigError(
                must_be(
                    f"{root}:",
                    "a folder without files of a store",
                    f"one with {found[0]!r} and no {files.last!r}",
                    "Choose another folder, or pass `overwrite=True` to replace such files",
                )
            )


def _remove_committed(root: Path, files: StoreFiles) -> None:
    """Remove staging directories of writers that had completed their commit."""
    if not (root / files.last).exists():
        return
    for staging_dir in find_staging_dirs(root):
        if (staging_dir / _MOVES_FILE).exists() and not (staging_dir / files.last).exists():
            _remove_abandoned(root, staging_dir)


def _remove_abandoned(root: Path, staging_dir: Path) -> None:
    with _explain_lock(root):
        folder, descriptor = take_over_staging_dir(root, staging_dir)
    shutil.rmtree(folder, ignore_errors=True)
    release_lock(descriptor)


def _remove_other_staging_dirs(root: Path, folder: Path) -> None:
    """Remove abandoned staging directories; raise if another writer has one, begun meanwhile.

    The lock of the folder prevents that where the file system has locks. Elsewhere both may be
    refused, but two never write at the same time.

    Raises:
        ConfigError: If there is one.
    """
    for staging_dir in find_staging_dirs(root):
        if staging_dir != folder:
            _remove_abandoned(root, staging_dir)


def _take_staging_dir(root: Path, files: StoreFiles, *, resume: bool) -> tuple[Path, int]:
    """Return a staging directory with its lock: one that a writer left, or a new one."""
    resumed: tuple[Path, int] | None = None
    with _explain_lock(root), hold_folder(root) as is_held:
        if not is_held:
            raise WriterLockedError
        for staging_dir in find_staging_dirs(root):
            folder, descriptor = take_over_staging_dir(root, staging_dir)
            _undo_moves(root, folder, files)
            if resume and resumed is None and _can_continue(folder):
                resumed = folder, descriptor
                continue
            shutil.rmtree(folder, ignore_errors=True)
            release_lock(descriptor)
        return resumed or create_staging_dir(root)


@contextmanager
def _explain_lock(root: Path) -> Iterator[None]:
    """Turn the error of a locked folder into one with a message."""
    try:
        yield
    except (WriterLockedError, FileNotFoundError) as error:  # another one has removed a folder
        remedy = error.remedy if isinstance(error, WriterLockedError) else ""
        hint = f". {remedy}" if remedy else ""
        raise ConfigError(
            f"{root}: another process is writing here. Wait for it, or choose another folder{hint}."
        ) from error


def _undo_moves(root: Path, folder: Path, files: StoreFiles) -> None:
    """Move files back that a writer had renamed into place before it ended."""
    if not (folder / _MOVES_FILE).exists():
        return
    moves = read_with_digest(folder / _MOVES_FILE)  # damaged: the renamed files are written again
    for name, target in json.loads(moves or b"{}").items():
        moved = not (folder / name).exists() and (root / target).exists()
        if moved and files.names.fullmatch(target):
            os.replace(root / target, folder / name)
    (folder / _MOVES_FILE).unlink()


def _can_continue(folder: Path) -> bool:
    """Return whether a staging directory holds finished shards, or a first pass, to continue."""
    return any(folder.glob(f"*{FACTS_SUFFIX}")) or (folder / FIRST_PASS).exists()


def is_first_pass_finished(root: Path) -> bool:
    """Return whether an unfinished writer in a folder has finished the first of two passes."""
    folders = [staging_dir / FIRST_PASS for staging_dir in find_staging_dirs(root)]
    return any(any(folder.glob("*")) and not find_staging_dirs(folder) for folder in folders)


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

"""A folder that is written as a whole or not at all.

Files are made in a folder aside, and renamed into place when all are there; the manifest comes last
and is the commit. While a folder aside is there, writing was not finished. Place in the flow: the
writer works inside of it. Reads: nothing. Makes: a committed folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.storage.manifest import MANIFEST

ASIDE = ".seqdata-tmp-"
OWN_FILES = re.compile(r"part-\d{5,}\.(arrow|crc)|lengths-[A-Za-z0-9_-]+\.u(32|64)")
_LOCK = "lock"  # held while a writer lives; the kernel lets go of it, however the writer ends


@contextmanager
def aside(root: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a folder beside the files of ``root``; it is gone at the end, committed or not.

    Args:
        root: The store's folder; made where it is not there.
        overwrite: Whether a finished store may be replaced; it stays as it is until ``commit``.

    Raises:
        ConfigError: If there is a finished store, files that nobody finished, or another writer.
    """
    check_free(root, overwrite=overwrite)
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    _clear_unfinished(root)
    folder = root / f"{ASIDE}{uuid.uuid4().hex}"
    folder.mkdir()
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        if made and not any(root.iterdir()):
            root.rmdir()


def check_free(root: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a store cannot be written to.

    Raises:
        ConfigError: If it is a file, or holds a store or files that nobody finished.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root}: is a file, must be a folder or not there; choose another path")
    if not overwrite:
        _refuse_to_overwrite(root)


def commit(root: Path, folder: Path, files: Sequence[str]) -> None:
    """Rename files and the manifest from the folder aside into place.

    A store that was there before is gone from the first rename on; the new one is there with the
    last.
    """
    old = [path.name for path in root.iterdir() if OWN_FILES.fullmatch(path.name)]
    (root / MANIFEST).unlink(missing_ok=True)
    sync_file(root)
    for name in files:
        os.replace(folder / name, root / name)
    sync_file(root)
    os.replace(folder / MANIFEST, root / MANIFEST)
    sync_file(root)
    for name in set(old) - set(files):
        (root / name).unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, flushed to the disk."""
    path.write_bytes(content)
    sync_file(path)


def sync_file(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(root: Path) -> list[Path]:
    """Give the folders aside that writers left or work in."""
    return sorted(root.glob(f"{ASIDE}*"))


def _refuse_to_overwrite(root: Path) -> None:
    if (root / MANIFEST).exists():
        raise ConfigError(
            f"{root}: holds a store, must be another folder; choose one, or pass `overwrite`=True"
        )
    if root.is_dir() and not unfinished(root):
        found = sorted(path.name for path in root.iterdir() if OWN_FILES.fullmatch(path.name))
        if found:
            raise ConfigError(
                f"{root}: holds {found[0]!r} but no manifest, must be empty; choose another "
                "folder, or pass `overwrite`=True to replace such files"
            )


def _clear_unfinished(root: Path) -> None:
    for folder in unfinished(root):
        try:
            lock = _lock(folder)
        except BlockingIOError as error:
            raise ConfigError(
                f"{root}: another process is writing here, must be one at a time; wait for it or "
                "choose another folder"
            ) from error
        shutil.rmtree(folder)
        os.close(lock)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

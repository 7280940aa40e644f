"""A folder that is written as a whole or not at all.

Files are made in a folder aside, and renamed into place when all are there; the manifest comes last
and is the commit. While a folder aside is there, writing was not finished: whoever writes next goes
on with it. Place in the flow: the writer works inside of it. Reads: nothing. Makes: a committed
folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.digest_trailer import read_sealed, sealed
from seqdata.storage.writing.writer_lock import TakenError, let_go, new_folder, take_over
from seqdata.storage.writing.writer_lock import unfinished as unfinished

OWN_FILES = re.compile(r"part-\d{5,}\.(arrow|crc)|lengths-[A-Za-z0-9_-]+\.u(32|64)")
FACTS = ".facts"  # ends the names of files that say that a shard is whole
_MOVES = "moves.json"  # is there from just before the first rename on

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def aside(root: Path, *, overwrite: bool, resume: bool = False) -> Iterator[Path]:
    """Give a folder beside the files of ``root``; it is gone at the end, committed or not.

    Where writing fails and a shard is whole (there is a file of facts), the folder stays.

    Args:
        root: The store's folder; made where it is not there.
        overwrite: Whether a finished store may be replaced; it stays as it is until ``commit``.
        resume: Whether a folder that a writer left is given, with what is in it.

    Raises:
        ConfigError: If there is a finished store, files that nobody finished, or another writer.
    """
    _check_above(root)
    _sweep(root)
    check_free(root, overwrite=overwrite)
    was_empty = root.exists() and not any(root.iterdir())
    try:
        make_folder(root)
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise ConfigError(
            f"{root}: cannot be made ({error.strerror}), must be a folder to write to; choose "
            "another path, or check the rights of the folder above it"
        ) from error
    folder, lock = _claim(root, resume=resume)
    kept = False
    try:
        yield folder
    except BaseException:
        kept = _has_facts(folder)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        let_go(lock)
        if not was_empty and not any(root.iterdir()):
            root.rmdir()


def _check_above(root: Path) -> None:
    """Refuse a folder that cannot be there: below a file, or in place of a link to nothing.

    Raises:
        ConfigError: If it is one.
    """
    if root.is_symlink() and not root.exists():
        raise ConfigError(
            f"{root}: is a link to {os.readlink(root)!r}, which is not there, must be a folder or "
            "not there; make that folder, or remove the link"
        )
    above = next((one for one in root.parents if one.exists()), None)
    if above is not None and not above.is_dir():
        raise ConfigError(
            f"{root}: lies below {str(above)!r}, which is a file, must lie in a folder; choose "
            "another path"
        )


def check_free(root: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a store cannot be written to.

    Raises:
        ConfigError: If it is a file, or holds a store or files that nobody finished.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root}: is a file, must be a folder or not there; choose another path")
    if not overwrite:
        _refuse_to_overwrite(root)


def commit(root: Path, folder: Path, moves: Mapping[str, str]) -> None:
    """Rename files and the manifest from the folder aside into place.

    A store that was there before is gone from the first rename on; the new one is there with the
    last. What happens in between is undone by the next writer.

    Args:
        root: The store's folder.
        folder: The folder aside, with the manifest.
        moves: Name of a file there -> its name in the store.
    """
    write_whole(folder / _MOVES, sealed(json.dumps(dict(moves)).encode(), _MOVES))
    old = [path.name for path in root.iterdir() if OWN_FILES.fullmatch(path.name)]
    (root / MANIFEST).unlink(missing_ok=True)
    sync_file(root)
    for name in set(old) - set(moves.values()):
        (root / name).unlink(missing_ok=True)
    for name, target in moves.items():
        os.replace(folder / name, root / target)
    sync_file(root)
    os.replace(folder / MANIFEST, root / MANIFEST)
    sync_file(root)


def make_folder(root: Path) -> None:
    """Make a folder, and flush its name, and those of folders above that are new, to the disk."""
    new = [one for one in (root, *root.parents) if not one.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for one in new:
        sync_file(one.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, flushed to the disk."""
    path.write_bytes(content)
    sync_file(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all, flushed to the disk."""
    aside = path.with_name(f"{path.name}.new")
    write_synced(aside, content)
    os.replace(aside, path)
    sync_file(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _sweep(root: Path) -> None:
    """Remove folders whose writers had come to the end of their commit."""
    if not (root / MANIFEST).exists():
        return
    for left in unfinished(root):
        if (left / _MOVES).exists() and not (left / MANIFEST).exists():
            folder, lock = _taken(root, left)
            shutil.rmtree(folder, ignore_errors=True)
            let_go(lock)


def _claim(root: Path, *, resume: bool) -> tuple[Path, int]:
    """Give a folder to write in, with its lock: one that a writer left, or a new one."""
    going_on: tuple[Path, int] | None = None
    for left in unfinished(root):
        folder, lock = _taken(root, left)
        _undo_moves(root, folder)
        if resume and going_on is None and _has_facts(folder):
            going_on = folder, lock
            continue
        shutil.rmtree(folder, ignore_errors=True)
        let_go(lock)
    with _one_writer(root):
        return going_on or new_folder(root)


def _taken(root: Path, folder: Path) -> tuple[Path, int]:
    with _one_writer(root):
        return take_over(root, folder)


@contextmanager
def _one_writer(root: Path) -> Iterator[None]:
    """Turn the error of a folder that another writer has into one with words."""
    try:
        yield
    except TakenError as error:
        more = f"; {error.remedy}" if error.remedy else ""
        raise ConfigError(
            f"{root}: another process is writing here, must be one at a time; wait for it or "
            f"choose another folder{more}"
        ) from error


def _undo_moves(root: Path, folder: Path) -> None:
    """Take files back that a writer had renamed into place when it ended."""
    if not (folder / _MOVES).exists():
        return
    noted = read_sealed(folder / _MOVES)  # damaged: what was renamed is written again
    for name, target in json.loads(noted or b"{}").items():
        moved = not (folder / name).exists() and (root / target).exists()
        if moved and OWN_FILES.fullmatch(target):
            os.replace(root / target, folder / name)
    (folder / _MOVES).unlink()


def _has_facts(folder: Path) -> bool:
    return any(folder.glob(f"*{FACTS}"))

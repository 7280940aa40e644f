"""The folder of the cache: its marker, the files that are the cache's, and what goes for room.

It is a subfolder of its own in ``Remote(cache_dir=...)``. Only files whose names the cache has made
are counted and removed, and a folder of that name that holds others is refused. Whoever removes the
folder, at any time, takes nothing but the need to fetch again. Place in the flow: below the cache.
Reads: a folder. Makes: the same.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import CacheError
from seqdata.storage import file_lock
from seqdata.storage.local_files import limit_of

ASIDE = ".part"
NAP = 0.02  # seconds
MARKER = "CACHEDIR.TAG"  # by the convention of bford.info/cachedir: backups leave such folders out
_TOLD = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Remote files that seqdata keeps on this machine. The folder may be removed at any time.\n"
)
_LOCK = ".lock"
_FILES = re.compile(r"(u?[0-9a-f]{64}(\.[0-9]+-[0-9]+)?(\.part)?|\.seqdata-.+)")
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECE = 1 << 16  # bytes
_TRIES = 100  # times that the folder may be removed while it is made
_LOG = logging.getLogger("seqdata.remote")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache.

    Attributes:
        path: Where it lies.
        size: Its bytes.
        used: When it was last asked for, in nanoseconds.
    """

    path: Path
    size: int
    used: int


def own_folder(folder: Path) -> Path:
    """Return the folder of the cache; it is made, and marked, where it is not there.

    Raises:
        CacheError: If it cannot be made, or holds files that are not the cache's.
    """
    for last in (*[False] * _TRIES, True):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _mark(folder)
        except (FileNotFoundError, FileExistsError) as error:  # removed meanwhile
            if last:
                raise _unmade(folder, error) from error
        except OSError as error:
            raise _unmade(folder, error) from error
        else:
            break
    return folder


def entries(folder: Path, but: Path | None = None) -> list[Entry]:
    """Return the files of the cache, the longest unused first; nothing else that lies there."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as listed:
        for one in listed:
            if not _FILES.fullmatch(one.name) or (but is not None and one.name == but.name):
                continue
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                status = one.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(Entry(Path(one.path), status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda one: one.used)


def evict(folder: Path, needed: int, but: Path) -> int:
    """Remove what nobody holds until there is room; returns the bytes that are free now."""
    freed = 0
    for entry in sorted(entries(folder, but), key=lambda one: not one.path.name.endswith(ASIDE)):
        if freed >= needed:
            break
        descriptor = opened(entry.path)
        if descriptor is None:
            continue
        try:
            if locked(descriptor, entry.path):
                entry.path.unlink(missing_ok=True)
                freed += entry.size
                _LOG.info("%s: removed from the cache, %d bytes", entry.path, entry.size)
        finally:
            os.close(descriptor)
    return freed


def opened(path: Path, *, make: bool = False) -> int | None:
    """Open a file of the cache to read and write; returns None where it, or the folder, is gone.

    Raises:
        CacheError: If it cannot be opened.
    """
    try:
        return os.open(path, _OPEN | (os.O_CREAT if make else 0), 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        limit = f"raise {limit_of(error)}" if error.errno in (errno.EMFILE, errno.ENFILE) else (
            "check its rights, or pass Remote(cache_dir=...)"
        )  # fmt: skip
        raise CacheError.at(
            f"{path}: cannot be opened ({error.strerror}), must be; {limit}", file=str(path)
        ) from error


def locked(descriptor: int, path: Path, *, shared: bool = False) -> bool:
    """Lock a file of the cache; whether nobody else holds it.

    Raises:
        CacheError: If the file system has no locks: nothing would be safe from removal there.
    """
    try:
        return file_lock.lock(descriptor, shared=shared)
    except file_lock.NoLocksError as error:
        raise no_locks(path.parent, error) from error


def no_locks(folder: Path, error: file_lock.NoLocksError) -> CacheError:
    """Return the error about a folder on a file system without locks."""
    return CacheError.at(
        f"{folder}: lies on a file system without locks ({error}), must be on one that has flock, "
        "so that nothing goes while it is read; pass Remote(cache_dir=...) with a folder on a "
        "disk of this machine",
        file=str(folder),
    )


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has its name."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)


@contextmanager
def one_at_a_time(folder: Path, patience: float) -> Iterator[None]:
    """Let one process at a time count and remove; who waits too long goes on without."""
    path = folder / _LOCK
    descriptor = opened(path, make=True)
    deadline = time.monotonic() + patience
    try:
        while descriptor is not None and not locked(descriptor, path):
            if time.monotonic() > deadline:
                break
            time.sleep(NAP)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def room_on_disk(folder: Path, descriptor: int) -> Iterator[None]:
    """Turn the error of a full disk into one that says what is needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        facts = os.fstatvfs(descriptor)  # the folder may be gone
        free = facts.f_bavail * facts.f_frsize
        raise CacheError.at(
            f"{folder}: cannot be written to ({os.strerror(error.errno)}), {free} bytes are free, "
            "must have room for a shard; make room, pass Remote(cache_dir=...), or read by ranges: "
            "remote='ranges'",
            file=str(folder), free=free,
        ) from error  # fmt: skip


def allocate(descriptor: int, size: int) -> None:
    """Set the size of a file, and take the room from the disk now, where the file system can."""
    os.ftruncate(descriptor, size)
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _FULL:
            raise


def write_over(descriptor: int, right: int, size: int) -> None:
    """Make a file the same as another one of its size; what is the same is not written."""
    for at in range(0, size, _PIECE):
        piece = os.pread(right, min(_PIECE, size - at), at)
        if os.pread(descriptor, len(piece), at) != piece:
            os.pwrite(descriptor, piece, at)


def _mark(folder: Path) -> None:
    """Put the marker into a folder of the cache that has none yet.

    Raises:
        CacheError: If it holds files that are not the cache's.
        FileNotFoundError: If it was removed meanwhile.
    """
    marker = folder / MARKER
    told = marker.read_bytes() if marker.is_file() else b""
    if told == _TOLD:
        return
    names = sorted(os.listdir(folder))
    others = [one for one in names if one not in (MARKER, _LOCK) and not _FILES.fullmatch(one)]
    if told:
        others.append(MARKER)
    if others:
        raise CacheError.at(
            f"{folder}: holds {others[0]!r}, which the cache of seqdata has not made, must be "
            "empty or its own; pass Remote(cache_dir=...), or move what is there",
            file=str(folder),
        )
    aside = folder / f".seqdata-tag-{os.getpid()}-{time.monotonic_ns()}"
    aside.write_bytes(_TOLD)
    os.replace(aside, marker)


def _unmade(folder: Path, error: OSError) -> CacheError:
    return CacheError.at(
        f"{folder}: cannot be made ({error.strerror}), must be a folder to write to; pass "
        "Remote(cache_dir=...)",
        file=str(folder),
    )

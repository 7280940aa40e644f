"""Whole remote files on this machine: fetched once, shared by its processes, bounded in bytes.

A file is named by its content (its sha256, else its address, size and tag). It is written aside
under a lock, checked, and renamed into place; who waits for the lock then finds it there. A reader
holds a lock on what it reads, for as long as it is mapped; only what nobody holds is removed for
want of room. A process that is killed leaves nothing but an unlocked file aside, which the next one
removes. There are no counters and nothing named but these files.

Place in the flow: stores and plugins hold shards here. Reads: remote files. Makes: mapped local
files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.errors import CacheError, DataError
from seqdata.kernel.choose import kernel
from seqdata.storage.location import limit_of
from seqdata.storage.places import Place
from seqdata.storage.remote.fetching import Fetch, fetched
from seqdata.storage.remote.files import RemoteFiles, Stat
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import identity

_LOG = logging.getLogger("seqdata.remote")
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ASIDE = ".part"
_LOCK = ".lock"
_NAP = 0.02  # seconds
Release = Callable[[], None] | None
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A remote file that is to be held.

    Attributes:
        name: In its folder.
        size: Its bytes; None: whatever it has.
        sha256: Its digest; None: not known, then address, size and tag name it.
        error: The class of error where it is another.
    """

    name: str
    size: int | None = None
    sha256: str | None = None
    error: type[DataError] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A file in the cache, which stays there until the last array over its bytes is gone.

    Attributes:
        path: Where it lies.
        mapping: Its bytes; they carry the lock.
        size: Their number.
    """

    path: Path
    mapping: Any
    size: int


class Cache:
    """Remote files on this machine. Made by ``cache_of``.

    Args:
        files: Where they come from.
    """

    __slots__ = ("_files",)

    def __init__(self, files: RemoteFiles) -> None:
        self._files = files

    @property
    def remote(self) -> Remote:
        """How files are read."""
        return self._files.remote

    def hold(
        self,
        wanted: Wanted,
        place: Place | None = None,
        release: Release = None,
    ) -> Held:
        """Give a file, fetched where it is not there.

        Args:
            wanted: Which one, and what it must be.
            place: The same, for errors; None: its name.
            release: Called where there is no room: lets go what the caller holds and does not need.

        Raises:
            MissingShardError: If it is not there.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it has another size or digest.
            FingerprintMismatch: If it was replaced while it was read.
            CacheError: If there is no room.
        """
        where = place or Place(dataset=self._files.location, file=wanted.name)
        stat = None
        if wanted.sha256 is None or wanted.size is None:
            stat = self._files.stat(wanted.name, where)
        size = wanted.size if wanted.size is not None else stat.size if stat else 0
        fetch = Fetch(self._files, wanted.name, size, wanted.sha256, stat, where, wanted.error)
        folder = self._folder()
        path = folder / self._name(wanted, size, stat)
        while True:  # ends: a file that is made is there, and is only gone where room is wanted
            held = _held(path, size)
            if held is not None:
                return held
            self._fill(folder, path, fetch, release)

    def has(self, wanted: Wanted) -> bool:
        """Tell whether a file of a known digest is there."""
        if wanted.sha256 is None or wanted.size is None:
            return False
        return (self.remote.folder / self._name(wanted, wanted.size, None)).exists()

    def _name(self, wanted: Wanted, size: int, stat: Stat | None) -> str:
        if wanted.sha256 is not None:
            return wanted.sha256
        tag = None if stat is None else stat.tag
        where = identity(self._files.url(wanted.name), tagged=tag is not None)
        facts = f"{where}\0{size}\0{tag}"
        return f"u{hashlib.sha256(facts.encode()).hexdigest()}"

    def _folder(self) -> Path:
        folder = self.remote.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError.at(
                f"{folder}: cannot be made ({error.strerror}), must be a folder to write to; pass "
                "Remote(cache_dir=...)",
                file=str(folder),
            ) from error
        return folder

    def _fill(self, folder: Path, path: Path, fetch: Fetch, release: Release) -> None:
        """Fetch a file, or wait while somebody else does."""
        aside = path.with_name(f"{path.name}{_ASIDE}")
        patience = max(2 * self.remote.stall_seconds, 1.0)
        descriptor = _locked_aside(aside, path, patience)
        if descriptor is None:
            if path.exists():
                return
            aside = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}{_ASIDE}")
            descriptor = _locked_aside(aside, path, patience)
            if descriptor is None:
                return
        renamed = False
        try:
            if path.exists():
                return
            with _room(folder):
                self._make_room(aside, descriptor, fetch.size, release)
                fetched(fetch, descriptor)
                os.replace(aside, path)
                renamed = True
        finally:
            if not renamed:
                aside.unlink(missing_ok=True)
            os.close(descriptor)

    def _make_room(self, aside: Path, descriptor: int, size: int, release: Release) -> None:
        """Reserve room for a file that is written, at the expense of those that nobody holds."""
        folder, most = aside.parent, self.remote.cache_bytes
        deadline = time.monotonic() + self.remote.stall_seconds
        while True:
            with _one_at_a_time(folder, self.remote.stall_seconds):
                free = most - sum(one.size for one in _entries(folder, aside))
                if free < size:
                    free += _evicted(folder, size - free, aside)
                if free >= size:
                    os.ftruncate(descriptor, size)
                    if size:
                        _allocate(descriptor, size)
                    return
            if size > most or time.monotonic() >= deadline:
                raise CacheError.at(
                    f"{folder}: {size} bytes are needed and {max(0, free)} of {most} are free, the "
                    "rest is being read, must have room; raise Remote(cache_bytes=...), write "
                    "smaller shards, or read by ranges: remote='ranges'",
                    file=str(folder), needed=size, free=max(0, free),
                )  # fmt: skip
            if release is not None:
                release()
            time.sleep(_NAP)


def cache_of(files: RemoteFiles) -> Cache:
    """Give the cache that remote files are held in."""
    return Cache(files)


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    size: int
    used: int  # nanoseconds


def _entries(folder: Path, but: Path) -> list[_Entry]:
    """Give what lies in the cache, the longest unused first."""
    found = []
    with os.scandir(folder) as listed:
        for one in listed:
            if one.name in (_LOCK, but.name):
                continue
            try:
                status = one.stat(follow_symlinks=False)
            except FileNotFoundError:  # renamed or removed meanwhile
                continue
            found.append(_Entry(Path(one.path), status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda one: one.used)


def _evicted(folder: Path, needed: int, but: Path) -> int:
    """Remove what nobody holds until there is room; gives the bytes that are free now."""
    freed = 0
    entries = _entries(folder, but)
    for entry in sorted(entries, key=lambda one: not one.path.name.endswith(_ASIDE)):
        if freed >= needed:
            break
        descriptor = _opened(entry.path)
        if descriptor is None:
            continue
        try:
            if _locks(descriptor, fcntl.LOCK_EX):
                entry.path.unlink(missing_ok=True)
                freed += entry.size
                _LOG.info("%s: removed from the cache, %d bytes", entry.path, entry.size)
        finally:
            os.close(descriptor)
    return freed


def _held(path: Path, size: int) -> Held | None:
    """Hold a file that is there; None where it is not.

    The lock outlives the descriptor: it is the open file's, which the mapping keeps open.
    """
    descriptor = _opened(path)
    if descriptor is None:
        return None
    try:
        if not (_locks(descriptor, fcntl.LOCK_SH) and _is_at(descriptor, path)):
            return None  # it is being removed
        if os.fstat(descriptor).st_size != size:  # somebody has written to it
            path.unlink(missing_ok=True)
            return None
        os.utime(descriptor)
        return Held(path, kernel().map_file(descriptor, size) if size else b"", size)
    except OSError as error:
        raise CacheError.at(
            f"{path}: cannot be mapped ({error.strerror}), must be; raise {limit_of(error)}",
            file=str(path),
        ) from error
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int = _OPEN) -> int | None:
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        limit = f"raise {limit_of(error)}" if error.errno in (errno.EMFILE, errno.ENFILE) else (
            "check its rights, or pass Remote(cache_dir=...)"
        )  # fmt: skip
        raise CacheError.at(
            f"{path}: cannot be opened ({error.strerror}), must be; {limit}", file=str(path)
        ) from error


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file still has its name."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)


def _locked_aside(aside: Path, path: Path, patience: float) -> int | None:
    """Give the file aside, locked; None where the file is there by then, or nothing moves.

    Args:
        aside: Its name.
        path: The file's own name.
        patience: Seconds without progress after which its writer is taken for stuck.
    """
    size, since = -1, time.monotonic()
    while True:
        descriptor = _opened(aside, _OPEN | os.O_CREAT)
        if descriptor is None:
            raise CacheError.at(
                f"{aside.parent}: is gone, must stay while it is used; make it again",
                file=str(aside.parent),
            )
        if _locks(descriptor, fcntl.LOCK_EX):
            if _is_at(descriptor, aside):
                return descriptor
            os.close(descriptor)  # it was renamed into place, or removed
            if path.exists():
                return None
            continue
        written = os.fstat(descriptor).st_mtime_ns
        os.close(descriptor)
        if path.exists():
            return None
        if written != size:
            size, since = written, time.monotonic()
        if time.monotonic() - since > patience:
            return None
        time.sleep(_NAP)


@contextmanager
def _one_at_a_time(folder: Path, patience: float) -> Iterator[None]:
    """Let one process at a time count and remove; who waits too long goes on without."""
    descriptor = _opened(folder / _LOCK, _OPEN | os.O_CREAT)
    deadline = time.monotonic() + patience
    try:
        while descriptor is not None and not _locks(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                break
            time.sleep(_NAP)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what is needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        facts = os.statvfs(folder)
        free = facts.f_bavail * facts.f_frsize
        raise CacheError.at(
            f"{folder}: cannot be written to ({os.strerror(error.errno)}), {free} bytes are free, "
            "must have room for a shard; make room, pass Remote(cache_dir=...), or read by ranges: "
            "remote='ranges'",
            file=str(folder), free=free,
        ) from error  # fmt: skip


def _allocate(descriptor: int, size: int) -> None:
    """Take the room from the disk now, where the file system can."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _FULL:
            raise

"""Whole remote files on this machine: fetched once, shared by its processes, bounded in bytes.

A file is named by its content (its sha256, else its address, size and tag). It is written aside
under a lock, checked, and renamed into place; who waits for the lock then finds it there. A reader
holds a lock on what it reads, for as long as it is mapped; only what nobody holds is removed for
want of room. A process that is killed leaves nothing but an unlocked file aside, which the next one
removes. There are no counters and nothing named but these files. Who fetches a file reads it by the
descriptor that it was written to, so the folder may be removed at any time.

Place in the flow: stores and plugins hold shards here. Reads: remote files. Makes: mapped local
files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.errors import CacheError, DataError
from seqdata.kernel.dispatch import kernel
from seqdata.storage.data_location import Place
from seqdata.storage.local_files import limit_of
from seqdata.storage.remote.cache_folder import (
    ASIDE,
    NAP,
    allocate,
    entries,
    evict,
    is_at,
    locked,
    one_at_a_time,
    opened,
    own_folder,
    room_on_disk,
    write_over,
)
from seqdata.storage.remote.download import Fetch, fetched
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.transport import RemoteFiles, Stat
from seqdata.storage.remote.urls import identity
from seqdata.storage.shared_memory import Anonymous

_LOG = logging.getLogger("seqdata.remote")
Release = Callable[[], None] | None


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
        try:
            return self._hold(wanted, place, release, self.remote.stall_seconds)
        except NoRoomError as error:
            folder = self.remote.folder
            raise CacheError.at(
                f"{folder}: {error.needed} bytes are needed and {error.free} of "
                f"{self.remote.cache_bytes} are free, the rest is being read, must have room; "
                "raise Remote(cache_bytes=...), write smaller shards, or read by ranges: "
                "remote='ranges'",
                file=str(folder), needed=error.needed, free=error.free,
            ) from None  # fmt: skip

    def hold_if_room(
        self, wanted: Wanted, place: Place | None = None, release: Release = None
    ) -> Held:
        """Return a file as ``hold`` does, without waiting for room.

        Raises:
            NoRoomError: If there is none.
        """
        return self._hold(wanted, place, release, 0.0)

    def bytes_of(self, wanted: Wanted, place: Place) -> Any:
        """Return the bytes of a small file that is held; in memory, where there is no room for it.

        Args:
            wanted: Which one; its size is known.
            place: The same, for errors.

        Raises:
            SeqDataError: As ``hold``, but for want of room.
        """
        try:
            return self.hold_if_room(wanted, place).mapping
        except NoRoomError as error:
            memory = Anonymous(max(1, error.needed))
            fetch = Fetch(
                self._files, wanted.name, error.needed, wanted.sha256, None, place, wanted.error
            )
            fetched(fetch, memory.fileno())
            return memory.mapping[: error.needed]

    def _hold(self, wanted: Wanted, place: Place | None, release: Release, patience: float) -> Held:
        where = place or Place(dataset=self._files.location, file=wanted.name)
        stat = None
        if wanted.sha256 is None or wanted.size is None:
            stat = self._files.stat(wanted.name, where)
        size = wanted.size if wanted.size is not None else stat.size if stat else 0
        fetch = Fetch(self._files, wanted.name, size, wanted.sha256, stat, where, wanted.error)
        while True:  # ends: somebody fetches it, and who does so has it
            folder = own_folder(self.remote.folder)
            path = folder / self._name(wanted, size, stat)
            held = _held(path, size) or self._fill(folder, path, fetch, release, patience)
            if held is not None:
                return held

    def mend(self, wanted: Wanted, content: Any, place: Place) -> bool:
        """Look whether a file that is held is what it must be, and mend it where it is not.

        It is fetched again, and what is wrong is written over where it lies: whoever has it mapped,
        in this process or another, sees the right bytes from then on.

        Args:
            wanted: What it must be.
            content: Its bytes as they are held.
            place: The same, for errors and the log.

        Returns:
            Whether it was damaged, and is right now.

        Raises:
            SeqDataError: As ``hold``: of a source that is another, too.
        """
        if wanted.sha256 is None or wanted.size is None or _is(content, wanted.sha256):
            return False
        folder = own_folder(self.remote.folder)
        path, size = folder / wanted.sha256, wanted.size
        fetch = Fetch(self._files, wanted.name, size, wanted.sha256, None, place, wanted.error)
        descriptor = opened(path)
        if descriptor is None:  # the folder was removed: there is nothing left to mend
            return False
        _LOG.warning("%s: its copy (%s) is damaged, and is fetched again", place, path)
        try:
            with tempfile.TemporaryFile(dir=folder, prefix=".seqdata-") as right:
                with room_on_disk(folder, descriptor):
                    allocate(right.fileno(), size)
                    fetched(fetch, right.fileno())
                write_over(descriptor, right.fileno(), size)
        finally:
            os.close(descriptor)
        return _is(content, wanted.sha256)

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

    def _fill(
        self, folder: Path, path: Path, fetch: Fetch, release: Release, patience: float
    ) -> Held | None:
        """Fetch a file and hold it; None where somebody else has, or the folder is gone."""
        aside = path.with_name(f"{path.name}{ASIDE}")
        stuck = max(2 * self.remote.stall_seconds, 1.0)
        descriptor = _locked_aside(aside, path, stuck)
        if descriptor is None:
            if path.exists():
                return None
            aside = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}{ASIDE}")
            descriptor = _locked_aside(aside, path, stuck)
            if descriptor is None:
                return None
        try:
            if path.exists():
                return None
            with room_on_disk(folder, descriptor):
                self._make_room(aside, descriptor, fetch.size, release, patience)
                fetched(fetch, descriptor)
            held = _mapped(path, descriptor, fetch.size)
            _put(aside, path, descriptor)
            return held
        finally:
            if is_at(descriptor, aside):
                aside.unlink(missing_ok=True)
            os.close(descriptor)

    def _make_room(
        self, aside: Path, descriptor: int, size: int, release: Release, patience: float
    ) -> None:
        """Reserve room for a file that is written, at the expense of those that nobody holds."""
        folder, most = aside.parent, self.remote.cache_bytes
        deadline, released = time.monotonic() + patience, release is None
        while True:
            with one_at_a_time(folder, self.remote.stall_seconds):
                free = most - sum(one.size for one in entries(folder, aside))
                if free < size <= most:
                    free += evict(folder, size - free, aside)
                if free >= size:
                    allocate(descriptor, size)
                    return
            if size > most or (released and time.monotonic() >= deadline):
                raise NoRoomError(size, max(0, free))
            if release is not None:
                release()
            if released:
                time.sleep(NAP)
            released = True


def cache_of(files: RemoteFiles) -> Cache:
    """Give the cache that remote files are held in."""
    return Cache(files)


class NoRoomError(Exception):
    """All that is in the cache is being read: what is wanted must be read in another way.

    Args:
        needed: Bytes.
        free: Bytes.
    """

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(needed, free)
        self.needed = needed
        self.free = free


def _is(content: Any, sha256: str) -> bool:
    return hashlib.sha256(content).hexdigest() == sha256


def _held(path: Path, size: int) -> Held | None:
    """Hold a file that is there; None where it is not."""
    descriptor = opened(path)
    if descriptor is None:
        return None
    try:
        if not (locked(descriptor, path, shared=True) and is_at(descriptor, path)):
            return None  # it is being removed
        if os.fstat(descriptor).st_size != size:  # somebody has written to it
            path.unlink(missing_ok=True)
            return None
        return _mapped(path, descriptor, size)
    finally:
        os.close(descriptor)


def _mapped(path: Path, descriptor: int, size: int) -> Held:
    """Hold an open file, and note that it was used.

    The lock outlives the descriptor: it is the open file's, which the mapping keeps open.
    """
    now = time.time_ns()
    try:
        os.utime(descriptor, ns=(now, now))
        return Held(path, kernel().map_file(descriptor, size) if size else b"", size)
    except OSError as error:
        raise CacheError.at(
            f"{path}: cannot be mapped ({error.strerror}), must be; raise {limit_of(error)}",
            file=str(path),
        ) from error


def _put(aside: Path, path: Path, descriptor: int) -> None:
    """Rename a file that was fetched into place; not where its name, or the folder, is gone."""
    locked(descriptor, path, shared=True)  # others may hold it from here on
    if not is_at(descriptor, aside):
        return
    with suppress(FileNotFoundError):
        os.replace(aside, path)
    if not is_at(descriptor, path):  # the folder was removed between the two, and made again
        path.unlink(missing_ok=True)


def _locked_aside(aside: Path, path: Path, patience: float) -> int | None:
    """Give the file aside, locked; None where the file is there by then, or nothing moves.

    Args:
        aside: Its name.
        path: The file's own name.
        patience: Seconds without progress after which its writer is taken for stuck.
    """
    size, since = -1, time.monotonic()
    while True:
        descriptor = opened(aside, make=True)
        if descriptor is None:  # the folder is gone
            return None
        try:
            mine = locked(descriptor, aside)
        except CacheError:
            aside.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if mine:
            if is_at(descriptor, aside):
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
        time.sleep(NAP)

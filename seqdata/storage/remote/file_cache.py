"""A cache of whole remote files on this machine: shared by its processes, bounded in bytes.

A file is named by its sha256 if that is known, else by a digest of its URL, size and tag; then its
sha256 is recorded next to it, and compared at its first use in a process. It is downloaded to a
temporary file under a lock, verified, and renamed into place; processes that wait for the lock then
find it there. A reader holds a lock on a file for as long as it is mapped; only files without a
lock are evicted. A killed process leaves nothing but an unlocked temporary file, which the next one
removes. The process that downloads a file reads it through the descriptor that it was written to,
so the folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqdata.errors import CacheError, CorruptShardError, DataError, FingerprintMismatch
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage import file_lock
from seqdata.storage.data_location import DataLocation
from seqdata.storage.local_files import describe_limit, sync_file
from seqdata.storage.remote.cache_folder import (
    PARTIAL_SUFFIX,
    POLL_SECONDS,
    allocate,
    cache_lock,
    evict,
    explain_full_disk,
    is_still_at,
    list_entries,
    lock_partial,
    move_into_place,
    open_cache_file,
    prepare_folder,
    remove_orphan,
    try_lock,
)
from seqdata.storage.remote.copy_digests import (
    digest_file,
    is_intact,
    name_digest,
    read_digest,
    record_digest,
)
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.retry import make_changed_error
from seqdata.storage.remote.urls import identify_url
from seqdata.storage.shared_memory import AnonymousMemory

REQUEST_BYTES = 8 << 20
"""Bytes of one request."""


@dataclass(frozen=True, slots=True, eq=False)
class DownloadSpec:
    """A file to download.

    Attributes:
        files: The folder of the file.
        name: Name of the file.
        size: Its expected size in bytes.
        sha256: Its expected digest; None if it is not known.
        stat: Its size and tag; None if they are to be requested.
        location: The file, for errors.
        error: Class of the error if its size or digest differs; None: ``CorruptShardError``.
    """

    files: RemoteFiles
    name: str
    size: int
    sha256: str | None
    stat: FileStat | None
    location: DataLocation
    error: type[DataError] | None = None

    @property
    def advice(self) -> str:
        """Remedy for a file that differs; one replaced since it was listed is only listed again."""
        is_stale = self.error is not None and issubclass(self.error, FingerprintMismatch)
        return "Open the dataset again" if is_stale else "Restore it, or write the store again"


def download(spec: DownloadSpec, descriptor: int) -> str:
    """Download a file; return its SHA-256.

    Args:
        spec: The file.
        descriptor: The open local file, of the same size.

    Raises:
        CorruptShardError: If its size or digest differs.
        FingerprintMismatch: If it was replaced in the meantime.
        MissingShardError: If it does not exist.
        RemoteReadError: If it cannot be read.
    """
    stat = spec.stat or spec.files.stat(spec.name, spec.location)
    if stat.size != spec.size:
        shorter, longer = sorted((stat.size, spec.size))
        raise replace(spec.location, offset=shorter, length=longer - shorter).make_error(
            spec.error or CorruptShardError,
            f"must have {spec.size} bytes, but has {stat.size}. {spec.advice}",
            expected=spec.size, found=stat.size,
        )  # fmt: skip
    for is_last_try in (False, True):  # the bytes may be of two versions
        _download_ranges(spec, descriptor)
        if spec.files.stat(spec.name, spec.location) != stat:
            raise make_changed_error(spec.location)
        found = digest_file(descriptor, spec.size)
        if spec.sha256 in (None, found):
            return found
        if is_last_try:
            break
    raise replace(spec.location, offset=0, length=spec.size).make_error(
        spec.error or CorruptShardError,
        f"must have sha256 {str(spec.sha256)[:16]}, but has {found[:16]}: it was replaced or is "
        f"damaged. {spec.advice}",
        expected=spec.sha256, found=found,
    )  # fmt: skip


def _download_ranges(spec: DownloadSpec, descriptor: int) -> None:
    def fetch_range(at: int) -> None:
        stop = min(at + REQUEST_BYTES, spec.size)
        body = memoryview(spec.files.read(spec.name, at, stop, spec.location))
        while body:
            count = os.pwrite(descriptor, body, at)
            at, body = at + count, body[count:]

    starts = range(0, spec.size, REQUEST_BYTES)
    if len(starts) < 2:
        for at in starts:
            fetch_range(at)
        return
    threads = min(spec.files.remote.connections, len(starts))
    with ThreadPoolExecutor(threads, "seqdata-fetch") as pool:
        futures = [pool.submit(fetch_range, at) for at in starts]
        try:
            for future in futures:
                future.result()  # ends: every request has a timeout
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_LOG = logging.getLogger("seqdata.remote")
ReleaseFn = Callable[[], None] | None


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """A remote file to acquire.

    Attributes:
        name: Its name in the folder.
        size: Its size in bytes; None: any.
        sha256: Its digest; None if it is not known: then URL, size and tag identify it.
        error: Class of the error if its size or digest differs; None: ``CorruptShardError``.
        stat: Its size and tag, if they are known; None: they are requested where needed.
    """

    name: str
    size: int | None = None
    sha256: str | None = None
    error: type[DataError] | None = None
    stat: FileStat | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CachedFile:
    """A file in the cache, which is not evicted while an array over its bytes exists.

    Attributes:
        path: Its path.
        mapping: Its mapped bytes; they hold the lock.
        size: Its size in bytes.
        sha256: Its digest, if the cache has recorded or computed it.
    """

    path: Path
    mapping: Any
    size: int
    sha256: str | None = None


class FileCache:
    """Remote files on this machine. Created by ``make_cache``.

    Args:
        files: The remote files.
    """

    __slots__ = ("_files",)

    def __init__(self, files: RemoteFiles) -> None:
        self._files = files

    @property
    def remote(self) -> Remote:
        """Options of reading files."""
        return self._files.remote

    def acquire(
        self, request: CacheRequest, location: DataLocation | None = None, release: ReleaseFn = None
    ) -> CachedFile:
        """Return a file; download it if it is not in the cache.

        Args:
            request: The file, with its expected size and digest.
            location: Its location for errors; None: its name.
            release: Called if there is no room: releases files that the caller no longer needs.

        Raises:
            MissingShardError: If it does not exist.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If its size or digest differs.
            FingerprintMismatch: If it was replaced while it was read.
            CacheError: If there is no room.
        """
        try:
            return self._acquire(request, location, release, self.remote.stall_seconds)
        except CacheFullError as error:
            folder, most = self.remote.folder, self.remote.cache_bytes
            problem = (
                f"the cache must hold a file of {error.needed} bytes, but holds {most} at most"
                if error.needed > most
                else f"the cache must have {error.needed} bytes free, but only {error.free} of "
                f"{most} are: the rest is being read"
            )
            raise CacheError.at(
                f"{folder}: {problem}. Raise Remote(cache_bytes=...), write smaller shards, or "
                "read by ranges: remote='ranges'",
                file=str(folder), needed=error.needed, free=error.free,
            ) from None  # fmt: skip

    def acquire_if_room(
        self,
        request: CacheRequest,
        location: DataLocation | None = None,
        release: ReleaseFn = None,
        timeout: float = 0.0,
    ) -> CachedFile:
        """Return a file like ``acquire``, without waiting for room, or for some seconds only.

        Raises:
            CacheFullError: If there is no room in the cache.
        """
        return self._acquire(request, location, release, timeout)

    def read_bytes(self, request: CacheRequest, location: DataLocation) -> Any:
        """Return the bytes of a small file; without the cache if there is no room for it.

        Args:
            request: The file, with its size.
            location: Location of the file, for errors.

        Raises:
            SeqDataError: As ``acquire``, except for lack of room.
        """
        try:
            return self.acquire_if_room(request, location).mapping
        except CacheFullError as error:
            memory = AnonymousMemory(max(1, error.needed))
            download_spec = DownloadSpec(
                self._files,
                request.name,
                error.needed,
                request.sha256,
                request.stat,
                location,
                request.error,
            )
            download(download_spec, memory.fileno())
            return memory.mapping[: error.needed]

    def _acquire(
        self,
        request: CacheRequest,
        location: DataLocation | None,
        release: ReleaseFn,
        timeout: float,
    ) -> CachedFile:
        file_location = location or DataLocation(dataset=self._files.location, file=request.name)
        stat = request.stat
        if stat is None and (request.sha256 is None or request.size is None):
            stat = self._files.stat(request.name, file_location)
        size = request.size if request.size is not None else stat.size if stat else 0
        download_spec = DownloadSpec(
            self._files, request.name, size, request.sha256, stat, file_location, request.error
        )
        locked_since: float | None = None
        while True:  # ends: the process that downloads it returns it, or loses its name
            folder = prepare_folder(self.remote.folder)
            path = folder / self._make_file_name(request, size, stat)
            cached = _open_cached(path, size, file_location, is_named=request.sha256 is not None)
            if cached is not None:
                remove_orphan(_name_partial(path))  # of a process that was killed
                return cached
            cached = self._download(folder, path, download_spec, release, timeout)
            if cached is not None:
                return cached
            locked_since = _give_up_locked(path, locked_since, 2 * self.remote.stall_seconds)

    def drop(self, sha256: str, location: DataLocation) -> str:
        """Remove a damaged file; return a line about it, for an error.

        Processes that have it mapped keep their mapping; the next opening downloads it again.

        Args:
            sha256: The digest that names the file.
            location: Location of the file, for the log.
        """
        path = self.remote.folder / sha256
        log_damage(path, location)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            return (
                f"it was read from a copy in the cache, {path}, which cannot be removed "
                f"({error.strerror}). Remove it, then open the store again: it is fetched again"
            )
        return (
            f"it was read from a copy in the cache, {path}, which was dropped. Open the store "
            "again first: it is fetched again"
        )

    def has(self, request: CacheRequest) -> bool:
        """Return whether a file with a known digest is in the cache."""
        if request.sha256 is None or request.size is None:
            return False
        return (self.remote.folder / self._make_file_name(request, request.size, None)).exists()

    def _make_file_name(self, request: CacheRequest, size: int, stat: FileStat | None) -> str:
        if request.sha256 is not None:
            return request.sha256
        tag = None if stat is None else stat.tag
        identity = f"{identify_url(self._files.url(request.name))}\0{size}\0{tag}"
        return f"u{hashlib.sha256(identity.encode()).hexdigest()}"

    def _download(
        self,
        folder: Path,
        path: Path,
        download_spec: DownloadSpec,
        release: ReleaseFn,
        timeout: float,
    ) -> CachedFile | None:
        """Download a file; return None if another process did so, or the folder is gone."""
        partial = _name_partial(path)
        stall_seconds = max(2 * self.remote.stall_seconds, 1.0)
        descriptor = lock_partial(partial, path, stall_seconds)
        if descriptor is None:
            if path.exists():
                return None
            partial = path.with_name(
                f"{path.name}.{os.getpid()}-{time.monotonic_ns()}{PARTIAL_SUFFIX}"
            )
            descriptor = lock_partial(partial, path, stall_seconds)
            if descriptor is None:
                return None
        try:
            if path.exists():
                return None
            with explain_full_disk(folder, descriptor):
                self._make_room(partial, descriptor, download_spec.size, release, timeout)
                digest = download(download_spec, descriptor)
                os.fsync(descriptor)  # it may be believed by its size later
            cached = _map_cached(path, descriptor, download_spec.size, digest)
            with cache_lock(folder, self.remote.stall_seconds):  # else neither name may be counted
                if download_spec.sha256 is None:
                    with explain_full_disk(folder, descriptor):
                        record_digest(path, descriptor, digest)
                move_into_place(partial, path, descriptor)
            with suppress(FileNotFoundError):  # the folder was removed
                sync_file(folder)
            return cached
        finally:
            if is_still_at(descriptor, partial):
                partial.unlink(missing_ok=True)
            os.close(descriptor)

    def _make_room(
        self, partial: Path, descriptor: int, size: int, release: ReleaseFn, timeout: float
    ) -> None:
        """Reserve room for a file that is written, evicting unlocked files.

        Raises:
            CacheFullError: If there is no room at the end of the timeout.
        """
        folder, max_bytes = partial.parent, self.remote.cache_bytes
        deadline, has_released = time.monotonic() + timeout, release is None
        while True:
            with cache_lock(folder, self.remote.stall_seconds):
                free = max_bytes - sum(entry.size for entry in list_entries(folder, partial))
                if free < size <= max_bytes:
                    free += evict(folder, size - free, partial)
                if free >= size:
                    allocate(descriptor, size)
                    return
            if size > max_bytes or (has_released and time.monotonic() >= deadline):
                raise CacheFullError(size, max(0, free))
            if release is not None:
                release()
            if has_released:
                time.sleep(POLL_SECONDS)
            has_released = True


def make_cache(files: RemoteFiles) -> FileCache:
    """Return the cache of remote files."""
    return FileCache(files)


class CacheFullError(Exception):
    """A file is larger than the cache, or too many others are being read; callers read otherwise.

    Args:
        needed: Size of the file in bytes.
        free: Bytes of the cache that are free.
    """

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(needed, free)
        self.needed = needed
        self.free = free


def _name_partial(path: Path) -> Path:
    return path.with_name(f"{path.name}{PARTIAL_SUFFIX}")


def _open_cached(
    path: Path, size: int, location: DataLocation, *, is_named: bool
) -> CachedFile | None:
    """Lock and map a file; return None if it is not in the cache, or was written to.

    Args:
        path: The file.
        size: Its expected size in bytes.
        location: Its location, for the log.
        is_named: Whether it is named by its digest: its readers verify what they read.
    """
    descriptor = open_cache_file(path)
    if descriptor is None:
        return None
    try:
        if not (try_lock(descriptor, path, shared=True) and is_still_at(descriptor, path)):
            return None  # it is being removed
        digest = None if is_named else read_digest(path)
        is_valid = os.fstat(descriptor).st_size == size
        if is_valid and digest is not None:
            is_valid = is_intact(descriptor, size, digest)
        if not is_valid:  # it was written to
            log_damage(path, location)
        if not is_valid or (digest is None and not is_named):  # nothing says that it is intact
            path.unlink(missing_ok=True)
            name_digest(path).unlink(missing_ok=True)
            return None
        return _map_cached(path, descriptor, size, digest)
    finally:
        os.close(descriptor)


def _give_up_locked(path: Path, since: float | None, seconds: float) -> float | None:
    """Wait a moment for a file that is locked; after too long, remove its name.

    The process that locked it, to remove it or to rename it into place, was stopped, or has left
    the lock to a child process. The file is then downloaded again.

    Args:
        path: The file.
        since: When it was found locked first; None: not yet.
        seconds: Longest wait.

    Returns:
        When it was found locked first; None if it is not.
    """
    descriptor = open_cache_file(path)
    if descriptor is None:
        return None
    try:
        if try_lock(descriptor, path, shared=True):
            return None
    finally:
        file_lock.unlock_and_close(descriptor)
    now = time.monotonic()
    if since is not None and now - since > seconds:
        path.unlink(missing_ok=True)
        return None
    time.sleep(POLL_SECONDS)
    return since or now


def log_damage(path: Path, location: DataLocation) -> None:
    """Log that a copy is damaged and was dropped."""
    _LOG.warning("%s: its copy in the cache (%s) is damaged and was dropped", location, path)


def _map_cached(path: Path, descriptor: int, size: int, digest: str | None) -> CachedFile:
    """Map an open file, and record its use.

    The lock outlives the descriptor: it belongs to the open file, which the mapping keeps open. The
    time of the last change stays: it tells whether the file was written to.
    """
    try:
        os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))
        mapping = get_kernel().map_file(descriptor, size) if size else b""
        return CachedFile(path, mapping, size, digest)
    except OSError as error:
        raise CacheError.at(
            f"{path}: cannot be mapped ({error.strerror}). Raise {describe_limit(error)}",
            file=str(path),
        ) from error

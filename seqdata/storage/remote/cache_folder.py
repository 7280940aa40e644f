"""The folder of the file cache: its marker, its entries, and eviction.

It is a subfolder of its own in ``Remote(cache_dir=...)``, with a second one for copies of files
that are read by their names (``local_copies``). Only files with names that the cache made
are counted and removed, and a folder of that name that holds other files is refused. The folder may
be removed at any time: its files are then downloaded again.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import CacheError
from seqdata.storage import file_lock
from seqdata.storage.local_files import describe_limit
from seqdata.storage.remote.copy_digests import name_digest

PARTIAL_SUFFIX = ".part"
POLL_SECONDS = 0.02  # seconds
MARKER = "CACHEDIR.TAG"  # by the convention of bford.info/cachedir: backups leave such folders out
_MARKER_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Remote files that seqdata keeps on this machine. The folder may be removed at any time.\n"
)
COPIES = "seqdata-copies"
"""Name of the folder of copies, next to that of the cache."""
_LOCK_FILE = ".lock"
_CACHE_FILE_NAMES = re.compile(r"(u?[0-9a-f]{64}(\.[0-9]+-[0-9]+)?(\.part)?|\.seqdata-.+)")
_DIGEST_NAMES = re.compile(r"\.u[0-9a-f]{64}\.sha256")  # see ``copy_digests``
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_TRIES = 100  # attempts, if the folder is removed while it is created
_LOG = logging.getLogger("seqdata.remote")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file of the cache.

    Attributes:
        path: Its path.
        size: Its bytes.
        last_used: Time of its last use, in nanoseconds.
        is_copied: Whether it has a second name in a folder of copies, which keeps its bytes.
    """

    path: Path
    size: int
    last_used: int
    is_copied: bool = False


def prepare_folder(folder: Path) -> Path:
    """Return the folder of the cache; create and mark it if needed.

    Raises:
        CacheError: If it cannot be created or written to, or holds files that are not the cache's.
    """
    for last in (*[False] * _MAX_TRIES, True):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_marker(folder)
        except (FileNotFoundError, FileExistsError) as error:  # removed in the meantime
            if last:
                raise make_folder_error(folder, error) from error
        except OSError as error:
            raise make_folder_error(folder, error) from error
        else:
            break
    return folder


def list_entries(folder: Path, exclude: Path | None = None) -> list[CacheEntry]:
    """Return the entries of the cache, least recently used first; other files are omitted."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as scanned:
        for entry in scanned:
            if not _CACHE_FILE_NAMES.fullmatch(entry.name) or (
                exclude is not None and entry.name == exclude.name
            ):
                continue
            with suppress(FileNotFoundError):  # renamed or removed in the meantime
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    size, used = status.st_size, status.st_atime_ns
                    found.append(CacheEntry(Path(entry.path), size, used, status.st_nlink > 1))
    return sorted(found, key=lambda entry: entry.last_used)


def evict(folder: Path, needed: int, exclude: Path) -> int:
    """Remove unlocked files until ``needed`` bytes are freed; return the number of bytes freed.

    Partial files go first, then the least recently used ones, then those of copies that nobody
    reads.
    """
    freed = _evict_files(folder, needed, exclude)
    while freed < needed and remove_unused_copies(folder.parent / COPIES):
        freed += _evict_files(folder, needed - freed, exclude)
    return freed


def _evict_files(folder: Path, needed: int, exclude: Path) -> int:
    freed = 0
    for entry in sorted(
        (each for each in list_entries(folder, exclude) if not each.is_copied),
        key=lambda entry: not entry.path.name.endswith(PARTIAL_SUFFIX),
    ):
        if freed >= needed:
            break
        descriptor = open_cache_file(entry.path)
        if descriptor is None:
            continue
        try:
            if try_lock(descriptor, entry.path):
                entry.path.unlink(missing_ok=True)
                name_digest(entry.path).unlink(missing_ok=True)
                freed += entry.size
                _LOG.info("%s: removed from the cache, %d bytes", entry.path, entry.size)
        finally:
            file_lock.unlock_and_close(descriptor)
    return freed


class CopiesLock:
    """A shared lock on a folder of copies, which is not removed as long as this object exists.

    Args:
        descriptor: The open and locked file; closed with this object.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


def lock_copies(folder: Path, *, create: bool = False) -> CopiesLock | None:
    """Return a lock on a folder of copies, and record its use; None if the folder is missing.

    Raises:
        CacheError: If the file system has no locks.
    """
    path = folder / _LOCK_FILE
    descriptor = open_cache_file(path, create=create)
    if descriptor is None:
        return None
    held = CopiesLock(descriptor)
    if not (try_lock(descriptor, path, shared=True) and is_still_at(descriptor, path)):
        return None  # it is being removed
    os.utime(descriptor)
    return held


def remove_unused_copies(parent: Path, exclude: Path | None = None, depth: int = 2) -> bool:
    """Remove the least recently used folder of copies that nobody reads; return whether one was.

    Args:
        parent: The folder of all copies, or that of the versions of one location.
        exclude: A folder that stays.
        depth: Number of folders from the parent to one of copies.
    """
    found = []
    for path in parent.glob(f"{'*/' * depth}{_LOCK_FILE}"):
        with suppress(FileNotFoundError):  # another process removes it
            found.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(found):
        if path.parent == exclude:
            continue
        descriptor = open_cache_file(path)
        if descriptor is None:
            continue
        try:
            if try_lock(descriptor, path) and is_still_at(descriptor, path):
                gone = path.parent.with_name(f".gone-{os.getpid()}-{time.monotonic_ns()}")
                os.rename(path.parent, gone)
                shutil.rmtree(gone, ignore_errors=True)
                _LOG.info("%s: removed from the cache", path.parent)
                return True
        finally:
            file_lock.unlock_and_close(descriptor)
    return False


def open_cache_file(path: Path, *, create: bool = False) -> int | None:
    """Open a file of the cache to read and write; return None if it or the folder is gone.

    Raises:
        CacheError: If it cannot be opened.
    """
    try:
        return os.open(path, _OPEN_FLAGS | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        limit = (
            f"Raise {describe_limit(error)}"
            if error.errno in (errno.EMFILE, errno.ENFILE)
            else ("Check its permissions, or pass Remote(cache_dir=...)")
        )
        raise CacheError.at(
            f"{path}: cannot be opened ({error.strerror}). {limit}", file=str(path)
        ) from error


def try_lock(descriptor: int, path: Path, *, shared: bool = False) -> bool:
    """Try to lock a file of the cache; return whether it was free.

    Raises:
        CacheError: If the file system has no locks: any file could be removed while it is read.
    """
    try:
        return file_lock.lock(descriptor, shared=shared)
    except file_lock.NoLocksError as error:
        raise make_no_locks_error(path.parent, error) from error


def make_no_locks_error(folder: Path, error: file_lock.NoLocksError) -> CacheError:
    """Return the error about a folder on a file system without locks."""
    return CacheError.at(
        f"{folder}: the file system must support flock, so that no file is removed while it is "
        f"read, but has no locks ({error}). Pass Remote(cache_dir=...) with a folder on a disk of "
        "this machine",
        file=str(folder),
    )


def is_still_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has its name."""
    try:
        at_path = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened_file = os.fstat(descriptor)
    return (opened_file.st_ino, opened_file.st_dev) == (at_path.st_ino, at_path.st_dev)


@contextmanager
def cache_lock(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the lock for counting and removing within the block; after a long wait, go without."""
    path = folder / _LOCK_FILE
    descriptor = open_cache_file(path, create=True)
    deadline = time.monotonic() + timeout
    try:
        while descriptor is not None and not try_lock(descriptor, path):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        yield
    finally:
        if descriptor is not None:
            file_lock.unlock_and_close(descriptor)


@contextmanager
def explain_full_disk(folder: Path, descriptor: int) -> Iterator[None]:
    """Turn the error of a full disk, or of the limit on file sizes, into one that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        if error.errno == errno.EFBIG:
            raise _make_limit_error(folder) from error
        disk = os.fstatvfs(descriptor)  # the folder may be gone
        free = disk.f_bavail * disk.f_frsize
        raise CacheError.at(
            f"{folder}: must have room for a shard, but has {free} bytes free "
            f"({os.strerror(error.errno)}). Free some space, pass Remote(cache_dir=...), or read "
            "by ranges: remote='ranges'",
            file=str(folder), free=free,
        ) from error  # fmt: skip


def _make_limit_error(folder: Path) -> CacheError:
    """Return the error about a file that is larger than a process, or the disk, allows."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = (
        "its file system allows. Pass Remote(cache_dir=...) on another disk"
        if most == resource.RLIM_INFINITY
        else f"`ulimit -f` allows (now {most} bytes). Raise it"
    )
    return CacheError.at(
        f"{folder}: a file must not be larger than {limit}, or read by ranges: remote='ranges' "
        f"({os.strerror(errno.EFBIG)})",
        file=str(folder), limit=most,
    )  # fmt: skip


def allocate(descriptor: int, size: int) -> None:
    """Set the size of a file, and allocate its blocks on disk now, if the file system can."""
    os.ftruncate(descriptor, size)
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise


def _write_marker(folder: Path) -> None:
    """Write the marker into a folder of the cache that has none yet.

    Raises:
        CacheError: If it holds files that are not the cache's.
        FileNotFoundError: If it was removed in the meantime.
    """
    marker = folder / MARKER
    marker_text = marker.read_bytes() if marker.is_file() else b""
    if marker_text == _MARKER_TEXT:
        return
    names = sorted(os.listdir(folder))
    others = [
        name
        for name in names
        if name not in (MARKER, _LOCK_FILE)
        and not _CACHE_FILE_NAMES.fullmatch(name)
        and not _DIGEST_NAMES.fullmatch(name)
    ]
    if marker_text:
        others.append(MARKER)
    if others:
        raise CacheError.at(
            f"{folder}: must be empty or a cache of seqdata, but holds {others[0]!r}. Pass "
            "Remote(cache_dir=...), or move these files",
            file=str(folder),
        )
    aside = folder / f".seqdata-tag-{os.getpid()}-{time.monotonic_ns()}"
    try:
        aside.write_bytes(_MARKER_TEXT)
        os.replace(aside, marker)
    finally:
        aside.unlink(missing_ok=True)


def make_folder_error(folder: Path, error: OSError) -> CacheError:
    """Return the error about a folder that cannot be created or written to."""
    return CacheError.at(
        f"{folder}: must be a folder that can be created and written to, but is not "
        f"({error.strerror}). Pass Remote(cache_dir=...)",
        file=str(folder),
    )


def move_into_place(partial: Path, path: Path, descriptor: int) -> None:
    """Rename a downloaded file into place, unless its temporary name or the folder is gone.

    Its lock becomes a shared one after that: the exclusive one ends for a moment then, in which
    another process could get it, and would write to a file that still had its temporary name.
    """
    if is_still_at(descriptor, partial):
        with suppress(FileNotFoundError):
            os.replace(partial, path)
        if not is_still_at(descriptor, path):  # the folder was removed and created again in between
            path.unlink(missing_ok=True)
    for _ in range(_MAX_TRIES):
        if try_lock(descriptor, path, shared=True):  # other processes may open it from here on
            break
        time.sleep(POLL_SECONDS)


def remove_orphan(partial: Path) -> None:
    """Remove a temporary file whose writer is gone: the final file exists."""
    descriptor = open_cache_file(partial)
    if descriptor is None:
        return
    try:
        if try_lock(descriptor, partial) and is_still_at(descriptor, partial):
            partial.unlink(missing_ok=True)
    finally:
        file_lock.unlock_and_close(descriptor)


def lock_partial(partial: Path, path: Path, stall_seconds: float) -> int | None:
    """Return the locked temporary file; None if the final file exists by then.

    Also None if another writer of the temporary file is stuck, or the folder is gone.

    Args:
        partial: Its name.
        path: The file's own name.
        stall_seconds: Seconds without progress after which its writer counts as stuck.
    """
    last_written, since = -1, time.monotonic()
    while True:
        if path.exists():
            return None
        descriptor = open_cache_file(partial, create=True)
        if descriptor is None:  # the folder is gone
            return None
        try:
            is_locked = try_lock(descriptor, partial)
        except CacheError:
            partial.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if is_locked:
            if is_still_at(descriptor, partial):
                return descriptor
            file_lock.unlock_and_close(descriptor)  # it was renamed into place, or removed
            continue
        written = os.fstat(descriptor).st_mtime_ns
        os.close(descriptor)
        if written != last_written:
            last_written, since = written, time.monotonic()
        if time.monotonic() - since > stall_seconds:
            return None
        time.sleep(POLL_SECONDS)

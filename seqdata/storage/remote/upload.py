"""Upload of stores: written on this machine, then uploaded, the manifest or list last.

Object stores promise that a file is there as a whole or not at all, and without its last file there
is no store. Uploaded files are recorded, so that the same call resumes after them. Backends write
to URLs with it, in the core and in plugins.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from seqdata.errors import ConfigError, MissingShardError, RemoteReadError
from seqdata.storage.file_lock import NoLocksError, lock
from seqdata.storage.local_files import write_atomically
from seqdata.storage.remote.cache_folder import (
    is_still_at,
    make_folder_error,
    make_no_locks_error,
)
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import FileStat, WritableFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_writable_files

_LOG_FILE = "sent.json"
_LOCK_FILE = "lock"
_STORE_FOLDER = "store"
_CONCURRENT_FILES = 4  # files


class UploadPlan(Protocol):
    """Writing of stores of one kind, and the files that they have."""

    @property
    def last(self) -> str:
        """Name of the file that is uploaded last."""
        ...

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        """Raise if a location holds other files.

        Args:
            files: The files at the location.
            sent: Names of files that an earlier call has uploaded.
            overwrite: Whether a store of this kind may be replaced.

        Raises:
            ConfigError: If it does.
        """
        ...

    def write(self, folder: Path, *, overwrite: bool) -> object:
        """Write the store to a local folder, or resume an earlier write."""
        ...

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        """Return the sha256 of each file of a written store but the last one, by name.

        In groups: each is uploaded before the next one begins.
        """
        ...

    def old(self, files: WritableFiles) -> Iterable[str]:
        """Return names of files that may belong to an older store."""
        ...


def upload_store(
    location: str, remote: Remote, plan: UploadPlan, *, resume: bool, overwrite: bool
) -> None:
    """Write a store to a URL.

    Args:
        location: The URL of its folder.
        remote: The options for reading and writing.
        plan: How the store is written.
        resume: Whether to resume what an earlier call wrote or uploaded.
        overwrite: Whether an existing store is replaced.

    Raises:
        ConfigError: If a store exists, the URL cannot be written to, or another process writes
            there.
        CacheError: If the folder for writing cannot be created.
        RemoteReadError: If a file cannot be uploaded.
    """
    files = make_writable_files(location, remote)
    digest = hashlib.sha256(files.location.encode()).hexdigest()[:32]
    folder = remote.writing / digest
    plan.check(files, _read_log(folder / _LOG_FILE), overwrite=overwrite)
    with _upload_lock(folder, files.location):
        if not resume:
            shutil.rmtree(folder / _STORE_FOLDER, ignore_errors=True)
            (folder / _LOG_FILE).unlink(missing_ok=True)
        root = folder / _STORE_FOLDER
        plan.write(root, overwrite=(root / plan.last).exists())
        _upload_files(files, root, plan, folder / _LOG_FILE, overwrite=overwrite)
        shutil.rmtree(folder)


@contextmanager
def _upload_lock(folder: Path, location: str) -> Iterator[None]:
    """Hold the lock for writing to a location within the block, on this machine only."""
    path = folder / _LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise make_folder_error(folder, error) from error
    try:
        if not (lock(descriptor) and is_still_at(descriptor, path)):
            raise ConfigError(
                f"{location}: one process at a time must write here, but another one is writing. "
                "Wait for it, or choose another location"
            )
        yield
    except NoLocksError as error:
        raise make_no_locks_error(folder, error) from error
    finally:
        os.close(descriptor)


def _upload_files(
    files: WritableFiles, root: Path, plan: UploadPlan, log_path: Path, *, overwrite: bool
) -> None:
    """Upload missing files, then the last one; remove files of an older store."""
    groups = plan.digests(root)
    digests = {name: digest for group in groups for name, digest in group.items()}
    log = _UploadLog(log_path, _read_log(log_path))
    if overwrite:
        files.remove(plan.last)

    def upload(name: str) -> None:
        if not log.is_uploaded(files, name, digests[name]):
            log.add(name, digests[name], files.upload(name, root / name))

    thread_pool = ForkSafeThreadPool(_CONCURRENT_FILES)
    for group in groups:
        thread_pool.map(upload, group)
    files.create(plan.last, (root / plan.last).read_bytes())
    if overwrite:
        for name in plan.old(files):
            if name not in digests:
                files.remove(name)


@dataclass(slots=True)
class _UploadLog:
    """The uploaded files by name: digest, size and tag."""

    path: Path
    entries: dict[str, list[str | int | None]]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_uploaded(self, files: WritableFiles, name: str, digest: str) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry[0] != digest:
            return False
        try:
            stat = files.stat(name)
        except (MissingShardError, RemoteReadError):
            return False
        return [stat.size, stat.tag] == entry[1:]

    def add(self, name: str, digest: str, stat: FileStat) -> None:
        with self.lock:
            self.entries[name] = [digest, stat.size, stat.tag]
            write_atomically(self.path, json.dumps(self.entries).encode())


def _read_log(path: Path) -> dict[str, list[str | int | None]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # nothing was uploaded
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: entry for name, entry in found.items() if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 3  # digest, size and tag

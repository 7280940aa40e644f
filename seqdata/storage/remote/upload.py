"""Stores sent to remote locations: made whole on this machine, then sent, one file last of all.

Each file is there as a whole or not at all, which object stores promise, and without its last file
there is no store. What was sent is noted, so that the same call goes on after it. This is what
backends write to URLs with, in the core and in plugins.
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
from seqdata.storage.remote.cache_folder import is_still_at, make_no_locks_error
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import FileStat, WritableFiles, make_writable_files

_LOG_FILE = "sent.json"
_LOCK_FILE = "lock"
_STORE_FOLDER = "store"
_CONCURRENT_FILES = 4  # files


class UploadPlan(Protocol):
    """How stores of one kind are made and which files they are."""

    @property
    def last(self) -> str:
        """Name of the file that comes last."""
        ...

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        """Refuse a location that holds something else.

        Args:
            files: Those that are there.
            sent: Names of files that an earlier call has sent.
            overwrite: Whether a store of this kind may be replaced.

        Raises:
            ConfigError: If it does.
        """
        ...

    def write(self, folder: Path, *, overwrite: bool) -> object:
        """Write the store to a local folder, or go on with what is there."""
        ...

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        """Return the sha256 of each file of a written store but the last one, by name.

        In groups, of which each is there before the next one begins.
        """
        ...

    def old(self, files: WritableFiles) -> Iterable[str]:
        """Return names of files that may be an older store's."""
        ...


def upload_store(
    location: str, remote: Remote, plan: UploadPlan, *, resume: bool, overwrite: bool
) -> None:
    """Write a store to a URL.

    Args:
        location: The URL of its folder.
        remote: How it is reached.
        plan: What is written.
        resume: Whether to go on with what an earlier call made or sent.
        overwrite: Whether a store that is there is replaced.

    Raises:
        ConfigError: If a store is there, the URL cannot be written to, or somebody else writes.
        RemoteReadError: If a file cannot be sent.
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
    """Let one process at a time write to a location, as far as this machine can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not (lock(descriptor) and is_still_at(descriptor, path)):
            raise ConfigError(
                f"{location}: another process is writing here, must be one at a time; wait for it "
                "or choose another location"
            )
        yield
    except NoLocksError as error:
        raise make_no_locks_error(folder, error) from error
    finally:
        os.close(descriptor)


def _upload_files(
    files: WritableFiles, root: Path, plan: UploadPlan, log_path: Path, *, overwrite: bool
) -> None:
    """Send every file that is not there yet, then the last; remove what an older store left."""
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
    """What is there already, by name: digest, size and tag."""

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
        found: Mapping[str, list[str | int | None]] = json.loads(path.read_bytes())
    except (OSError, ValueError):  # nothing was sent
        return {}
    return dict(found)

"""Stores sent to remote locations: made whole on this machine, then sent, one file last of all.

Each file is there as a whole or not at all, which object stores promise, and without its last file
there is no store. What was sent is noted, so that the same call goes on after it. This is what
backends write to URLs with, in the core and in plugins. Place in the flow: writers hand URLs on to
this. Reads: a local store. Makes: remote files.
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
from seqdata.storage.remote.cache_folder import is_at, no_locks
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import Stat, WritableFiles, writable_files
from seqdata.storage.writing.staging_dir import write_whole

_SENT = "sent.json"
_LOCK = "lock"
_STORE = "store"
_AT_ONCE = 4  # files


class Form(Protocol):
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
        """Give the sha256 of each file of a written store but the last one, by name.

        In groups, of which each is there before the next one begins.
        """
        ...

    def old(self, files: WritableFiles) -> Iterable[str]:
        """Give names of files that may be an older store's."""
        ...


def send_store(location: str, remote: Remote, form: Form, *, resume: bool, overwrite: bool) -> None:
    """Write a store to a URL.

    Args:
        location: The URL of its folder.
        remote: How it is reached.
        form: What is written.
        resume: Whether to go on with what an earlier call made or sent.
        overwrite: Whether a store that is there is replaced.

    Raises:
        ConfigError: If a store is there, the URL cannot be written to, or somebody else writes.
        RemoteReadError: If a file cannot be sent.
    """
    files = writable_files(location, remote)
    digest = hashlib.sha256(files.location.encode()).hexdigest()[:32]
    folder = remote.writing / digest
    form.check(files, _read(folder / _SENT), overwrite=overwrite)
    with _alone(folder, files.location):
        if not resume:
            shutil.rmtree(folder / _STORE, ignore_errors=True)
            (folder / _SENT).unlink(missing_ok=True)
        root = folder / _STORE
        form.write(root, overwrite=(root / form.last).exists())
        _send(files, root, form, folder / _SENT, overwrite=overwrite)
        shutil.rmtree(folder)


@contextmanager
def _alone(folder: Path, location: str) -> Iterator[None]:
    """Let one process at a time write to a location, as far as this machine can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not (lock(descriptor) and is_at(descriptor, path)):
            raise ConfigError(
                f"{location}: another process is writing here, must be one at a time; wait for it "
                "or choose another location"
            )
        yield
    except NoLocksError as error:
        raise no_locks(folder, error) from error
    finally:
        os.close(descriptor)


def _send(files: WritableFiles, root: Path, form: Form, noted: Path, *, overwrite: bool) -> None:
    """Send every file that is not there yet, then the last; remove what an older store left."""
    groups = form.digests(root)
    digests = {name: digest for group in groups for name, digest in group.items()}
    sent = _Sent(noted, _read(noted))
    if overwrite:
        files.remove(form.last)

    def send(name: str) -> None:
        if not sent.has(files, name, digests[name]):
            sent.add(name, digests[name], files.send(name, root / name))

    fetchers = Fetchers(_AT_ONCE)
    for group in groups:
        fetchers.each(send, group)
    files.create(form.last, (root / form.last).read_bytes())
    if overwrite:
        for name in form.old(files):
            if name not in digests:
                files.remove(name)


@dataclass(slots=True)
class _Sent:
    """What is there already, by name: digest, size and tag."""

    path: Path
    known: dict[str, list[str | int | None]]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, files: WritableFiles, name: str, digest: str) -> bool:
        noted = self.known.get(name)
        if noted is None or noted[0] != digest:
            return False
        try:
            stat = files.stat(name)
        except (MissingShardError, RemoteReadError):
            return False
        return [stat.size, stat.tag] == noted[1:]

    def add(self, name: str, digest: str, stat: Stat) -> None:
        with self.lock:
            self.known[name] = [digest, stat.size, stat.tag]
            write_whole(self.path, json.dumps(self.known).encode())


def _read(path: Path) -> dict[str, list[str | int | None]]:
    try:
        found: Mapping[str, list[str | int | None]] = json.loads(path.read_bytes())
    except (OSError, ValueError):  # nothing was sent
        return {}
    return dict(found)

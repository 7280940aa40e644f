"""Stores written to remote locations: made whole on this machine, then sent, the manifest last.

Each file is there as a whole or not at all, which object stores promise, and without a manifest
there is no store. What was sent is noted, so that the same call goes on after it. Place in the
flow: the writer hands URLs on to this. Reads: a local store. Makes: remote files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seqdata.errors import ConfigError, MissingShardError, RemoteReadError
from seqdata.protocols import Store
from seqdata.storage.manifest import MANIFEST, Manifest
from seqdata.storage.parsing import load_manifest
from seqdata.storage.remote.files import Stat, WritableFiles, writable_files
from seqdata.storage.remote.opening import open_remote
from seqdata.storage.remote.options import Remote, remote_of
from seqdata.storage.remote.pools import Fetchers
from seqdata.storage.writing.commit import OWN_FILES, write_whole

_SENT = "sent.json"
_STORE = "store"
_AT_ONCE = 4  # files


def write_remote(
    location: str | os.PathLike[str],
    remote: str | Remote | None,
    write: Callable[[Path, bool], object],
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    """Write a store to a URL and open it.

    Args:
        location: The URL of its folder.
        remote: How it is reached.
        write: Writes a local store: is given its folder, and whether it is to be replaced.
        resume: Whether to go on with what an earlier call made or sent.
        overwrite: Whether a store that is there is replaced.

    Raises:
        ConfigError: If a store is there, the URL cannot be written to, or somebody else writes.
        RemoteReadError: If a file cannot be sent.
    """
    how = remote_of(remote)
    files = writable_files(os.fspath(location), how)
    if not overwrite:
        _refuse_to_overwrite(files)
    digest = hashlib.sha256(files.location.encode()).hexdigest()[:32]
    folder = how.folder.with_name(f"{how.folder.name}-writing") / digest
    with _alone(folder, files.location):
        if not resume:
            shutil.rmtree(folder / _STORE, ignore_errors=True)
            (folder / _SENT).unlink(missing_ok=True)
        root = folder / _STORE
        write(root, (root / MANIFEST).exists())
        _send(files, root, load_manifest(root), folder / _SENT, overwrite=overwrite)
        shutil.rmtree(folder)
    return open_remote(location, remote=how)


def _refuse_to_overwrite(files: WritableFiles) -> None:
    try:
        files.stat(MANIFEST)
    except MissingShardError:
        return
    raise ConfigError(
        f"{files.location}: holds a store, must be another location; choose one, or pass "
        "`overwrite`=True"
    )


@contextmanager
def _alone(folder: Path, location: str) -> Iterator[None]:
    """Let one process at a time write to a location, as far as this machine can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"{location}: another process is writing here, must be one at a time; wait for it or "
            "choose another location"
        ) from error
    finally:
        os.close(descriptor)


def _send(
    files: WritableFiles, root: Path, manifest: Manifest, noted: Path, *, overwrite: bool
) -> None:
    """Send every file that is not there yet, then the manifest; remove what an older store left."""
    digests = _digests(manifest)
    sent = _Sent(noted, _read(noted))
    if overwrite:
        files.remove(MANIFEST)

    def send(name: str) -> None:
        if not sent.has(files, name, digests[name]):
            sent.add(name, digests[name], files.send(name, root / name))

    Fetchers(_AT_ONCE).each(send, digests)
    files.create(MANIFEST, (root / MANIFEST).read_bytes())
    if overwrite:
        for name in files.names():
            if OWN_FILES.fullmatch(name) and name not in digests:
                files.remove(name)


def _digests(manifest: Manifest) -> dict[str, str]:
    """Give the digest of each file but the manifest, by name."""
    found = {one.file: one.sha256 for one in manifest.lengths.values()}
    for shard in manifest.shards:
        found[shard.file] = shard.sha256
        if shard.checksums is not None:
            found[shard.checksums.file] = shard.checksums.sha256
    return found


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

"""Writing of Arrow stores to remote locations: the manifest is uploaded last."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST, STORE_FILES
from seqdata.storage.arrow.manifest_parser import load_manifest
from seqdata.storage.arrow.open_remote import open_remote
from seqdata.storage.arrow.remote_manifest import file_exists
from seqdata.storage.remote.location import Remote, resolve_remote
from seqdata.storage.remote.transport import WritableFiles
from seqdata.storage.remote.upload import upload_store


def write_remote(
    location: str | os.PathLike[str],
    remote: str | Remote | None,
    write: Callable[[Path, bool], object],
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    """Write a store to a URL and open it; raises as ``upload_store`` does.

    Args:
        location: The URL of its folder.
        remote: The options for reading and writing.
        write: Called as ``write(folder, overwrite)``; writes a local store.
        resume: Whether to resume what an earlier call wrote or uploaded.
        overwrite: Whether an existing store is replaced.
    """
    options = resolve_remote(remote)
    upload_store(
        os.fspath(location), options, _ArrowUpload(write), resume=resume, overwrite=overwrite
    )
    return open_remote(location, remote=options)


@dataclass(frozen=True, slots=True)
class _ArrowUpload:
    """Arrow shards, lengths and a manifest: an ``UploadPlan``."""

    make: Callable[[Path, bool], object]

    @property
    def last(self) -> str:
        return MANIFEST

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        del sent
        if not overwrite and file_exists(files, MANIFEST):
            raise ConfigError(
                f"{files.location}: already contains a store. Choose another location, or pass "
                "`overwrite`=True"
            )

    def write(self, folder: Path, *, overwrite: bool) -> object:
        return self.make(folder, overwrite)

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        manifest = load_manifest(folder)
        found = {
            lengths_file.file: lengths_file.sha256 for lengths_file in manifest.lengths.values()
        }
        for shard in manifest.shards:
            found[shard.file] = shard.sha256
            if shard.checksums is not None:
                found[shard.checksums.file] = shard.checksums.sha256
        return [found]

    def old(self, files: WritableFiles) -> Iterable[str]:
        return [name for name in files.names() if STORE_FILES.names.fullmatch(name)]

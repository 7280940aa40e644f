"""Writing of tar shards to a local folder or to a bucket; their list is uploaded last."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from seqdata import ConfigError, MissingShardError
from seqdata.backends import (
    INDEX_FOLDER,
    MANIFEST,
    SHARD_LIST,
    ProgressFn,
    Remote,
    RemoteFiles,
    RemoteShard,
    ShardStore,
    WritableFiles,
    is_remote,
    load_list,
    local_path,
    make_remote_files,
    refuse_remote,
    resolve_remote,
    upload_store,
)
from seqdata.backends import INDEX_SUFFIX as INDEX
from seqdata_webdataset.indexed_format import SUFFIX
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.writing import is_own, write_local


def write_webdataset(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | ProgressFn | None = None,
    overwrite: bool = False,
    remote: str | Remote | None = None,
) -> ShardStore:
    """Write sequences as tar shards with indexes, and open them; see ``seqdata.write_store``.

    A field ``mel`` is written as ``mel.npy``, integers as ``.cls``, text as ``.txt``, bytes as
    ``.bin``; names with these extensions are kept. Opened again, fields have their own names.

    Args:
        location: A folder, created if needed; or a URL, for which the shards are written on this
            machine first, then uploaded.
        sequences: Dicts, plain arrays, tables; or a list of functions that give such sequences.
        axes: Field -> axis; None: one vector per sequence. Other arrays run along ``time``.
        shard_bytes: Size from which on a shard is closed, in bytes.
        key: The ``str`` field that becomes the key; without one, samples are numbered.
        executor: The executor that indexes and writes shards; None: threads of this process.
        resume: Whether to continue where a writer stopped; otherwise its files are removed.
        progress: Called now and then with (sequences, bytes); True: a bar; None: on a terminal.
        overwrite: Whether existing shards of this writer are replaced.
        remote: The options for a URL; None: the transport's configuration.

    Raises:
        ConfigError: If an argument is invalid, or does not fit the existing files.
        DecodeError: If a sequence does not match the first one, or the one that was written before.
        IncompleteDatasetError: If the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor broke.
    """
    write = partial(
        write_local, sequences=sequences, axes=axes, shard_bytes=shard_bytes, key=key,
        executor=executor, resume=resume, progress=progress,
    )  # fmt: skip
    if not is_remote(location):
        refuse_remote(location, remote)
        write(local_path(location), overwrite=overwrite)
        return open_webdataset(local_path(location))
    url, how = os.fspath(location), resolve_remote(remote)
    upload_store(url, how, _Tar(write), resume=resume, overwrite=overwrite)
    _remove_cached(url, how)
    return open_webdataset(url, remote=how)


class _Write(Protocol):
    def __call__(self, root: Path, *, overwrite: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class _Tar:
    """Tar shards, their indexes and the list of them: an ``UploadPlan`` of the core."""

    make: _Write

    @property
    def last(self) -> str:
        return f"{INDEX_FOLDER}/{SHARD_LIST}"

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        names = _list_names(files)
        if MANIFEST in names:
            raise ConfigError(
                f"{files.location}: already contains a store. Choose another location"
            )
        tars = [name for name in names if name.endswith(SUFFIX)]
        others = [name for name in tars if not is_own(name)]
        unsent = [
            name for name in tars if f"{INDEX_FOLDER}/{name}{INDEX}" not in sent
        ]  # uploaded first
        if others or (unsent and not overwrite):
            advice = "Choose one" if others else "Choose one, or pass `overwrite`=True"
            raise ConfigError(
                f"{files.location}: must be an empty folder, but holds {(others or unsent)[0]!r}. "
                f"{advice}"
            )

    def write(self, folder: Path, *, overwrite: bool) -> None:
        self.make(folder, overwrite=overwrite)

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        listed = load_list((folder / self.last).read_bytes(), str(folder))
        indexes = [f"{INDEX_FOLDER}/{name}{INDEX}" for name in listed]
        return [  # an index without a list means that writing was not finished
            {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in indexes},
            {name: file.sha256 for name, file in listed.items()},
        ]

    def old(self, files: WritableFiles) -> Iterable[str]:
        indexes = _list_names(make_remote_files(files.url(INDEX_FOLDER), files.remote))
        found = [name for name in _list_names(files) if is_own(name)]
        return [
            *found,
            *(f"{INDEX_FOLDER}/{name}" for name in indexes if is_own(name.removesuffix(INDEX))),
        ]


def _list_names(files: RemoteFiles) -> list[str]:
    try:
        return files.names()
    except MissingShardError:  # there is no such folder yet
        return []


def _remove_cached(url: str, remote: Remote) -> None:
    """Remove the cached indexes of older shards from this machine."""
    for name in _list_names(make_remote_files(url, remote)):
        for path in RemoteShard(url, name, remote).list_side_files(name + INDEX):
            path.unlink(missing_ok=True)

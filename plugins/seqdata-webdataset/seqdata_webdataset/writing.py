"""Writing of tar shards that the webdataset library reads, all of them or none.

The core's sharded writer writes shards to a staging directory, each with its index; they are
renamed into place when all are complete, and their indexes after them. In a bucket the list of
shards is uploaded last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seqdata import ConfigError, DecodeError, MissingShardError
from seqdata.backends import (
    FACTS_SUFFIX,
    INDEX_FOLDER,
    MANIFEST,
    SHARD_LIST,
    DataLocation,
    FinishedShard,
    ProgressFn,
    Remote,
    RemoteFiles,
    RemoteShard,
    ResumeKey,
    ShardStore,
    StoreFiles,
    WritableFiles,
    check_unique_ids,
    checksum_algorithm,
    dump_list,
    find_staging_dirs,
    hash_texts,
    infer_fields,
    is_part_list,
    is_remote,
    load_index,
    load_list,
    local_path,
    make_ids,
    make_remote_files,
    normalize_sequences,
    open_sharded_writer,
    open_shuffled,
    refuse_remote,
    resolve_remote,
    sync_file,
    upload_store,
    write_synced,
)
from seqdata.backends import INDEX_SUFFIX as INDEX
from seqdata_webdataset.encoding import number_key
from seqdata_webdataset.indexed_format import SUFFIX, IndexedTar
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.tar_format import TarFile, TarFormat, shard_name

_FILES = StoreFiles(
    f"{INDEX_FOLDER}/{SHARD_LIST}", re.compile(rf"shard-\d{{6,}}{re.escape(SUFFIX)}")
)
FieldsOfExtensions = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


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
    shuffle: int | None = None,
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
        shuffle: The seed of a random order; None: the order given.

    Raises:
        ConfigError: If an argument is invalid, or does not fit the existing files.
        DecodeError: If a sequence does not match the first one, or the one that was written before.
        IncompleteDatasetError: If the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor broke.
    """
    write = partial(
        _write_local, sequences=sequences, axes=axes, shard_bytes=shard_bytes, key=key,
        executor=executor, resume=resume, progress=progress, shuffle=shuffle,
    )  # fmt: skip
    if not is_remote(location):
        refuse_remote(location, remote)
        write(local_path(location), overwrite=overwrite)
        return open_webdataset(local_path(location))
    url, remote_options = os.fspath(location), resolve_remote(remote)
    upload_store(url, remote_options, _Tar(write), resume=resume, overwrite=overwrite)
    _remove_cached(url, remote_options)
    return open_webdataset(url, remote=remote_options)


def _write_local(  # noqa: PLR0913
    root: Path,
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None,
    shard_bytes: int,
    key: str,
    executor: Executor | None,
    resume: bool,
    progress: bool | ProgressFn | None,
    overwrite: bool,
    shuffle: int | None,
) -> None:
    """Write shards to a folder of this machine; see ``write_webdataset``."""
    _check_target(root, overwrite=overwrite)
    rows: Iterator[Any] = iter(())
    if shuffle is None:
        if is_part_list(sequences):
            sequences = itertools.chain.from_iterable(part() for part in sequences)
        rows, axes = normalize_sequences(sequences, axes)
    resume_key = ResumeKey(
        axes=None if axes is None else dict(axes), shard_bytes=shard_bytes, key=key,
        algorithm=checksum_algorithm(), parts=None, format="webdataset", shuffle=shuffle,
    )  # fmt: skip
    with open_sharded_writer(
        root, _FILES, resume_key, executor=executor, progress=progress, total=None,
        overwrite=overwrite, resume=resume,
    ) as writer:  # fmt: skip
        if shuffle is None:
            first = next(rows)
            rows = itertools.chain([first], rows)
        else:
            shuffled = open_shuffled(writer, sequences, axes, seed=shuffle, make_id=number_key)
            first, rows, axes = shuffled.first, shuffled.rows, shuffled.axes
        tar = TarFormat(infer_fields(first, axes), resume_key)
        encoder = tar.make_encoder()
        shards = writer.write_rows(rows, tar)
        if encoder.key is not None:
            _check_keys(writer.folder, shards)
        _commit(root, writer.folder, shards, encoder.fields_of_extensions)


def _check_target(root: Path, *, overwrite: bool) -> None:
    """Raise if a folder holds other files, or shards that must not be replaced."""
    if not root.is_dir():
        return
    if (root / MANIFEST).exists():
        raise ConfigError(f"{root}: already holds a store. Choose another folder")
    tars = sorted(path.name for path in root.glob(f"*{SUFFIX}"))
    others = [name for name in tars if not _is_own(name)]
    begun = (
        find_staging_dirs(root) and not (root / INDEX_FOLDER / SHARD_LIST).exists()
    )  # interrupted in its commit
    if others or (tars and not overwrite and not begun):
        advice = "Choose one" if others else "Choose one, or pass `overwrite`=True"
        raise ConfigError(
            f"{root}: must be an empty folder, but holds {(others or tars)[0]!r}. {advice}"
        )


def _is_own(name: str) -> bool:
    """Return whether a shard has a name of this writer."""
    return _FILES.names.fullmatch(name) is not None


def _check_keys(folder: Path, shards: Sequence[FinishedShard[TarFile]]) -> None:
    """Raise if a key occurs twice; the write cannot be resumed then.

    Raises:
        DecodeError: If it does.
    """
    indexes = []
    for finished in shards:
        path = folder / finished.shard.index
        location = DataLocation(dataset=str(folder), file=path.name)
        indexes.append(load_index(path.read_bytes(), location, IndexedTar()))
    ids = make_ids(str(folder), indexes, [index.shard for index in indexes])
    hashes = np.concatenate([hash_texts(index.keys, index.key_ends) for index in indexes])
    try:
        check_unique_ids(hashes, lambda number: str(ids.take([number])[0]))
    except DecodeError:
        for path in folder.glob(f"*{FACTS_SUFFIX}"):
            path.unlink()
        raise


def _commit(
    root: Path,
    folder: Path,
    shards: Sequence[FinishedShard[TarFile]],
    recorded: FieldsOfExtensions,
) -> None:
    """Rename shards into place, then their indexes and their list; remove older ones first."""
    (root / INDEX_FOLDER).mkdir(exist_ok=True)
    (root / INDEX_FOLDER / SHARD_LIST).unlink(missing_ok=True)
    named = [(shard_name(number), finished.shard) for number, finished in enumerate(shards)]
    listed = [(name, tar.sha256) for name, tar in named]
    write_synced(folder / SHARD_LIST, dump_list(listed, recorded))
    for old in root.glob(f"*{SUFFIX}"):
        (root / INDEX_FOLDER / f"{old.name}.idx").unlink(missing_ok=True)
        old.unlink()
    for name, tar in named:
        os.replace(folder / tar.file, root / name)
    sync_file(root)
    for name, tar in named:
        os.replace(folder / tar.index, root / INDEX_FOLDER / f"{name}.idx")
    os.replace(folder / SHARD_LIST, root / INDEX_FOLDER / SHARD_LIST)
    sync_file(root / INDEX_FOLDER)


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
        others = [name for name in tars if not _is_own(name)]
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
        found = [name for name in _list_names(files) if _is_own(name)]
        return [
            *found,
            *(f"{INDEX_FOLDER}/{name}" for name in indexes if _is_own(name.removesuffix(INDEX))),
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

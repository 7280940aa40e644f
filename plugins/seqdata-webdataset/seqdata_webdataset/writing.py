"""Writing of tar shards that the webdataset library reads, all of them or none.

The core's sharded writer writes shards to a staging directory, each with its index; they are
renamed into place when all are complete, and their indexes after them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from seqdata import ConfigError, DecodeError
from seqdata.backends import (
    FACTS_SUFFIX,
    INDEX_FOLDER,
    MANIFEST,
    SHARD_LIST,
    DataLocation,
    FinishedShard,
    ProgressFn,
    ResumeKey,
    StoreFiles,
    check_unique_ids,
    checksum_algorithm,
    dump_list,
    find_staging_dirs,
    hash_texts,
    infer_fields,
    is_part_list,
    load_index,
    make_ids,
    normalize_sequences,
    open_sharded_writer,
    sync_file,
    write_synced,
)
from seqdata_webdataset.indexed_format import SUFFIX, IndexedTar
from seqdata_webdataset.tar_format import TarFile, TarFormat, shard_name

_FILES = StoreFiles(
    f"{INDEX_FOLDER}/{SHARD_LIST}", re.compile(rf"shard-\d{{6,}}{re.escape(SUFFIX)}")
)
FieldsOfExtensions = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


def write_local(
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
) -> None:
    """Write shards to a folder of this machine; see ``sending.write_webdataset``."""
    _check_target(root, overwrite=overwrite)
    if is_part_list(sequences):
        sequences = itertools.chain.from_iterable(part() for part in sequences)
    rows, axes = normalize_sequences(sequences, axes)
    resume_key = ResumeKey(
        axes=None if axes is None else dict(axes), shard_bytes=shard_bytes, key=key,
        algorithm=checksum_algorithm(), parts=None, format="webdataset",
    )  # fmt: skip
    with open_sharded_writer(
        root, _FILES, resume_key, executor=executor, progress=progress, total=None,
        overwrite=overwrite, resume=resume,
    ) as writer:  # fmt: skip
        first = next(rows)
        tar = TarFormat(infer_fields(first, axes), resume_key)
        encoder = tar.make_encoder()
        shards = writer.write_rows(itertools.chain([first], rows), tar)
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
    others = [name for name in tars if not is_own(name)]
    begun = (
        find_staging_dirs(root) and not (root / INDEX_FOLDER / SHARD_LIST).exists()
    )  # interrupted in its commit
    if others or (tars and not overwrite and not begun):
        advice = "Choose one" if others else "Choose one, or pass `overwrite`=True"
        raise ConfigError(
            f"{root}: must be an empty folder, but holds {(others or tars)[0]!r}. {advice}"
        )


def is_own(name: str) -> bool:
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

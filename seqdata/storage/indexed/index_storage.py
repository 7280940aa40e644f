"""Where index files are kept: beside the shards, or in the user's cache."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.files import read_small_file
from seqdata.storage.indexed.shard_index import Kind, ShardIndex, dump_index, load_index
from seqdata.storage.local_files import sync_file

INDEX_FOLDER = "seqdata-index"
"""The folder of index files, beside the shards."""
INDEX_SUFFIX = ".idx"


def cache_folder() -> Path:
    """Return folder for what cannot be kept beside the data: ``SEQDATA_CACHE``, or the user's."""
    wanted = os.environ.get("SEQDATA_CACHE") or "~/.cache/seqdata"
    return Path(wanted).expanduser()


def index_files(file: Path, root: Path | None = None) -> tuple[Path, Path]:
    """Return where the index of a file may be: next to it, and in the cache.

    Args:
        file: The file.
        root: The folder that the data set is opened by; None: the file's.
    """
    folder = file.parent if root is None else root
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    name = file.relative_to(folder).as_posix() + INDEX_SUFFIX
    return folder / INDEX_FOLDER / name, cache_folder() / "index" / digest / name


def find_index(file: Path, root: Path | None = None) -> Path | None:
    """Return the index file of a file; None: there is none."""
    return next((path for path in index_files(file, root) if path.is_file()), None)


def locate_index(dataset: str, number: int, path: Path) -> DataLocation:
    """Return the place of an index file, for an error."""
    return DataLocation(
        dataset=dataset, shard=number, file=path.name, file_kind=f"index of shard {number}"
    )


def read_index(dataset: str, number: int, path: Path, kind: Kind | None = None) -> ShardIndex:
    """Return what an index file holds, of whatever kind; raises as ``load_index``."""
    place = locate_index(dataset, number, path)
    return load_index(read_small_file(path, place), place, kind)


def write_index(file: Path, index: ShardIndex, root: Path | None = None) -> Path:
    """Keep an index next to its file, or in the cache where nothing can be written there.

    Raises:
        ConfigError: If it can be kept nowhere.
    """
    beside, cached = index_files(file, root)
    content = dump_index(index)
    try:
        return put_file(beside, content)
    except OSError:  # the folder is somebody else's, or full
        try:
            return put_file(cached, content)
        except OSError as error:
            raise ConfigError(
                f"{file}: its index can be kept neither in {beside.parent} nor in "
                f"{cached.parent} ({error.strerror}), must be in one of them; set SEQDATA_CACHE to "
                "a folder that can be written"
            ) from error


def put_file(path: Path, content: bytes) -> Path:
    """Write a file that is there as a whole or not at all, flushed to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".seqdata-tmp-{uuid.uuid4().hex}")
    try:
        aside.write_bytes(content)
        sync_file(aside)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_file(path.parent)
    return path

"""Storage of index files: next to the data, or in the user's cache."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.files import read_small_file
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex, dump_index, load_index
from seqdata.storage.local_files import write_atomically

INDEX_FOLDER = "seqdata-index"
"""The folder of index files, next to the data."""
INDEX_SUFFIX = ".idx"
_CLOCK_STEP = 2 * 10**9  # nanoseconds: the coarsest times that file systems record


def cache_folder() -> Path:
    """Return the folder for indexes outside of the data: ``SEQDATA_CACHE``, or the user's cache."""
    folder = os.environ.get("SEQDATA_CACHE") or "~/.cache/seqdata"
    return Path(folder).expanduser()


def index_files(file: Path, root: Path | None = None) -> tuple[Path, Path]:
    """Return the possible paths of the index of a file: next to it, and in the cache.

    Args:
        file: The file.
        root: The folder of the data set; None: the file's folder.
    """
    folder = file.parent if root is None else root
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    name = file.relative_to(folder).as_posix() + INDEX_SUFFIX
    return folder / INDEX_FOLDER / name, cache_folder() / "index" / digest / name


def find_index(file: Path, root: Path | None = None) -> Path | None:
    """Return the path of the index of a file, the newer of two; None if there is none."""
    return next(iter(list_indexes(file, root)), None)


def list_indexes(file: Path, root: Path | None = None) -> list[Path]:
    """Return the paths of the indexes of a file, the newest first."""
    found = [path for path in index_files(file, root) if path.is_file()]
    return sorted(found, key=lambda path: -path.stat().st_mtime_ns)


def locate_index(dataset: str, number: int, path: Path) -> DataLocation:
    """Return the location of an index file, for an error."""
    return DataLocation(
        dataset=dataset, shard=number, file=path.name, file_kind=f"index of shard {number}"
    )


def read_index(
    dataset: str, number: int, path: Path, file_format: FormatIdentity | None = None
) -> ShardIndex:
    """Return the index in a file, of any format; raise as ``load_index`` does."""
    place = locate_index(dataset, number, path)
    return load_index(read_small_file(path, place), place, file_format)


def write_index(file: Path, index: ShardIndex, root: Path | None = None) -> Path:
    """Write an index next to its file, or to the cache if that is not writable; it is the newest.

    Raises:
        ConfigError: If no folder is writable.
    """
    beside, cached = index_files(file, root)
    content = dump_index(index)
    try:
        return _make_newest(put_file(beside, content), cached)
    except OSError:  # the folder is not writable, or the disk is full
        try:
            return _make_newest(put_file(cached, content), beside)
        except OSError as error:
            raise ConfigError(
                f"{file}: its index must be written to {beside.parent} or {cached.parent}, but "
                f"neither is writable ({error.strerror}). Set SEQDATA_CACHE to a writable folder"
            ) from error


def _make_newest(path: Path, other: Path) -> Path:
    """Return an index that was just written, later than the other one, whatever clocks say."""
    with suppress(OSError):  # there is no other
        least = other.stat().st_mtime_ns + _CLOCK_STEP
        if path.stat().st_mtime_ns < least:
            os.utime(path, ns=(least, least))
    return path


def put_file(path: Path, content: bytes) -> Path:
    """Write a file atomically, flushed to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path

"""Reading of local files of a data set.

Every local file is read through this module.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, MissingShardError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.limits import raise_limit_error
from seqdata.storage.local_files import describe_limit, make_unreadable_error

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never waits for a pipe's writer
_SMALL = 1 << 20
MAX_SMALL = 1 << 30
"""Maximum bytes of an index or of a list of shards, which are read as a whole."""


def map_shard(path: Path, place: DataLocation, *, ahead: bool = False) -> NDArray[np.uint8]:
    """Return the bytes of a file, uint8, mapped for reading.

    Args:
        path: The shard.
        place: Its place, for errors.
        ahead: Whether to read it into memory ahead.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    with open_file(path, place) as (descriptor, size):
        try:
            mapping = get_kernel().map_file(descriptor, size) if size else b""
        except OSError as error:
            raise place.make_error(
                DataError,
                f"cannot be mapped ({error.strerror}). Raise {describe_limit(error)}",
            ) from error
    if ahead and size:
        get_kernel().populate(mapping, 0, size)
    return np.frombuffer(mapping, dtype=np.uint8)


def read_or_map(path: Path, place: DataLocation) -> NDArray[np.uint8]:
    """Return the bytes of a file: read if it is small, which is faster, otherwise mapped.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    with open_file(path, place) as (descriptor, size):
        if size <= _SMALL:
            return np.frombuffer(os.pread(descriptor, size, 0), dtype=np.uint8)
    return map_shard(path, place, ahead=True)


def read_small_file(path: Path, place: DataLocation) -> bytes:
    """Return the bytes of a small file.

    Args:
        path: The file.
        place: Its place, for errors.

    Raises:
        DataError: If it cannot be read.
        LimitError: If it has more than ``MAX_SMALL`` bytes.
    """
    try:
        check_small(path.stat().st_size, place)
        return path.read_bytes()
    except OSError as error:
        raise make_unreadable_error(place, error) from error


def check_small(size: int, place: DataLocation) -> None:
    """Raise if a file is too large to be read as a whole.

    Raises:
        LimitError: If it has more than ``MAX_SMALL`` bytes.
    """
    if size > MAX_SMALL:
        raise_limit_error(place, f"has {size} bytes", f"have at most {MAX_SMALL}", size, MAX_SMALL)


def list_folder(folder: Path) -> list[str]:
    """Return the names in a folder, sorted.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise make_unreadable_error(DataLocation(dataset=str(folder)), error) from error


class FolderListings:
    """The names in folders; each folder is listed once, however many files are asked for."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str] | None] = {}

    def lacks(self, path: str) -> bool:
        """Return whether a file is not there; False where its folder cannot be listed."""
        folder, _, name = path.rpartition("/")
        if folder not in self._names:
            self._names[folder] = _list_names(folder or ("/" if path.startswith("/") else "."))
        names = self._names[folder]
        return names is not None and name not in names


def _list_names(folder: str) -> frozenset[str] | None:
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError:
        return None


def check_exists(path: Path, place: DataLocation) -> None:
    """Raise if a file is not there.

    Raises:
        MissingShardError: If it is not.
        OSError: If it cannot be looked at.
    """
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise _make_missing_error(place) from error


def join_names(names: tuple[str, ...]) -> str:
    """Return names for a message: ``'.a' or '.b'``."""
    return " or ".join(map(repr, names))


def _make_missing_error(place: DataLocation) -> MissingShardError:
    return place.make_error(MissingShardError, "is not there. Restore it, or check the location")


@contextmanager
def open_file(path: Path, place: DataLocation) -> Iterator[tuple[int, int]]:
    """Open an ordinary file for reading: yield (descriptor, size) and close it at the end.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError as error:
        raise _make_missing_error(place) from error
    except OSError as error:
        raise make_unreadable_error(place, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise place.make_error(
                DataError, "must be an ordinary file, but is not. Check the location"
            )
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)

"""The files of a data set: their sizes and bytes, wherever they lie.

All that is read of a local file goes through here.
"""

from __future__ import annotations

import errno
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
from seqdata.storage.local_files import describe_limit

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never waits for a pipe's writer
_SMALL = 1 << 20
MAX_SMALL = 1 << 30
"""Bytes of an index, or of the list of a folder's shards: these are read as a whole."""


def map_shard(path: Path, place: DataLocation, *, ahead: bool = False) -> NDArray[np.uint8]:
    """Return the bytes of a shard, uint8, mapped for reading.

    Args:
        path: The shard.
        place: Its place, for errors.
        ahead: Whether all of it will be read soon.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is no ordinary file.
    """
    with open_file(path, place) as (descriptor, size):
        try:
            mapping = get_kernel().map_file(descriptor, size) if size else b""
        except OSError as error:
            raise place.make_error(
                DataError,
                f"cannot be mapped ({error.strerror}), must be; raise {describe_limit(error)}",
            ) from error
    if ahead and size:
        get_kernel().populate(mapping, 0, size)
    return np.frombuffer(mapping, dtype=np.uint8)


def read_or_map(path: Path, place: DataLocation) -> NDArray[np.uint8]:
    """Return the bytes of a file: read where it is small, which is faster, else mapped.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is no ordinary file.
    """
    with open_file(path, place) as (descriptor, size):
        if size <= _SMALL:
            return np.frombuffer(os.pread(descriptor, size, 0), dtype=np.uint8)
    return map_shard(path, place, ahead=True)


def read_small_file(path: Path, place: DataLocation) -> bytes:
    """Give the bytes of a small file.

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
        raise _unreadable(place, error) from error


def check_small(size: int, place: DataLocation) -> None:
    """Refuse a file that is read as a whole and is too large for that.

    Raises:
        LimitError: If it has more than ``MAX_SMALL`` bytes.
    """
    if size > MAX_SMALL:
        raise_limit_error(place, f"has {size} bytes", f"have at most {MAX_SMALL}", size, MAX_SMALL)


def list_folder(folder: Path) -> list[str]:
    """Return the names in a folder, in order.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise _unreadable(DataLocation(dataset=str(folder)), error) from error


def check_exists(path: Path, place: DataLocation) -> None:
    """Refuse a file that is not there.

    Raises:
        MissingShardError: If it is not.
        OSError: If it cannot be looked at.
    """
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise _missing(place) from error


def join_names(names: tuple[str, ...]) -> str:
    """Return names as they stand in a message: ``'.a' or '.b'``."""
    return " or ".join(map(repr, names))


def _missing(place: DataLocation) -> MissingShardError:
    return place.make_error(
        MissingShardError, "is not there, must be; restore it or check the location"
    )


def _unreadable(place: DataLocation, error: OSError) -> DataError:
    few = error.errno in (errno.EMFILE, errno.ENFILE)
    remedy = f"raise {describe_limit(error)}" if few else "check its rights"
    return place.make_error(
        DataError, f"cannot be opened ({error.strerror}), must be readable; {remedy}"
    )


@contextmanager
def open_file(path: Path, place: DataLocation) -> Iterator[tuple[int, int]]:
    """Open an ordinary file for reading: yields (descriptor, bytes) and closes it at the end.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it cannot be read, or is no ordinary file.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError as error:
        raise _missing(place) from error
    except OSError as error:
        raise _unreadable(place, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise place.make_error(
                DataError, "is no ordinary file, must be one; check the location"
            )
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)

"""Local paths of stores, and reading of their files without trusting names.

Every local file of a dataset is read through this module. A mapped file may be truncated while it
is read; that is detected by a system call, because touching a truncated page kills the process
(SIGBUS).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, FingerprintMismatch, MissingShardError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.limits import raise_limit_error

URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_MAX_SHOWN_CHARS = 100  # characters of a location
_PATH_ERRORS = {
    errno.ELOOP: "must lead to a file or folder, but its links lead back to itself",
    errno.ENAMETOOLONG: (
        "must have a name that this file system allows, but has one that is too long"
    ),
    errno.EACCES: "must be in folders that may be entered, but there is no permission",
    errno.EPERM: "must be in folders that may be entered, but there is no permission",
}
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never waits for a pipe's writer

_READ_BYTES = 16 << 20  # bytes
_MAX_STEM = 200  # characters of a temporary name that are those of the file


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL of another machine, or of ``memory://``."""
    text = os.fspath(location)
    found = URL.match(text) if isinstance(text, str) else None
    return found is not None and found["scheme"].lower() != "file"


def refuse_remote(location: str | os.PathLike[str], remote: object) -> None:
    """Raise if options for URLs are given for a local path.

    Raises:
        ConfigError: If they are.
    """
    if remote is not None:
        raise ConfigError(
            f"{os.fspath(location)}: `remote` must be left out for a local path, but is given. It "
            "is for URLs only"
        )


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a local location: a path, or a ``file://`` URL.

    It means the same after ``chdir``, and in a worker process.

    Raises:
        ConfigError: If the location is on another machine, or cannot be the path of a file.

    Examples:
        >>> local_path("file:///data/my%20store").as_posix()
        '/data/my store'
    """
    text = os.fspath(location)
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"location must be a non-empty string or a path, but is {text!r}. Pass a folder"
        )
    scheme, separator, _ = text.partition("://")
    if not separator:
        return _check_path(text, text)
    url = urlsplit(text)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        shown = f"{scheme}://{url.netloc.rpartition('@')[2]}{url.path}"  # without secrets
        raise ConfigError(
            f"location must be a local path or a file:// URL, but {shown!r} is remote ({scheme}). "
            "Use a local path, and copy the files from or to the remote location"
        )
    return _check_path(unquote(url.path), text)


def _check_path(path: str, location: str) -> Path:
    """Return an absolute path after checking that it can name a file.

    Raises:
        ConfigError: If it cannot, or its folder cannot be accessed.
    """
    try:
        found = Path(path)
        found = found.absolute() if path != location else found.expanduser().absolute()
        os.stat(found)
    except (FileNotFoundError, NotADirectoryError):  # it may be written; a reader reports it
        return found
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"location {location!a} must be a path in the encoding of this locale, "
            f"{error.encoding}, but has {error.object[error.start : error.end]!a:.50}. Set one of "
            "UTF-8, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        ) from error
    except ValueError:
        problem = "must be a path, but holds a NUL character"
    except RuntimeError as error:  # of expanduser
        problem = f"must be a path, but begins with '~' of an unknown user ({error})"
    except OSError as error:
        problem = _PATH_ERRORS.get(error.errno or 0, "")
        if not problem:
            return found
    else:
        return found
    shown = repr(
        location if len(location) <= _MAX_SHOWN_CHARS else f"{location[:_MAX_SHOWN_CHARS]}…"
    )
    raise ConfigError(f"location {shown} {problem}. Check the path")


def check_fingerprint(location: DataLocation, found: str, expected: str) -> None:
    """Raise if a dataset changed since it was opened first.

    Args:
        location: The dataset, for the message.
        found: The fingerprint now.
        expected: The fingerprint when it was opened first.

    Raises:
        FingerprintMismatch: If they differ.
    """
    if found != expected:
        raise location.make_error(
            FingerprintMismatch,
            f"must be the data that was opened (fingerprint {expected[:16]}), but is other data "
            f"({found[:16]}): it was changed or written again since then. Open it again, or "
            "restore it",
            expected=expected, found=found,
        )  # fmt: skip


def is_plain_name(name: str) -> bool:
    """Return whether a file name stays inside its folder on any system."""
    return _PLAIN_NAME.fullmatch(name) is not None


@contextmanager
def open_inside(root: Path, name: str, file_kind: str | DataLocation) -> Iterator[tuple[int, int]]:
    """Open a file of a store for reading: yield (descriptor, size) and close it at the end.

    Args:
        root: The store's folder.
        name: A plain file name. A link is followed if it stays inside of the folder.
        file_kind: The role of the file for messages, such as ``manifest``; or its location.

    Raises:
        MissingShardError: If it does not exist, or is a link to nothing.
        DataError: If it leads outside of the folder, cannot be opened, or is not an ordinary file.
    """
    path = os.path.join(root, name)
    location = (
        DataLocation(dataset=str(root), file=name, file_kind=file_kind)
        if isinstance(file_kind, str)
        else file_kind
    )
    try:
        descriptor = os.open(path, _OPEN_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise location.make_error(
            MissingShardError,
            "is missing. Restore it, or write the store again",
        ) from error
    except OSError as error:
        if not os.path.islink(path):
            raise make_unreadable_error(location, error) from error
        descriptor = _open_link(root, name, location)
    try:
        yield descriptor, _measure(descriptor, location, "Write the store again")
    finally:
        os.close(descriptor)


def _measure(descriptor: int, location: DataLocation, remedy: str) -> int:
    """Return the size of an open file.

    Raises:
        DataError: If it is not an ordinary file.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise location.make_error(DataError, f"must be an ordinary file, but is not. {remedy}")
    return status.st_size


def make_unreadable_error(location: DataLocation, error: OSError) -> DataError:
    """Return the error of a file or folder that cannot be opened."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = f"Raise {describe_limit(error)}"
    elif error.errno in (errno.EACCES, errno.EPERM):
        remedy = "Check its permissions"
    else:
        remedy = "Check the path and its disk"
    return location.make_error(
        DataError, f"must be readable, but cannot be opened ({error.strerror}). {remedy}"
    )


def describe_limit(error: OSError, needed: int = 1) -> str:
    """Return the system limit that an open or mmap ran into, with its current value.

    Args:
        error: The error of the call.
        needed: Descriptors that were needed, if those of the process are used up.
    """
    import resource

    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        opened = _count_descriptors(limit)
        return (
            f"`ulimit -n` (now {limit}) to at least {max(limit + 1, opened + needed)}: {opened} "
            f"descriptors are open, and {needed} more {'is' if needed == 1 else 'are'} needed"
        )
    if error.errno == errno.ENFILE:
        return f"`sysctl fs.file-max`{_describe_sysctl('fs/file-max')}"
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    memory = "" if most == resource.RLIM_INFINITY else f", or `ulimit -v` (now {most >> 10})"
    return f"`sysctl vm.max_map_count`{_describe_sysctl('vm/max_map_count')}{memory}"


def _count_descriptors(limit: int) -> int:
    """Return the open descriptors of this process, or ``limit`` if none is left to list them."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # without that of the listing
    except OSError:
        return limit


def _describe_sysctl(name: str) -> str:
    try:
        return f" (now {Path('/proc/sys', name).read_text().strip()})"
    except OSError:  # not Linux, or no descriptor left to read it with
        return ""


def _open_link(root: Path, name: str, location: DataLocation) -> int:
    try:
        target: Path | None = (root / name).resolve()
    except (RuntimeError, OSError):  # a loop, before Python 3.13
        target = None
    if target is None or target.is_symlink():  # a loop, since Python 3.13
        raise location.make_error(
            DataError, "must lead to a file, but is a link to itself. Restore it"
        )
    if not target.is_relative_to(root.resolve()):
        raise location.make_error(
            DataError,
            "must stay inside the folder, but is a link out of it. Put the file itself there",
        )
    try:
        return os.open(target, _OPEN_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise location.make_error(
            MissingShardError, "must lead to a file, but is a link to nothing. Restore it"
        ) from error
    except OSError as error:
        raise make_unreadable_error(location, error) from error


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; at the end of the block it is flushed and moved to its path.

    If anything fails, a file that was there before stays, and nothing else does. A device or pipe
    is written as it is.

    Raises:
        OSError: If it cannot be written; it names the path.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            yield device
        return
    temporary = path.with_name(f"{path.name[:_MAX_STEM]}.{uuid.uuid4().hex}.new")
    try:
        file = open(temporary, "wb")  # noqa: SIM115, closed in both ways
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):  # what is buffered cannot be written either
                file.close()
            raise
        file.close()
        os.replace(temporary, path)
        sync_file(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a failed write names none
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, flushed to the disk.

    Raises:
        OSError: If it cannot be written; it names the path, and no part of the file stays.
    """
    with open_atomically(path) as file:
        file.write(content)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file into a folder that is not complete yet, flushed to the disk."""
    path.write_bytes(content)
    sync_file(path)


def sync_file(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_file(path: Path) -> str:
    """Return the sha256 of a file, read in large pieces, so that other threads are not blocked."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(min(_READ_BYTES, path.stat().st_size)))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


def has_digest(path: Path, size: int, digest: str) -> bool:
    """Return whether a file exists, and has this size and SHA-256."""
    return path.is_file() and path.stat().st_size == size and digest_file(path) == digest


def are_readable(*arrays: NDArray[np.generic]) -> bool:
    """Return whether arrays can be read to their ends; False if that cannot be known.

    A system call on memory of a truncated file fails; it does not kill the process.

    Args:
        arrays: Over mapped files or owned memory, each without gaps.
    """
    try:
        read_end, write_end = os.pipe()
    except OSError:  # no descriptors are left
        return False
    try:
        for array in arrays:
            if array.nbytes:
                last_byte = memoryview(array.data).cast("B")[-1:]  # the end is cut off first
                os.write(write_end, last_byte)
    except OSError:
        return False
    finally:
        os.close(read_end)
        os.close(write_end)
    return True


_SMALL = 1 << 20
MAX_SMALL = 1 << 30
"""Maximum bytes of an index or of a list of shards, which are read as a whole."""


def map_opened(descriptor: int, size: int, location: DataLocation, remedy: str = "") -> Any:
    """Return the bytes of an open file, mapped.

    Args:
        descriptor: The file.
        size: Its size in bytes.
        location: Location of the file, for errors.
        remedy: Alternative to raising the limit that was reached; begins with ", or".

    Raises:
        DataError: If it cannot be mapped.
    """
    try:
        return get_kernel().map_file(descriptor, size) if size else b""
    except OSError as error:
        is_limit = error.errno in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
        advice = (
            f"Raise {describe_limit(error)}{remedy}"
            if is_limit
            else "Copy the file to a disk that supports memory mapping"
        )
        raise location.make_error(
            DataError, f"must be mapped into memory, but cannot be ({error.strerror}). {advice}"
        ) from error


def map_shard(path: Path, location: DataLocation, *, ahead: bool = False) -> NDArray[np.uint8]:
    """Return the bytes of a file, uint8, mapped for reading.

    Args:
        path: The shard.
        location: Location of the file, for errors.
        ahead: Whether to read it into memory ahead.

    Raises:
        MissingShardError: If it does not exist.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    with open_file(path, location) as (descriptor, size):
        mapping = map_opened(descriptor, size, location)
    if ahead and size:
        get_kernel().populate(mapping, 0, size)
    return np.frombuffer(mapping, dtype=np.uint8)


def read_or_map(path: Path, location: DataLocation) -> NDArray[np.uint8]:
    """Return the bytes of a file: read if it is small, which is faster, otherwise mapped.

    Raises:
        MissingShardError: If it does not exist.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    with open_file(path, location) as (descriptor, size):
        if size <= _SMALL:
            return np.frombuffer(os.pread(descriptor, size, 0), dtype=np.uint8)
    return map_shard(path, location, ahead=True)


def read_small_file(path: Path, location: DataLocation) -> bytes:
    """Return the bytes of a small file.

    Args:
        path: The file.
        location: Location of the file, for errors.

    Raises:
        DataError: If it cannot be read.
        LimitError: If it has more than ``MAX_SMALL`` bytes.
    """
    try:
        check_small(path.stat().st_size, location)
        return path.read_bytes()
    except OSError as error:
        raise make_unreadable_error(location, error) from error


def check_small(size: int, location: DataLocation) -> None:
    """Raise if a file is too large to be read as a whole.

    Raises:
        LimitError: If it has more than ``MAX_SMALL`` bytes.
    """
    if size > MAX_SMALL:
        raise_limit_error(
            location, f"has {size} bytes", f"have at most {MAX_SMALL}", size, MAX_SMALL
        )


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
        """Return whether a file is missing; False if its folder cannot be listed."""
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


def check_exists(path: Path, location: DataLocation) -> None:
    """Raise if a file does not exist.

    Raises:
        MissingShardError: If the file does not exist.
        OSError: If it cannot be accessed.
    """
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise _make_missing_error(location) from error


def join_names(names: tuple[str, ...]) -> str:
    """Return names for a message: ``'.a' or '.b'``."""
    return " or ".join(map(repr, names))


def _make_missing_error(location: DataLocation) -> MissingShardError:
    return location.make_error(MissingShardError, "is not there. Restore it, or check the location")


@contextmanager
def open_file(path: Path, location: DataLocation) -> Iterator[tuple[int, int]]:
    """Open an ordinary file for reading: yield (descriptor, size) and close it at the end.

    Raises:
        MissingShardError: If it does not exist.
        DataError: If it cannot be read, or is not an ordinary file.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError as error:
        raise _make_missing_error(location) from error
    except OSError as error:
        raise make_unreadable_error(location, error) from error
    try:
        yield descriptor, _measure(descriptor, location, "Check the location")
    finally:
        os.close(descriptor)

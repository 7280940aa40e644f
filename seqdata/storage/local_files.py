"""Where a store lies, and how its files are opened without trusting their names."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from seqdata.errors import ConfigError, DataError, FingerprintMismatch, MissingShardError
from seqdata.storage.data_location import DataLocation

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_MAX_SHOWN_CHARS = 100  # characters of a location
_PATH_ERRORS = {
    errno.ELOOP: "leads to itself by its links, must lead to a file or folder",
    errno.ENAMETOOLONG: "has a name that is too long, must be one of this file system",
    errno.EACCES: "cannot be looked at (no permission), must be in folders that may be entered",
    errno.EPERM: "cannot be looked at (no permission), must be in folders that may be entered",
}
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never waits for a pipe's writer

_READ_BYTES = 16 << 20  # bytes


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a local location: a path, or a ``file://`` URL.

    It means the same after ``chdir``, and in a worker process.

    Raises:
        ConfigError: If the location is of another machine, or cannot be the path of a file.

    Examples:
        >>> local_path("file:///data/my%20store").as_posix()
        '/data/my store'
    """
    text = os.fspath(location)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"store: location is {text!r}, must be a path; give a folder")
    scheme, separator, _ = text.partition("://")
    if not separator:
        return _check_path(text, text)
    url = urlsplit(text)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        raise ConfigError(
            f"store: location {text!r} is remote ({scheme}), must be a local path or a file:// "
            "URL; copy it to a local folder first"
        )
    return _check_path(unquote(url.path), text)


def _check_path(path: str, location: str) -> Path:
    """Return an absolute path that may be a file's.

    Raises:
        ConfigError: If it cannot be, or if it cannot be looked at what is there.
    """
    try:
        found = Path(path)
        found = found.absolute() if path != location else found.expanduser().absolute()
        os.stat(found)
    except (FileNotFoundError, NotADirectoryError):  # it may be written; who reads it says so
        return found
    except ValueError:
        problem = "holds a NUL character, must be a path"
    except RuntimeError as error:  # of expanduser
        problem = f"begins with '~' of nobody ({error}), must be a path"
    except OSError as error:
        problem = _PATH_ERRORS.get(error.errno or 0, "")
        if not problem:
            return found
    else:
        return found
    shown = repr(
        location if len(location) <= _MAX_SHOWN_CHARS else f"{location[:_MAX_SHOWN_CHARS]}…"
    )
    raise ConfigError(f"store: location {shown} {problem}; check the path")


def check_fingerprint(location: DataLocation, found: str, expected: str) -> None:
    """Raise if a data set that is opened again is not the one that was opened first.

    Args:
        location: Of the data set.
        found: Its fingerprint now.
        expected: The one that it had.

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
    """Return whether a file name stays inside its folder, whatever reads it."""
    return _PLAIN_NAME.fullmatch(name) is not None


@contextmanager
def open_inside(root: Path, name: str, file_kind: str | DataLocation) -> Iterator[tuple[int, int]]:
    """Open a file of a store for reading: gives (descriptor, bytes) and closes it at the end.

    Args:
        root: The store's folder.
        name: A plain file name. A link is followed where it stays inside of the folder.
        file_kind: What the file is, for messages: ``manifest``; or its place.

    Raises:
        MissingShardError: If it is not there.
        DataError: If it leads outside of the folder, or is no ordinary file.
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
            "is not there, must be as the manifest names it; restore it or write the store again",
        ) from error
    except OSError as error:
        if not os.path.islink(path):
            remedy = (
                f"raise {describe_limit(error)}"
                if _is_descriptor_limit(error)
                else "check its rights"
            )
            raise location.make_error(
                DataError, f"cannot be opened ({error.strerror}), must be readable; {remedy}"
            ) from error
        descriptor = _open_link(root, name, location)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise location.make_error(
                DataError, "is no ordinary file, must be one; write the store again"
            )
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def describe_limit(error: OSError) -> str:
    """Name the limit that a file could not be opened or mapped for, with its present value."""
    import resource

    if error.errno == errno.EMFILE:
        return f"`ulimit -n` (now {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
    if error.errno == errno.ENFILE:
        return f"`sysctl fs.file-max`{_describe_sysctl('fs/file-max')}"
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    memory = "" if most == resource.RLIM_INFINITY else f", or `ulimit -v` (now {most >> 10})"
    return f"`sysctl vm.max_map_count`{_describe_sysctl('vm/max_map_count')}{memory}"


def _is_descriptor_limit(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def _describe_sysctl(name: str) -> str:
    try:
        return f" (now {Path('/proc/sys', name).read_text().strip()})"
    except OSError:  # no Linux, or no descriptor left to ask with
        return ""


def _open_link(root: Path, name: str, location: DataLocation) -> int:
    try:
        target = (root / name).resolve()
    except (RuntimeError, OSError) as error:  # until Python 3.12, and from then on
        raise location.make_error(
            DataError, "is a link that leads to itself, must lead to a file; restore it"
        ) from error
    if not target.is_relative_to(root.resolve()):
        raise location.make_error(
            DataError,
            "is a link out of the folder, must stay inside of it; put the file itself there",
        )
    try:
        return os.open(target, _OPEN_FLAGS | os.O_NOFOLLOW)
    except OSError as error:
        raise location.make_error(
            MissingShardError, "is a link to nothing, must lead to a file; restore it"
        ) from error


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, flushed to the disk."""
    path.write_bytes(content)
    sync_file(path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all, flushed to the disk."""
    temporary = path.with_name(f"{path.name}.new")
    write_synced(temporary, content)
    os.replace(temporary, path)
    sync_file(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_file(path: Path) -> str:
    """Return the sha256 of a file; in few large pieces, so that other threads are not held up."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(min(_READ_BYTES, path.stat().st_size)))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


def has_digest(path: Path, size: int, digest: str) -> bool:
    """Return whether a file is there, and has this size and SHA-256."""
    return path.is_file() and path.stat().st_size == size and digest_file(path) == digest

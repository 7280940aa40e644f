"""The files of a remote folder: what backends use of it, in the core and in plugins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from seqdata.errors import DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.options import Remote

_NEVER_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")


def check_name(location: DataLocation, name: str) -> None:
    """Raise if a name is not a plain file name: local files are named by it.

    Args:
        location: The file, for the error.
        name: Name of the file as on a disk, not encoded.

    Raises:
        DataError: If the name is empty, ``.`` or ``..``, or has a slash or control characters.
    """
    if name in ("", ".", "..") or _NEVER_IN_NAMES.search(name):
        raise location.make_error(
            DataError,
            "must have the name of a file in its folder, without '/', '\\' and control "
            "characters, but does not. Rename it",
        )


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size and tag of a remote file.

    Attributes:
        size: Its size in bytes.
        tag: Changes when the file is replaced (32 hex digits); None if the transport has no such
            tag.
    """

    size: int
    tag: str | None


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a listing of its folder describes it.

    Attributes:
        stat: Its size and tag.
        modified: When it was last written, in seconds since 1970; None if the listing does not say.
    """

    stat: FileStat
    modified: float | None


@runtime_checkable
class RemoteFiles(Protocol):
    """The files of one remote folder."""

    @property
    def location(self) -> str:
        """The folder for messages, without credentials."""
        ...

    @property
    def remote(self) -> Remote:
        """The options for reading."""
        ...

    def sizes(self) -> dict[str, int | None]:
        """Return the files in the folder by name, with their sizes if the listing has them.

        Raises:
            MissingShardError: If there is no such folder, or it cannot be listed (web servers).
            RemoteReadError: If the request fails.
        """
        ...

    def names(self) -> list[str]:
        """Return the names of the files in the folder, in order; see ``sizes``."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the folders in the folder, in order; see ``sizes``."""
        ...

    def walk(self) -> dict[str, ListedFile]:
        """Return the files in the folder and in all folders below it, by their paths below it.

        Raises:
            MissingShardError: If the server does not list folders (web servers).
            RemoteReadError: If the request fails, or is refused.
        """
        ...

    def stat(self, name: str, location: DataLocation | None = None) -> FileStat:
        """Return size and tag of a file.

        Args:
            name: Name of the file.
            location: Its location for errors; None: its name.

        Raises:
            MissingShardError: If it does not exist, or is a folder.
            ConfigError: If the server does not send its size.
            RemoteReadError: If the request fails.
        """
        ...

    def read(self, name: str, start: int, stop: int, location: DataLocation | None = None) -> bytes:
        """Return bytes ``start:stop`` of a file.

        Raises:
            MissingShardError: If it does not exist.
            RemoteReadError: If they cannot be read, or there are fewer.
        """
        ...

    def check_same(self, name: str, stat: FileStat, location: DataLocation | None = None) -> None:
        """Raise if a file was replaced.

        Raises:
            FingerprintMismatch: If it was.
        """
        ...

    def url(self, name: str) -> str:
        """Return the full URL of a file, which may contain secrets."""
        ...


class WritableFiles(RemoteFiles, Protocol):
    """The files of a remote folder that can be written to."""

    def upload(self, name: str, path: Path) -> FileStat:
        """Upload a local file: as a whole or not at all.

        Raises:
            RemoteReadError: If it cannot be uploaded.
        """
        ...

    def create(self, name: str, content: bytes) -> None:
        """Create a file that does not exist yet.

        Raises:
            ConfigError: If another writer has created it.
            RemoteReadError: If it cannot be uploaded.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        ...

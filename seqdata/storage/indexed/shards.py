"""One file, wherever it lies: its bytes, and what is kept about it.

Place in the flow: indexing, opening and verifying ask shards for what they need. Reads: files.
Makes: bytes and indexes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import write_with_digest
from seqdata.storage.indexed.files import check_exists, map_shard, read_small_file
from seqdata.storage.indexed.index_storage import (
    INDEX_FOLDER,
    find_index,
    index_files,
    list_indexes,
    read_index,
    write_index,
)
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex
from seqdata.storage.indexed.shard_list import SHARD_LIST, ListedShard


class Shard(Protocol):
    """A file; goes through pickle."""

    @property
    def name(self) -> str:
        """Its name in its folder."""
        ...

    @property
    def folder(self) -> str:
        """The path or URL of its folder, for messages."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        ...

    @property
    def listed(self) -> ListedShard | None:
        """What the list of its folder says of it; None: there is none."""
        ...

    def content(
        self,
        place: DataLocation,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        """Return its bytes, uint8; held for as long as the array is.

        Args:
            place: Its place, for errors.
            index: What it must be, where that is known.
            ahead: Whether all of it will be read soon.
            release: Releases other shards if there is no room; None: wait for room.

        Raises:
            CacheFullError: If it is to be fetched, and there is no room.
            MissingShardError: If it is not there.
            DataError: If it cannot be read.
        """
        ...

    def read_sibling(self, name: str, place: DataLocation) -> NDArray[np.uint8]:
        """Return the bytes of another file below the same folder.

        Raises:
            MissingShardError: If it is not there.
        """
        ...

    def repair_copy(
        self, content: NDArray[np.uint8], index: ShardIndex, place: DataLocation
    ) -> bool:
        """Compare a copy of it with what was indexed, and repair it; see ``FileCache.repair``.

        Args:
            content: Its bytes, as ``content`` gave them.
            index: What it must be.
            place: Its place, for errors.
        """
        ...

    def size(self) -> int:
        """Return its bytes; 0 where it cannot be asked for."""
        ...

    def check_exists(self, place: DataLocation) -> None:
        """Raise if it is not there.

        Args:
            place: Its place, for errors.

        Raises:
            MissingShardError: If it is not.
            RemoteReadError: If it cannot be asked for.
        """
        ...

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        """Return whether there is an index of a format.

        Args:
            dataset: The location, for errors.
            number: Its number, for errors.
            file_format: The format.

        Raises:
            CorruptShardError: If it must be read for that, and is damaged.
        """
        ...

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index; None: there is none.

        Raises:
            CorruptShardError: If it is damaged.
        """
        ...

    def save_index(self, index: ShardIndex) -> str:
        """Save its index; return the folder.

        Raises:
            ConfigError: If it can be saved nowhere.
        """
        ...

    def list_side_files(self, name: str) -> list[Path]:
        """Return the local paths at which another file about it may be, the preferred one first."""
        ...

    def read_shard_list(self) -> bytes | None:
        """Return the bytes of the list of its folder's shards; None: there is none.

        Raises:
            RemoteReadError: If it cannot be asked for.
        """
        ...

    def with_listed(self, listed: ListedShard | None) -> Shard:
        """Return the same shard, with what the list says of it."""
        ...


@dataclass(frozen=True, slots=True)
class LocalShard:
    """A file of this machine.

    Attributes:
        root: The folder that its name counts from, and its index is kept in.
        name: Its path below that.
        listed: What the list of the folder says of it; None: there is none.
    """

    root: Path
    name: str
    listed: ListedShard | None = None

    @classmethod
    def at(cls, path: Path) -> LocalShard:
        """Return the file at a path."""
        return cls(path.parent, path.name)

    @property
    def path(self) -> Path:
        """Its path."""
        return self.root / self.name

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return str(self.root)

    @property
    def is_local(self) -> bool:
        """True."""
        return True

    def content(
        self,
        place: DataLocation,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        """Map it; see ``Shard``."""
        del index, release
        return map_shard(self.path, place, ahead=ahead)

    def read_sibling(self, name: str, place: DataLocation) -> NDArray[np.uint8]:
        """Map another file below the same folder; see ``Shard``."""
        return map_shard(self.root / name, place)

    def repair_copy(
        self, content: NDArray[np.uint8], index: ShardIndex, place: DataLocation
    ) -> bool:
        """Return False: it is not a copy; see ``Shard``."""
        del content, index, place
        return False

    def size(self) -> int:
        """Return its bytes; 0 where it is not there."""
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    def check_exists(self, place: DataLocation) -> None:
        """Raise if it is not there; other errors are raised when it is opened."""
        with suppress(OSError):
            check_exists(self.path, place)

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        """Return whether there is an index of a format; see ``Shard``."""
        if not file_format.identity:
            return find_index(self.path, self.root) is not None
        return self.index(dataset, number, file_format) is not None

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index, the newest that fits; see ``Shard``."""
        found: ShardIndex | None = None
        for path in list_indexes(self.path, self.root):
            index = read_index(dataset, number, path, file_format)
            if index.format_identity != file_format.identity:
                continue
            if self._is_described_by(index):
                return index
            found = index if found is None else found
        return found

    def _is_described_by(self, index: ShardIndex) -> bool:
        """Return whether an index is of this file, as far as that is known without reading it."""
        if self.listed is not None:
            return index.sha256 == self.listed.sha256
        return index.bytes == self.size()

    def save_index(self, index: ShardIndex) -> str:
        """Save its index next to it, or in the cache; return the folder."""
        return str(write_index(self.path, with_declared(index, self.listed), self.root).parent)

    def list_side_files(self, name: str) -> list[Path]:
        """Return the paths of a file about it: next to its index, and in the cache."""
        beside, cached = index_files(self.path, self.root)
        return [beside.with_name(name), cached.with_name(name)]

    def read_shard_list(self) -> bytes | None:
        """Return the bytes of the list of its folder's shards; None: there is none."""
        path = self.root / INDEX_FOLDER / SHARD_LIST
        place = DataLocation(dataset=self.folder, file=SHARD_LIST)
        return read_small_file(path, place) if path.is_file() else None

    def with_listed(self, listed: ListedShard | None) -> LocalShard:
        """Return the same shard, with what the list says of it."""
        return replace(self, listed=listed)


def with_declared(index: ShardIndex, listed: ListedShard | None) -> ShardIndex:
    """Return an index that says what its writer said of the fields."""
    return index if listed is None else replace(index, declared=listed.declared)


def save_sealed(places: list[Path], content: bytes) -> None:
    """Keep a sealed file in the first place that can be written."""
    for path in places:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if write_with_digest(path, content):
                return

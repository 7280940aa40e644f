"""One file of a dataset, on this machine or behind a URL: its bytes, and where more is kept.

What is computed of files is kept next to the data where that can be written, else in the user's
cache. Files behind URLs are fetched whole through the cache. Place in the flow: indexing, opening
and verifying ask shards for what they need. Reads: files. Makes: bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, MissingShardError, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import write_with_digest
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex
from seqdata.storage.local_files import check_exists, map_shard
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.remote.urls import identify_url, redact_url

INDEX_FOLDER = "seqdata-index"
"""The folder of index files, next to the data."""
MANY = 1024
"""Number of local files above which each is opened for a batch and closed again."""
_AT_ONCE = 8  # requests that are made in parallel
_LAST_TIME = 2**63 - 1  # nanoseconds
Result = TypeVar("Result")


def cache_folder() -> Path:
    """Return the folder for indexes outside of the data: ``SEQDATA_CACHE``, or the user's cache."""
    folder = os.environ.get("SEQDATA_CACHE") or "~/.cache/seqdata"
    return Path(folder).expanduser()


def find_cached_folder(data: str) -> Path:
    """Return the folder in the cache for the indexes of a folder of data.

    Args:
        data: Its absolute path, or what identifies its URL.
    """
    return cache_folder() / "index" / hashlib.sha256(data.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LocalShard:
    """A file of this machine; picklable.

    Attributes:
        root: The folder that its name is relative to, and that holds its index.
        name: Its path below that.
    """

    root: Path
    name: str

    @classmethod
    def at(cls, path: Path) -> LocalShard:
        """Return the file at a path."""
        return cls(path.parent, path.name)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.root / self.name

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return str(self.root)

    @property
    def is_local(self) -> bool:
        """True: it is on this machine."""
        return True

    @property
    def cached(self) -> Path:
        """The folder in the cache for the indexes of its folder."""
        return find_cached_folder(str(self.root.absolute()))

    def content(
        self,
        location: DataLocation,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        """Return its bytes, uint8, mapped; held for as long as the array is.

        Args:
            location: Its location, for errors.
            index: Its index, where that is known.
            ahead: Whether all of it will be read soon.
            release: Releases other shards where a cache has no room; None: wait for room.

        Raises:
            MissingShardError: If it does not exist.
            DataError: If it cannot be read.
        """
        del index, release
        return map_shard(self.path, location, ahead=ahead)

    def read_sibling(self, name: str, location: DataLocation) -> NDArray[np.uint8]:
        """Return the bytes of another file below the same folder.

        Raises:
            MissingShardError: If it does not exist.
        """
        return map_shard(self.root / name, location)

    def drop_copy(self, index: ShardIndex, location: DataLocation) -> None:
        """Return None: it is not a copy."""
        del index, location

    def size(self) -> int:
        """Return the number of its bytes; 0 if it does not exist."""
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    def modified(self) -> int:
        """Return when it was last written to, in nanoseconds since 1970; 0 if it is not there.

        Times that no int64 has become the nearest one that it has.
        """
        with suppress(OSError):
            return min(max(self.path.stat().st_mtime_ns, -_LAST_TIME), _LAST_TIME)
        return 0

    def check_exists(self, location: DataLocation) -> None:
        """Raise if it does not exist; other errors are raised when it is opened."""
        with suppress(OSError):
            check_exists(self.path, location)

    def list_side_files(self, name: str) -> list[Path]:
        """Return the possible paths of a file about it: next to the data, and in the cache."""
        folders = (self.root / INDEX_FOLDER, self.cached)
        return [(folder / self.name).with_name(name) for folder in folders]


def save_with_digest(paths: Sequence[Path], content: bytes) -> None:
    """Save a file with a checksum trailer at the first path that can be written."""
    for path in paths:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if write_with_digest(path, content):
                return


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A file behind a URL.

    Attributes:
        url: URL of its folder.
        name: Its name there.
        remote: How it is read.
    """

    url: str
    name: str
    remote: Remote

    @property
    def folder(self) -> str:
        """The URL of its folder, without credentials."""
        return redact_url(self.url)

    @property
    def is_local(self) -> bool:
        """False: it is behind a URL."""
        return False

    @property
    def cached(self) -> Path:
        """The folder in the cache for the indexes of its folder."""
        return find_cached_folder(identify_url(self.url))

    def content(
        self,
        location: DataLocation,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        """Fetch it where it is not in the cache, and map it; see ``LocalShard``.

        Raises:
            CacheFullError: If the cache has no room, and ``release`` is given.
            CacheError: If the cache has no room after a wait, without ``release``.
            MissingShardError: If it does not exist.
            RemoteReadError: If it cannot be read.
        """
        del ahead
        request = CacheRequest(self.name)
        if index is not None:
            request = CacheRequest(self.name, index.bytes, index.sha256)
        cache = make_cache(make_remote_files(self.url, self.remote))
        hold = cache.acquire if release is None else cache.acquire_if_room
        cached_file = hold(request, location, release)
        return np.frombuffer(cached_file.mapping, dtype=np.uint8)

    def read_sibling(self, name: str, location: DataLocation) -> NDArray[np.uint8]:
        """Fetch another file of the same folder; see ``LocalShard``."""
        try:
            return replace(self, name=name).content(location)
        except RemoteReadError as error:
            if not error.details.get("refused"):
                raise
            raise location.make_error(  # see ``index_folder``
                MissingShardError,
                "is not there, or is refused: only a listing of the folder would tell. Restore it, "
                "or check the permissions",
            ) from error

    def drop_copy(self, index: ShardIndex, location: DataLocation) -> str:
        """Drop its copy in the cache, which is damaged; return a line about it, for an error."""
        cache = make_cache(make_remote_files(self.url, self.remote))
        return cache.drop(index.sha256, location)

    def size(self) -> int:
        """Return the number of its bytes; 0 if it does not exist or cannot be asked for."""
        with suppress(DataError, RemoteReadError):
            return make_remote_files(self.url, self.remote).stat(self.name).size
        return 0

    def check_exists(self, location: DataLocation) -> None:
        """Raise if the file does not exist.

        Raises:
            MissingShardError: If it does not exist.
            RemoteReadError: If the request fails.
        """
        make_remote_files(self.url, self.remote).stat(self.name, location)

    def list_side_files(self, name: str) -> list[Path]:
        """Return the path of a file about it in the cache."""
        return [self.cached / name]


Shard = LocalShard | RemoteShard
"""A file, wherever it lies."""


def has_many_files(shards: Sequence[Shard], file_format: FormatIdentity) -> bool:
    """Return whether files are so many that they are not all mapped."""
    plain = all(type(shard) is LocalShard for shard in shards)
    return len(shards) > MANY and plain and bool(file_format.identity)


def map_shards(
    shards: Sequence[Shard], function: Callable[[int], Result], numbers: range | None = None
) -> list[Result]:
    """Return a function's results for indices of shards; in parallel if a server is involved.

    Args:
        shards: All files.
        function: Called with indices of shards.
        numbers: The indices; None: all.
    """
    numbers = range(len(shards)) if numbers is None else numbers
    if all(
        shards[number].is_local for number in numbers
    ):  # threads take memory, and local files have no latency
        return [function(number) for number in numbers]
    return ForkSafeThreadPool(_AT_ONCE).map(function, numbers)

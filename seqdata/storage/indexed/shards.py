"""One file of a data set, on this machine or behind a URL: its bytes, and its index.

Indexes are kept next to the data where that can be written, else in the user's cache. Files behind
URLs are fetched whole through the cache. Place in the flow: indexing, opening and verifying ask
shards for what they need. Reads: files. Makes: bytes and indexes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, MissingShardError, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import write_with_digest
from seqdata.storage.indexed.shard_index import (
    SHARD_LIST,
    FormatIdentity,
    ListedShard,
    ShardIndex,
    dump_index,
    load_index,
)
from seqdata.storage.local_files import (
    check_exists,
    check_small,
    map_shard,
    read_small_file,
    write_atomically,
)
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import (
    ForkSafeThreadPool,
    make_remote_files,
    make_writable_files,
)
from seqdata.storage.remote.urls import identify_url, join_url, redact_url

INDEX_FOLDER = "seqdata-index"
"""The folder of index files, next to the data."""
INDEX_SUFFIX = ".idx"
_CLOCK_STEP = 2 * 10**9  # nanoseconds: the coarsest times that file systems record
_AT_ONCE = 8  # index files that are requested in parallel
Given = TypeVar("Given")


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


@dataclass(frozen=True, slots=True)
class LocalShard:
    """A file of this machine; goes through pickle.

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
        """Path of the file."""
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
        """Return its bytes, uint8, mapped; held for as long as the array is.

        Args:
            place: Its place, for errors.
            index: Its index, where that is known.
            ahead: Whether all of it will be read soon.
            release: Releases other shards where a cache has no room; None: wait for room.

        Raises:
            CacheFullError: If it must be fetched, and there is no room.
            MissingShardError: If it is not there.
            DataError: If it cannot be read.
        """
        del index, release
        return map_shard(self.path, place, ahead=ahead)

    def read_sibling(self, name: str, place: DataLocation) -> NDArray[np.uint8]:
        """Return the bytes of another file below the same folder.

        Raises:
            MissingShardError: If it is not there.
        """
        return map_shard(self.root / name, place)

    def drop_copy(self, index: ShardIndex, location: DataLocation) -> None:
        """Return None: it is not a copy."""
        del index, location

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
        """Return whether there is an index of a format.

        Args:
            dataset: The location, for errors.
            number: Its index among the files, for errors.
            file_format: The format.

        Raises:
            CorruptShardError: If it must be read for that, and is damaged.
        """
        if not file_format.identity:
            return find_index(self.path, self.root) is not None
        return self.index(dataset, number, file_format) is not None

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index, the newest that fits; None: there is none.

        Raises:
            CorruptShardError: If it is damaged.
        """
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
        """Save its index next to it, or in the cache; return the folder.

        Raises:
            ConfigError: If it can be saved nowhere.
        """
        return str(write_index(self.path, with_declared(index, self.listed), self.root).parent)

    def list_side_files(self, name: str) -> list[Path]:
        """Return the possible paths of a file about it: next to its index, and in the cache."""
        beside, cached = index_files(self.path, self.root)
        return [beside.with_name(name), cached.with_name(name)]

    def read_shard_list(self) -> bytes | None:
        """Return the bytes of the list of its folder's shards; None: there is none."""
        path = self.root / INDEX_FOLDER / SHARD_LIST
        place = DataLocation(dataset=self.folder, file=SHARD_LIST)
        return read_small_file(path, place) if path.is_file() else None


def with_declared(index: ShardIndex, listed: ListedShard | None) -> ShardIndex:
    """Return an index that says what its writer said of the fields."""
    return index if listed is None else replace(index, declared=listed.declared)


def save_with_digest(places: list[Path], content: bytes) -> None:
    """Keep a sealed file in the first place that can be written."""
    for path in places:
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
        listed: What the list of its folder says of it; None: there is none.
    """

    url: str
    name: str
    remote: Remote
    listed: ListedShard | None = None

    @property
    def folder(self) -> str:
        """The URL of its folder, without credentials."""
        return redact_url(self.url)

    @property
    def is_local(self) -> bool:
        """False."""
        return False

    def content(
        self,
        place: DataLocation,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        """Fetch it where it is not in the cache, and map it; see ``LocalShard``."""
        del ahead
        request = CacheRequest(self.name)
        if index is not None:
            request = CacheRequest(self.name, index.bytes, index.sha256)
        cache = make_cache(make_remote_files(self.url, self.remote))
        hold = cache.acquire if release is None else cache.acquire_if_room
        cached_file = hold(request, place, release)
        return np.frombuffer(cached_file.mapping, dtype=np.uint8)

    def read_sibling(self, name: str, place: DataLocation) -> NDArray[np.uint8]:
        """Fetch another file of the same folder; see ``LocalShard``."""
        try:
            return replace(self, name=name).content(place)
        except RemoteReadError as error:
            if not error.details.get("refused"):
                raise
            raise place.make_error(  # see ``_get_if_exists``
                MissingShardError,
                "is not there, or is refused: who may not list a folder cannot tell. Restore it, "
                "or check the permissions",
            ) from error

    def drop_copy(self, index: ShardIndex, location: DataLocation) -> str:
        """Drop its copy in the cache, which is damaged; return a line about it, for an error."""
        cache = make_cache(make_remote_files(self.url, self.remote))
        return cache.drop(index.sha256, location)

    def size(self) -> int:
        """Return its bytes; 0 where it cannot be asked for."""
        with suppress(DataError, RemoteReadError):
            return make_remote_files(self.url, self.remote).stat(self.name).size
        return 0

    def check_exists(self, place: DataLocation) -> None:
        """Raise if it is not there; see ``LocalShard``."""
        make_remote_files(self.url, self.remote).stat(self.name, place)

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        """Return whether there is an index of a format; see ``LocalShard``."""
        if file_format.identity:
            return self.index(dataset, number, file_format) is not None
        if self.list_side_files(self.name + INDEX_SUFFIX)[0].is_file():
            return True
        files = make_remote_files(join_url(self.url, INDEX_FOLDER), self.remote)
        return _get_if_exists(lambda: files.stat(self.name + INDEX_SUFFIX)) is not None

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index; see ``LocalShard``."""
        place = locate_index(dataset, number, Path(self.name + INDEX_SUFFIX))
        raw = self._read_raw_index(place)
        found = None if raw is None else load_index(raw, place, file_format)
        return None if found is None or found.format_identity != file_format.identity else found

    def save_index(self, index: ShardIndex) -> str:
        """Save its index next to it, else on this machine; return the folder."""
        content = dump_index(with_declared(index, self.listed))
        (cached,) = self.list_side_files(self.name + INDEX_SUFFIX)
        url = join_url(self.url, INDEX_FOLDER)
        with suppress(ConfigError, RemoteReadError), tempfile.TemporaryDirectory() as spot:
            path = Path(spot, "index")
            path.write_bytes(content)
            make_writable_files(url, self.remote).upload(self.name + INDEX_SUFFIX, path)
            cached.unlink(missing_ok=True)  # of a time when nothing could be written there
            return redact_url(url)
        try:
            return str(put_file(cached, content).parent)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: the index of {self.name!r} must be written next to it or in "
                f"{cached.parent}, but neither is possible ({error.strerror}). Set SEQDATA_CACHE "
                "to a folder that can be written"
            ) from error

    def list_side_files(self, name: str) -> list[Path]:
        """Return the path of a file about it in the cache."""
        folder = hashlib.sha256(identify_url(self.url).encode()).hexdigest()[:16]
        return [cache_folder() / "index" / folder / name]

    def read_shard_list(self) -> bytes | None:
        """Return the bytes of the list of its folder's shards; see ``LocalShard``."""
        return read_shard_list(self.url, self.remote)

    def _read_raw_index(self, place: DataLocation) -> bytes | None:
        (cached,) = self.list_side_files(self.name + INDEX_SUFFIX)
        if cached.is_file():
            return read_small_file(cached, place)
        files = make_remote_files(join_url(self.url, INDEX_FOLDER), self.remote)
        return _get_if_exists(lambda: _read_whole(files, self.name + INDEX_SUFFIX, place))


def _get_if_exists(call: Callable[[], Given]) -> Given | None:
    """Return what a call gives; None where a file is not there.

    Who may not list a bucket is refused what is not there.
    """
    try:
        return call()
    except MissingShardError:
        return None
    except RemoteReadError as error:
        if error.details.get("refused"):
            return None
        raise


def _read_whole(files: RemoteFiles, name: str, place: DataLocation) -> bytes:
    """Return the bytes of a small file.

    Raises:
        MissingShardError: If it is not there.
        RemoteReadError: If it cannot be read.
        LimitError: If it is too large to be one.
    """
    size = files.stat(name, place).size
    check_small(size, place)
    return files.read(name, 0, size, place)


def read_shard_list(url: str, remote: Remote) -> bytes | None:
    """Return the file of the list of the shards of a folder; None: there is none.

    Raises:
        RemoteReadError: If it cannot be asked for.
    """
    files = make_remote_files(join_url(url, INDEX_FOLDER), remote)
    return _get_if_exists(
        lambda: _read_whole(
            files, SHARD_LIST, DataLocation(dataset=files.location, file=SHARD_LIST)
        )
    )


Shard = LocalShard | RemoteShard
"""A file, wherever it lies."""


def map_shards(
    shards: Sequence[Shard], function: Callable[[int], Given], numbers: range | None = None
) -> list[Given]:
    """Return a function's results for shard numbers; in parallel if a server is involved.

    Args:
        shards: All files.
        function: Called with shard numbers.
        numbers: The numbers; None: all.
    """
    numbers = range(len(shards)) if numbers is None else numbers
    if all(
        shards[number].is_local for number in numbers
    ):  # threads take memory, and local files have no latency
        return [function(number) for number in numbers]
    return ForkSafeThreadPool(_AT_ONCE).map(function, numbers)

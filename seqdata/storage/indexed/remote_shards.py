"""Shards in buckets and on servers: fetched whole through the cache, indexed once.

Their indexes are next to them where that can be written, else in the user's cache. Place in the
flow: a URL becomes shards. Reads: remote files. Makes: bytes on this machine.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, MissingShardError, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.find_files import FoundFiles, describe_folders, find_listed
from seqdata.storage.indexed.files import check_small, join_names, read_small_file
from seqdata.storage.indexed.index_storage import (
    INDEX_FOLDER,
    INDEX_SUFFIX,
    cache_folder,
    locate_index,
    put_file,
)
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex, dump_index, load_index
from seqdata.storage.indexed.shard_list import SHARD_LIST, ListedShard, load_list
from seqdata.storage.indexed.shards import with_declared
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles, check_name
from seqdata.storage.remote.transport import make_remote_files, make_writable_files
from seqdata.storage.remote.urls import identify_url, join_url, redact_url, split_url

Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A file behind a URL.

    Attributes:
        url: Of its folder.
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
        """Fetch it where it is not in the cache, and map it; see ``shards.Shard``."""
        del ahead
        request = CacheRequest(self.name)
        if index is not None:
            request = CacheRequest(self.name, index.bytes, index.sha256)
        cache = make_cache(make_remote_files(self.url, self.remote))
        hold = cache.acquire if release is None else cache.acquire_if_room
        cached_file = hold(request, place, release)
        return np.frombuffer(cached_file.mapping, dtype=np.uint8)

    def read_sibling(self, name: str, place: DataLocation) -> NDArray[np.uint8]:
        """Fetch another file of the same folder; see ``shards.Shard``."""
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

    def repair_copy(
        self, content: NDArray[np.uint8], index: ShardIndex, place: DataLocation
    ) -> bool:
        """Compare its copy in the cache with what was indexed, and repair it; see ``Shard``."""
        cache = make_cache(make_remote_files(self.url, self.remote))
        return cache.repair(CacheRequest(self.name, index.bytes, index.sha256), content, place)

    def size(self) -> int:
        """Return its bytes; 0 where it cannot be asked for."""
        with suppress(DataError, RemoteReadError):
            return make_remote_files(self.url, self.remote).stat(self.name).size
        return 0

    def check_exists(self, place: DataLocation) -> None:
        """Raise if it is not there; see ``shards.Shard``."""
        make_remote_files(self.url, self.remote).stat(self.name, place)

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        """Return whether there is an index of a format; see ``shards.Shard``."""
        if file_format.identity:
            return self.index(dataset, number, file_format) is not None
        if self.list_side_files(self.name + INDEX_SUFFIX)[0].is_file():
            return True
        files = make_remote_files(join_url(self.url, INDEX_FOLDER), self.remote)
        return _get_if_exists(lambda: files.stat(self.name + INDEX_SUFFIX)) is not None

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index; see ``shards.Shard``."""
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
        """Return the bytes of the list of its folder's shards; see ``shards.Shard``."""
        return _read_shard_list(self.url, self.remote)

    def with_listed(self, listed: ListedShard | None) -> RemoteShard:
        """Return the same shard, with what the list says of it."""
        return replace(self, listed=listed)

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


def _read_shard_list(url: str, remote: Remote) -> bytes | None:
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


def find_remote(
    url: str, remote: Remote, suffixes: tuple[str, ...]
) -> tuple[list[RemoteShard], FoundFiles]:
    """Return the file at a URL, or those of its folder, in natural order; ``*`` stands for any.

    Returns:
        The files, and what was found besides.

    Raises:
        ConfigError: If there is none, they are of several splits, or the URL is invalid.
        MissingShardError: If there is no such folder.
        RemoteReadError: If it cannot be asked for.
        CorruptShardError: If the list of the folder's shards is damaged.
        DataError: If a name leads out of its folder.
    """
    where, pattern = url, "*"
    if redact_url(url).lower().endswith(suffixes):
        where, pattern = split_url(url)
        if not any(sign in pattern for sign in "*?["):
            check_name(DataLocation(dataset=redact_url(where), file=pattern), pattern)
            return [RemoteShard(where, pattern, remote)], FoundFiles(root=Path(), names=[pattern])
    raw = _read_shard_list(where, remote)

    def is_wanted(name: str) -> bool:
        return name.lower().endswith(suffixes) and fnmatch(name, pattern)

    if raw is None:
        files = make_remote_files(where, remote)
        existing = files.names()
        found = find_listed(redact_url(where), existing, files.folders(), is_wanted)
        if pattern != "*":  # a glob leaves out what it does not name
            found = replace(found, others=(), hidden=(), folders=())
    else:
        listed = list(filter(is_wanted, load_list(raw, redact_url(where))))
        found = FoundFiles(root=Path(), names=listed)
    names = found.names
    if not names:
        raise ConfigError(
            f"{redact_url(url)}: must hold at least one file that ends with "
            f"{join_names(suffixes)}, but holds none. Check the location{describe_folders(found)}"
        )
    if raw is None:
        for name in names:
            check_name(DataLocation(dataset=redact_url(where), file=name), name)
    return [RemoteShard(where, name, remote) for name in names], found

"""The index files of a dataset: read, and written next to the data or to the user's cache.

A folder of data has the index of all of its files in one, ``seqdata-index/index.idx``. Files that
are indexed later get one more (``index-1.idx``, which counts before it), so that builds of other
files do not overwrite each other; from ``MAX_FILES`` small ones on they become one. The names are
fixed, since who may not list a folder must find them. Our writers leave a list of all files next to
it. Place in the flow: finding and indexing files read and write by it. Reads: index files. Makes:
index files, indexes.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    MissingShardError,
    RemoteReadError,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.index_file import (
    PIECE_BYTES,
    SHARD_LIST,
    IndexGroup,
    dump_index_files,
    load_index_file,
    load_list,
    load_old_index,
)
from seqdata.storage.indexed.shard_index import VERSION, FormatIdentity, ListedShard, ShardIndex
from seqdata.storage.indexed.shards import INDEX_FOLDER, LocalShard, Shard
from seqdata.storage.local_files import (
    check_small,
    make_unreadable_error,
    read_small_file,
    write_atomically,
)
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.transport import make_remote_files, make_writable_files
from seqdata.storage.remote.urls import join_url

OLD_SUFFIX = ".idx"
"""Suffix of the index of each file, by earlier releases."""
LIST_FILE = f"{INDEX_FOLDER}/{SHARD_LIST}"
MAX_FILES = 8
"""Number of small index files at which they are merged into one."""
_CLOCK_STEP = 2 * 10**9  # nanoseconds: the coarsest times that file systems record
Result = TypeVar("Result")


def name_index_file(number: int = 0) -> str:
    """Return the name of an index file; the first one has no number."""
    return f"index-{number}.idx" if number else "index.idx"


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Small files in a folder of this machine; raises OSError where it cannot be written."""

    folder: Path

    @property
    def location(self) -> str:
        """The folder, for messages."""
        return str(self.folder)

    def read(self, name: str, location: DataLocation) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        path = self.folder / name
        try:
            return read_small_file(path, location) if path.is_file() else None
        except OSError as error:  # the folder is another user's
            raise make_unreadable_error(location, error) from error

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that does not exist yet; return False if it exists."""
        path = self.folder / name
        if path.exists():
            return False
        hidden = path.with_name(f".{name}.{uuid.uuid4().hex}")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(hidden, content)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file, whether it exists or not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        (self.folder / name).unlink(missing_ok=True)

    def may_have_files(self) -> bool:
        """Return whether the folder exists."""
        return self.folder.is_dir()

    def find_newest(self, names: Iterable[str]) -> int:
        """Return the time in nanoseconds when the newest of some files was written."""
        paths = [self.folder / name for name in names]
        return max((path.stat().st_mtime_ns for path in paths if path.is_file()), default=0)


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """Small files in a folder behind a URL; raises as the transport does."""

    url: str
    remote: Remote

    @property
    def location(self) -> str:
        """The folder, for messages."""
        return make_remote_files(self.url, self.remote).location

    def read(self, name: str, location: DataLocation) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        files = make_remote_files(self.url, self.remote)

        def read_whole() -> bytes:
            size = files.stat(name, location).size
            check_small(size, location)
            return files.read(name, 0, size, location)

        return _get_if_exists(read_whole)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that does not exist yet; return False if it exists."""
        files = make_writable_files(self.url, self.remote)
        if _get_if_exists(lambda: files.stat(name)) is not None:
            return False
        files.create(name, content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file, whether it exists or not."""
        files = make_writable_files(self.url, self.remote)
        with tempfile.TemporaryDirectory() as spot:
            path = Path(spot, "index")
            path.write_bytes(content)
            files.upload(name, path)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        make_writable_files(self.url, self.remote).remove(name)

    def may_have_files(self) -> bool:
        """Return True: whether a folder exists is not asked."""
        return True


_Files = LocalFiles | RemoteFolder


def _get_if_exists(call: Callable[[], Result]) -> Result | None:
    """Return a call's result; None if it reports a missing file.

    Without permission to list a bucket, missing files are refused as well.
    """
    try:
        return call()
    except MissingShardError:
        return None
    except RemoteReadError as error:
        if error.details.get("refused"):
            return None
        raise


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """An index file that was read.

    Attributes:
        name: Its name.
        size: Its bytes.
        groups: Its indexes.
    """

    name: str
    size: int
    groups: Sequence[IndexGroup]

    def take_all(self) -> Iterator[ShardIndex]:
        """Yield the index of each file."""
        for group in self.groups:
            yield from map(group.take, range(len(group.names)))


class FolderIndex:
    """The indexes of the files of one folder.

    Args:
        shard: One of the files.
        file_format: The format that checks them.

    Attributes:
        listed: Name -> entry of each file in the list of their writer; None: there is no list.
        has_old: Whether an index of an earlier release was found, which is not read.

    Raises:
        CorruptShardError: If the list is damaged.
        UnsafeContentError: If it names files outside of the folder.
        RemoteReadError: If a file cannot be asked for.
    """

    def __init__(self, shard: Shard, file_format: FormatIdentity) -> None:
        self._folder = shard.folder
        self._format = file_format
        self.has_old = False
        self._files: _Files
        if isinstance(shard, LocalShard):
            self._files = LocalFiles(shard.root / INDEX_FOLDER)
        else:
            self._files = RemoteFolder(join_url(shard.url, INDEX_FOLDER), shard.remote)
        self._cache = LocalFiles(shard.cached)
        self._read()

    def _read(self) -> None:
        self._errors: list[DataError] = []
        content = self._files.read(SHARD_LIST, DataLocation(dataset=self._folder, file=SHARD_LIST))
        self.listed = None if content is None else load_list(content, self._folder)
        self._stored, self._cached = map(self._load_all, (self._files, self._cache))
        self._may_have_old = not self._stored and self._files.may_have_files()
        self._groups = [group for stored in self._list_by_age() for group in stored.groups]
        counts = (len(group.names) for group in self._groups)
        self._firsts = list(itertools.accumulate(counts, initial=0))
        self._newest: dict[str, int] = {}  # a row is counted through all groups
        self._older: dict[int, int] = {}  # row -> an older one of the same file
        for first, group in zip(self._firsts, self._groups, strict=False):
            for row, name in enumerate(group.names, first):
                if name in self._newest:
                    self._older[row] = self._newest[name]
                self._newest[name] = row

    def _list_by_age(self) -> list[_Stored]:
        """Return the index files, the newest last; that next to the data may be newer."""
        if isinstance(self._files, LocalFiles):
            times = [
                files.find_newest(each.name for each in stored)
                for files, stored in ((self._files, self._stored), (self._cache, self._cached))
            ]
            if times[0] > times[1]:
                return [*self._cached, *self._stored]
        return [*self._stored, *self._cached]

    def _load_all(self, files: _Files) -> list[_Stored]:
        """Read the index files of a folder; of a cache that is another user's, none."""
        found: list[_Stored] = []
        if files is self._cache and not os.access(self._cache.folder, os.R_OK | os.X_OK):
            return found
        while True:
            name = name_index_file(len(found))
            location = self._locate(name, files)
            content = files.read(name, location)
            if content is None:
                return found
            try:
                groups = load_index_file(content, location, self._format)
            except CorruptShardError as error:
                self._errors.append(error)
                groups = []
            found.append(_Stored(name, len(content), groups))

    def _locate(self, name: str, files: _Files | None = None) -> DataLocation:
        """Return the location of an index file, for an error."""
        folder = self._cache.location if files is self._cache else INDEX_FOLDER
        return DataLocation(dataset=self._folder, file=f"{folder}/{name}", file_kind="index")

    def _read_old(self, name: str) -> ShardIndex | None:
        """Return the index of a file that an earlier release has written; None: there is none.

        Raises:
            CorruptShardError: If it is damaged.
        """
        location = self._locate(f"{name}{OLD_SUFFIX}")
        content = self._files.read(f"{name}{OLD_SUFFIX}", location)
        return None if content is None else load_old_index(content, location, self._format)

    def get(self, shard: Shard) -> ShardIndex | None:
        """Return the index of a file, the newest that fits; None: there is none.

        Raises:
            CorruptShardError: If there is none, but an index file is damaged.
        """
        found = [
            group.take(row)
            for group, row in self._iterate_rows(shard.name)
            if group.joined.format_identity == self._format.identity
        ]
        if not found and self._may_have_old:
            found = self._find_old(shard.name)
        if not found and self._errors:
            raise self._errors[0]
        if len(found) > 1:
            found = [index for index in found if self._is_of(index, shard)] + found
        return found[0] if found else None

    def _iterate_rows(self, name: str) -> Iterator[tuple[IndexGroup, int]]:
        """Yield the groups that have an index of a file, and its row in each, the newest first."""
        row = self._newest.get(name)
        while row is not None:
            at = bisect_right(self._firsts, row) - 1
            yield self._groups[at], row - self._firsts[at]
            row = self._older.get(row)

    def has_other_version(self, name: str) -> bool:
        """Return whether the only index of a file is of another version of the format."""
        own = self._format.identity
        found = {group.joined.format_identity for group, _ in self._iterate_rows(name)}
        kind = own.rpartition(VERSION)[0]
        return bool(kind) and own not in found and kind in {x.rpartition(VERSION)[0] for x in found}

    def _find_old(self, name: str) -> list[ShardIndex]:
        """Return the index of a file that an earlier release wrote, in a list; empty if not usable.

        If the folder has no list of its files, only an index that declares its fields is usable;
        another one sets ``has_old``.
        """
        try:
            old = self._read_old(name)
        except CorruptShardError:
            if self.listed is None:
                return []
            raise
        if old is None or not (self.listed or old.declared):
            self.has_old |= old is not None
            return []
        return [old] if old.format_identity == self._format.identity else []

    def _is_of(self, index: ShardIndex, shard: Shard) -> bool:
        """Return whether an index is of a file, by its listed digest or its size."""
        if self.listed is not None and shard.name in self.listed:
            return index.sha256 == self.listed[shard.name].sha256
        return not shard.is_local or index.bytes == shard.size()

    def find_index_files(self) -> dict[str, str]:
        """Return the files whose index is next to the data -> the name of its index file."""
        return {
            name: stored.name
            for stored in self._stored
            for group in stored.groups
            for name in group.names
        }

    def save(self, indexes: Sequence[ShardIndex], *, rebuild: bool = False) -> str:
        """Save new indexes next to the data, else in the cache; return the folder.

        Args:
            indexes: The indexes.
            rebuild: Whether all index files become one.

        Raises:
            ConfigError: If they can be saved nowhere.
        """
        if self.listed is not None:
            indexes = [
                replace(index, declared=self.listed[index.shard].declared)
                if index.shard in self.listed
                else index
                for index in indexes
            ]
        try:
            self._save_next_to_data(indexes, rebuild=rebuild)
            folder = self._files.location
            with suppress(OSError):  # of a time when nothing could be written next to the data
                for stored in self._cached:
                    self._cache.remove(stored.name)
        except (OSError, ConfigError, RemoteReadError):  # it cannot be written, or is full
            self._save_in_cache(indexes)
            folder = self._cache.location
        self._read()
        return folder

    def _save_next_to_data(self, indexes: Sequence[ShardIndex], *, rebuild: bool) -> None:
        small = self._find_small()
        if rebuild or self._errors:
            merged = self._merge(self._list_by_age(), indexes)
            self._rewrite(self._files, 0, self._stored, merged)
        elif len(small) >= MAX_FILES:
            merged = self._merge([*small, *self._cached], indexes)
            self._rewrite(self._files, len(self._stored) - len(small), small, merged)
        else:
            number = len(self._stored)
            for content in dump_index_files(self._merge(self._cached, indexes)):
                while not self._files.create(name_index_file(number), content):
                    number += 1  # another process builds, too

    def _find_small(self) -> list[_Stored]:
        """Return the last index files that would fit into one."""
        found: list[_Stored] = []
        for stored in reversed(self._stored):
            if stored.size + sum(each.size for each in found) > PIECE_BYTES:
                break
            found.insert(0, stored)
        return found

    def _save_in_cache(self, indexes: Sequence[ShardIndex]) -> None:
        try:
            self._rewrite(self._cache, 0, self._cached, self._merge(self._cached, indexes))
        except OSError as error:
            raise ConfigError(
                f"{self._folder}: its index must be written to {self._files.location} or "
                f"{self._cache.location}, but neither is writable ({error.strerror}). Set "
                "SEQDATA_CACHE to a writable folder"
            ) from error
        if isinstance(self._files, LocalFiles):  # it is the newest, whatever clocks say
            newest = self._files.find_newest(stored.name for stored in self._stored) + _CLOCK_STEP
            path = self._cache.folder / name_index_file()
            if path.stat().st_mtime_ns < newest:
                os.utime(path, ns=(newest, newest))

    def _merge(self, files: Sequence[_Stored], indexes: Sequence[ShardIndex]) -> list[ShardIndex]:
        """Return one index per file and format, the newest; none of a file that has changed."""
        found: dict[str, dict[str, ShardIndex]] = {}
        stored = itertools.chain.from_iterable(each.take_all() for each in files)
        for index in itertools.chain(self._iterate_old(), stored, indexes):
            known = found.setdefault(index.shard, {})
            if any(other.sha256 != index.sha256 for other in known.values()):
                known.clear()
            known[index.format_identity] = index
        return [index for known in found.values() for index in known.values()]

    def _iterate_old(self) -> Iterator[ShardIndex]:
        """Yield the indexes that a writer of an earlier release has written, and that are whole."""
        for name in () if self._stored or self.listed is None else self.listed:
            with suppress(CorruptShardError):
                index = self._read_old(name)
                if index is not None:
                    yield index

    def _rewrite(
        self, files: _Files, first: int, old: Sequence[_Stored], indexes: Sequence[ShardIndex]
    ) -> None:
        """Write index files in place of others.

        Args:
            files: Files of the folder of indexes.
            first: Number of the first index file.
            old: The files that they replace.
            indexes: The indexes that they hold.
        """
        written = set()
        for number, content in enumerate(dump_index_files(indexes), first):
            files.replace(name_index_file(number), content)
            written.add(name_index_file(number))
        for stored in reversed(old):
            if stored.name not in written:
                files.remove(stored.name)

    def forget(self, names: Collection[str]) -> bool:
        """Remove the indexes of files that are gone; return False if they cannot be written."""
        kept = [index for index in self._merge(self._stored, []) if index.shard not in names]
        try:
            self._rewrite(self._files, 0, self._stored, kept)
        except OSError:
            return False
        self._read()
        return True


class DataIndex:
    """The indexes of the files of a dataset, which may lie in several folders.

    Args:
        file_format: The format that checks them.
    """

    def __init__(self, file_format: FormatIdentity) -> None:
        self.file_format = file_format
        self._folders: dict[str, FolderIndex] = {}

    def folder(self, shard: Shard) -> FolderIndex:
        """Return the index of the folder of a file; each is read once."""
        folder = self._folders.get(shard.folder)
        if folder is None:
            folder = self._folders[shard.folder] = FolderIndex(shard, self.file_format)
        return folder

    def get(self, shard: Shard) -> ShardIndex | None:
        """Return the index of a file; see ``FolderIndex.get``."""
        return self.folder(shard).get(shard)

    def listed(self, shard: Shard) -> ListedShard | None:
        """Return the entry of a file in the list of its writer; None: there is none."""
        listed = self.folder(shard).listed
        return None if listed is None else listed.get(shard.name)

    def save(
        self, indexes: Sequence[tuple[Shard, ShardIndex]], *, rebuild: bool = False
    ) -> list[str]:
        """Save the indexes of files; return the folder of each; see ``FolderIndex.save``."""
        by_folder: dict[FolderIndex, list[ShardIndex]] = {}
        for shard, index in indexes:
            by_folder.setdefault(self.folder(shard), []).append(index)
        saved = {folder: folder.save(found, rebuild=rebuild) for folder, found in by_folder.items()}
        return [saved[self.folder(shard)] for shard, _ in indexes]

"""Files of a remote folder and of all folders below it, for data that is many files.

They are listed once; whole files come through the cache, or ranges of them into memory, as
``Remote.how`` says. A file of another version than the one that was listed is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import FingerprintMismatch, MissingShardError, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.range_cache import (
    RangeDownload,
    SparseFile,
    allocate_sparse,
    download_missing,
)
from seqdata.storage.remote.remote_files import FileStat, ListedFile
from seqdata.storage.remote.retry import make_changed_error
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.remote.urls import WEB, check_url

Pieces = Sequence[tuple[int, int]] | None
"""First byte and one past the last of each piece; None: the whole file, as one piece."""
Bytes = NDArray[np.uint8]
T = TypeVar("T")
_ASK_SECONDS = 1.0  # of retries, to ask whether a file that cannot be read was replaced


class RemoteTree:
    """The files below a remote folder, by their paths. Threads and forked processes may use it.

    Args:
        url: URL of the folder.
        remote: How it is read.

    Raises:
        ConfigError: If the scheme is unknown, or a package that it needs is not installed.
    """

    def __init__(self, url: str, remote: str | Remote | None = None) -> None:
        self.remote = resolve_remote(remote)
        self._is_web = check_url(url) in WEB
        self._files = make_remote_files(url, self.remote)
        self._asking = make_remote_files(
            url, replace(self.remote, retry_seconds=min(_ASK_SECONDS, self.remote.retry_seconds))
        )
        self._cache = make_cache(self._files)
        self._threads = ForkSafeThreadPool(self.remote.connections)
        self._listed: dict[str, ListedFile] | None = None
        self._stats: dict[str, FileStat | None] = {}  # None: it is not there

    @property
    def location(self) -> str:
        """The folder for messages, without credentials."""
        return self._files.location

    @property
    def listed(self) -> Mapping[str, ListedFile] | None:
        """Path -> file, as of ``list_files``; None: not called yet, or it returned None."""
        return self._listed

    @property
    def known(self) -> list[str]:
        """Paths of the files that are known to exist."""
        return [path for path, stat in self._stats.items() if stat is not None]

    def list_files(self) -> Mapping[str, ListedFile] | None:
        """Return all files by their paths; None if the server does not list them, or refuses to.

        Files of a folder that is not listed are asked for when they are first read.

        Raises:
            MissingShardError: If there is no such bucket.
            RemoteReadError: If the request fails.
        """
        try:
            found = self._files.walk()
        except MissingShardError:
            if not self._is_web:
                raise
            return None
        except RemoteReadError as error:
            if not error.details.get("refused"):
                raise
            return None
        if found and not self._has_same_tags(*next(iter(found.items()))):
            found = {
                path: replace(file, stat=FileStat(file.stat.size, None))
                for path, file in found.items()
            }
        self._listed = found
        self._stats = {path: file.stat for path, file in found.items()}
        return found

    def stat(self, paths: Iterable[str]) -> list[FileStat | None]:
        """Return size and tag of files; None for those that do not exist.

        Raises:
            RemoteReadError: If a request fails.
        """
        wanted = list(paths)
        if self._listed is None:
            self._threads.map(self._ask, [path for path in wanted if path not in self._stats])
        return [self._stats.get(path) for path in wanted]

    def read(self, pieces: Mapping[str, Pieces]) -> dict[str, list[Bytes]]:
        """Return the bytes of pieces of files, uint8; files that are not there are omitted.

        Raises:
            MissingShardError: If a file was there, and is gone.
            FingerprintMismatch: If one was replaced since it was listed.
            RemoteReadError: If one cannot be read; its path is ``details["file"]``.
        """
        stats = dict(zip(pieces, self.stat(pieces), strict=True))
        wanted = {
            path: ([(0, stat.size)] if pieces[path] is None else list(pieces[path] or ()), stat)
            for path, stat in stats.items()
            if stat is not None
        }
        if self.remote.how == "ranges":
            return self._explain(lambda: self._read_ranges(wanted))
        paths = list(wanted)
        found = self._threads.map(
            lambda path: self._explain(lambda: self._read_whole(path, *wanted[path])), paths
        )
        return dict(zip(paths, found, strict=True))

    def digest(self, paths: Iterable[str]) -> str:
        """Return a digest of the names, sizes and tags of files (32 hex digits)."""
        digest = hashlib.sha256()
        for path, stat in sorted((path, self._stats.get(path)) for path in paths):
            digest.update(repr((path, stat)).encode())
        return digest.hexdigest()[:32]

    def _read_whole(
        self, path: str, pieces: Sequence[tuple[int, int]], stat: FileStat
    ) -> list[Bytes]:
        request = CacheRequest(
            path, stat.size, None, FingerprintMismatch, None if stat.tag is None else stat
        )
        content = self._cache.read_bytes(request, self._locate(path))
        return [_copy(content, first, stop) for first, stop in pieces]  # the file is released

    def _read_ranges(
        self, wanted: Mapping[str, tuple[Sequence[tuple[int, int]], FileStat]]
    ) -> dict[str, list[Bytes]]:
        paths = list(wanted)
        files = {
            number: SparseFile(allocate_sparse(wanted[path][1].size))
            for number, path in enumerate(paths)
        }
        ranges = {
            number: [np.array(wanted[path][0], dtype=np.int64).reshape(-1, 2)]
            for number, path in enumerate(paths)
        }
        download_missing(
            files,
            ranges,
            lambda number, file, missing: RangeDownload(
                self._files, paths[number], file.content, missing, self._locate(paths[number])
            ),
            lambda number: self._check_same(paths[number], self._files.stat),
            self._threads,
        )
        return {
            path: [_copy(files[number].content, first, stop) for first, stop in wanted[path][0]]
            for number, path in enumerate(paths)
        }

    def _explain(self, read: Callable[[], T]) -> T:
        """Return a function's result; if bytes cannot be read, say whether they were replaced."""
        try:
            return read()
        except RemoteReadError as error:
            path = str(error.details.get("file", ""))
            if path in self._stats:
                try:
                    self._check_same(path, self._asking.stat)
                except RemoteReadError:
                    raise error from None
            raise

    def _check_same(self, path: str, ask: Callable[[str, DataLocation], FileStat]) -> None:
        location, known = self._locate(path), self._stats[path]
        found = ask(path, location)
        is_tagged = known is not None and known.tag is not None
        if known is None or found.size != known.size or (is_tagged and found.tag != known.tag):
            raise make_changed_error(location)

    def _has_same_tags(self, path: str, file: ListedFile) -> bool:
        """Return whether a file's tag in the listing is the one that is sent for the file."""
        return self._files.stat(path, self._locate(path)) == file.stat

    def _ask(self, path: str) -> None:
        try:
            self._stats[path] = self._files.stat(path, self._locate(path))
        except MissingShardError:
            self._stats[path] = None

    def _locate(self, path: str) -> DataLocation:
        return DataLocation(dataset=self.location, file=path)


def _copy(content: Any, first: int, stop: int) -> Bytes:
    """Return a copy of bytes, so that it does not keep the file."""
    if first >= stop:
        return np.empty(0, dtype=np.uint8)
    return np.array(np.frombuffer(memoryview(content)[first:stop], dtype=np.uint8))

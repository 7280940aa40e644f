"""Remote foreign files: downloaded as a whole, and held while they are open."""

from __future__ import annotations

import os
from pathlib import Path

from seqdata.errors import CacheError, DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.file_discovery import (
    MAX_STATE_BYTES,
    STATE_FILE,
    SUFFIXES,
    choose_files,
    parse_dataset_state,
)
from seqdata.storage.local_files import is_plain_name
from seqdata.storage.remote.cache_folder import open_cache_file
from seqdata.storage.remote.file_cache import CachedFile, CacheRequest, FileCache, make_cache
from seqdata.storage.remote.location import Remote, redact_url
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import make_remote_file, make_remote_files

_MAX_TRIES = 100  # attempts, if the folder of the cache is removed in between


class OpenCachedFile:
    """A file of the cache that stays open: it is read by a path that others may remove.

    Args:
        descriptor: Descriptor of the file; closed when this object is deleted.
        cached_file: The object that keeps it in the cache.
    """

    __slots__ = ("_cached_file", "_descriptor")

    def __init__(self, descriptor: int, cached_file: CachedFile) -> None:
        self._descriptor = descriptor
        self._cached_file = cached_file

    @property
    def path(self) -> Path:
        """A path that is valid while this object exists."""
        return Path(f"/dev/fd/{self._descriptor}")

    @property
    def version(self) -> str:
        """Its name in the cache, which differs for other versions of the remote file."""
        return self._cached_file.path.name

    def __del__(self) -> None:
        os.close(self._descriptor)


def download_files(
    location: str, remote: Remote
) -> tuple[str, dict[str, Path], tuple[OpenCachedFile, ...]]:
    """Download the file, or the files of the folder, at a URL.

    Returns:
        The URL for messages; name -> local path, in the order of their sequences; and the open
        files.

    Raises:
        ConfigError: If the URL is invalid.
        MissingShardError: If a file that a saved dataset names does not exist.
        DataError: If there is no such file, or files do not fit together.
        RemoteReadError: If they cannot be read.
        CacheError: If the cache has no room for all of them.
    """
    dataset = redact_url(location)
    if dataset.endswith(SUFFIXES):
        files, name = make_remote_file(location, remote)
        names = [name]
    else:
        files = make_remote_files(location, remote)
        existing = list(files.names())
        listed = []
        if STATE_FILE in existing and (size := files.stat(STATE_FILE).size) <= MAX_STATE_BYTES:
            listed = parse_dataset_state(dataset, files.read(STATE_FILE, 0, size), existing)
        names = choose_files(dataset, existing, listed)
    for name in names:
        if not is_plain_name(name):
            raise DataLocation(dataset=dataset, file=name).make_error(
                DataError,
                "must have a plain file name, but has not. Rename it",
            )
    cache = make_cache(files)
    opened_files = ForkSafeThreadPool(remote.connections).map(
        lambda name: _open_cached(cache, name), names
    )
    paths = {name: one.path for name, one in zip(names, opened_files, strict=True)}
    return dataset, paths, tuple(opened_files)


def _open_cached(cache: FileCache, name: str) -> OpenCachedFile:
    for _ in range(_MAX_TRIES):
        cached = cache.acquire(CacheRequest(name))
        descriptor = open_cache_file(cached.path)
        if descriptor is not None:
            return OpenCachedFile(descriptor, cached)
    raise CacheError.at(
        f"{cache.remote.folder}: must exist while files are opened, but is removed repeatedly. Do "
        "not remove it",
        file=str(cache.remote.folder),
    )

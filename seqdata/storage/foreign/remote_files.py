"""Remote files that others wrote: fetched whole, and held for as long as they are open.

Place in the flow: the foreign store opens URLs through here. Reads: a listing, whole files. Makes:
local paths.
"""

from __future__ import annotations

import os
from pathlib import Path

from seqdata.errors import CacheError, DataError
from seqdata.storage.data_location import Place
from seqdata.storage.foreign.file_discovery import (
    MOST_STATE,
    STATE,
    SUFFIXES,
    chosen_of,
    named_by_datasets,
)
from seqdata.storage.local_files import is_plain_name
from seqdata.storage.remote.cache_folder import opened
from seqdata.storage.remote.file_cache import Cache, Held, Wanted, cache_of
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import remote_file, remote_files
from seqdata.storage.remote.urls import shown

_TRIES = 100  # times that the folder of the cache may be removed just then


class OpenFile:
    """A file of the cache that stays open: it is read by its path, which others may remove.

    Args:
        descriptor: Of the file; closed when this goes.
        held: What keeps it in the cache.
    """

    __slots__ = ("_descriptor", "_held")

    def __init__(self, descriptor: int, held: Held) -> None:
        self._descriptor = descriptor
        self._held = held

    @property
    def path(self) -> Path:
        """Leads to it for as long as this lives."""
        return Path(f"/dev/fd/{self._descriptor}")

    @property
    def version(self) -> str:
        """Name in the cache: another version of the remote file has another one."""
        return self._held.path.name

    def __del__(self) -> None:
        os.close(self._descriptor)


def held_files(location: str, remote: Remote) -> tuple[str, dict[str, Path], tuple[OpenFile, ...]]:
    """Fetch the file, or the files of the folder, at a URL.

    Returns:
        The URL for people; name -> local path, in the order of their sequences; and what holds
        them.

    Raises:
        ConfigError: If the URL cannot be meant.
        MissingShardError: If a file that a saved dataset names is not there.
        DataError: If there is no such file, or they do not go together.
        RemoteReadError: If they cannot be read.
        CacheError: If the cache has no room for all of them.
    """
    where = shown(location)
    if where.endswith(SUFFIXES):
        files, name = remote_file(location, remote)
        names = [name]
    else:
        files = remote_files(location, remote)
        there = list(files.names())
        named = []
        if STATE in there and (size := files.stat(STATE).size) <= MOST_STATE:
            named = named_by_datasets(where, files.read(STATE, 0, size), there)
        names = chosen_of(where, there, named)
    for name in names:
        if not is_plain_name(name):
            raise Place(dataset=where, file=name).error(
                DataError,
                "has a name that is no plain file name, must have one; rename it",
            )
    cache = cache_of(files)
    held = Fetchers(remote.connections).each(lambda name: _kept_open(cache, name), names)
    paths = {name: one.path for name, one in zip(names, held, strict=True)}
    return where, paths, tuple(held)


def _kept_open(cache: Cache, name: str) -> OpenFile:
    for _ in range(_TRIES):
        held = cache.hold(Wanted(name))
        descriptor = opened(held.path)
        if descriptor is not None:
            return OpenFile(descriptor, held)
    raise CacheError.at(
        f"{cache.remote.folder}: is removed again and again, must stay for a moment; let it be",
        file=str(cache.remote.folder),
    )

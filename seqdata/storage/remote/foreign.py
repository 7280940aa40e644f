"""Remote files that others wrote: fetched whole, and held for as long as they are open.

Place in the flow: the foreign store opens URLs through here. Reads: a listing, whole files. Makes:
local paths.
"""

from __future__ import annotations

from pathlib import Path

from seqdata.errors import DataError
from seqdata.storage.foreign.files import SUFFIXES, chosen_of
from seqdata.storage.location import is_plain_name
from seqdata.storage.places import Place
from seqdata.storage.remote.cache import Held, Wanted, cache_of
from seqdata.storage.remote.files import remote_file, remote_files
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.pools import Fetchers
from seqdata.storage.remote.urls import shown


def held_files(location: str, remote: Remote) -> tuple[str, dict[str, Path], tuple[Held, ...]]:
    """Fetch the file, or the files of the folder, at a URL.

    Returns:
        The URL for people; name -> local path, in the order of their sequences; and what holds
        them.

    Raises:
        ConfigError: If the URL cannot be meant.
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
        names = chosen_of(where, files.names(), ())
    for name in names:
        if not is_plain_name(name):
            raise Place(dataset=where, file=name).error(
                DataError,
                "has a name that is no plain file name, must have one; rename it",
            )
    cache = cache_of(files)
    held = Fetchers(remote.connections).each(lambda name: cache.hold(Wanted(name)), names)
    paths = {name: one.path for name, one in zip(names, held, strict=True)}
    return where, paths, tuple(held)

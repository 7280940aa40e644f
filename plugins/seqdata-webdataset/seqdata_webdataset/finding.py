"""From a location to the tar files that it means: a file, a folder, a list, braces.

Place in the flow: the first step of opening and of indexing. Reads: names. Makes: paths.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import braceexpand

from seqdata.errors import (
    ConfigError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
    UnsafeContentError,
)
from seqdata.storage.data_location import Place
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import is_remote, shown
from seqdata.storage.writing.writer_lock import ASIDE
from seqdata_webdataset.files import names_in
from seqdata_webdataset.keeping import FOLDER
from seqdata_webdataset.keeping import SUFFIX as INDEX
from seqdata_webdataset.listing import LIST, Listed, load_list
from seqdata_webdataset.remote import find_remote
from seqdata_webdataset.shards import LocalShard, Shard

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SUFFIX = ".tar"
JOINED = "::"
_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
MAX_SHARDS = 1 << 20
_MANY = 1024  # URLs that are asked for without a first look
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def text_of(location: Location) -> str:
    """Return a location as one text, which means the same again, from any folder.

    Raises:
        ConfigError: If it is no path and no list of them.
    """
    if isinstance(location, str | os.PathLike):
        return JOINED.join(map(_from_root, os.fspath(location).split(JOINED)))
    parts = list(location) if isinstance(location, Sequence) else []
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        raise ConfigError(
            f"webdataset: location is {location!r}, must be a path or a list of paths of tar files"
        )
    return JOINED.join(_from_root(os.fspath(part)) for part in parts)


def _from_root(part: str) -> str:
    """Return a path with the folder that it is relative to; a URL or program as it is."""
    if not part or "://" in part or _is_program(part):
        return part
    if part.startswith("{"):  # the folder may be in the braces
        return JOINED.join(str(local_path(one)) for one in _expanded(part, part))
    return str(local_path(part))


def _is_program(part: str) -> bool:
    return part.startswith(("pipe:", "|")) or part.endswith("|")


def find_shards(location: str, remote: Remote | None = None, *, there: bool = False) -> list[Shard]:
    """Give the tar files that a location means, in its order; of a folder by name.

    Args:
        location: A file, a folder, braces (``x-{000..017}.tar``), or several, joined by ``::``;
            paths or URLs.
        remote: How URLs are read; None: through the cache.
        there: Whether to refuse a local file that is not there, and braces of very many URLs
            whose first is not: before all the others are looked for.

    Raises:
        ConfigError: If it means none, or one of them twice.
        UnsafeContentError: If it would run a program.
        IncompleteDatasetError: If a folder's writing was never finished.
        MissingShardError: If there is an index in a folder, but not its shard.
        CorruptShardError: If the list of a folder's shards is damaged.
    """
    found: list[Shard] = []
    parts = location.split(JOINED)
    for part in filter(_is_program, parts):  # before any of them is looked for
        raise UnsafeContentError(
            f"webdataset: {part!r} would run a program, must be a path; run it yourself and open "
            "the file that it makes"
        )
    for part in parts:
        probed = not (there and "{" in part and _most(part) > _MANY)
        for one in _expanded(part, location):
            name = shown(one)
            if name.endswith(_PACKED):
                raise ConfigError(
                    f"{name.rpartition('/')[2]}: is compressed, must be a plain tar file, of which "
                    "parts can be read; unpack it once, e.g. with gunzip"
                )
            if is_remote(one):
                shards: Sequence[Shard] = find_remote(one, remote or Remote(), SUFFIX)
                if not probed:
                    shards[0].look(Place(dataset=shown(location), shard=0, file=shards[0].name))
                    probed = True
                found.extend(shards)
                continue
            path = local_path(one)
            if path.is_dir():
                found.extend(_in_folder(path))
                continue
            found.append(LocalShard(path))
            if there:
                found[-1].look(Place(dataset=shown(location), shard=len(found) - 1, file=path.name))
    found = _with_lists(found)
    seen = set[tuple[str, str]]()
    for shard in found:
        if (shard.folder, shard.name) in seen:
            raise ConfigError(
                f"webdataset: {shown(location)!r} names {shard.name} twice, must name it once"
            )
        seen.add((shard.folder, shard.name))
    return found


def _expanded(part: str, location: str) -> Iterator[str]:
    """Yield what braces mean, one by one: they may mean very many."""
    if "{" not in part:
        yield part
        return
    if _most(part) > MAX_SHARDS:
        raise ConfigError(
            f"webdataset: {shown(location)!r} means more than {MAX_SHARDS} shards, must mean at "
            "most so many; check the braces"
        )
    try:
        yield from braceexpand.braceexpand(part)
    except ValueError as error:  # unbalanced
        raise ConfigError(
            f"webdataset: {shown(location)!r} has braces without their ends, must have both; e.g. "
            "'x-{000..017}.tar'"
        ) from error


def _most(part: str) -> int:
    """Give how many texts braces mean at most, without making them."""
    ranges = [abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(part)]
    choices = [one.count(",") + 1 for one in part.split("{")[1:]]
    return math.prod(ranges) * math.prod(choices)


def _with_lists(shards: Sequence[Shard]) -> list[Shard]:
    """Give shards with what the lists of their folders say of them."""
    lists: dict[str, Mapping[str, Listed]] = {}
    made = []
    for shard in shards:
        if shard.folder not in lists:
            raw = shard.list_of_folder()
            lists[shard.folder] = {} if raw is None else load_list(raw, shard.folder)
        made.append(shard.with_listed(lists[shard.folder].get(shard.name)))
    return made


def _in_folder(folder: Path) -> list[LocalShard]:
    names = names_in(folder)
    begun = any(name.startswith(ASIDE) for name in names)
    if begun and not (folder / FOLDER / LIST).is_file():
        raise Place(dataset=str(folder), file=LIST).error(
            IncompleteDatasetError,
            "was never finished writing, must be; the same call goes on with it, or remove the "
            "folder '.seqdata-tmp-…' in it",
        )
    found = [folder / name for name in names if name.endswith(SUFFIX)]
    if not found:
        raise ConfigError(
            f"{folder}: holds no file that ends with {SUFFIX!r}, must hold one at least; check the "
            "path"
        )
    shards = {path.name: LocalShard(path) for path in found}
    raw = next(iter(shards.values())).list_of_folder()
    if raw is not None:
        due = list(load_list(raw, str(folder)))
        for name in shards.keys() - set(due):
            raise Place(dataset=str(folder), file=name).error(
                FingerprintMismatch,
                "is in the folder but not in the list of its shards, must be in both; move it to "
                "a folder of its own",
            )
        return [LocalShard(folder / name) for name in due]  # one that is gone is told at opening
    indexes = names_in(folder / FOLDER) if (folder / FOLDER).is_dir() else []
    for name in (one.removesuffix(INDEX) for one in indexes if one.endswith(f"{SUFFIX}{INDEX}")):
        if name not in shards:
            raise Place(dataset=str(folder), file=name).error(
                MissingShardError,
                f"is not there but its index is ({FOLDER}/{name}{INDEX}), must be; restore it, or "
                "remove its index",
            )
    return list(shards.values())

"""The files of a format at a location: a file, a folder, a glob, a list, braces, or URLs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

from seqdata.errors import (
    ConfigError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
    UnsafeContentError,
)
from seqdata.storage.braces import (
    JOINED,
    count_expansions,
    expand_location,
    find_literal,
    split_location,
)
from seqdata.storage.data_location import DataLocation, shorten_location
from seqdata.storage.find_files import (
    FoundFiles,
    describe_folders,
    find_files,
    find_listed,
    is_pattern,
)
from seqdata.storage.indexed.index_folder import LIST_FILE, DataIndex
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.shards import INDEX_FOLDER, LocalShard, RemoteShard, Shard
from seqdata.storage.local_files import is_remote, join_names, list_folder, local_path
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles, check_name
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.urls import WEB, check_url, redact_url, split_url
from seqdata.storage.writing.staging_dir import STAGING_PREFIX

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
MAX_SHARDS = 1 << 20
_MANY = 1024  # URLs that are requested without probing the first one
_MAGIC = re.compile(r"[{*?\[]")
_UNPACKERS = {"bz2": "bunzip2", "xz": "unxz", "zst": "unzstd", "lz4": "unlz4"}  # others: gunzip


def format_location(location: Location, file_format: IndexedFormat) -> str:
    """Return a location as one text that is valid in any working directory.

    Raises:
        ConfigError: If it is not a path or a non-empty list of paths.
    """
    if isinstance(location, str | os.PathLike):
        return JOINED.join(map(_from_root, split_location(os.fspath(location))))
    parts = list(location) if isinstance(location, Sequence) else []
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        raise ConfigError(
            f"{file_format.name}: location must be a path or a non-empty list of paths of files, "
            f"but is {location!r}"
        )
    return JOINED.join(_from_root(os.fspath(part)) for part in parts)


def _from_root(part: str) -> str:
    """Return an absolute path; a URL or program unchanged."""
    if not part or "://" in part or _is_program(part):
        return part
    if part.startswith("{") and not find_literal(part):  # the folder may be in the braces
        paths = list(_expand(part, part, "store"))
        if any(os.path.isabs(path) for path in paths):
            return JOINED.join(str(local_path(path)) for path in paths)
        return f"{local_path(os.curdir)}/{part}"
    return str(local_path(part))


def _is_program(part: str) -> bool:
    return part.startswith(("pipe:", "|")) or part.endswith("|")


@dataclass(frozen=True, slots=True)
class FoundShards:
    """The files at a location.

    Attributes:
        shards: The files.
        index: Index of the files, which may lack some of them.
        places: The files found in each place of the location.
    """

    shards: Sequence[Shard]
    index: DataIndex
    places: Sequence[FoundFiles]


def find_shards(
    location: str,
    file_format: IndexedFormat,
    remote: Remote | None = None,
    *,
    probe: bool = False,
    forget_gone: bool = False,
) -> FoundShards:
    """Return the files at a location, in its order; those of a folder in natural order.

    Args:
        location: A file, a folder, a glob, braces (``x-{000..017}.tar``), or several, joined by
            ``::``; paths or URLs. A path that is there is taken as it is.
        file_format: Format of the files.
        remote: The options for URLs; None: through the cache.
        probe: Whether to raise early if a local file, or the first of very many URLs, is missing.
        forget_gone: Whether a folder's indexes of files that are gone are removed.

    Raises:
        ConfigError: If there are none, they are of several splits, or a file is named twice.
        UnsafeContentError: If it would run a program, or a folder's list names files elsewhere.
        IncompleteDatasetError: If writing to a folder was not finished.
        MissingShardError: If a folder has an index, but not its file; or as ``probe`` says.
        CorruptShardError: If the list of a folder's files is damaged.
        FingerprintMismatch: If a folder with such a list has a file that is not in it.
        RemoteReadError: If a URL cannot be read.
    """
    index = DataIndex(file_format)
    shards: list[Shard] = []
    places: list[FoundFiles] = []
    parts, where = split_location(location), redact_url(location)
    _refuse_programs(parts, file_format)  # before any file is accessed
    for part in parts:
        is_probed = not (probe and "{" in part and count_expansions(part) > _MANY)
        for path_or_url in _expand(part, location, file_format.name):
            _refuse_packed(path_or_url, file_format)
            if is_remote(path_or_url):
                fetched, found = find_remote(
                    path_or_url, remote or Remote(), file_format.suffixes, index
                )
                if not is_probed:
                    fetched[0].check_exists(
                        DataLocation(dataset=where, shard=0, file=fetched[0].name)
                    )
                    is_probed = True
                shards.extend(fetched)
                places.append(found)
                continue
            path = local_path(path_or_url)
            files, found = _find_local(path, file_format, index, forget_gone=forget_gone)
            if file_format.is_nested and path_or_url != part:
                files = _name_below(_find_fixed_folder(part), files)
            if probe and not path.is_dir():
                _check_there(files, len(shards), where, is_only=path_or_url == location)
            shards.extend(files)
            places.append(found)
    _refuse_repeated(shards, location, file_format)
    for shard in {shard.folder: shard for shard in shards}.values():  # before threads ask for it
        index.folder(shard)
    return FoundShards(shards, index, places)


def _check_there(shards: Sequence[LocalShard], first: int, where: str, *, is_only: bool) -> None:
    """Raise if one of several files does not exist.

    Args:
        shards: The files.
        first: Number of the first one.
        where: The location, for errors.
        is_only: Whether the location is the path of one file, which may be misspelt.

    Raises:
        MissingShardError: If so.
    """
    for at, each in enumerate(shards, first):
        try:
            each.check_exists(DataLocation(dataset=where, shard=at, file=each.name))
        except MissingShardError as error:
            if not is_only:
                raise
            raise DataLocation(dataset=where).make_error(
                MissingShardError, "must be a file or a folder, but is not there. Check the path"
            ) from error


def _refuse_programs(parts: Sequence[str], file_format: IndexedFormat) -> None:
    for part in filter(_is_program, parts):
        raise UnsafeContentError(
            f"{file_format.name}: location must be a path, but {part!r} would run a program. Run "
            "it yourself and open the file that it writes"
        )


def _refuse_repeated(shards: Sequence[Shard], location: str, file_format: IndexedFormat) -> None:
    seen: dict[str, set[str]] = {}
    for shard in shards:
        names = seen.setdefault(shard.folder, set())
        if shard.name in names:
            raise ConfigError(
                f"{file_format.name}: location must name each file once, but "
                f"{shorten_location(redact_url(location))!r} names {shard.name} twice. Leave one "
                "of them out"
            )
        names.add(shard.name)


def _refuse_packed(path: str, file_format: IndexedFormat) -> None:
    name = redact_url(path)
    if name.lower().endswith(file_format.packed):
        tool = _UNPACKERS.get(name.lower().rpartition(".")[2], "gunzip")
        raise ConfigError(
            f"{name.rpartition('/')[2]}: must be a plain {file_format.suffixes[0][1:]} file, so "
            f"that parts of it can be read, but is compressed. Unpack it once with `{tool}`"
        )


def _find_fixed_folder(part: str) -> Path:
    """Return the folder above the first brace or sign of a glob."""
    literal = find_literal(part)
    fixed = literal + _MAGIC.split(part[len(literal) :], maxsplit=1)[0]
    return local_path(fixed.rpartition("/")[0] or "/")


def _name_below(folder: Path, shards: Sequence[LocalShard]) -> list[LocalShard]:
    """Return the same files, named by their paths below a folder."""
    return [LocalShard(folder, shard.path.relative_to(folder).as_posix()) for shard in shards]


def _find_local(
    path: Path, file_format: IndexedFormat, index: DataIndex, *, forget_gone: bool
) -> tuple[list[LocalShard], FoundFiles]:
    """Return the local files of a path, which may be a glob, and what was found there."""
    is_folder = path.is_dir()
    if is_folder:
        _refuse_unfinished(path)
    elif path.exists() or not is_pattern(str(path)):
        return [LocalShard.at(path)], FoundFiles(root=path.parent, names=[path.name])
    found = find_files(path, lambda name: name.lower().endswith(file_format.suffixes))
    if not found.names:
        raise ConfigError(
            f"{path}: must {'hold' if is_folder else 'match'} at least one file that ends with "
            f"{join_names(file_format.suffixes)}, but {'holds' if is_folder else 'matches'} none. "
            "Check the path"
        )
    if file_format.is_nested:
        shards = [LocalShard(found.root, name) for name in found.names]
        if is_folder:
            shards = _check_folder(shards, file_format, index, forget_gone=forget_gone)
        return shards, found
    shards = [LocalShard.at(found.root / name) for name in found.names]
    if not is_folder:
        return shards, found
    by_folder: dict[Path, list[LocalShard]] = {}
    for shard in shards:
        by_folder.setdefault(shard.root, []).append(shard)
    checked = [
        _check_folder(those, file_format, index, forget_gone=forget_gone)
        for those in by_folder.values()
    ]
    return list(itertools.chain.from_iterable(checked)), found


def _expand(part: str, location: str, format_name: str) -> Iterator[str]:
    """Yield the expansions of braces one by one: there may be very many."""
    if "{" not in part:
        yield part
        return
    literal = find_literal(part)
    if count_expansions(part[len(literal) :]) > MAX_SHARDS:
        raise ConfigError(
            f"{format_name}: location must name at most {MAX_SHARDS} files, but "
            f"{shorten_location(redact_url(location))!r} names more. Check the braces"
        )
    try:
        yield from expand_location(part)
    except ValueError as error:  # unbalanced
        raise ConfigError(
            f"{format_name}: location must have balanced braces, as in "
            f"'x-{{000..017}}{{.tar,.bin}}', but is {shorten_location(redact_url(location))!r}"
        ) from error


def _refuse_unfinished(folder: Path) -> None:
    """Raise if writing to a folder was begun, and not finished."""
    names = list_folder(folder)
    begun = any(name.startswith(STAGING_PREFIX) for name in names)
    if begun and not (folder / LIST_FILE).is_file():
        raise DataLocation(dataset=str(folder), file=Path(LIST_FILE).name).make_error(
            IncompleteDatasetError,
            "was not finished writing. Repeat the same call, which resumes it, or remove the "
            "folder '.seqdata-tmp-…' in it",
        )


def _check_folder(
    files: Sequence[LocalShard], file_format: IndexedFormat, index: DataIndex, *, forget_gone: bool
) -> list[LocalShard]:
    """Return the files of a folder: those of its list, if it has one, in the order of the list."""
    folder, names = files[0].root, {shard.name for shard in files}
    found = index.folder(files[0])
    if found.listed is not None:
        for name in names - found.listed.keys():
            raise DataLocation(dataset=str(folder), file=name).make_error(
                FingerprintMismatch,
                "must be in the list of the folder's shards, but is not. Move it to a folder of "
                "its own",
            )
        # a missing one is an error at opening
        return [LocalShard(folder, name) for name in found.listed]
    gone = {
        name: index_name
        for name, index_name in found.find_index_files().items()
        if name not in names and name.lower().endswith(file_format.suffixes)
        and not (folder / name).exists()  # it may be hidden, or have come by now
    }  # fmt: skip
    if gone and not (forget_gone and found.forget(gone)):
        name = min(gone)
        raise DataLocation(dataset=str(folder), file=name).make_error(
            MissingShardError,
            f"is not there, but its index in {INDEX_FOLDER}/{gone[name]} is. Restore the file; or, "
            f"to leave it out, run `seqdata index '{folder}'`, which removes its index",
        )
    return list(files)


def find_remote(
    url: str, remote: Remote, suffixes: tuple[str, ...], index: DataIndex
) -> tuple[list[RemoteShard], FoundFiles]:
    """Return the file at a URL, or those of its folder, in natural order; ``*`` stands for any.

    A file with the very name is never taken for a glob.

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
    listed = index.folder(RemoteShard(where, "", remote)).listed
    files = make_remote_files(where, remote)
    existing = list(_list_names(files) if listed is None else listed)
    is_glob = pattern not in existing

    def is_wanted(name: str) -> bool:
        is_named = fnmatch(name, pattern) if is_glob else name == pattern
        return is_named and name.lower().endswith(suffixes)

    if listed is None:
        found = find_listed(redact_url(where), existing, files.folders(), is_wanted)
        if pattern != "*":  # a glob leaves out what it does not name
            found = replace(found, others=(), hidden=(), folders=())
    else:
        found = FoundFiles(root=Path(), names=list(filter(is_wanted, existing)))
    names = found.names
    if not names:
        must, does = ("hold", "holds") if pattern == "*" else ("match", "matches")
        raise ConfigError(
            f"{redact_url(url)}: must {must} at least one file that ends with "
            f"{join_names(suffixes)}, but {does} none. Check the location{describe_folders(found)}"
        )
    if listed is None:
        for name in names:
            check_name(DataLocation(dataset=redact_url(where), file=name), name)
    return [RemoteShard(where, name, remote) for name in names], found


def _list_names(files: RemoteFiles) -> Iterable[str]:
    """Return the names of the files of a folder behind a URL.

    Raises:
        MissingShardError: If there is no such folder. A web server may only not list it: then the
            list that a writer makes is needed.
    """
    try:
        return files.names()
    except MissingShardError as error:
        if check_url(files.location) not in WEB:
            raise DataLocation(dataset=files.location).make_error(
                MissingShardError, "is not there: no file or folder has this name. Check the URL"
            ) from error
        raise DataLocation(dataset=files.location, file=LIST_FILE).make_error(
            MissingShardError,
            "must exist, since the server does not list the folder, but does not. Restore it or "
            "the folder, or name the files: 'https://host/folder/shard-{000..017}.tar'",
        ) from error

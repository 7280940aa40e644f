"""The files at a location: a file, a folder, a glob, a list, braces, or URLs.

Braces in locations, as a shell expands them: ``x-{000..017}.tar``, ``{train,val}``.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seqdata.errors import (
    ConfigError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
    UnsafeContentError,
)
from seqdata.storage.data_location import DataLocation, shorten_location
from seqdata.storage.indexed.catalogs import read_names
from seqdata.storage.indexed.files import join_names, list_folder
from seqdata.storage.indexed.index_storage import INDEX_FOLDER, INDEX_SUFFIX
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.remote_shards import find_remote
from seqdata.storage.indexed.shard_list import SHARD_LIST, ListedShard, load_list
from seqdata.storage.indexed.shards import LocalShard, Shard
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.writing.writer_lock import STAGING_PREFIX

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
JOINED = "::"
MAX_SHARDS = 1 << 20
_MANY = 1024  # URLs that are requested without probing the first one
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MAGIC = re.compile(r"[{*?\[]")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


def expand_braces(text: str) -> Iterator[str]:
    """Yield the expansions of a text with braces.

    Raises:
        ValueError: If a brace is unbalanced.

    Examples:
        >>> list(expand_braces("x-{08..10}.{a,b{1,2}}"))[:4]
        ['x-08.a', 'x-08.b1', 'x-08.b2', 'x-09.a']
    """
    begin = text.find("{")
    if begin < 0:
        if "}" in text:
            raise ValueError("a closing brace without an opening one")
        yield text
        return
    if "}" in text[:begin]:
        raise ValueError("a closing brace without an opening one")
    end = _find_closing(text, begin)
    for choice in _expand_choices(text[begin + 1 : end]):
        for rest in expand_braces(text[end + 1 :]):
            yield text[:begin] + choice + rest


def count_expansions(text: str) -> int:
    """Return an upper bound of the number of expansions, without creating them."""
    numbers = [abs(int(last) - int(first)) + 1 for first, last, _ in _NUMBERS.findall(text)]
    letters = [abs(ord(last) - ord(first)) + 1 for first, last, _ in _LETTERS.findall(text)]
    choices = [inside.count(",") + 1 for inside in text.split("{")[1:]]
    return math.prod(numbers) * math.prod(letters) * math.prod(choices)


def _find_closing(text: str, begin: int) -> int:
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError("an opening brace without a closing one")


def _expand_choices(inside: str) -> Iterator[str]:
    if found := _NUMBERS.fullmatch(inside):
        first, last = int(found[1]), int(found[2])
        padded = any(re.match(r"-?0\d", bound) for bound in found.groups()[:2])
        width = max(len(found[1]), len(found[2])) if padded else 0
        for number in _expand_range(first, last, found[3]):
            yield f"{number:0{width}d}"
        return
    if found := _LETTERS.fullmatch(inside):
        yield from map(chr, _expand_range(ord(found[1]), ord(found[2]), found[3]))
        return
    parts = _split_choices(inside)
    if len(parts) == 1:  # no alternatives: the braces are part of the name
        yield from (f"{{{name}}}" for name in expand_braces(inside))
        return
    for part in parts:
        yield from expand_braces(part)


def _expand_range(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)


def _split_choices(inside: str) -> list[str]:
    """Split at commas that are not inside of inner braces."""
    parts, depth = [""], 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def format_location(location: Location, file_format: IndexedFormat) -> str:
    """Return a location as one text that is valid in any working directory.

    Raises:
        ConfigError: If it is not a path or a list of paths.
    """
    if isinstance(location, str | os.PathLike):
        return JOINED.join(map(_from_root, os.fspath(location).split(JOINED)))
    parts = list(location) if isinstance(location, Sequence) else []
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        raise ConfigError(
            f"{file_format.name}: location must be a path or a list of paths of files, but is "
            f"{location!r}"
        )
    return JOINED.join(_from_root(os.fspath(part)) for part in parts)


def _from_root(part: str) -> str:
    """Return an absolute path; a URL or program unchanged."""
    if not part or "://" in part or _is_program(part):
        return part
    if part.startswith("{"):  # the folder may be in the braces
        paths = list(_expand(part, part, "store"))
        if any(os.path.isabs(path) for path in paths):
            return JOINED.join(str(local_path(path)) for path in paths)
        return f"{local_path(os.curdir)}/{part}"
    return str(local_path(part))


def _is_program(part: str) -> bool:
    return part.startswith(("pipe:", "|")) or part.endswith("|")


def find_shards(
    location: str, file_format: IndexedFormat, remote: Remote | None = None, *, probe: bool = False
) -> list[Shard]:
    """Return the files at a location, in its order; those of a folder sorted by name.

    Args:
        location: A file, a folder, a glob, braces (``x-{000..017}.tar``), or several, joined by
            ``::``; paths or URLs.
        file_format: Of the files.
        remote: The options for URLs; None: through the cache.
        probe: Whether to raise early if a local file, or the first of very many URLs, is missing.

    Raises:
        ConfigError: If there are none, or a file is named twice.
        UnsafeContentError: If it would run a program.
        IncompleteDatasetError: If writing to a folder was not finished.
        MissingShardError: If a folder has an index, but not its file.
        CorruptShardError: If the list of a folder's files is damaged.
    """
    found: list[Shard] = []
    parts, where = location.split(JOINED), redact_url(location)
    for part in filter(_is_program, parts):  # before any file is accessed
        raise UnsafeContentError(
            f"{file_format.name}: location must be a path, but {part!r} would run a program. Run "
            "it yourself and open the file that it writes"
        )
    for part in parts:
        is_probed = not (probe and "{" in part and count_expansions(part) > _MANY)
        for path_or_url in _expand(part, location, file_format.name):
            _refuse_packed(path_or_url, file_format)
            if is_remote(path_or_url):
                shards: Sequence[Shard] = find_remote(
                    path_or_url, remote or Remote(), file_format.suffixes
                )
                if not is_probed:
                    shards[0].check_exists(
                        DataLocation(dataset=where, shard=0, file=shards[0].name)
                    )
                    is_probed = True
                found.extend(shards)
                continue
            path = local_path(path_or_url)
            files = _find_local(path, file_format)
            if file_format.is_nested and (path_or_url != part or not path.exists()):
                files = _name_below(_find_fixed_folder(part), files)
            for at, each in enumerate(files if probe and not path.is_dir() else (), len(found)):
                each.check_exists(DataLocation(dataset=where, shard=at, file=each.name))
            found.extend(files)
    found = _with_lists(found)
    _refuse_repeated(found, location, file_format)
    return found


def _refuse_repeated(shards: Sequence[Shard], location: str, file_format: IndexedFormat) -> None:
    seen = set[tuple[str, str]]()
    for shard in shards:
        if (shard.folder, shard.name) in seen:
            raise ConfigError(
                f"{file_format.name}: location must name each file once, but "
                f"{shorten_location(redact_url(location))!r} names {shard.name} twice"
            )
        seen.add((shard.folder, shard.name))


def _refuse_packed(path: str, file_format: IndexedFormat) -> None:
    name = redact_url(path)
    if name.lower().endswith(file_format.packed):
        raise ConfigError(
            f"{name.rpartition('/')[2]}: must be a plain {file_format.suffixes[0][1:]} file, of "
            "which parts can be read, but is compressed. Unpack it once, e.g. with gunzip"
        )


def _find_fixed_folder(part: str) -> Path:
    """Return the folder above the first brace or sign of a glob."""
    return local_path(_MAGIC.split(part, maxsplit=1)[0].rpartition("/")[0] or "/")


def _name_below(folder: Path, shards: Sequence[LocalShard]) -> list[LocalShard]:
    """Return the same files, named by their paths below a folder."""
    return [LocalShard(folder, shard.path.relative_to(folder).as_posix()) for shard in shards]


def _find_local(path: Path, file_format: IndexedFormat) -> list[LocalShard]:
    """Return the local files of a path, which may be a glob."""
    if path.is_dir():
        return _find_in_folder(path, file_format)
    if path.exists() or not glob.has_magic(str(path)):
        return [LocalShard.at(path)]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    found = [
        LocalShard.at(match)
        for match in matches
        if match.name.lower().endswith(file_format.suffixes) and match.is_file()
    ]
    if not found and file_format.is_nested:  # of folders: what they hold
        for folder in filter(Path.is_dir, matches):
            found += _find_below(folder, file_format)
    if not found:
        raise ConfigError(
            f"{path}: must match at least one file that ends with "
            f"{join_names(file_format.suffixes)}, but matches none. Check the path"
        )
    return found


def _expand(part: str, location: str, format_name: str) -> Iterator[str]:
    """Yield the expansions of braces one by one: there may be very many."""
    if "{" not in part:
        yield part
        return
    if count_expansions(part) > MAX_SHARDS:
        raise ConfigError(
            f"{format_name}: location must name at most {MAX_SHARDS} files, but "
            f"{shorten_location(redact_url(location))!r} names more. Check the braces"
        )
    try:
        yield from expand_braces(part)
    except ValueError as error:  # unbalanced
        raise ConfigError(
            f"{format_name}: location must have balanced braces, as in "
            f"'x-{{000..017}}{{.tar,.bin}}', but is {shorten_location(redact_url(location))!r}"
        ) from error


def _with_lists(shards: Sequence[Shard]) -> list[Shard]:
    """Return files with their entries in the lists of their folders."""
    lists: dict[str, Mapping[str, ListedShard]] = {}
    listed = []
    for shard in shards:
        if shard.folder not in lists:
            raw = shard.read_shard_list()
            lists[shard.folder] = {} if raw is None else load_list(raw, shard.folder)
        known = lists[shard.folder]
        listed.append(shard.with_listed(known.get(shard.name)) if known else shard)
    return listed


def _find_in_folder(folder: Path, file_format: IndexedFormat) -> list[LocalShard]:
    names = list_folder(folder)
    begun = any(name.startswith(STAGING_PREFIX) for name in names)
    if begun and not (folder / INDEX_FOLDER / SHARD_LIST).is_file():
        raise DataLocation(dataset=str(folder), file=SHARD_LIST).make_error(
            IncompleteDatasetError,
            "was not finished writing. Repeat the same call, which resumes it, or remove the "
            "folder '.seqdata-tmp-…' in it",
        )
    shards = {shard.name: shard for shard in _find_below(folder, file_format, names)}
    if not shards:
        raise ConfigError(
            f"{folder}: must hold at least one file that ends with "
            f"{join_names(file_format.suffixes)}, but holds none. Check the path"
        )
    raw = next(iter(shards.values())).read_shard_list()
    if raw is not None:
        listed_names = list(load_list(raw, str(folder)))
        for name in shards.keys() - set(listed_names):
            raise DataLocation(dataset=str(folder), file=name).make_error(
                FingerprintMismatch,
                "must be in the list of the folder's shards, but is not. Move it to a folder of "
                "its own",
            )
        # a missing one is an error at opening
        return [LocalShard(folder, name) for name in listed_names]
    _refuse_gone(folder, shards, file_format)
    return list(shards.values())


def _find_below(
    folder: Path, file_format: IndexedFormat, names: Sequence[str] = ()
) -> list[LocalShard]:
    """Return the files of a folder, of these names, or with those below it."""
    return [
        LocalShard(folder, name)
        for name in (_list_below(folder) if file_format.is_nested else names)
        if name.lower().endswith(file_format.suffixes)
    ]


def _list_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder, sorted; hidden ones are left out."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != INDEX_FOLDER)
        inside = os.path.relpath(root, folder)
        for name in sorted(names):
            if name[0] != ".":
                yield name if inside == "." else f"{inside}/{name}"


def _refuse_gone(
    folder: Path, shards: Mapping[str, LocalShard], file_format: IndexedFormat
) -> None:
    """Raise if a folder has an index of a missing file."""
    indexes = [path for path in _list_below(folder / INDEX_FOLDER) if path.endswith(INDEX_SUFFIX)]
    index_of = {path.removesuffix(INDEX_SUFFIX): path for path in indexes} | read_names(folder)
    for name, index in index_of.items():
        is_ours = name not in shards and name.lower().endswith(file_format.suffixes)
        if is_ours and not (folder / name).exists():  # it may be hidden, or have come by now
            raise DataLocation(dataset=str(folder), file=name).make_error(
                MissingShardError,
                f"is not there, but its index {INDEX_FOLDER}/{index} is. Restore the file, or "
                "remove that index; where others need it, too, it is built again",
            )

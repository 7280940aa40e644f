"""The files at a local location: one function finds them, for every reader, format and command.

A folder is searched with all below it. A link to a folder is followed once, and never to a folder
that is read already; hidden files, notes of other programs and stores of seqdata are skipped. What
is skipped is counted (``describe_left_out``). The order is natural: ``part.2`` before ``part.10``,
the files of a folder before those of its subfolders.
"""

from __future__ import annotations

import fnmatch
import heapq
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from seqdata.errors import ConfigError, DataError, MissingShardError, warn
from seqdata.storage.braces import (
    MAX_EXPANSIONS,
    expand_location,
    find_literal,
    split_location,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.local_files import local_path, make_unreadable_error
from seqdata.storage.split_names import (
    DATASET_DICT,
    choose_split,
    refuse_dataset_dict,
    refuse_splits,
)

STORE_MANIFEST = "seqdata.json"
_NOTE_FOLDERS = {"seqdata-index", "_temporary", "__pycache__", "__MACOSX"}
_TABLE_LOGS = {  # name -> kind of table, and what to do
    "_delta_log": (
        "Delta",
        "Pass its path with a slash at its end and backend='frames' (seqdata-frames[delta]); where "
        "no backend can be named, the list of its files (`DeltaTable(path).file_uris()`). For "
        "`seqdata write`, pass its folder, with seqdata-frames[delta] installed",
    ),
    ".hoodie": ("Hudi", "Read it and pass the table"),
}
_NOTES = re.compile(
    r"_\w+|seqdata-index|(readme|license|licence|citation|changelog)(\.\w+)?|state\.json|dataset_infos?\.json",
    re.IGNORECASE,
)
_MAGIC = re.compile(r"[*?\[]")
_DIGITS = re.compile(r"\d+", re.ASCII)
_PARTITION = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ANY_DEPTH = None
_MOST_SHOWN = 4  # suffixes in a message

PartitionValue = int | str | None
Wanted = Callable[[str], bool]
"""Returns whether a file is read, by its path below the folder of the location."""
_Parts = Sequence[tuple[bool, re.Pattern[str]] | None]
"""The parts of a glob: whether it names hidden files, and its pattern; None is any depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """The files at a location.

    Attributes:
        root: The folder that names count from.
        names: Paths of the files below the root, in natural order.
        others: Paths of files that are not wanted.
        hidden: Paths of hidden files of the same suffixes as those that are read.
        repeated: Paths of links to files that are read by another path, or to a folder above.
        stores: Paths of folders that are stores of seqdata.
        folders: Names of folders that are not searched: those behind a URL.
        url: URL of the folder, without secrets; empty on this machine.
    """

    root: Path
    names: Sequence[str]
    others: Sequence[str] = ()
    hidden: Sequence[str] = ()
    repeated: Sequence[str] = ()
    stores: Sequence[str] = ()
    folders: Sequence[str] = ()
    url: str = ""


def natural_key(path: str) -> tuple[str, ...]:
    """Return a key that sorts paths: numbers by value, files before subfolders.

    Examples:
        >>> sorted(["part.10", "part.2", "a/0"], key=natural_key)
        ['part.2', 'part.10', 'a/0']
    """
    *folders, name = path.split("/")
    return (*(f"1{_sort_numbers(folder)}" for folder in folders), f"0{_sort_numbers(name)}", path)


def _sort_numbers(text: str) -> str:
    """Return a string in which a longer number sorts after a shorter one at the same position."""
    return _DIGITS.sub(lambda found: _with_size(found[0].lstrip("0")), text)


def _with_size(digits: str) -> str:
    return f"0{chr(len(digits))}{digits}"


def is_pattern(text: str) -> bool:
    """Return whether a string has the signs of a glob."""
    return _MAGIC.search(text) is not None


def names_several(location: str) -> bool:
    """Return whether a location is a glob, has braces, or is of several parts."""
    parts = split_location(location)
    rest = location[len(find_literal(location)) :]
    return len(parts) > 1 or is_pattern(location) or "{" in rest


def has_table_log(path: Path) -> bool:
    """Return whether a folder has a log that says which of its files belong to a table."""
    return any((path / name).is_dir() for name in _TABLE_LOGS)


def find_files(
    location: str | os.PathLike[str],
    wanted: Wanted = lambda _: True,
    *,
    skip: str | os.PathLike[str] | None = None,
) -> FoundFiles:
    """Return the files at a location: a file, a folder with all below it, a glob, or several.

    Several are joined by ``::`` or written with braces, and taken in their order. A path that is
    there is never taken for a glob. A glob that matches folders only means what they hold. There
    may be none: the caller reports that.

    Args:
        location: Paths of this machine.
        wanted: Chooses files, by their paths below the folder of the location.
        skip: A folder whose files are skipped.

    Raises:
        ConfigError: If files are of several splits, or of a table whose log says which are valid,
            the name of one is not UTF-8, or braces are not balanced.
        DataError: If a folder cannot be read, or a file is not an ordinary one.
        MissingShardError: If a file is a link to nothing.
    """
    text, left_out = os.fspath(location), None if skip is None else Path(skip)
    try:
        paths = [
            local_path(path) for part in split_location(text) for path in expand_location(part)
        ]
    except ValueError as error:
        raise ConfigError(
            f"{text}: must have balanced braces of at most {MAX_EXPANSIONS} names, but has {error}"
        ) from error
    found = [_find_at(path, wanted, left_out) for path in paths]
    return found[0] if len(found) == 1 else _join_locations(found)


def _join_locations(found: Sequence[FoundFiles]) -> FoundFiles:
    """Return the files at several locations, named below the folder that they share."""
    root = Path(os.path.commonpath([each.root for each in found]))

    def name_below(kind: str) -> list[str]:
        return [
            os.path.relpath(each.root / name, root)
            for each in found
            for name in getattr(each, kind)
        ]

    joined = FoundFiles(
        root=root, names=name_below("names"), others=name_below("others"),
        hidden=name_below("hidden"), repeated=name_below("repeated"), stores=name_below("stores"),
    )  # fmt: skip
    for name, count in Counter(joined.names).items():
        if count > 1:
            raise ConfigError(f"{root}: must name each file once, but names {name!r} {count} times")
    return joined


def _find_at(path: Path, wanted: Wanted, skip: Path | None) -> FoundFiles:
    """Return the files at one path; see ``find_files``."""
    if path.exists() and not path.is_dir():
        _check_file(path.parent, path.name)
        return FoundFiles(root=path.parent, names=[path.name])
    root, parts = _split_pattern(path)
    walk = _Walk(root, skip)
    walk.run(parts)
    if walk.folders and parts[-1] is not _ANY_DEPTH and not any(map(wanted, walk.files)):
        walk = _Walk(root, skip)
        walk.run([*parts, _ANY_DEPTH])
    return walk.choose(wanted)


def find_listed(
    url: str, existing: Iterable[str], folders: Iterable[str], wanted: Wanted
) -> FoundFiles:
    """Return the files at a URL by the listing of its folder, by the rules of ``find_files``.

    Args:
        url: The URL of the folder, without secrets.
        existing: The names of its files.
        folders: The names of its folders, which are not searched.
        wanted: Chooses files.

    Raises:
        ConfigError: If they are of several splits, or the name of one is not UTF-8.
    """
    existing = list(existing)
    names, others = _choose(url, [name for name in existing if not _is_hidden(name)], wanted)
    suffixes = set(map(_suffix, names))
    return FoundFiles(
        root=Path(), url=url, names=names, others=others,
        hidden=[name for name in existing if _is_hidden(name) and _suffix(name) in suffixes],
        folders=[
            name for name in folders if name not in _NOTE_FOLDERS and name[:1] not in ("_", ".")
        ],
    )  # fmt: skip


def describe_folders(found: FoundFiles) -> str:
    """Return the advice for a URL whose folder holds folders; empty if it holds none."""
    if not found.folders:
        return ""
    shown = ", ".join(map(repr, found.folders[:_MOST_SHOWN]))
    return f". Folders below a URL are not searched: name one of its {len(found.folders)} ({shown})"


def _choose(location: str, names: Sequence[str], wanted: Wanted) -> tuple[list[str], list[str]]:
    chosen: list[str] = []
    others: list[str] = []
    for name in names:
        (chosen if wanted(name) else others).append(name)
    chosen.sort(key=natural_key)
    for name in chosen:
        _check_text(location, name)
    refuse_splits(location, chosen)
    return chosen, others


def is_note(path: str) -> bool:
    """Return whether a file holds no data, by its name, such as ``_SUCCESS``, ``README.md``."""
    return _NOTES.fullmatch(path.rpartition("/")[2]) is not None


def find_split(location: str | os.PathLike[str], split: str) -> str:
    """Return the path or glob of one of the splits whose files a folder of this machine holds.

    Raises:
        ConfigError: If it is not a folder, or there is no such split.
    """
    folder = local_path(location)
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: must be a folder for `split={split!r}`, but is not. Name the files of the "
            "split by a path or a glob"
        )
    names = sorted(iter_names(folder), key=natural_key)
    return os.path.join(os.fspath(location), choose_split(str(folder), names, split))


def iter_names(path: Path) -> Iterator[str]:
    """Yield the paths of all visible files below a folder, or of a glob, in no order."""
    root, parts = _split_pattern(path)
    walk = _Walk(root, None)
    yield from walk.iter_files(parts)
    if walk.folders and parts[-1] is not _ANY_DEPTH and not walk.files:
        yield from _Walk(root, None).iter_files([*parts, _ANY_DEPTH])


def warn_left_out(locations: Iterable[FoundFiles], read: Iterable[str] = ()) -> None:
    """Warn of files of locations that are skipped, if there are any; see ``describe_left_out``."""
    besides = list(read)
    for found in locations:
        if text := describe_left_out(found, read=besides):
            where = found.url or found.root
            warn(f"{where}: skipped: {text}")


def describe_left_out(found: FoundFiles, *, read: Iterable[str] = ()) -> str:
    """Return a description of the files left out, with counts by suffix; empty if there are none.

    Args:
        found: The files at the location, and those left out.
        read: Paths of other files that are read; files of their suffixes are not counted.
    """
    besides = set(map(_suffix, (*read, *found.names)))  # of such a suffix only notes are skipped
    others = [name for name in found.others if not is_note(name)]
    counts = Counter(ending for ending in map(_suffix, others) if ending not in besides)
    shown = [f"{count} {ending}" for ending, count in counts.most_common(_MOST_SHOWN)]
    more = sum(counts.values()) - sum(count for _, count in counts.most_common(_MOST_SHOWN))
    suffixes = ", ".join([*shown, *([f"{more} more"] if more else [])])
    total = sum(counts.values())
    texts = [f"{_count(total, 'file')} of other suffixes ({suffixes})"] if total else []
    for names, what, tail in (
        (found.hidden, "hidden file", ""),
        (found.repeated, "link", " to files that are read already"),
        (found.stores, "store", " of seqdata"),
        (found.folders, "folder", " below, as behind every URL"),
    ):
        if names:
            texts.append(f"{_count(len(names), what)}{tail} ({names[0]!r})")
    return ", ".join(texts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition("/")[2].rpartition(".")  # pathlib's is much slower
    return f".{suffix}".lower() if dot and stem and suffix else "without a suffix"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


@dataclass(slots=True)
class _Walk:
    """A search of a folder and what lies below it.

    Attributes:
        root: The folder.
        skip: A folder that is skipped.
        files: Paths of visible files below the root.
        folders: Paths of folders that the pattern matches.
    """

    root: Path
    skip: Path | None
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    _links: list[str] = field(default_factory=list)
    _irregular: set[str] = field(default_factory=set)
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _linked: list[tuple[tuple[str, ...], str, frozenset[int]]] = field(default_factory=list)

    def run(self, parts: _Parts) -> None:
        """Search the folder for all files that the parts of a glob match."""
        for _ in self.iter_files(parts):
            pass

    def iter_files(self, parts: _Parts) -> Iterator[str]:
        """Yield files as they are found: below real folders first, then below links to others."""
        if not self.root.is_dir():
            return
        self._seen = {_identify(folder) for folder in self.root.resolve().parents}
        pending = [("", _close(parts, {0}))]
        while pending or self._linked:
            folder, states = pending.pop() if pending else heapq.heappop(self._linked)[1:]
            identity = _identify(self.root / folder)
            if identity in self._seen:
                self.repeated.append(folder)
                continue
            self._seen.add(identity)
            first = len(self.files)
            pending += self._scan(folder, states, parts)
            yield from self.files[first:]

    def _scan(
        self, folder: str, states: frozenset[int], parts: _Parts
    ) -> list[tuple[str, frozenset[int]]]:
        """Scan a folder; return the folders to search next."""
        entries = list_entries(self.root, folder)
        _refuse_table_log(self.root / folder, entries)
        if folder and any(entry.name == STORE_MANIFEST for entry in entries):
            self.stores.append(folder)
            return []
        below = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            after = _advance(parts, states, entry.name)
            if not after:
                if entry.name.startswith(".") and _advance(parts, states, entry.name[1:] or "x"):
                    self.hidden.append(path)
            elif is_folder(entry):
                if len(parts) in after:
                    self.folders.append(path)
                if min(after) == len(parts) or self._is_left_out(entry):
                    continue
                if entry.is_symlink():
                    heapq.heappush(self._linked, (natural_key(path), path, after))
                else:
                    below.append((path, after))
            elif len(parts) in after:
                self.files.append(path)
                if entry.is_symlink():
                    self._links.append(path)
                elif not entry.is_file():
                    self._irregular.add(path)
        return below

    def _is_left_out(self, entry: os.DirEntry[str]) -> bool:
        """Return whether a folder holds notes, or what is being written."""
        if entry.name in _NOTE_FOLDERS:
            return True
        return self.skip is not None and self.skip.exists() and self.skip.samefile(entry.path)

    def choose(self, wanted: Wanted) -> FoundFiles:
        """Return the files that are read, after checks of their names."""
        location = str(self.root)
        for name in self.files:
            if name.rpartition("/")[2] == DATASET_DICT:
                path = self.root / name
                refuse_dataset_dict(location, str(path.parent), path.read_bytes(), self.files)
        repeated = self._find_second_names(wanted)
        files = [name for name in self.files if name not in repeated]
        names, others = _choose(location, files, wanted)
        for name in (*filter(self._irregular.__contains__, names), *self._links):
            if wanted(name):
                _check_file(self.root, name)
        suffixes = {_suffix(name) for name in names}
        hidden = [name for name in self.hidden if _suffix(name) in suffixes]
        return FoundFiles(
            root=self.root, names=names, others=others, hidden=sorted(hidden),
            repeated=sorted([*self.repeated, *repeated], key=natural_key), stores=self.stores,
        )  # fmt: skip

    def _find_second_names(self, wanted: Wanted) -> set[str]:
        """Return the links to files that are found by another name, too."""
        links = set(filter(wanted, self._links))
        if not links:
            return set()
        folders = {name.rpartition("/")[0] for name in self.files}
        real = {folder: os.path.realpath(self.root / folder) for folder in folders}
        targets = {
            f"{real[folder]}/{last}"
            for folder, _, last in (
                name.rpartition("/") for name in self.files if name not in links
            )
        }
        return {name for name in links if os.path.realpath(self.root / name) in targets}


def _identify(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def list_entries(root: Path, folder: str = "") -> list[os.DirEntry[str]]:
    """Return the entries of a folder.

    Args:
        root: The folder of the location.
        folder: A path below it.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with os.scandir(root / folder) as entries:
            return list(entries)
    except OSError as error:
        location = DataLocation(dataset=str(root), file=folder or None)
        raise make_unreadable_error(location, error) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or leads to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _refuse_table_log(folder: Path, entries: Iterable[os.DirEntry[str]]) -> None:
    """Raise if a folder has a log that says which of its files are of the present version."""
    for entry in entries:
        if entry.name in _TABLE_LOGS and is_folder(entry):
            kind, remedy = _TABLE_LOGS[entry.name]
            raise ConfigError(
                f"{folder}: must be a folder of which all files are data, but {entry.name!r} says "
                f"which are: it is a {kind} table. {remedy}"
            )


def _check_file(root: Path, name: str) -> None:
    """Raise if a path is not an ordinary file: opening a pipe would block."""
    path = root / name
    _check_text(str(root), name)
    if path.is_file():
        return
    location = DataLocation(dataset=str(root), file=name)
    if path.is_symlink() and not path.exists():
        raise location.make_error(
            MissingShardError,
            "must lead to a file, but is a link to nothing. Restore the file, or remove the link",
        )
    raise location.make_error(
        DataError, "must be an ordinary file, but is a pipe or device. Move it elsewhere"
    )


def _check_text(root: str, name: str) -> None:
    """Raise if a name is not UTF-8: sequences are named by it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{root}: names of files must be UTF-8, but {os.fsencode(name)!r} is not. Rename it "
            "(convmv does it for many)"
        ) from error


def _split_pattern(path: Path) -> tuple[Path, _Parts]:
    """Return the folder of a glob that is the same for all files, and the parts below it.

    For a folder, the parts match all files below it.
    """
    if path.is_dir():
        return path, [_ANY_DEPTH]
    root = Path(path.anchor)
    parts = list(path.parts[1 if path.anchor else 0 :])
    while len(parts) > 1 and (not is_pattern(parts[0]) or (root / parts[0]).exists()):
        root /= parts.pop(0)
    return root, [
        _ANY_DEPTH if part == "**" else (part.startswith("."), re.compile(fnmatch.translate(part)))
        for part in parts
    ]


def _advance(parts: _Parts, states: frozenset[int], name: str) -> frozenset[int]:
    """Return the positions in a glob after the name of an entry; none if it does not fit."""
    after, is_hidden = set(), name.startswith(".")
    for at in states:
        part = parts[at] if at < len(parts) else ()
        if part is _ANY_DEPTH:
            if not is_hidden:
                after.add(at)
        elif part and (part[0] or not is_hidden) and part[1].match(name):
            after.add(at + 1)
    return _close(parts, after)


def _close(parts: _Parts, states: set[int]) -> frozenset[int]:
    """Return positions in a glob, and those after each ``**``, which may match nothing."""
    closed = set(states)
    for at in range(min(states, default=len(parts)), len(parts)):
        if at in closed and parts[at] is _ANY_DEPTH:
            closed.add(at + 1)
    return frozenset(closed)


def find_partitions(names: Sequence[str]) -> list[Mapping[str, PartitionValue]]:
    """Return the columns of each file that folders above it name: ``label=0/0.parquet``.

    Hive, Spark and Polars write such folders. A column is of integers if all its values are, else
    of strings; a missing value is None.

    Args:
        names: Paths of files below their dataset.

    Examples:
        >>> find_partitions(["day=01/a.parquet", "day=02/b.parquet"])
        [{'day': 1}, {'day': 2}]
    """
    partitions = [_parse_folders(name) for name in names]
    texts: dict[str, list[str]] = {}
    for column, text in itertools.chain.from_iterable(map(dict.items, partitions)):
        texts.setdefault(column, []).extend([] if text is None else [text])
    integers = {column for column, found in texts.items() if all(map(_INTEGER.fullmatch, found))}
    return [
        {
            column: int(text) if column in integers and text is not None else text
            for column, text in found.items()
        }
        for found in partitions
    ]


def _parse_folders(name: str) -> dict[str, str | None]:
    found = filter(None, map(_PARTITION.fullmatch, name.split("/")[:-1] if "=" in name else ()))
    return {unquote(each[1]): None if each[2] == _NULL else unquote(each[2]) for each in found}

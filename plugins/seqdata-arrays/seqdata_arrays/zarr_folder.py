"""The files of a Zarr folder, on this machine or behind a URL.

Reads: listings, files. Makes: metadata, bytes of chunks, values of small arrays.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import os
import posixpath
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import DataLocation
from seqdata.backends.files import RemoteTree
from seqdata.errors import CorruptShardError, DecodeError, MissingShardError, RemoteReadError

Bytes = NDArray[np.uint8]
METADATA = ("zarr.json", ".zarray", ".zgroup")
"""Names of metadata files, of which each Zarr folder has one."""
CONSOLIDATED = ".zmetadata"
"""Name of the consolidated metadata of version 2; version 3 has it in ``zarr.json``."""
_DOCUMENTS = (*METADATA, ".zattrs")
_CHUNK = re.compile(r"(?:(.+?)/)??(?:(?:c[./])?\d+(?:[./]\d+)*|c)")  # array, and name in it


class ZarrFolder(Protocol):
    """The files of a Zarr folder, by their paths below it."""

    @property
    def name(self) -> str:
        """Name of the folder, or its path below the location."""
        ...

    def read_document(self, path: str) -> Any:
        """Return a parsed metadata document; None if it does not exist.

        Raises:
            ValueError: If it is not JSON.
        """
        ...

    def list_children(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        ...

    def list_sizes(self, path: str) -> Mapping[str, int] | None:
        """Return path below a folder -> size in bytes of all files in it; None: not listed."""
        ...

    def locate(self, path: str) -> str:
        """Return the path of a file for ``ChunkFiles``."""
        ...

    def read_values(self, path: str, metadata: Mapping[str, Any]) -> Any:
        """Return all values of an array, read by the package ``zarr``.

        Args:
            path: Path of the array below the folder.
            metadata: Its parsed metadata document.

        Raises:
            DecodeError: If the values cannot be read.
        """
        ...


@dataclass(frozen=True)
class LocalFolder:
    """A local Zarr folder. Implements ``ZarrFolder``.

    Attributes:
        root: Its path.
        name: Its name, or its path below the location.
    """

    root: Path
    name: str

    def read_document(self, path: str) -> Any:
        """Return a parsed metadata document; see ``ZarrFolder``."""
        file = self.root / path
        return json.loads(file.read_text()) if file.is_file() else None

    def list_children(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return sorted(each.name for each in (self.root / path).iterdir() if each.is_dir())

    def list_sizes(self, path: str) -> Mapping[str, int]:
        """Return path below a folder -> size in bytes, of all files in it."""
        return dict(_list_files(self.root / path))

    def locate(self, path: str) -> str:
        """Return the absolute path of a file."""
        return str(self.root / path)

    def read_values(self, path: str, metadata: Mapping[str, Any]) -> Any:
        """Return all values of a small array; see ``ZarrFolder``."""
        del metadata
        return _read_values(str(self.root / path), path)


class RemoteFolder:
    """A Zarr folder behind a URL. Implements ``ZarrFolder``.

    All metadata is fetched when the object is made: from the consolidated document if there is one,
    except documents that were written after it.

    Args:
        tree: The files of the location.
        base: Path of the folder below the location; "": the location itself.
        name: Its name, or its path below the location.
        paths: Paths of all files of the location, sorted; None: they are not listed.

    Raises:
        CorruptShardError: If the consolidated metadata is damaged.
        MissingShardError: If files are not listed, and there is no consolidated metadata.
        RemoteReadError: If metadata cannot be read.
    """

    def __init__(self, tree: RemoteTree, base: str, name: str, paths: Sequence[str] | None) -> None:
        self.tree, self.base, self.name = tree, base, name
        self._paths = paths
        consolidated = self._read_consolidated()
        if paths is None:
            self._documents: dict[str, Any] = consolidated
            return
        below = [path for path in self._find_below("") if posixpath.basename(path) in _DOCUMENTS]
        fresh = {path: found for path, found in consolidated.items() if self._is_current(path)}
        missing = [path for path in below if path not in fresh]
        self._documents = {path: fresh[path] for path in (*below, CONSOLIDATED) if path in fresh}
        self._documents |= self._fetch(missing)

    def read_document(self, path: str) -> Any:
        """Return a parsed metadata document; see ``ZarrFolder``."""
        found = self._documents.get(path.lstrip("/"))
        return json.loads(found) if isinstance(found, bytes) else found

    def list_children(self, path: str) -> list[str]:
        """Return the names of the folders in a folder; unlisted ones only if they hold metadata."""
        if self._paths is None:
            return sorted(self._children.get(path, ()))
        prefix = self.locate(path)
        start = f"{prefix}/" if prefix else ""
        at, found = bisect.bisect_left(self._paths, start), []
        while at < len(self._paths) and self._paths[at].startswith(start):
            name, is_folder, _ = self._paths[at][len(start) :].partition("/")
            at += 1
            if is_folder:
                found.append(name)
                at = bisect.bisect_left(
                    self._paths, f"{start}{name}0", at
                )  # "0" follows "/" in ASCII
        return sorted(found)

    def list_sizes(self, path: str) -> Mapping[str, int] | None:
        """Return path below a folder -> size of each file in it; see ``ZarrFolder``."""
        listed = self.tree.listed
        if listed is None:
            return None
        start = len(path) + 1 if path else 0
        return {
            found[start:]: listed[self.locate(found)].stat.size for found in self._find_below(path)
        }

    def read_values(self, path: str, metadata: Mapping[str, Any]) -> Any:
        """Return all values of a small array; see ``ZarrFolder``."""
        import zarr.storage
        from zarr.core.buffer import default_buffer_prototype

        names = self.list_sizes(path)
        if names is None:
            names = dict.fromkeys(_list_chunk_names(metadata), 0)
        wanted = [self.locate(posixpath.join(path, name)) for name in names]
        found = self.tree.read(dict.fromkeys(wanted))
        make = default_buffer_prototype().buffer.from_bytes
        start = len(self.locate(path)) + 1 if self.locate(path) else 0
        kept = {file[start:]: make(pieces[0].tobytes()) for file, pieces in found.items()}
        for document in _DOCUMENTS:
            value = self.read_document(posixpath.join(path, document))
            if value is not None:
                kept[document] = make(json.dumps(value).encode())
        return _read_values(zarr.storage.MemoryStore(kept), path)

    def locate(self, path: str) -> str:
        """Return the path of a file below the location."""
        return posixpath.join(self.base, path) if path else self.base

    @cached_property
    def _children(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {}
        for document in self._documents:
            parent, _, name = posixpath.dirname(document).rpartition("/")
            if name:
                found.setdefault(parent, set()).add(name)
        return found

    def _find_below(self, path: str) -> list[str]:
        """Return the paths of the files below a folder of this one."""
        paths, start = self._paths or (), len(self.base) + 1 if self.base else 0
        prefix = self.locate(path)
        if not prefix:
            return list(paths)
        first = bisect.bisect_left(paths, f"{prefix}/")
        stop = bisect.bisect_left(paths, f"{prefix}0")  # "0" follows "/" in ASCII
        return [found[start:] for found in paths[first:stop]]

    def _is_current(self, path: str) -> bool:
        """Return whether a document was not written after the consolidated one."""
        listed = self.tree.listed or {}
        whole = "zarr.json" if path.endswith("zarr.json") else CONSOLIDATED
        own, other = (listed.get(self.locate(each)) for each in (path, whole))
        if own is None or other is None or own.modified is None or other.modified is None:
            return True
        return own.modified <= other.modified

    def _fetch(self, paths: Iterable[str]) -> dict[str, bytes]:
        found = self.tree.read({self.locate(path): None for path in paths})
        start = len(self.base) + 1 if self.base else 0
        return {path[start:]: pieces[0].tobytes() for path, pieces in found.items()}

    def _fetch_root(self) -> dict[str, bytes]:
        """Fetch the metadata documents of the root, for a server that does not list files.

        Raises:
            RemoteReadError: If a request fails, or all of them are refused: a bucket that may not
                be listed also refuses missing files.
        """
        found: dict[str, bytes] = {}
        refusal: RemoteReadError | None = None
        for name in ("zarr.json", CONSOLIDATED, ".zarray", ".zattrs"):
            try:
                found |= self._fetch([name])
            except RemoteReadError as error:
                if not error.details.get("refused"):
                    raise
                refusal = error
            if "zarr.json" in found:
                break
        if refusal is not None and not found:
            raise refusal
        return found

    def _read_consolidated(self) -> dict[str, Any]:
        """Return the documents of the consolidated metadata; without it, those of the root.

        Raises:
            MissingShardError: If it is required, but does not exist.
            CorruptShardError: If it is damaged.
        """
        is_listed = self._paths is not None
        documents: dict[str, Any] = {}
        if is_listed:
            names = [name for name in ("zarr.json", CONSOLIDATED) if self._is_listed(name)]
            documents.update(self._fetch(names))
        else:
            documents.update(self._fetch_root())
        place = DataLocation(dataset=self.tree.location, file=self.name)
        try:
            own = json.loads(documents.get("zarr.json", b"{}"))
            inline = (own.get("consolidated_metadata") or {}).get("metadata") or {}
            older = json.loads(documents.get(CONSOLIDATED, b"{}")).get("metadata") or {}
            found = {posixpath.join(path, "zarr.json"): each for path, each in inline.items()}
            is_whole = bool(inline or older) or own.get("node_type") == "array"
        except (ValueError, AttributeError, TypeError) as error:
            raise place.make_error(
                CorruptShardError,
                f"must have valid metadata, but its metadata is invalid ({type(error).__name__}: "
                f"{error}). Restore it",
            ) from error
        if not is_listed and not is_whole and ".zarray" not in documents:
            raise place.make_error(
                MissingShardError,
                "must have consolidated metadata, since its server lists no files, but has none. "
                "Run zarr.consolidate_metadata on it once, or read it from a bucket",
            )
        return {**found, **older, **documents}

    def _is_listed(self, name: str) -> bool:
        return self.locate(name) in (self.tree.listed or {})


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a file.

    Attributes:
        path: The file, as ``ZarrFolder.locate`` names it.
        first: First byte.
        stop: One past the last.
        size: Size of the whole file when it was opened.
    """

    path: str
    first: int
    stop: int
    size: int


class ChunkFiles(Protocol):
    """The files of all Zarr folders at a location, by the paths of ``ZarrFolder.locate``."""

    @property
    def location(self) -> str:
        """The location for messages, without credentials."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine."""
        ...

    def find_sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes in bytes of files that are not listed; None for missing files."""
        ...

    def read(self, pieces: Sequence[Piece]) -> list[Bytes]:
        """Return pieces of files.

        Raises:
            DataError: If a file is gone or was replaced; its path is ``details["file"]``.
            RemoteReadError: If it cannot be read.
        """
        ...


@dataclass(frozen=True)
class LocalFiles:
    """Local files. Implements ``ChunkFiles``.

    Attributes:
        location: The location, for messages.
    """

    location: str

    is_local = True

    def find_sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes of files in bytes; None for missing files."""
        return [os.stat(path).st_size if os.path.isfile(path) else None for path in paths]

    def read(self, pieces: Sequence[Piece]) -> list[Bytes]:
        """Return pieces of files; see ``ChunkFiles``."""
        return [self._read(piece) for piece in pieces]

    def _read(self, piece: Piece) -> Bytes:
        place = DataLocation(dataset=self.location, file=piece.path)
        try:
            with open(piece.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != piece.size:
                    raise place.make_error(
                        CorruptShardError,
                        f"has {size} bytes, but had {piece.size} when it was opened. Restore it",
                    )
                file.seek(piece.first)
                return np.frombuffer(file.read(piece.stop - piece.first), np.uint8)
        except OSError as error:
            raise place.make_error(
                MissingShardError, f"cannot be read ({error.strerror}). Restore it"
            ) from error


@dataclass(frozen=True)
class RemoteChunks:
    """Files behind a URL. Implements ``ChunkFiles``.

    Attributes:
        tree: The files of the location.
    """

    tree: RemoteTree

    is_local = False

    @property
    def location(self) -> str:
        """The location for messages, without credentials."""
        return self.tree.location

    def find_sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes of files in bytes; None for missing files."""
        return [None if stat is None else stat.size for stat in self.tree.stat(paths)]

    def read(self, pieces: Sequence[Piece]) -> list[Bytes]:
        """Return pieces of files, which are fetched in parallel; see ``ChunkFiles``."""
        by_file: dict[str, list[tuple[int, int]]] = {}
        for piece in pieces:
            by_file.setdefault(piece.path, []).append((piece.first, piece.stop))
        found = {path: iter(each) for path, each in self.tree.read(by_file).items()}
        return [next(found[piece.path]) for piece in pieces]


def _list_files(folder: Path, below: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path below a folder and the size in bytes of each file in it."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _list_files(folder, f"{below}{entry.name}/")
            else:
                yield f"{below}{entry.name}", entry.stat().st_size


def is_hidden(name: str) -> bool:
    """Return whether the name of a folder says that it belongs to another program."""
    return name.startswith(".") or name == "__MACOSX"


def find_lost(names: Iterable[str]) -> tuple[str, str, str] | None:
    """Return what a folder without a metadata file has lost.

    Args:
        names: Paths of all files in the folder, below it.

    Returns:
        ``group`` or ``array``, its path below the folder, and a file that shows it. None: the
        folder holds no chunks and no metadata, so it is not part of the data.
    """
    chunk: tuple[str, str, str] | None = None
    for name in sorted(names):
        *folders, base = name.split("/")
        if any(map(is_hidden, folders)):
            continue
        if base in METADATA:
            return "group", "", name
        match = _CHUNK.fullmatch(name)
        if match and chunk is None:
            chunk = "array", match[1] or "", name
    return chunk


def name_chunks(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the prefix of the names of an array's files, and the separator of their numbers."""
    if metadata["zarr_format"] == 2:
        return "", metadata.get("dimension_separator") or "."
    encoding = metadata["chunk_key_encoding"]
    separator = (encoding.get("configuration") or {}).get("separator")
    if encoding["name"] == "v2":
        return "", separator or "."
    return f"c{separator or '/'}", separator or "/"


def _list_chunk_names(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of all files of an array."""
    is_v2 = metadata["zarr_format"] == 2
    shape = metadata["shape"]
    chunks = metadata["chunks"] if is_v2 else metadata["chunk_grid"]["configuration"]["chunk_shape"]
    prefix, separator = name_chunks(metadata)
    if not shape:
        return ["0" if is_v2 or not prefix else "c"]
    grid = [math.ceil(size / chunk) for size, chunk in zip(shape, chunks, strict=True)]
    return [
        prefix + separator.join(map(str, where)) for where in itertools.product(*map(range, grid))
    ]


def _read_values(store: Any, path: str) -> Any:
    import zarr

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that are not in the specification yet
            return np.asarray(zarr.open_array(store, mode="r")[...])
    except Exception as error:  # the library's errors are of many kinds
        raise DecodeError.at(
            f"array {path!r} cannot be read ({type(error).__name__}: {error}). Restore it"
        ) from error

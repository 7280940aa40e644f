"""The backend for Zarr folders (v2 and v3); each chunk is a file or a range of a shard.

Folders are on this machine or behind a URL.

Reads: metadata, sizes of files, chunks. Makes: a store.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata import Remote
from seqdata.backends import DataLocation, quote
from seqdata.backends.files import RemoteTree
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    FingerprintMismatch,
    MissingShardError,
    must_be,
)
from seqdata_arrays.chunk_store import ChunkStore
from seqdata_arrays.chunked_array import Bytes, FileSequences
from seqdata_arrays.layout import ArrayNode, ArrayOptions, Layout, Tree, find_layout
from seqdata_arrays.zarr_array import ShardIndexes, ZarrArray, describe_type, make_array
from seqdata_arrays.zarr_folder import (
    CONSOLIDATED,
    ChunkFiles,
    LocalFiles,
    Piece,
    RemoteChunks,
    ZarrFolder,
    find_lost,
    is_hidden,
)
from seqdata_arrays.zarr_location import find_folders, find_remote_folders, is_url

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True, kw_only=True)
class Zarr(ArrayOptions):
    """Backend for Zarr folders (v2 and v3), on this machine or behind a URL.

    Examples:
        >>> open_store("rec.zarr", backend=Zarr(fields=["acc"]))  # doctest: +SKIP
        >>> open_store("s3://bucket/rec.zarr", backend=Zarr(), remote="ranges")  # doctest: +SKIP
    """

    def __call__(
        self,
        location: str | os.PathLike[str],
        *,
        verify: str | None = None,
        remote: str | Remote | None = None,
        keys: str = "unique",
    ) -> ChunkStore:
        """Open a Zarr folder, a folder of ``.zarr`` folders, or a glob.

        Args:
            location: A path or a URL.
            verify: None or ``"off"``: Zarr has no checksums of its own.
            remote: Access to a URL: whole files are downloaded into the cache (``"cache"``, None),
                or only the ranges of chunks are read (``"ranges"``); or a ``Remote``.
            keys: ``unique``, or ``by_shard``: ids are ``folder/id``.

        Raises:
            ConfigError: If there is no Zarr folder at the location, or an argument is invalid.
            DataError: If it is damaged, or does not match the options.
            RemoteReadError: If a URL cannot be read.
        """
        text = os.fspath(location)
        shown = RemoteTree(text, remote).location if is_url(text) else text
        if verify not in (None, "off"):
            needed, remedy = "None or 'off'", "Leave it out: Zarr keeps no checksums to compare"
            raise ConfigError(must_be(f"{shown}: `verify`", needed, repr(verify), remedy))
        if is_url(text):
            return open_zarr(text, self, keys, None, remote)
        if remote is not None:
            needed, remedy = "left out for a path", "It is for URLs only"
            raise ConfigError(must_be(f"{shown}: `remote`", needed, "given", remedy))
        root = os.path.abspath(text.removeprefix("file://"))
        return open_zarr(root, self, keys, None)


def open_zarr(
    root: str,
    options: Zarr,
    keys: str,
    fingerprint: str | None,
    remote: str | Remote | None = None,
    version: str | None = None,
) -> ChunkStore:
    """Open Zarr folders; compare fingerprint and version if a fingerprint is given.

    Args:
        root: A path or a URL.
        options: The options of the backend.
        keys: ``unique`` or ``by_shard``.
        fingerprint: The fingerprint that they must have; None: any.
        remote: Access to a URL, as in ``Zarr``.
        version: Digest of the version tags that remote files must have.

    Raises:
        ConfigError: If the location has no Zarr folder.
        DataError: If it is damaged, has changed, or does not match the options.
        RemoteReadError: If a URL cannot be read.
    """
    tree, chunk_files, folders = _find_folders(root, remote)
    location = chunk_files.location
    files: list[FileSequences] = []
    arrays: list[ZarrArray] = []
    digest = hashlib.sha256()
    for shard, folder in enumerate(folders):
        place = DataLocation(dataset=location, shard=shard, file=folder.name)
        file, own = _open_folder(folder, place, options)
        files.append(file)
        arrays += own
        for array in own:
            sizes = sorted((array.files or {}).items())
            digest.update(repr((folder.name, array.chunked.path, sizes)).encode())
            digest.update(repr(array.chunked).encode())
    found = None if tree is None else tree.digest(_list_files(arrays) or tree.known)
    counts = [sum(a.bands * a.chunks_of_band for a in file.arrays) for file in files]
    firsts = [0, *itertools.accumulate(counts)]
    source = _ZarrChunks(location, arrays, chunk_files, digest.hexdigest())
    store = ChunkStore(
        location, source, files, firsts[:-1], cache_bytes=options.cache_bytes, keys=keys,
        reopen=lambda: (open_zarr, (root, options, keys, store.fingerprint, remote, found)),
    )  # fmt: skip
    if fingerprint is not None and (store.fingerprint, found) != (fingerprint, version):
        is_other = store.fingerprint != fingerprint
        now = store.fingerprint if is_other else "files of the same names with other contents"
        raise DataLocation(dataset=location).make_error(
            FingerprintMismatch,
            f"must be the data that was opened ({fingerprint}), but is {now}, so it has changed. "
            "Open it again",
        )
    return store


def _find_folders(
    root: str, remote: str | Remote | None
) -> tuple[RemoteTree | None, ChunkFiles, Sequence[ZarrFolder]]:
    """Return the tree of a URL, the files of chunks, and the Zarr folders at a location."""
    if not is_url(root):
        return None, LocalFiles(root), find_folders(root)
    tree, folders = find_remote_folders(root, remote)
    return tree, RemoteChunks(tree), folders


def _list_files(arrays: Sequence[ZarrArray]) -> list[str]:
    """Return the paths of the files of arrays; arrays whose files are not listed add none."""
    return [
        array.folder.locate(f"{array.chunked.path}/{name}".strip("/"))
        for array in arrays
        for name in array.files or ()
    ]


def _open_folder(
    folder: ZarrFolder, place: DataLocation, options: Zarr
) -> tuple[FileSequences, list[ZarrArray]]:
    """Return the sequences of a Zarr folder, and the arrays that hold them.

    Raises:
        DataError: If the folder is damaged, or does not match the options.
    """
    metadata = dict(_read_metadata(folder, "", place, options))
    try:
        _check_consolidated(folder, metadata, place, options)
        layout = find_layout(_make_tree(folder, metadata), options)
        paths = dict.fromkeys(node.path for laid in layout.fields.values() for node in laid.arrays)
        arrays = [make_array(folder, path, metadata[path][0]) for path in paths]
    except DataError as error:
        raise (
            error
            if "dataset" in error.details
            else error.with_place(f"It is {place}", **place.details)
        ) from error
    except _MALFORMED as error:
        raise _make_metadata_error(place, error) from error
    return _make_sequences(folder.name, layout, arrays), arrays


def _make_sequences(name: str, layout: Layout, arrays: Sequence[ZarrArray]) -> FileSequences:
    numbers = {array.chunked.path: number for number, array in enumerate(arrays)}
    spans: dict[str, NDArray[np.int64]] = {}
    for field, laid in layout.fields.items():
        of = np.array([numbers[node.path] for node in laid.arrays], dtype=np.int64)
        spans[field] = np.stack([of[laid.which], laid.firsts, laid.stops], axis=1)
    return FileSequences(
        name, [array.chunked for array in arrays], layout.ids,
        {field: laid.axis for field, laid in layout.fields.items()}, spans, layout.values,
        layout.texts, layout.missing,
    )  # fmt: skip


def _read_metadata(
    folder: ZarrFolder, path: str, place: DataLocation, options: Zarr
) -> Iterator[tuple[str, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Yield path, metadata and attributes of a node, and of those below it.

    Raises:
        CorruptShardError: If metadata is invalid.
        MissingShardError: If a metadata file is missing.
    """
    start = f"{path}/" if path else ""
    try:
        found = folder.read_document(f"{start}zarr.json")
        if found is not None:
            attributes, is_array = found.get("attributes") or {}, found["node_type"] == "array"
        else:
            found = folder.read_document(f"{start}.zarray")
            is_array = found is not None
            if found is None:
                found = folder.read_document(f"{start}.zgroup")
            if found is None:
                _check_no_data(folder, path, place, options)
                return
            attributes = folder.read_document(f"{start}.zattrs") or {}
        if found["zarr_format"] not in (2, 3):
            raise ValueError(f"zarr_format {found['zarr_format']!r}")
    except _MALFORMED as error:
        raise _make_metadata_error(place, error, path) from error
    yield path, ({**found, "is_array": is_array}, attributes)
    if not is_array:
        for below in folder.list_children(path):
            yield from _read_metadata(folder, f"{start}{below}", place, options)


def _check_no_data(folder: ZarrFolder, path: str, place: DataLocation, options: Zarr) -> None:
    """Check that a folder without a metadata file holds no data that is needed.

    Raises:
        MissingShardError: If it holds chunks, or metadata of arrays.
    """
    lost = None
    if not is_hidden(posixpath.basename(path)):
        lost = find_lost(folder.list_sizes(path) or ())
    if lost is None:
        return
    kind, below, evidence = lost
    which = posixpath.join(path, below) if below else path
    if kind == "array" and not _may_be_field(which, options):
        return
    is_v2 = folder.read_document("zarr.json") is None
    raise _make_lost_error(
        place, kind, which, f".z{kind}" if is_v2 else "zarr.json",
        f"{posixpath.join(path, evidence)!r} is. Restore it, "
        + ("choose other arrays with `fields`" if kind == "array"
           else f"create it with zarr.open_group(..., path={which!r})")
        + ", or move the folder elsewhere if it is other data",
    )  # fmt: skip


def _check_consolidated(
    folder: ZarrFolder, metadata: Mapping[str, Any], place: DataLocation, options: Zarr
) -> None:
    """Check that all nodes that the consolidated metadata names were found.

    Raises:
        CorruptShardError: If the consolidated metadata is invalid.
        MissingShardError: If the metadata file of a named node is missing.
    """
    try:
        nodes = list(_read_consolidated(folder, metadata[""][0]))
    except _MALFORMED as error:
        raise place.make_error(
            CorruptShardError,
            f"must have valid consolidated metadata, but it is invalid ({type(error).__name__}: "
            f"{error}). Run zarr.consolidate_metadata again",
        ) from error
    for kind, path, name in nodes:
        if path not in metadata and (kind == "group" or _may_be_field(path, options)):
            raise _make_lost_error(
                place, kind, path, name,
                "the consolidated metadata names it. Restore it, or run "
                "zarr.consolidate_metadata if it was removed on purpose",
            )  # fmt: skip


def _read_consolidated(
    folder: ZarrFolder, root: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, path and metadata file of the nodes that the consolidated metadata names."""
    if root["zarr_format"] == 3:
        found = (root.get("consolidated_metadata") or {}).get("metadata") or {}
        for path, document in found.items():
            yield document["node_type"], path, "zarr.json"
        return
    found = (folder.read_document(CONSOLIDATED) or {}).get("metadata") or {}
    for file in found:
        path, _, name = file.rpartition("/")
        if name in (".zarray", ".zgroup"):
            yield name.removeprefix(".z"), path, name


def _may_be_field(path: str, options: Zarr) -> bool:
    """Return whether the options may need an array."""
    names = options.names
    if names is None or options.per == "array":
        return True
    index = (options.lengths, options.offsets, options.ids)
    wanted = [*names.values(), *(each.strip("/") for each in index if each is not None)]
    return any(path == each or path.endswith(f"/{each}") for each in wanted)


def _make_lost_error(
    place: DataLocation, kind: str, path: str, name: str, rest: str
) -> MissingShardError:
    return place.make_error(
        MissingShardError,
        f"{kind} {path!r} must have the metadata file {posixpath.join(path, name)!r}, but it is "
        f"not there, although {rest}",
    )


def _make_metadata_error(place: DataLocation, error: Exception, path: str = "") -> DataError:
    where = f" of {quote(path)}" if path else ""
    return place.make_error(
        CorruptShardError,
        f"must have valid metadata{where}, but it is invalid ({type(error).__name__}: {error}). "
        "Restore it",
    )


def _make_tree(folder: ZarrFolder, metadata: Mapping[str, Any]) -> Tree:
    arrays: dict[str, ArrayNode] = {}
    groups: dict[str, Mapping[str, Any]] = {"": {}}
    for path, (found, attributes) in metadata.items():
        if not found["is_array"]:
            groups[path] = attributes
            continue
        dtype, kind = describe_type(found)
        arrays[path] = ArrayNode(
            path, tuple(found["shape"]), dtype, kind, attributes,
            partial(folder.read_values, path, found),
        )  # fmt: skip
    return Tree(arrays, groups)


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A chunk to read, and its file.

    Attributes:
        number: Its index over all arrays.
        array: Its array.
        name: Name of its file in the array's folder.
        path: Path of its file.
        inside: Its position in a shard.
        size: Size of its file in bytes; None: it was never written.
    """

    number: int
    array: ZarrArray
    name: str
    path: str
    inside: int
    size: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _ZarrChunks:
    """The chunks of Zarr folders. Implements ``ChunkSource``.

    Attributes:
        location: Location, for messages.
        arrays: The arrays, over which chunks are numbered consecutively.
        files: The files of the arrays.
        fingerprint: Digest of metadata, names and sizes of files.
    """

    location: str
    arrays: Sequence[ZarrArray]
    files: ChunkFiles
    fingerprint: str

    folder = None
    can_verify = False
    can_prefetch = False  # which chunks of a sequence a window needs is not known

    @property
    def is_local(self) -> bool:
        """Whether all files are on this machine."""
        return self.files.is_local

    def read(self, numbers: NDArray[np.int64]) -> list[Bytes | None]:
        """Return the bytes of chunks; see ``ChunkSource``."""
        wanted = self._find(numbers)
        with self._name_chunk(wanted):
            self._read_indexes(wanted)
            pieces: list[Piece | None] = []
            for each in wanted:
                span = None
                if each.size is not None:
                    span = self._find_chunk(each, each.size)
                pieces.append(None if span is None else Piece(each.path, *span, each.size or 0))
            found = iter(self.files.read([piece for piece in pieces if piece is not None]))
            return [None if piece is None else next(found) for piece in pieces]

    def masks(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return zeros, because chunks of Zarr skip no codecs."""
        return [0] * len(numbers)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Return whether all files are on this machine; nothing is fetched ahead."""
        del numbers
        return self.is_local

    def _find(self, numbers: NDArray[np.int64]) -> list[_Wanted]:
        """Return the files of chunks."""
        counts = [array.chunked.bands * array.chunked.chunks_of_band for array in self.arrays]
        firsts = np.array([0, *itertools.accumulate(counts)])
        which = np.searchsorted(firsts, numbers, side="right") - 1
        wanted: list[_Wanted] = []
        for number, at in zip(numbers.tolist(), which.tolist(), strict=True):
            array = self.arrays[at]
            name, inside = array.find_file(number - int(firsts[at]))
            path = array.folder.locate(f"{array.chunked.path}/{name}".lstrip("/"))
            size = None if array.files is None else array.files.get(name)
            wanted.append(_Wanted(number, array, name, path, inside, size))
        unlisted = [each.path for each in wanted if each.array.files is None]
        if not unlisted:
            return wanted
        sizes = dict(zip(unlisted, self.files.find_sizes(unlisted), strict=True))
        return [
            replace(each, size=sizes[each.path]) if each.array.files is None else each
            for each in wanted
        ]

    def _read_indexes(self, wanted: Iterable[_Wanted]) -> None:
        """Read the indexes of shards that have not been read yet.

        Raises:
            CorruptShardError: If an index is damaged.
        """
        new: dict[str, tuple[_Wanted, ShardIndexes, Piece]] = {}
        for each in wanted:
            shards = each.array.shards
            if shards is None or each.size is None or each.name in each.array.indexes:
                continue
            new[each.path] = each, shards, Piece(each.path, *shards.locate(each.size), each.size)
        if not new:
            return
        found = self.files.read([piece for _, _, piece in new.values()])
        for (each, shards, _), content in zip(new.values(), found, strict=True):
            try:
                each.array.indexes[each.name] = shards.read(content.tobytes())
            except ValueError as error:
                raise self._make_damage_error(each, error) from error

    def _find_chunk(self, wanted: _Wanted, size: int) -> tuple[int, int] | None:
        try:
            return wanted.array.find_chunk(wanted.name, wanted.inside, size)
        except ValueError as error:
            raise self._make_damage_error(wanted, error) from error

    def _make_damage_error(self, wanted: _Wanted, error: ValueError) -> DataError:
        place = DataLocation(dataset=self.location, file=wanted.path)
        return place.make_error(CorruptShardError, f"{str(error).rstrip('.')}. Restore it")

    @contextmanager
    def _name_chunk(self, wanted: Sequence[_Wanted]) -> Iterator[None]:
        """Add the number of the first wanted chunk of a file to an error about the file."""
        try:
            yield
        except (MissingShardError, CorruptShardError) as error:
            chunk = next((x for x in wanted if x.path == error.details.get("file")), None)
            if chunk is None:
                raise
            raise error.with_details(chunk=chunk.number) from error

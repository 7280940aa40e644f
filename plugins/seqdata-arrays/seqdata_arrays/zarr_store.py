"""The backend of Zarr folders (v2 and v3): chunk by chunk, each a file or a piece of a shard.

Reads: metadata, sizes of files, chunks. Makes: a store.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import DataLocation, quote
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    MissingShardError,
    must_be,
)
from seqdata_arrays.chunk_store import ChunkStore
from seqdata_arrays.chunked_array import Bytes, FileSequences
from seqdata_arrays.layout import ArrayNode, ArrayOptions, Layout, Tree, find_layout, natural_order
from seqdata_arrays.zarr_array import ZarrArray, describe_type, make_array

_METADATA = ("zarr.json", ".zarray", ".zgroup")
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True, kw_only=True)
class Zarr(ArrayOptions):
    """Zarr folders on this machine, of both versions: a backend.

    Examples:
        >>> open_store("rec.zarr", backend=Zarr(fields=["acc"]))  # doctest: +SKIP
    """

    def __call__(
        self,
        location: str | os.PathLike[str],
        *,
        verify: str | None = None,
        keys: str = "unique",
    ) -> ChunkStore:
        """Open a Zarr folder, a folder of ``.zarr`` folders, or a glob.

        Args:
            location: The location.
            verify: None or ``"off"``: Zarr has no checksums of its own.
            keys: ``unique``, or ``by_shard``: ids are ``folder/id``.

        Raises:
            ConfigError: If nothing is there, or an argument is invalid.
            DataError: If it is damaged, or does not hold what the options say.
        """
        text = os.fspath(location)
        if verify not in (None, "off"):
            needed, remedy = "None or 'off'", "Leave it out: Zarr keeps no checksums to compare"
            raise ConfigError(must_be(f"{text}: `verify`", needed, repr(verify), remedy))
        if "://" in text.removeprefix("file://"):
            raise ConfigError(
                f"{text}: must be a folder on this machine, but is a URL, from which Zarr is not "
                "read. Copy it to this machine"
            )
        root = os.path.abspath(text.removeprefix("file://"))
        return open_zarr(root, self, keys, None)


def open_zarr(root: str, options: Zarr, keys: str, fingerprint: str | None) -> ChunkStore:
    """Open Zarr folders; compare the fingerprint if one is given.

    Raises:
        ConfigError: If nothing is there.
        DataError: If it is damaged, changed, or does not hold what the options say.
    """
    folders = _find_folders(root)
    base = Path(root) if len(folders) > 1 and Path(root).is_dir() else None
    files: list[FileSequences] = []
    arrays: list[ZarrArray] = []
    digest = hashlib.sha256()
    for shard, folder in enumerate(folders):
        name = folder.name if base is None else str(folder.relative_to(base))
        place = DataLocation(dataset=root, shard=shard, file=name)
        file, own = _open_folder(folder, name, place, options)
        files.append(file)
        arrays += own
        for array in own:
            digest.update(repr((name, array.chunked.path, sorted(array.files.items()))).encode())
            digest.update(repr(array.chunked).encode())
    counts = [sum(a.bands * a.chunks_of_band for a in file.arrays) for file in files]
    firsts = [0, *itertools.accumulate(counts)]
    source = _ZarrChunks(root, arrays, digest.hexdigest())
    store = ChunkStore(
        root, source, files, firsts[:-1], cache_bytes=options.cache_bytes, keys=keys,
        reopen=lambda: (open_zarr, (root, options, keys, store.fingerprint)),
    )  # fmt: skip
    if fingerprint is not None and store.fingerprint != fingerprint:
        raise DataLocation(dataset=root).make_error(
            FingerprintMismatch,
            f"must be the data that was opened ({fingerprint}), but is {store.fingerprint}: it "
            "changed since. Open it again",
        )
    return store


def _find_folders(root: str) -> list[Path]:
    """Return the Zarr folders at a location, in natural order."""
    path = Path(root)
    if path.is_dir():
        if any((path / name).is_file() for name in _METADATA):
            return [path]
        found = [Path(each) for each in glob.glob(f"{glob.escape(root)}/**/*.zarr", recursive=True)]
    else:
        found = [Path(each) for each in glob.glob(root, recursive=True)]
    found = [each for each in found if any((each / name).is_file() for name in _METADATA)]
    if not found:
        raise ConfigError(
            f"{root}: must be a Zarr folder, or hold some (`*.zarr`), but there is no "
            f"{' or '.join(_METADATA)}. Check the path"
        )
    return sorted(found, key=lambda each: natural_order(str(each)))


def _open_folder(
    folder: Path, name: str, place: DataLocation, options: Zarr
) -> tuple[FileSequences, list[ZarrArray]]:
    """Return the sequences of a Zarr folder, and its arrays in which they lie."""
    metadata = dict(_read_metadata(folder, "", place))
    try:
        layout = find_layout(_make_tree(folder, metadata), options)
        paths = dict.fromkeys(node.path for laid in layout.fields.values() for node in laid.arrays)
        arrays = [make_array(folder / path, path, metadata[path][0]) for path in paths]
    except DataError as error:
        raise (
            error
            if "dataset" in error.details
            else error.with_place(f"It is {place}", **place.details)
        ) from error
    except _MALFORMED as error:
        raise _make_metadata_error(place, error) from error
    return _make_sequences(name, layout, arrays), arrays


def _make_sequences(name: str, layout: Layout, arrays: Sequence[ZarrArray]) -> FileSequences:
    numbers = {array.chunked.path: number for number, array in enumerate(arrays)}
    spans: dict[str, NDArray[np.int64]] = {}
    for field, laid in layout.fields.items():
        of = np.array([numbers[node.path] for node in laid.arrays], dtype=np.int64)
        spans[field] = np.stack([of[laid.which], laid.firsts, laid.stops], axis=1)
    return FileSequences(
        name, [array.chunked for array in arrays], layout.ids,
        {field: laid.axis for field, laid in layout.fields.items()}, spans, layout.values,
        layout.texts,
    )  # fmt: skip


def _read_metadata(
    folder: Path, path: str, place: DataLocation
) -> Iterator[tuple[str, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Yield path, metadata and attributes of a node, and of those below it."""
    try:
        if (folder / "zarr.json").is_file():
            found = json.loads((folder / "zarr.json").read_text())
            attributes, is_array = found.get("attributes") or {}, found["node_type"] == "array"
        else:
            is_array = (folder / ".zarray").is_file()
            kind = folder / (".zarray" if is_array else ".zgroup")
            if not kind.is_file():
                return
            found = json.loads(kind.read_text())
            side = folder / ".zattrs"
            attributes = json.loads(side.read_text()) if side.is_file() else {}
        if found["zarr_format"] not in (2, 3):
            raise ValueError(f"zarr_format {found['zarr_format']!r}")
    except _MALFORMED as error:
        raise _make_metadata_error(place, error, path) from error
    yield path, ({**found, "is_array": is_array}, attributes)
    if not is_array:
        for below in sorted(each for each in folder.iterdir() if each.is_dir()):
            yield from _read_metadata(below, f"{path}/{below.name}".strip("/"), place)


def _make_metadata_error(place: DataLocation, error: Exception, path: str = "") -> DataError:
    where = f" of {quote(path)}" if path else ""
    return place.make_error(
        CorruptShardError,
        f"must have valid metadata{where}, but has other ({type(error).__name__}: {error}). "
        "Restore it",
    )


def _make_tree(folder: Path, metadata: Mapping[str, Any]) -> Tree:
    arrays: dict[str, ArrayNode] = {}
    groups: dict[str, Mapping[str, Any]] = {"": {}}
    for path, (found, attributes) in metadata.items():
        if not found["is_array"]:
            groups[path] = attributes
            continue
        dtype, kind = describe_type(found)
        arrays[path] = ArrayNode(
            path, tuple(found["shape"]), dtype, kind, attributes,
            partial(_read_values, folder / path),
        )  # fmt: skip
    return Tree(arrays, groups)


def _read_values(folder: Path) -> Any:
    """Return all values of a small array, by the library of Zarr."""
    import zarr

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that are not in the specification yet
            return np.asarray(zarr.open_array(str(folder), mode="r")[...])
    except Exception as error:  # the library's errors are of many kinds
        raise DecodeError.at(
            f"array {folder.name!r} cannot be read ({type(error).__name__}: {error}). Restore it"
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class _ZarrChunks:
    """The chunks of Zarr folders: a ``ChunkSource``.

    Attributes:
        root: Location, for messages.
        arrays: The arrays, whose chunks are numbered one behind another.
        fingerprint: Digest of metadata, names and sizes of files.
    """

    root: str
    arrays: Sequence[ZarrArray]
    fingerprint: str

    is_local = True
    folder = None
    can_verify = False

    def read(self, numbers: NDArray[np.int64]) -> list[Bytes | None]:
        """Return the bytes of chunks; see ``ChunkSource``."""
        counts = [array.chunked.bands * array.chunked.chunks_of_band for array in self.arrays]
        firsts = np.array([0, *itertools.accumulate(counts)])
        which = np.searchsorted(firsts, numbers, side="right") - 1
        found: list[Bytes | None] = []
        for number, at in zip(numbers.tolist(), which.tolist(), strict=True):
            array = self.arrays[at]
            try:
                found.append(array.read_chunk(number - int(firsts[at])))
            except (OSError, ValueError) as error:
                lost = MissingShardError if isinstance(error, OSError) else CorruptShardError
                raise DataLocation(dataset=self.root, sequence=number).make_error(
                    lost,
                    f"a chunk of {quote(array.chunked.path)} cannot be read: {error}. Restore it",
                ) from error
        return found

    def masks(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return zeros: chunks of Zarr skip no codec."""
        return [0] * len(numbers)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Return True: all files are on this machine."""
        del numbers
        return True

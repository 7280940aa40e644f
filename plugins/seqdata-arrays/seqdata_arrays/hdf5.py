"""The backends for HDF5, NetCDF and NumPy files, read in place where possible, else by chunk.

Reads: indexes of files, and chunks. Makes: a store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import (
    DataLocation,
    Field,
    FormatBackend,
    Location,
    ShardStore,
)
from seqdata.errors import ConfigError, DecodeError
from seqdata.protocols import Store
from seqdata_arrays.array_index import CHUNK, MASK, MISSING, NOTES, ROW, TEXT, parse_notes
from seqdata_arrays.chunk_store import ChunkStore
from seqdata_arrays.chunked_array import Bytes
from seqdata_arrays.hdf5_file import SUFFIXES as HDF5_SUFFIXES
from seqdata_arrays.hdf5_file import HDF5Format
from seqdata_arrays.layout import ArrayOptions
from seqdata_arrays.numpy_file import SUFFIXES as NUMPY_SUFFIXES
from seqdata_arrays.numpy_file import NumPyFormat


@dataclass(frozen=True, kw_only=True)
class ArrayFiles(ArrayOptions):
    """Base of the backends for files of arrays.

    Files are memory-mapped and read in place if all fields of all files are contiguous arrays in
    the byte order of this machine; otherwise all of them are read and decoded chunk by chunk. Files
    are indexed when they are first opened, with checksums of all data that is read.
    """

    @property
    @abstractmethod
    def _format(self) -> HDF5Format | NumPyFormat:
        """Format of the files, without ``cache_bytes``, on which indexes do not depend."""

    def __call__(
        self,
        location: Location,
        *,
        verify: str | None = None,
        index: str | None = None,
        remote: Any = None,
        keys: str = "unique",
        progress: bool | None = None,
    ) -> Store:
        """Open files; see ``FormatBackend``.

        Raises:
            ConfigError: If there are no files at the location, or an argument is invalid.
            DataError: If a file is damaged, or does not match the options.
            SeqDataError: As ``FormatBackend``, such as for a URL that cannot be read.
        """
        opened: dict[str, Any] = {
            "verify": verify, "index": index, "remote": remote, "keys": keys, "progress": progress,
        }  # fmt: skip
        try:
            store = FormatBackend(self._format)(location, **opened)
        except DecodeError as error:
            store = self._open_by_chunks(location, opened, error)
        return wrap_store(store, self.cache_bytes, keys)

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
        remote: Any = None,
    ) -> Mapping[str, Any]:
        """Make the index of files that have none, or of all; see ``protocols.SupportsIndexing``."""
        return FormatBackend(self._format).build_index(
            location, rebuild=rebuild, executor=executor, progress=progress, remote=remote
        )

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[Any]]:
        """Return the bytes to check and an iterator of reports; see ``protocols.SupportsAudit``."""
        return FormatBackend(self._format).audit(
            location, shard=shard, repair=repair, on_progress=on_progress
        )

    def _open_by_chunks(
        self, location: Location, options: Mapping[str, Any], error: DecodeError
    ) -> ShardStore:
        """Open files with all of them indexed by chunk, after an error because only some were.

        Raises:
            DecodeError: The given error, if it has another cause.
        """
        if CHUNK not in str(error):  # fields of strings are named as users know them
            raise DecodeError.at(str(error).replace(TEXT, ""), **error.details) from error
        return FormatBackend(replace(self._format, is_chunked=True))(location, **options)


@dataclass(frozen=True, kw_only=True)
class HDF5(ArrayFiles):
    """Backend for HDF5 and NetCDF files.

    Files are memory-mapped and read in place if all fields of all files are contiguous arrays in
    the byte order of this machine; otherwise all of them are read and decoded chunk by chunk. Files
    are indexed when they are first opened, with checksums of all data that is read.

    Examples:
        >>> open_store("rec.h5", backend=HDF5(fields=["acc"]))  # doctest: +SKIP
    """

    suffixes = HDF5_SUFFIXES

    @property
    def _format(self) -> HDF5Format:
        """Format of the files, without ``cache_bytes``, on which indexes do not depend."""
        return HDF5Format(replace(self, cache_bytes=0))


@dataclass(frozen=True, kw_only=True)
class NumPy(ArrayFiles):
    """Backend for the files of ``numpy.save`` and ``numpy.savez``.

    An array of a ``.npy`` file is the field ``x``, and its first dimension is time. The arrays of a
    ``.npz`` file are fields of their names; one without a dimension is a value per sequence. The id
    is the name of the file without its suffix. Files, also those of ``numpy.savez``, are
    memory-mapped and read in place, unless an array of one is compressed, in Fortran order or in
    another byte order: then all are read in pieces and decoded, with compressed arrays and those in
    Fortran order as one piece each. Files are indexed when they are first opened, with checksums of
    all data that is read.

    ``per``, ``lengths``, ``offsets``, ``ids`` and ``axes`` are for ``.npz``. Files of NumPy have
    no attributes and no packed numbers.

    Examples:
        >>> open_store("recordings/", backend=NumPy(fields={"acc": "x"}))  # doctest: +SKIP

    Raises:
        ConfigError: If an option is invalid.
    """

    suffixes = NUMPY_SUFFIXES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, unset, lack in (
            ("attributes", None, "attributes"), ("raw", False, "packed numbers"),
        ):  # fmt: skip
            if getattr(self, name) is not unset:
                raise ConfigError(
                    f"NumPy: `{name}` must be left out, since files of NumPy have no {lack}, "
                    f"but is {getattr(self, name)!r}"
                )

    @property
    def _format(self) -> NumPyFormat:
        """Format of the files, without ``cache_bytes``, on which indexes do not depend."""
        return NumPyFormat(replace(self, cache_bytes=0))


def wrap_store(store: ShardStore, cache_bytes: int, keys: str) -> Store:
    """Return the store of the sequences in indexed files.

    A store of files that are indexed by sequence and have no strings is returned unchanged.

    Args:
        store: The files, indexed by sequence or by chunk.
        cache_bytes: Maximum size of the decoded chunks that a process keeps.
        keys: ``unique`` or ``by_shard``.
    """
    if CHUNK in store.fields:
        return _open_chunks(store, cache_bytes, keys)
    if any(name.startswith(TEXT) for name in store.fields):
        return StoreWithTexts(store, (wrap_store, (store, cache_bytes, keys)))
    return store


def _open_chunks(store: ShardStore, cache_bytes: int, keys: str) -> ChunkStore:
    spans = np.zeros((len(store), 3), dtype=np.int64)
    spans[:, 0] = np.arange(len(store))
    columns = store.read(spans, [ROW, MASK, NOTES])
    rows, masks, notes = (
        _fill(columns[name], len(store), shape)
        for name, shape in ((ROW, ()), (MASK, ()), (NOTES, (256,)))
    )
    starts = [*np.flatnonzero(rows == 0).tolist(), len(store)]
    files = [
        parse_notes(name, notes[first:stop])
        for name, first, stop in zip(store.shards, starts[:-1], starts[1:], strict=True)
    ]
    return ChunkStore(
        str(store.location), _StoredChunks(store, masks), files, starts[:-1],
        cache_bytes=cache_bytes, keys=keys,
        reopen=lambda: (wrap_store, (store, cache_bytes, keys)),
    )  # fmt: skip


def _fill(column: Any, count: int, shape: tuple[int, ...]) -> NDArray[Any]:
    values = np.empty((count, *shape), dtype=column.dtype)
    column.fill(values, np.arange(count + 1), None)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _StoredChunks:
    """The chunks of indexed files. Implements ``ChunkSource``.

    Attributes:
        store: The store whose sequences are chunks.
        filter_masks: int64 (chunks,), a set bit for each filter that a chunk skips; negative: see
            ``array_index``.
    """

    store: ShardStore
    filter_masks: NDArray[np.int64]

    can_verify = True
    can_prefetch = True

    @property
    def is_local(self) -> bool:
        """Whether all files are on this machine."""
        return self.store.is_local

    @property
    def folder(self) -> Path | None:
        """The local folder of the files; None: there is none."""
        return self.store.folder

    @property
    def fingerprint(self) -> str:
        """Digest of the files."""
        return self.store.fingerprint

    def read(self, numbers: NDArray[np.int64]) -> list[Bytes | None]:
        """Return the bytes of chunks, mapped; see ``ChunkSource``."""
        spans = np.stack([numbers, 0 * numbers, self.store.lengths[numbers]], axis=1)
        column = self.store.read(spans.astype(np.int64), [CHUNK])[CHUNK]
        is_missing = (self.filter_masks[numbers] == MISSING).tolist()
        return [None if missing else column[at] for at, missing in enumerate(is_missing)]

    def masks(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return a filter mask per chunk; a set bit marks a filter that was not applied."""
        masks: list[int] = np.maximum(self.filter_masks[numbers], 0).tolist()
        return masks

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch chunks."""
        return self.store.prefetch(numbers)


class StoreWithTexts:
    """Store of files that are read in place, with the strings that their indexes store as bytes.

    Args:
        store: The files.
        reopen: Value of ``__reduce__``.
    """

    def __init__(self, store: ShardStore, reopen: tuple[Any, ...]) -> None:
        self._store, self._reopen = store, reopen
        spans = np.zeros((len(store), 3), dtype=np.int64)
        spans[:, 0] = np.arange(len(store))
        hidden = [name for name in store.fields if name.startswith(TEXT)]
        columns = store.read(spans, hidden, axis=next(iter(store.lengths_of)))
        self._texts: dict[str, list[str]] = {}
        for name in hidden:
            packed = _fill(columns[name], len(store), store.fields[name].shape)
            texts = [row.tobytes().rstrip(b"\0").decode() for row in packed]
            self._texts[name.removeprefix(TEXT)] = texts
        self.fields: Mapping[str, Field] = {
            **{name: field for name, field in store.fields.items() if name not in hidden},
            **{name: Field("str", (), None) for name in self._texts},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    def __len__(self) -> int:
        return len(self._store)

    @property
    def location(self) -> str | None:
        """Location without credentials."""
        return self._store.location

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of timesteps of each sequence along the default axis, int64 (sequences,)."""
        return self._store.lengths

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, int64 (sequences,)."""
        return self._store.lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the files."""
        return self._store.shards

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content; the strings are part of the indexed content."""
        return self._store.fingerprint

    @property
    def is_local(self) -> bool:
        """Whether all data is on this machine."""
        return self._store.is_local

    @property
    def folder(self) -> Path | None:
        """The local folder of the files; None: there is none."""
        return self._store.folder

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of sequences."""
        return self._store.keys(numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same indices, because this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence, for an error."""
        return self._store.locate(number)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch the files of sequences; see ``SupportsPrefetch``."""
        return self._store.prefetch(numbers)

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return how often files are fetched; see ``protocols.SupportsShardCache``."""
        return self._store.estimate_fetches(batches, rows)

    def find_missing(self, name: str) -> tuple[int, Sequence[int]]:
        """Return the number of sequences without an attribute, and the indices of some."""
        return self._store.find_missing(name)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch; see ``protocols.Store.read``."""
        names = list(fields)
        texts = [name for name in names if name in self._texts]
        columns = self._store.read(spans, [n for n in names if n not in self._texts], axis=axis)
        if texts:
            numbers = np.asarray(spans)[:, 0]
            self._store.keys(numbers)  # raises if a sequence does not exist
            for name in texts:
                kept = self._texts[name]
                columns[name] = [kept[number] for number in numbers.tolist()]
        return columns

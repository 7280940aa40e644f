"""The store of sequences in chunked arrays; spans are cut from decoded bands.

Reads: chunks of a source, by number. Makes: columns.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import (
    ArrayColumn,
    DataLocation,
    Field,
    check_size,
    make_unknown_name_error,
    quote,
)
from seqdata.errors import ConfigError, CorruptSampleError, DataError, DecodeError
from seqdata_arrays.bands import Band, BandCache, Decode
from seqdata_arrays.chunked_array import (
    REMEDY_FOR_FIELDS,
    Bytes,
    FileSequences,
    MissingCodecError,
)

_LOCATION = {"dataset", "shard", "file", "axis", "unit", "sequence", "key", "field"}
_BYTES = {"offset", "length"}


class ChunkSource(Protocol):
    """A reader of the stored bytes of chunks, which are numbered over all files."""

    @property
    def is_local(self) -> bool:
        """Whether all files are on this machine."""
        ...

    @property
    def folder(self) -> Path | None:
        """The local folder of the files, in which others may be stored; None: there is none."""
        ...

    @property
    def can_verify(self) -> bool:
        """Whether ``seqdata verify`` compares checksums of the files."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of the files."""
        ...

    @property
    def can_prefetch(self) -> bool:
        """Whether chunks of whole sequences may be fetched ahead."""
        ...

    def read(self, numbers: NDArray[np.int64]) -> list[Bytes | None]:
        """Return the bytes of chunks; None for those that were never written.

        Raises:
            DataError: If they cannot be read, or a checksum differs.
        """
        ...

    def masks(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return a filter mask per chunk; a set bit marks a filter that was not applied."""
        ...

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch chunks; see ``SupportsPrefetch``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _FieldTable:
    """A field along an axis, over all files.

    Attributes:
        field: Dtype, shape and axis.
        arrays: int64 (n,), sequence -> index of its array.
        firsts: int64 (n,), its first timestep in the array.
        seen: int64 (n,), sequence -> end of the last span that was read; -1: none was read.
    """

    field: Field
    arrays: NDArray[np.int64]
    firsts: NDArray[np.int64]
    seen: NDArray[np.int64]


class ChunkStore:
    """Store of sequences in chunked arrays. Implements ``Store``.

    Args:
        location: Location, for messages.
        source: Reader of stored chunks.
        files: The sequences of each file, in order.
        first_chunks: The index of the first chunk of each file.
        cache_bytes: Maximum size of the decoded chunks that a process keeps.
        keys: ``unique``, or ``by_shard``: ids are ``file/id``.
        reopen: Callable that builds the value of ``__reduce__``.

    Raises:
        DecodeError: If files differ in their fields, or two sequences have the same id.
    """

    def __init__(
        self,
        location: str,
        source: ChunkSource,
        files: Sequence[FileSequences],
        first_chunks: Sequence[int],
        *,
        cache_bytes: int,
        keys: str,
        reopen: Callable[[], tuple[Any, ...]],
    ) -> None:
        self.location = location
        self._source, self._files, self._reopen = source, files, reopen
        self._cache_bytes = cache_bytes
        self._starts = np.array([0, *itertools.accumulate(map(len, files))], dtype=np.int64)
        self._arrays = [array for file in files for array in file.arrays]
        self._file_of = np.repeat(np.arange(len(files)), [len(file.arrays) for file in files])
        bands = [array.bands for array in self._arrays]
        self._first_bands = np.array([0, *itertools.accumulate(bands)], dtype=np.int64)
        self._rows = np.array([array.chunks[0] for array in self._arrays], dtype=np.int64)
        self._first_chunks = np.concatenate(
            [
                first
                + np.array([0, *itertools.accumulate(_count_chunks(file))], dtype=np.int64)[:-1]
                for file, first in zip(files, first_chunks, strict=True)
            ]
        )
        self._fields = self._check_alike()
        self._tables, self._lengths_of = self._make_tables()
        self._values = {
            name: np.concatenate([np.asarray(file.values[name]) for file in files])
            for name in files[0].values
        }
        self._values = {
            name: values.astype(values.dtype.newbyteorder("="), copy=False)
            for name, values in self._values.items()
        }
        self._texts = {
            name: [text for file in files for text in file.texts[name]] for name in files[0].texts
        }
        self._ids = self._make_ids(keys)
        self._cache: BandCache | None = None
        self._process = -1
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._fields

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each sequence along the default axis, int64 (sequences,)."""
        default = "time" if "time" in self._lengths_of else next(iter(self._lengths_of))
        return self._lengths_of[default]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[np.int64]]:
        """Axis -> number of timesteps of each sequence, int64 (sequences,)."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the files, in the order of their sequences."""
        return [file.name for file in self._files]

    @property
    def is_local(self) -> bool:
        """Whether all data is on this machine, so that nothing is fetched ahead."""
        return self._source.is_local

    @property
    def folder(self) -> Path | None:
        """The local folder of the files, in which others may be stored; None: there is none."""
        return self._source.folder

    @property
    def decoded_chunks(self) -> int:
        """Number of bands (chunks of the same timesteps) that this process has decoded."""
        return 0 if self._cache is None or self._process != os.getpid() else self._cache.decoded

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content (32 hex digits), computed without reading data."""
        if self._fingerprint is None:
            digest = hashlib.sha256(self._source.fingerprint.encode())
            digest.update(repr((sorted(self.fields.items()), self._ids)).encode())
            for name, table in self._tables.items():
                lengths = self._lengths_of[table.field.axis or ""]
                digest.update(name.encode())
                digest.update(np.stack([table.arrays, table.firsts, lengths]).tobytes())
            for name, values in self._values.items():
                digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
            digest.update(repr(self._texts).encode())
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        checked = np.asarray(getattr(numbers, "ids", numbers), dtype=np.int64)
        self._check_numbers(checked)
        return [self._ids[number] for number in checked.tolist()]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same indices, because this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence, for an error; of the dataset if it is invalid."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.location)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return DataLocation(
            dataset=self.location, shard=shard, file=self._files[shard].name, sequence=number,
            key=self._ids[number], verify=self._source.can_verify,
        )  # fmt: skip

    def find_missing(self, name: str) -> tuple[int, Sequence[int]]:
        """Return the number of sequences without an attribute, and the indices of some."""
        found = [file.missing.get(name, (0, ())) for file in self._files]
        some = [
            start + number
            for start, (_, own) in zip(self._starts.tolist(), found, strict=False)
            for number in own
        ]
        return sum(count for count, _ in found), some

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch the chunks of whole sequences; see ``SupportsPrefetch``."""
        if not self._source.can_prefetch:
            return self._source.is_local
        chunks: list[NDArray[np.int64]] = []
        for table in self._tables.values():
            lengths = self._lengths_of[table.field.axis or ""][numbers]
            full = np.stack([numbers, np.zeros_like(lengths), lengths], axis=1)
            bands = self._find_bands(table, full)[2]
            chunks += [self._chunks_of(band) for band in np.unique(bands).tolist()]
        return self._source.prefetch(np.concatenate(chunks)) if chunks else True

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field, the axis or a span does not exist.
            DataError: If a chunk is damaged.
        """
        names = list(fields)
        spans = np.asarray(spans, dtype=np.int64)
        self._check_request(spans, names, axis)
        numbers = spans[:, 0]
        places: dict[str, Any] = {}
        for name in names:
            table = self._tables.get(name)
            if table is not None:
                places[name] = self._find_bands(table, self._spans_along(spans, table, axis))
        needed = [bands for _, _, bands in places.values()]
        decoded = self._get_cache().get(
            np.unique(np.concatenate(needed)).tolist() if needed else ()
        )
        columns: dict[str, Any] = {}
        for name in names:
            if name in places:
                columns[name] = self._cut(self._tables[name], places[name], decoded)
            elif name in self._values:
                values = self._values[name]
                pieces = list(values[numbers][:, None])
                columns[name] = ArrayColumn(values.dtype, values.shape[1:], pieces)
            else:
                texts = self._texts[name]
                columns[name] = [texts[number] for number in numbers.tolist()]
        self._read_ahead(spans, names, axis)
        return columns

    def _spans_along(
        self, spans: NDArray[np.int64], table: _FieldTable, axis: str
    ) -> NDArray[np.int64]:
        """Return the spans of a field: as requested, or whole sequences if its axis is another."""
        if table.field.axis == axis:
            return spans
        numbers = spans[:, 0]
        lengths = self._lengths_of[table.field.axis or ""][numbers]
        return np.stack([numbers, np.zeros_like(lengths), lengths], axis=1)

    def _find_bands(
        self, table: _FieldTable, spans: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the bands that contain spans of a field.

        Returns:
            int64 (n, 3): first row and one past the last, both counted from the first band of the
            span, and rows per band; int64 (n+1,): offsets of the bands of each span; int64: the
            bands of all spans, concatenated.
        """
        numbers = spans[:, 0]
        arrays = table.arrays[numbers]
        firsts, rows = table.firsts[numbers], self._rows[arrays]
        begins, ends = firsts + spans[:, 1], firsts + spans[:, 2]
        low, high = begins // rows, -(-ends // rows)
        counts = np.where(ends > begins, high - low, 0)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        base = self._first_bands[arrays] + low
        bands = np.repeat(base - offsets[:-1], counts) + np.arange(offsets[-1])
        return np.stack([begins - low * rows, ends - low * rows, rows], axis=1), offsets, bands

    def _cut(
        self, table: _FieldTable, place: Sequence[NDArray[np.int64]], decoded: Mapping[int, Band]
    ) -> ArrayColumn:
        """Return the column of spans; a span within one band is a view of it."""
        inside, offsets, bands = place
        field = table.field
        empty = np.empty((0, *field.shape), dtype=field.dtype)
        pieces: list[NDArray[Any]] = []
        needed = bands.tolist()
        for (begin, end, rows), (at, stop) in zip(
            inside.tolist(), itertools.pairwise(offsets.tolist()), strict=True
        ):
            if stop - at == 1:
                pieces.append(decoded[needed[at]][begin:end])
            elif stop == at:
                pieces.append(empty)
            else:
                last = end - (stop - at - 1) * rows
                middle = [decoded[band] for band in needed[at + 1 : stop - 1]]
                parts = [decoded[needed[at]][begin:], *middle, decoded[needed[stop - 1]][:last]]
                pieces.append(np.concatenate(parts))
        return ArrayColumn(np.dtype(field.dtype), field.shape, pieces)

    def _read_ahead(self, spans: NDArray[np.int64], names: Iterable[str], axis: str) -> None:
        """Start to decode the chunks of the next spans, if these spans continue the last ones."""
        if not self._get_cache().has_threads:
            return
        ahead: list[NDArray[np.int64]] = []
        for name in names:
            table = self._tables.get(name)
            if table is None or table.field.axis != axis:
                continue
            numbers, starts, stops = spans.T
            goes_on = (table.seen[numbers] == starts) & (stops > starts)
            table.seen[numbers] = stops
            if not goes_on.any():
                continue
            lengths = self._lengths_of[axis][numbers]
            following = np.stack([numbers, stops, np.minimum(lengths, 2 * stops - starts)], axis=1)
            ahead.append(self._find_bands(table, following[goes_on])[2])
        if ahead:
            self._get_cache().prefetch(np.unique(np.concatenate(ahead)).tolist())

    def _get_cache(self) -> BandCache:
        """Return the cache of this process."""
        if self._cache is None or self._process != os.getpid():
            self._cache = BandCache(self._prepare, self._cache_bytes)
            self._process = os.getpid()
        return self._cache

    def _chunks_of(self, band: int) -> NDArray[np.int64]:
        """Return the indices of the chunks of a band, int64 (k,)."""
        array = int(np.searchsorted(self._first_bands, band, side="right")) - 1
        count = self._arrays[array].chunks_of_band
        first = int(self._first_chunks[array]) + (band - int(self._first_bands[array])) * count
        return np.arange(first, first + count)

    def _prepare(self, bands: list[int]) -> list[Decode]:
        """Read the chunks of bands; return a decoder for each band."""
        chunks = [self._chunks_of(band) for band in bands]
        numbers = np.concatenate(chunks)
        try:
            stored = self._source.read(numbers)
        except DataError as error:
            raise self._name_damage(error, bands) from error
        masks = self._source.masks(numbers)
        jobs: list[Decode] = []
        at = 0
        for band, own in zip(bands, chunks, strict=True):
            stop = at + len(own)
            jobs.append(self._make_job(band, stored[at:stop], masks[at:stop]))
            at = stop
        return jobs

    def _make_job(self, band: int, stored: list[Bytes | None], masks: list[int]) -> Decode:
        number = int(np.searchsorted(self._first_bands, band, side="right")) - 1
        array, at = self._arrays[number], band - int(self._first_bands[number])

        def decode() -> Band:
            size = sum(0 if each is None else len(each) for each in stored)
            check_size(DataLocation(dataset=self.location), size, array.band_bytes)
            try:
                return array.decode_band(at, stored, masks)
            except ValueError as error:
                which = f"chunk {at}" if array.chunks_of_band == 1 else f"a chunk of band {at}"
                remedy = "" if isinstance(error, MissingCodecError) else ". Restore the file"
                raise self._locate_band(band).make_error(
                    DecodeError,
                    f"{which} of {quote(array.path)} cannot be decoded: {error}{remedy}",
                ) from error

        return decode

    def _locate_band(self, band: int) -> DataLocation:
        """Return the location of the first sequence with timesteps in a band."""
        name, sequences = self._find_sequences(band)
        if name is None:
            return DataLocation(dataset=self.location)
        return replace(self.locate(int(sequences[0])), field=name)

    def _find_sequences(self, band: int) -> tuple[str | None, NDArray[np.int64]]:
        """Return the field whose values a band holds, and the sequences that lie in it."""
        number = int(np.searchsorted(self._first_bands, band, side="right")) - 1
        row = (band - int(self._first_bands[number])) * int(self._rows[number])
        for name, table in self._tables.items():
            lengths = self._lengths_of[table.field.axis or ""]
            inside = (table.arrays == number) & (table.firsts < row + self._rows[number])
            inside &= table.firsts + lengths > row
            if inside.any():
                return name, np.flatnonzero(inside)
        return None, np.empty(0, dtype=np.int64)

    def _name_damage(self, error: DataError, bands: list[int]) -> DataError:
        """Return an error about a stored chunk as one about the sequence that lies in it."""
        details: dict[str, Any] = dict(error.details)
        chunk = details.pop("chunk", details.get("sequence"))  # chunks are numbered over all files
        found = [band for band in bands if chunk in self._chunks_of(band)]
        if not found:
            return error
        place = self._locate_band(found[0])
        number = int(np.searchsorted(self._first_bands, found[0], side="right")) - 1
        file = str(details.get("file", place.file)).removeprefix(f"{self.location}/")
        path = self._arrays[number].path
        shown = f"of {quote(path)}" if file == place.file else f"({quote(file)})"
        others = len(self._find_sequences(found[0])[1]) - 1
        shared = f", with values of this sequence and {others} more," if others > 0 else ""
        known = {name: details[name] for name in _BYTES & details.keys()}
        rest = details.keys() - _LOCATION - _BYTES - {"remedy"}
        return replace(place, **known).make_error(
            CorruptSampleError,
            f"chunk {chunk - int(self._first_chunks[number])} {shown}{shared} is damaged: "
            f"{_extract_reason(error)}",
            **{name: details[name] for name in rest},
        )

    def _check_request(self, spans: NDArray[np.int64], names: Sequence[str], axis: str) -> None:
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.location}: `spans` must have shape (n, 3), with columns sequence, start "
                f"and stop, but has shape {spans.shape}"
            )
        if axis not in self._lengths_of:
            raise make_unknown_name_error(self.location, "axis", axis, self._lengths_of)
        for name in names:
            if name not in self._fields:
                raise make_unknown_name_error(self.location, "field", name, self._fields)
        self._check_numbers(spans[:, 0])
        lengths = self._lengths_of[axis][spans[:, 0]]
        inside = (spans[:, 1] >= 0) & (spans[:, 1] <= spans[:, 2]) & (spans[:, 2] <= lengths)
        if not inside.all():
            number, start, stop = spans[int(np.argmin(inside))].tolist()
            raise ConfigError(
                f"{self.location}: sequence {number} ({quote(self._ids[number])}): timesteps must "
                f"be in 0..{self._lengths_of[axis][number]}, but {start}..{stop} were requested. "
                "Use a plan that was made for this data."
            )

    def _check_numbers(self, numbers: NDArray[np.int64]) -> None:
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise ConfigError(
                f"{self.location}: the index of a sequence must be in [0, {len(self)}), but is "
                f"{int(numbers[outside][0])}. Use a plan that was made for this data."
            )

    def _make_tables(self) -> tuple[dict[str, _FieldTable], dict[str, NDArray[np.int64]]]:
        """Return the tables of fields along an axis, and axis -> lengths, int64 (sequences,)."""
        first_arrays = [0, *itertools.accumulate(len(file.arrays) for file in self._files)]
        tables: dict[str, _FieldTable] = {}
        lengths_of: dict[str, NDArray[np.int64]] = {}
        for name in self._files[0].spans:
            parts = [np.asarray(file.spans[name]) for file in self._files]
            spans = np.concatenate(parts).astype(np.int64)
            bases = np.repeat(first_arrays[:-1], list(map(len, self._files)))
            arrays = spans[:, 0] + bases
            field = _describe(self._files[0], name)
            tables[name] = _FieldTable(field, arrays, spans[:, 1], np.full(len(spans), -1))
            lengths_of[field.axis or ""] = spans[:, 2] - spans[:, 1]
        return tables, lengths_of

    def _check_alike(self) -> Mapping[str, Field]:
        """Return the fields of all files.

        Raises:
            DecodeError: If a file has other fields than the first.
        """
        first = self._files[0]
        due = _describe_all(first)
        for shard, file in enumerate(self._files):
            found = _describe_all(file)
            if found != due:
                name = next(n for n in {**due, **found} if due.get(n) != found.get(n))
                place = DataLocation(dataset=self.location, shard=shard, file=file.name, field=name)
                raise place.make_error(
                    DecodeError,
                    f"must be {_say(due.get(name))} as in {first.name!r}, but is "
                    f"{_say(found.get(name))}. {REMEDY_FOR_FIELDS}",
                )
        return due

    def _make_ids(self, keys: str) -> list[str]:
        """Return the ids of all sequences.

        Raises:
            DecodeError: If two sequences have the same id.
        """
        ids: list[str] = []
        for file in self._files:
            own = [file.name] if file.ids is None else list(file.ids)
            is_named = keys == "by_shard" and file.ids is not None
            ids += [f"{file.name}/{each}" for each in own] if is_named else own
        if len(set(ids)) == len(ids):
            return ids
        first: dict[str, int] = {}
        for number, each in enumerate(ids):
            if first.setdefault(each, number) != number:
                files = [
                    self._files[int(np.searchsorted(self._starts, n, side="right")) - 1].name
                    for n in (first[each], number)
                ]
                remedy = "Rename one of the files or sequences"
                if files[0] != files[1] and keys != "by_shard":
                    remedy = "Wrap the backend: `functools.partial(BACKEND, keys='by_shard')`"
                raise DataLocation(dataset=self.location, sequence=number, key=each).make_error(
                    DecodeError,
                    f"must have a unique id, but sequence {first[each]} has the same id, in "
                    f"{files[0]!r} and {files[1]!r}. {remedy}",
                )
        return ids


def _count_chunks(file: FileSequences) -> Iterable[int]:
    return (array.bands * array.chunks_of_band for array in file.arrays)


def _describe(file: FileSequences, name: str) -> Field:
    spans = file.spans[name]
    array = file.arrays[int(spans[0, 0]) if len(spans) else 0]
    return Field(array.dtype.newbyteorder("=").name, array.shape[1:], file.axes[name])


def _describe_all(file: FileSequences) -> dict[str, Field]:
    found = {name: _describe(file, name) for name in file.spans}
    for name, values in file.values.items():
        found[name] = Field(values.dtype.newbyteorder("=").name, values.shape[1:], None)
    return found | {name: Field("str", (), None) for name in file.texts}


def _say(field: Field | None) -> str:
    if field is None:
        return "missing"
    along = "per sequence" if field.axis is None else f"on axis {field.axis}"
    return f"{field.dtype} {list(field.shape)} {along}"


def _extract_reason(error: DataError) -> str:
    """Return the message of an error without its location and its command."""
    details: dict[str, Any] = dict(error.details)
    place = DataLocation(**{name: details[name] for name in (_LOCATION | _BYTES) & details.keys()})
    text = str(error).removesuffix(f"Verify: {details.get('remedy')}.").rstrip()
    return text.removeprefix(f"{place}: ")

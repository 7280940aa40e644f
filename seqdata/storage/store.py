"""The one store of sequences in shards.

Arrow shards, tar shards and files of any format, on this machine or behind a URL, are opened as a
``ShardStore``. How its shards are read is a ``ShardReader``: all of them mapped
(``StoreFields``), or shards that come and go. Place in the flow: a location becomes a store. Reads:
spans. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError
from seqdata.linked_axes import Axis
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import kind_of, make_unknown_name_error
from seqdata.storage.ids import name_sequences
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.text_bytes import TextBytes, TextSource, format_decimals
from seqdata.storage.views import SequenceStore


class FieldSource(Protocol):
    """One field of a store, from which spans are read."""

    @property
    def field(self) -> Field:
        """Dtype, shape and axis of the values."""
        ...

    @property
    def stored(self) -> BufferSource | None:
        """Source of the stored bytes of this field; None: no stored bytes are read for it."""
        ...

    @property
    def texts(self) -> TextSource | None:
        """This source if it holds strings or bytes; None for arrays."""
        ...

    def column(self, spans: NDArray[np.int64]) -> Any:
        """Return the column of spans, int64 (n, 3), or a list of objects.

        Raises:
            ConfigError: If a span does not exist.
            CorruptSampleError: If stored data is damaged.
            DecodeError: If bytes are not a value.
        """
        ...


class ShardReader(Protocol):
    """Reader of the shards of a store."""

    @property
    def layout(self) -> ShardLayout:
        """Shards, lengths and ids of the sequences."""
        ...

    @property
    def ids(self) -> TextSource | None:
        """The ids of the sequences; None: there are none, and indices name sequences."""
        ...

    @property
    def is_local(self) -> bool:
        """True if all data is on this machine: nothing is fetched ahead."""
        ...

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of a batch; see ``protocols.Store.read``."""
        ...

    def texts(self, name: str) -> TextSource | None:
        """Return the strings of a field; None: there is no field of strings with this name."""
        ...

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need; see ``protocols.SupportsPrefetch``."""
        ...

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return how often shards are fetched; see ``protocols.SupportsShardCache``."""
        ...


def add_ids(layout: ShardLayout, ids: TextSource) -> ShardLayout:
    """Return a layout whose locations name sequences by their ids, if these can be read.

    Args:
        layout: Shards, lengths and ids of the sequences.
        ids: Source of the ids, made over a layout without ``find_id``.
    """

    def find_id(number: int) -> str | None:
        try:
            return str(ids.take([number])[0]) if ids.is_readable(number) else None
        except DataError:  # an error is being made, which matters more than the id in it
            return None

    return replace(layout, find_id=find_id)


def check_request(
    layout: ShardLayout,
    fields: Mapping[str, Any],
    spans: NDArray[np.int64],
    names: Iterable[str],
    axis: str,
) -> None:
    """Raise if spans have another shape, or a field or the axis does not exist.

    Raises:
        ConfigError: If spans have a wrong shape, or a field or the axis does not exist.
    """
    location = layout.location
    if spans.ndim != 2 or spans.shape[1] != 3:
        raise ConfigError(
            f"{location}: `spans` must have shape (n, 3), with columns sequence, start and stop, "
            f"but has shape {spans.shape}"
        )
    if axis not in layout.lengths_of:
        raise make_unknown_name_error(location, "axis", axis, layout.lengths_of)
    for name in names:
        if name not in fields:
            raise make_unknown_name_error(location, "field", name, fields)


def make_full_spans(
    layout: ShardLayout, numbers: NDArray[np.int64], axis: str | None
) -> NDArray[np.int64]:
    """Return the spans of whole sequences; indices out of range are kept, to be refused later."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = 1 if axis is None else layout.lengths_of[axis].take(numbers, mode="clip")
    return spans


class LocalShards:
    """Base of readers of shards on this machine."""

    __slots__ = ()

    @property
    def is_local(self) -> bool:
        """True: nothing is fetched ahead."""
        return True

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Return True: nothing is fetched, so more may be announced."""
        del numbers
        return True

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return 1: nothing is fetched."""
        del batches, rows
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class StoreFields(LocalShards):
    """The fields of a store, or of some shards, whose bytes are all on this machine.

    Implements ``ShardReader``.

    Attributes:
        layout: Shards, lengths and ids of the sequences.
        sources: Field -> its source.
        ids: The ids of the sequences; None: there are none, and indices name sequences.
    """

    layout: ShardLayout
    sources: Mapping[str, FieldSource]
    ids: TextSource | None

    @classmethod
    def from_sources(
        cls,
        layout: ShardLayout,
        names: Iterable[str],
        key: str | None,
        make_source: Callable[[str, ShardLayout], FieldSource],
    ) -> StoreFields:
        """Return fields over a layout whose locations name sequences by the field of ids.

        Args:
            layout: Shards, lengths and ids of the sequences.
            names: Names of the fields.
            key: The field of ids; None: there is none.
            make_source: Makes the source of a field.
        """
        ids = None if key is None else make_source(key, replace(layout, drop_copy=None)).texts
        layout = layout if ids is None else add_ids(layout, ids)
        sources = {name: make_source(name, layout) for name in names}
        return cls(layout, sources, None if key is None else sources[key].texts)

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of a batch; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field, the axis or a span does not exist, or spans have a wrong shape.
            CorruptSampleError: If stored data is damaged.
            DecodeError: If bytes are not a value.
        """
        layout = self.layout
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        names = list(fields)
        check_request(layout, self.sources, spans, names, axis)
        spans_by_axis: dict[str | None, NDArray[np.int64]] = {axis: spans}
        columns: dict[str, Any] = {}
        for name in names:
            source = self.sources[name]
            field_axis = source.field.axis
            if field_axis not in spans_by_axis:
                spans_by_axis[field_axis] = make_full_spans(layout, spans[:, 0], field_axis)
            columns[name] = source.column(spans_by_axis[field_axis])
        return columns

    def texts(self, name: str) -> TextSource | None:
        """Return the strings of a field; None: there is no field of strings with this name."""
        source = self.sources.get(name)
        return None if source is None else source.texts


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoreInfo:
    """Metadata of a store.

    Attributes:
        label: Name of the kind of store, in its representation.
        location: Location without credentials; None: in memory.
        fields: Name -> field.
        make_fingerprint: Callable that computes the digest of schema and content.
        reopen: Callable that builds the value of ``__reduce__`` of a store.
        verify: When checksums are compared: off, first_read or always.
        bits: The bits of verified checksums, for first_read.
        manifest: Record of the writer, if the format has one.
        folder: Local folder, where measured values may be kept; None: there is none.
        populate: Reads sequences ahead into memory; None: the store cannot do this.
        is_copied: Whether a pickle holds the data.
        linked_axes: Axis -> its clock, of the axes whose rates the format records.
        find_missing: Returns the sequences that lack a value; None: the format does not tell.
    """

    label: str
    location: str | None
    fields: Mapping[str, Field]
    make_fingerprint: Callable[[], str]
    reopen: Callable[[ShardStore], tuple[Any, ...]]
    verify: str = "off"
    bits: SharedBits | None = None
    manifest: Any = None
    folder: Path | None = None
    populate: Callable[[int, int, Iterable[str]], None] | None = None
    is_copied: bool = False
    linked_axes: Mapping[str, Axis] = field(default_factory=dict)
    find_missing: Callable[[str], tuple[int, Sequence[int]]] | None = None


class ShardStore(SequenceStore):
    """A store of shards. Made by the functions that open locations.

    Args:
        info: Its metadata.
        reader: Reader of its shards.
    """

    def __init__(self, info: StoreInfo, reader: ShardReader) -> None:
        self._info = info
        self._reader = reader
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._info.reopen(self)

    def __len__(self) -> int:
        return len(self._reader.layout)

    @property
    def title(self) -> str:
        """One line that names the store."""
        where = "" if self.location is None else f"{self.location!r}, "
        return f"{self._info.label}({where}{len(self)} sequences)"

    @property
    def location(self) -> str | None:
        """Location without credentials; None: in memory."""
        return self._info.location

    @property
    def folder(self) -> Path | None:
        """Local folder, where measured values may be kept; None: there is none."""
        return self._info.folder

    @property
    def verify(self) -> str:
        """When checksums are compared: off, first_read or always."""
        return self._info.verify

    @property
    def manifest(self) -> Any:
        """Record of the writer, with the positions of the data; None: the format has none."""
        return self._info.manifest

    @property
    def is_local(self) -> bool:
        """True if all data is on this machine: nothing is fetched ahead."""
        return self._reader.is_local

    @property
    def is_copied_to_workers(self) -> bool:
        """True if a pickle holds the data; otherwise it opens the store again."""
        return self._info.is_copied

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._info.fields

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its clock, of the axes whose sampling rates are known."""
        return self._info.linked_axes

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,)."""
        return self._reader.layout.lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the shards, in the order of their sequences."""
        return self._reader.layout.shards

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content (32 hex digits), without reading data if possible."""
        if self._fingerprint is None:
            self._fingerprint = self._info.make_fingerprint()
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of sequences by index, or of a batch's rows.

        Raises:
            ConfigError: If there is no such sequence.
        """
        return name_sequences(numbers, self._read_keys)

    def _read_keys(self, sequence_numbers: NDArray[np.int64]) -> list[str]:
        if self._reader.ids is not None:
            return self._reader.ids.take(sequence_numbers)
        self._reader.layout.check_numbers(sequence_numbers)
        return [str(number) for number in sequence_numbers.tolist()]

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of strings; see ``text_bytes.SupportsRawTexts``.

        Raises:
            ConfigError: If there is no such sequence or field of strings.
        """
        source = self._reader.ids if name is None else self._reader.texts(name)
        if source is not None:
            return source.read_bytes(numbers)
        if name is not None:
            strings = [name for name, field in self.fields.items() if not kind_of(field).is_array]
            raise make_unknown_name_error(
                self._reader.layout.location, "field of strings", name, strings
            )
        self._reader.layout.check_numbers(numbers)
        return format_decimals(numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence, or of the dataset if there is none, for an error."""
        layout = self._reader.layout
        if 0 <= number < len(layout):
            return layout.locate(number)
        return DataLocation(dataset=layout.location)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        return self._reader.read(spans, fields, axis)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in order; see ``protocols.SupportsPrefetch``."""
        return self._reader.prefetch(numbers)

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return how often shards are fetched; see ``protocols.SupportsShardCache``."""
        return self._reader.estimate_fetches(batches, rows)

    def find_missing(self, name: str) -> tuple[int, Sequence[int]]:
        """Return the number and some indices of sequences without a value that others have.

        See ``SupportsMissing``.
        """
        return (0, ()) if self._info.find_missing is None else self._info.find_missing(name)

    def populate(self, first: int, stop: int, fields: Iterable[str] | None = None) -> None:
        """Read sequences ``first:stop`` ahead into memory, with large reads; only a hint.

        Args:
            first: First sequence.
            stop: One past the last.
            fields: Names; None: all.

        Raises:
            ConfigError: If a field does not exist.
        """
        names = list(self.fields if fields is None else fields)
        for name in names:
            if name not in self.fields:
                raise make_unknown_name_error(
                    self._reader.layout.location, "field", name, self.fields
                )
        if self._info.populate is not None:
            self._info.populate(first, stop, names)

"""Fields whose values are decoded, by units: a record batch, a row group, or one sequence.

Place in the flow: stores use it for values that cannot be read in place. Reads: units of files.
Makes: columns over the requested spans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import CorruptSampleError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.array_column import ArrayColumn, check_spans
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.fields import ValueKind, kind_of
from seqdata.storage.text_bytes import TextBytes, concat_texts

MAX_CACHED_BYTES = 256 << 20
"""Decoded bytes that one store keeps; the unit in use may be larger."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitCache:
    """The most recently decoded units. It has no lock, so that no fork can copy a held one.

    Attributes:
        limit: Maximum bytes to keep.
        count: Maximum number of units to keep; None: no maximum.
    """

    limit: int = MAX_CACHED_BYTES
    count: int | None = None
    _units: dict[tuple[str, int], DecodedColumn] = field(default_factory=dict, init=False)

    def get(self, name: str, unit: int, decode: Callable[[], DecodedColumn]) -> DecodedColumn:
        """Return a unit of a field; two threads may decode the same one, which is harmless."""
        key = (name, unit)
        found = self._units.pop(key, None)
        if found is None:
            found = decode()
        self._units[key] = found  # the newest is last
        cached = list(self._units.items())
        total, count = sum(decoded.nbytes for _, decoded in cached), len(cached)
        for old, decoded in cached[:-1]:
            if total <= self.limit and (self.count is None or count <= self.count):
                break
            total, count = total - decoded.nbytes, count - 1
            self._units.pop(old, None)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class DecodedSource:
    """One field over all units.

    Attributes:
        name: Name of the field.
        field: Dtype, shape and axis of the values.
        layout: The lengths of its sequences; its shards are the units, unless there is ``stored``.
        decode: Returns a unit.
        cache: Keeps units; may be shared by the fields of a store.
        stored: The source of the bytes that are decoded, where each unit is the value of one
            sequence; None: units are the shards of the layout.
    """

    name: str
    field: Field
    layout: ShardLayout
    decode: Callable[[int], DecodedColumn]
    cache: UnitCache
    stored: BufferSource | None = None

    @property
    def kind(self) -> ValueKind:
        """Kind of the field."""
        return kind_of(self.field)

    @property
    def texts(self) -> DecodedSource | None:
        """This source if it holds strings or bytes; None for arrays."""
        return None if self.kind.is_array else self

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the objects of whole sequences, a list of ``str`` or ``bytes``."""
        sequence_numbers = np.asarray(numbers, dtype=np.int64)
        starts, stops = np.zeros_like(sequence_numbers), np.ones_like(sequence_numbers)
        return self._read(np.stack([sequence_numbers, starts, stops], axis=1))

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the concatenated bytes of strings; see ``text_bytes``."""
        return concat_texts(self.take(numbers))

    def is_readable(self, number: int) -> bool:
        """Return True; unreadable files have already raised."""
        del number
        return True

    def column(self, spans: NDArray[np.int64]) -> ArrayColumn | list[Any]:
        """Return the column of spans, or a list of ``str`` or ``bytes``.

        Units of several sequences are decoded one after the other and released: only the requested
        spans are copied.

        Args:
            spans: int64 (n, 3).

        Raises:
            ConfigError: If a span does not exist.
            CorruptSampleError: If a unit holds more or less than its length says.
            DecodeError: If a value is missing, or bytes are not text.
        """
        return self.kind.gather(self.field, self._read(spans))

    def _read(self, spans: NDArray[np.int64]) -> list[Any]:
        """Return the values of spans: arrays, or objects."""
        check_spans(self.layout, self.name, self.field.axis, spans)
        if self.stored is not None:
            return [
                self._slice_value(self._get_unit(number), number, number, start, stop)
                for number, start, stop in spans.tolist()
            ]
        unit_offsets = np.array(self.layout.shard_offsets)
        units = np.searchsorted(unit_offsets, spans[:, 0], side="right") - 1
        pieces: list[Any] = [None] * len(spans)
        for unit in np.unique(units).tolist():
            decoded, first = self._get_unit(unit), self.layout.shard_offsets[unit]
            for i in np.flatnonzero(units == unit).tolist():
                piece = self._slice_value(decoded, first, *spans[i].tolist())
                pieces[i] = np.array(piece) if self.kind.is_array else piece
        return pieces

    def _get_unit(self, unit: int) -> DecodedColumn:
        return self.cache.get(self.name, unit, lambda: self.decode(unit))

    def _slice_value(
        self, decoded: DecodedColumn, first_in_unit: int, number: int, start: int, stop: int
    ) -> Any:
        first = number - first_in_unit
        last = first + 1
        if decoded.offsets is not None:
            first, last = decoded.offsets[first : first + 2].tolist()
        if not self.kind.is_array:
            return self._decode_object(decoded.values[first:last].tobytes(), number)
        axis = self.field.axis
        length = 1 if axis is None else int(self.layout.lengths_of[axis][number])
        if last - first != length:
            raise self._make_length_error(number, length, int(last - first))
        return decoded.values[first:last][start:stop]

    def _make_length_error(self, number: int, length: int, found: int) -> CorruptSampleError:
        location = self.layout.locate(number, self.name)
        why = "the file changed since then. Open it again"
        if self.stored is not None:
            location = self.stored.locate(number, *self.stored.find(number)[1:])
            why = (
                "the file is not the one that was counted. Restore it, or rebuild its index with "
                "`seqdata index --rebuild`"
            )
        return location.make_error(
            CorruptSampleError,
            f"must have {length} timesteps, as counted before, but has {found}: {why}",
            expected=length, found=found,
        )  # fmt: skip

    def _decode_object(self, raw: bytes, number: int) -> Any:
        try:
            return self.kind.decode(raw)
        except UnicodeDecodeError as error:
            raise self.layout.locate(number, self.name).make_error(
                DecodeError,
                f"must be UTF-8 text, but is not ({error.reason} at byte {error.start}). Restore "
                "the file",
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class DecodedColumn:
    """One column of one record batch or row group.

    Attributes:
        values: (timesteps, *shape), or bytes of text, uint8.
        offsets: int64 (rows+1,), row -> values; None: one value each.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        if self.offsets is None:
            return self.values[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

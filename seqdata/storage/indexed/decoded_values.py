"""Fields that are decoded sequence by sequence, with a small cache.

Place in the flow: a store creates one source per decoded field. Reads: bytes of values. Makes:
columns over decoded arrays.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptSampleError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.array_column import ArrayColumn, check_spans
from seqdata.storage.columns import BufferSource
from seqdata.storage.indexed.indexed_format import IndexedField

CACHED_BYTES = 32 << 20
"""Maximum decoded bytes to keep per field; a single value may be larger."""
CACHED = 256
"""Maximum number of values to keep."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedValues:
    """One decoded field. It has no lock, so that no fork can copy a held one.

    Attributes:
        indexed_field: The field.
        stored: The source of its bytes.
        first: Number of the first file, if the source covers a part of the store's files.
        shards: Sequence -> number of its file, if files are concatenated; None: from ``first`` on.
    """

    indexed_field: IndexedField
    stored: BufferSource
    first: int
    shards: NDArray[np.int64] | None = None
    _cache: dict[int, NDArray[Any]] = dataclasses.field(default_factory=dict, init=False)

    @property
    def field(self) -> Field:
        """What it holds."""
        return self.indexed_field.field

    @property
    def texts(self) -> None:
        """None: it holds arrays."""
        return None

    def column(self, spans: NDArray[np.int64]) -> ArrayColumn:
        """Return the column of spans, int64 (n, 3).

        Raises:
            ConfigError: If a span does not exist.
            CorruptSampleError: If a checksum is wrong, or the length of a value differs from the
                counted one.
            DecodeError: If a value does not match the field.
        """
        field = self.indexed_field.field
        layout, pieces = self.stored.layout, []
        check_spans(layout, self.indexed_field.name, field.axis, spans)
        lengths = None if field.axis is None else layout.lengths_of[field.axis]
        for number, start, stop in spans.tolist():
            decoded = self._get_decoded(number)
            length = 1 if lengths is None else int(lengths[number])
            if len(decoded) != length:
                _, begin, end = self.stored.find(number)
                raise layout.locate(number, self.indexed_field.name, begin, end - begin).make_error(
                    CorruptSampleError,
                    f"must have {length} timesteps as were counted, but has {len(decoded)}: the "
                    "file is not the one that was counted. Restore it, or rebuild its index with "
                    "`seqdata index --rebuild`",
                    expected=length, found=len(decoded),
                )  # fmt: skip
            pieces.append(decoded[start:stop])
        return ArrayColumn(np.dtype(field.dtype), field.shape, pieces)

    def length(self, number: int) -> int:
        """Return the timesteps of a sequence, by decoding it."""
        return len(self._decode(number))

    def _get_decoded(self, number: int) -> NDArray[Any]:
        found = self._cache.pop(number, None)
        if found is None:
            found = self._decode(number)
        self._cache[number] = found  # the newest is last
        cached = list(self._cache.values())  # one atomic copy: another thread may add values
        if len(cached) > CACHED or sum(array.nbytes for array in cached) > CACHED_BYTES:
            for old in list(self._cache)[: (len(cached) + 1) // 2]:
                if old != number:
                    self._cache.pop(old, None)
        return found

    def _decode(self, number: int) -> NDArray[Any]:
        source, indexed_field = self.stored, self.indexed_field
        shard, begin, _ = source.find(number)
        raw, _ = source.read_bytes(np.array([number], dtype=np.int64))
        place = source.layout.locate(number, indexed_field.name, begin, len(raw))
        if indexed_field.decode is None:
            raise place.make_error(
                DecodeError, "must have a decoder, but has none. Tell the author of its format"
            )
        at = number - source.layout.shard_offsets[shard]
        file = self.first + shard if self.shards is None else int(self.shards[number])
        return indexed_field.decode(raw, file, at, place)

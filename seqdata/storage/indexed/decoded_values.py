"""Fields that are decoded as a whole, sequence by sequence, with a small cache.

Place in the flow: the store makes one source per decoded field. Reads: bytes of values. Makes:
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
from seqdata.storage.indexed.file_kind import IndexedField

CACHED_BYTES = 32 << 20
"""Decoded bytes that one field keeps; the value in use may be larger."""
CACHED = 256
"""Values that it keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedValues:
    """One decoded field. No lock, so that a fork never finds one held.

    Attributes:
        wanted: The field.
        stored: The bytes of its values.
        first: Number of the first file, where it is of some of the store's files.
        shards: Sequence -> number of its file, where files lie behind one another; None: from
            ``first`` on.
    """

    wanted: IndexedField
    stored: BufferSource
    first: int
    shards: NDArray[np.int64] | None = None
    _cache: dict[int, NDArray[Any]] = dataclasses.field(default_factory=dict, init=False)

    @property
    def field(self) -> Field:
        """What it holds."""
        return self.wanted.field

    @property
    def texts(self) -> None:
        """None: it holds arrays."""
        return None

    def column(self, spans: NDArray[np.int64]) -> ArrayColumn:
        """Return the column of spans, int64 (n, 3).

        Raises:
            ConfigError: If a span is not there.
            CorruptSampleError: If a checksum is wrong, or a value holds more or less than was
                counted.
            DecodeError: If a value is not what the field must hold.
        """
        about = self.wanted.field
        layout, pieces = self.stored.layout, []
        check_spans(layout, self.wanted.name, about.axis, spans)
        lengths = None if about.axis is None else layout.lengths_of[about.axis]
        for number, start, stop in spans.tolist():
            whole = self._get_decoded(number)
            length = 1 if lengths is None else int(lengths[number])
            if len(whole) != length:
                _, begin, end = self.stored.find(number)
                raise layout.locate(number, self.wanted.name, begin, end - begin).make_error(
                    CorruptSampleError,
                    f"must have {length} timesteps as were counted, but has {len(whole)}: the "
                    "shard is not the one that was counted. Restore it, or rebuild its index with "
                    "`seqdata index --anew`",
                    expected=length, found=len(whole),
                )  # fmt: skip
            pieces.append(whole[start:stop])
        return ArrayColumn(np.dtype(about.dtype), about.shape, pieces)

    def length(self, number: int) -> int:
        """Return the timesteps of a sequence, by decoding it."""
        return len(self._decode(number))

    def _get_decoded(self, number: int) -> NDArray[Any]:
        found = self._cache.pop(number, None)
        if found is None:
            found = self._decode(number)
        self._cache[number] = found  # the newest is last
        held = list(self._cache.values())  # at once: another thread may add to it
        if len(held) > CACHED or sum(one.nbytes for one in held) > CACHED_BYTES:
            for old in list(self._cache)[: (len(held) + 1) // 2]:
                if old != number:
                    self._cache.pop(old, None)
        return found

    def _decode(self, number: int) -> NDArray[Any]:
        source, wanted = self.stored, self.wanted
        shard, begin, _ = source.find(number)
        raw, _ = source.read_bytes(np.array([number], dtype=np.int64))
        place = source.layout.locate(number, wanted.name, begin, len(raw))
        if wanted.decode is None:
            raise place.make_error(DecodeError, "has no decoder, must have one; tell its author")
        at = number - source.layout.shard_offsets[shard]
        file = self.first + shard if self.shards is None else int(self.shards[number])
        return wanted.decode(raw, file, at, place)

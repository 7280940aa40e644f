"""Fields that are decoded as a whole, sequence by sequence, with a small cache.

Place in the flow: the store makes one source per decoded field. Reads: members. Makes: columns over
decoded arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptSampleError
from seqdata.storage.array_column import PieceColumn, check_spans
from seqdata_webdataset.array_headers import Head
from seqdata_webdataset.decoders import decode
from seqdata_webdataset.placed import PlacedSource
from seqdata_webdataset.schema import Wanted

KEPT_BYTES = 32 << 20
"""Decoded bytes that one field keeps; the value in use may be larger."""
KEPT = 256
"""Values that it keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeSource:
    """One decoded field. No lock, so that a fork never finds one held.

    Attributes:
        wanted: The field.
        source: The members' bytes.
        head_of: Sequence -> what its member holds, where that is known.
    """

    wanted: Wanted
    source: PlacedSource
    head_of: Callable[[int], Head | None]
    _kept: dict[int, NDArray[Any]] = field(default_factory=dict, init=False)

    def take(self, spans: NDArray[np.int64]) -> PieceColumn:
        """Give the column of spans, int64 (n, 3).

        Raises:
            ConfigError: If a span is not there.
            CorruptSampleError: If a checksum is wrong, or a member holds more or less than was
                counted.
            DecodeError: If a member is not what the schema says.
        """
        about = self.wanted.field
        layout, pieces = self.source.layout, []
        check_spans(layout, self.wanted.name, about.axis, spans)
        lengths = None if about.axis is None else layout.lengths_of[about.axis]
        for number, start, stop in spans.tolist():
            whole = self._whole(number)
            length = 1 if lengths is None else int(lengths[number])
            if len(whole) != length:
                _, begin, size = self.source.find(number)
                raise layout.place(number, self.wanted.name, begin, size).error(
                    CorruptSampleError,
                    f"must have {length} timesteps as were counted, but has {len(whole)}: the "
                    "shard is not the one that was counted. Restore it, or rebuild its index with "
                    "`seqdata index --anew`",
                    expected=length, found=len(whole),
                )  # fmt: skip
            pieces.append(whole[start:stop])
        return PieceColumn(np.dtype(about.dtype), about.shape, pieces)

    def length(self, number: int) -> int:
        """Give the timesteps of a sequence, by decoding it."""
        return len(self._decoded(number))

    def _whole(self, number: int) -> NDArray[Any]:
        found = self._kept.pop(number, None)
        if found is None:
            found = self._decoded(number)
        self._kept[number] = found  # the newest is last
        held = list(self._kept.values())  # at once: another thread may add to it
        if len(held) > KEPT or sum(one.nbytes for one in held) > KEPT_BYTES:
            for old in list(self._kept)[: (len(held) + 1) // 2]:
                if old != number:
                    self._kept.pop(old, None)
        return found

    def _decoded(self, number: int) -> NDArray[Any]:
        source = self.source
        _, begin, size = source.find(number)
        raw = np.empty(size, dtype=np.uint8)
        spans = np.array([[number, 0, size]], dtype=np.int64)
        source.take(spans).fill(raw, np.array([0, size], dtype=np.int64), None)
        place = source.layout.place(number, self.wanted.name, begin, size)
        return decode(self.wanted, raw, self.head_of(number), place)

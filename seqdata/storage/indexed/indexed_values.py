"""Small values, such as labels, that the index keeps in addition to the bytes.

They are read from the index, but only if the file still has the bytes that they were read from: a
file may have been corrected in place, at equal size. Place in the flow: a store creates one source
per such field. Reads: indexes, bytes. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource, SpanColumn
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.gather_bytes import make_value_spans

_FIRST_BYTE = np.array([[0, 1]])


@dataclass(frozen=True, slots=True, eq=False)
class IndexedValues:
    """One field of numbers over all files.

    Attributes:
        values: The numbers, from the indexes.
        stored: The source of their bytes, with checksums; None: they are not compared.
        is_one_block: Whether each value has bytes, in one checksum block.
    """

    values: BufferSource
    stored: BufferSource | None
    is_one_block: bool

    @classmethod
    def of(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        values: Sequence[NDArray[Any]],
        source: BufferSource,
    ) -> IndexedValues:
        """Return the source of a field.

        Args:
            name: Of the field.
            field: The field.
            layout: The files and lengths of its sequences.
            values: Per file, the values in its index.
            source: The source of their bytes.
        """
        stored_values = [array.astype(np.dtype(field.dtype)) for array in values]
        checked = None if source.checksums is None else source
        return cls(
            BufferSource.of(name, field, layout, stored_values), checked, _is_one_block(checked)
        )

    @property
    def field(self) -> Field:
        """The field."""
        return self.values.field

    @property
    def texts(self) -> None:
        """None: it holds numbers."""
        return None

    def column(self, spans: NDArray[np.int64]) -> SpanColumn:
        """Return the column of spans, int64 (n, 3), after comparing the checksums of the bytes.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a checksum of their bytes differs.
        """
        if self.stored is not None:
            self._verify(self.stored, spans)
        return SpanColumn(self.values, spans)

    def _verify(self, source: BufferSource, spans: NDArray[np.int64]) -> None:
        if not self.is_one_block:
            source.verify(make_value_spans(source, spans[:, 0]))
            return
        members = spans.copy()
        members[:, 1:] = _FIRST_BYTE
        source.verify(members)


def _is_one_block(source: BufferSource | None) -> bool:
    if source is None or source.checksums is None:
        return True
    block = source.checksums.bytes_per_checksum
    sizes = [ends - begins for begins, ends in source.extents or ()]
    return all(bool(((size >= 1) & (size <= block)).all()) for size in sizes)

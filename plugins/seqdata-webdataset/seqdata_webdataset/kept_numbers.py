"""Numbers that the index keeps in place of the bytes of small members, such as labels.

They come from the index, but only where the member still has the bytes that they were read from: a
shard may have been corrected in place, at equal size. Place in the flow: the store makes one source
per field of numbers. Reads: indexes, members. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.columns import Layout, Source, SpanColumn
from seqdata_webdataset.placed import PlacedSource

_BEGIN = np.array([[0, 1]])  # of a member: it is in one block, which is verified as a whole


@dataclass(frozen=True, slots=True, eq=False)
class NumberSource:
    """One field of numbers over all shards.

    Attributes:
        values: The numbers, from the indexes.
        source: The members' bytes, with their checksums; None: nothing is verified.
    """

    values: Source
    source: PlacedSource | None

    @classmethod
    def of(
        cls,
        name: str,
        field: Field,
        layout: Layout,
        numbers: Sequence[NDArray[np.int64]],
        members: PlacedSource,
    ) -> NumberSource:
        """Make the source of a field.

        Args:
            name: Of the field.
            field: What it holds.
            layout: Where its sequences lie.
            numbers: Per shard, the numbers in its index.
            members: The bytes that they were read from.
        """
        there = [one.astype(np.dtype(field.dtype)) for one in numbers]
        checked = None if members.checks is None else members
        return cls(Source.of(name, field, layout, there), checked)

    def take(self, spans: NDArray[np.int64]) -> SpanColumn:
        """Return the column of spans, int64 (n, 3), of members that are as they were indexed.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a member's checksum is another.
        """
        if self.source is not None:
            members = spans.copy()
            members[:, 1:] = _BEGIN
            self.source.verify(members)
        return SpanColumn(self.values, spans)

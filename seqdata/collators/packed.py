"""Collator ``packed``: ragged fields as PackedSequences, for ``torch.nn.LSTM`` and the like."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LayoutName
from seqdata.collators.base import Allocator, fill_flat
from seqdata.protocols import Columns


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Lays out each ragged field as a PackedSequence, for rows in any order.

    Args:
        allocate: Allocator of the flat values, which are then sorted by time.
    """

    layout: ClassVar[LayoutName] = "packed"
    allocate: Allocator = field(default=np.empty, compare=False, repr=False)

    def with_allocator(self, allocate: Allocator) -> PackedRows:
        """Return a copy of the collator with another allocator."""
        return replace(self, allocate=allocate)

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``.

        Raises:
            ConfigError: If a row has length 0.
            DataError: If a column's recorded offsets or checksum are wrong.
        """
        return fill_flat(columns, batch, self.allocate).as_layout("packed")

"""Collator ``jagged``: ragged fields as torch's nested tensors, of the layout ``torch.jagged``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LayoutName
from seqdata.collators.base import Allocator, fill_flat
from seqdata.protocols import Columns


@dataclass(frozen=True, slots=True)
class Jagged:
    """Lays out each ragged field as a nested tensor (r, j, *shape), without padding.

    Args:
        allocate: Allocator of the outputs.
    """

    layout: ClassVar[LayoutName] = "jagged"
    allocate: Allocator = field(default=np.empty, compare=False, repr=False)

    def with_allocator(self, allocate: Allocator) -> Jagged:
        """Return a copy of the collator with another allocator."""
        return replace(self, allocate=allocate)

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``.

        Raises:
            DataError: If a column's recorded offsets or checksum are wrong.
        """
        return fill_flat(columns, batch, self.allocate).as_layout("jagged")

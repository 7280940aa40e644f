"""Collator ``varlen``: flat ragged fields, row after row, for attention over documents.

Kernels such as flash attention take the values with ``batch.cu_seqlens`` and ``batch.position_ids``
(T. Dao, "FlashAttention-2", 2023: ``flash_attn_varlen_func``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LayoutName
from seqdata.collators.base import Allocator, fill_flat
from seqdata.protocols import Columns


@dataclass(frozen=True, slots=True)
class Varlen:
    """Lays out each ragged field as (N, *shape), without padding.

    Args:
        allocate: Allocator of the outputs.
    """

    layout: ClassVar[LayoutName] = "varlen"
    allocate: Allocator = field(default=np.empty, compare=False, repr=False)

    def with_allocator(self, allocate: Allocator) -> Varlen:
        """Return a copy of the collator with another allocator."""
        return replace(self, allocate=allocate)

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``.

        Raises:
            DataError: If a column's recorded offsets or checksum are wrong.
        """
        return fill_flat(columns, batch, self.allocate)

"""The rows of all sequences of a store in chunks of equal size, wherever sequences begin and end.

A pass over a whole field reads them: each chunk takes the same memory, however long sequences are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Store


@dataclass(frozen=True, slots=True, eq=False)
class RowChunks:
    """Spans of a store, chunk by chunk: int64 (n, 3) each, as ``Store.read`` takes them.

    Attributes:
        offsets: int64 (sequences + 1,), the first row of each sequence.
        size: Rows of a chunk.
        is_ragged: Whether rows are timesteps; else each sequence has one, and spans are empty.
    """

    offsets: NDArray[np.int64]
    size: int
    is_ragged: bool

    @classmethod
    def along(cls, store: Store, axis: str, size: int) -> RowChunks:
        """Return chunks of ``size`` timesteps."""
        offsets = np.zeros(len(store) + 1, dtype=np.int64)
        np.cumsum(store.lengths_of[axis], out=offsets[1:], dtype=np.int64)
        return cls(offsets, size, is_ragged=True)

    @classmethod
    def of_sequences(cls, store: Store, size: int) -> RowChunks:
        """Return chunks of ``size`` sequences, for fields with one value each."""
        return cls(np.arange(len(store) + 1, dtype=np.int64), size, is_ragged=False)

    def __len__(self) -> int:
        return -(-int(self.offsets[-1]) // self.size)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return map(self._make_spans, range(len(self)))

    def count_sequences(self, chunks: int) -> int:
        """Return the number of sequences that end in the first ``chunks`` chunks."""
        return int(np.searchsorted(self.offsets, chunks * self.size, side="right")) - 1

    def _make_spans(self, chunk: int) -> NDArray[np.int64]:
        first = chunk * self.size
        stop = min(first + self.size, int(self.offsets[-1]))
        begin = int(np.searchsorted(self.offsets, first, side="right")) - 1
        end = int(np.searchsorted(self.offsets, stop, side="left"))
        spans = np.zeros((end - begin, 3), dtype=np.int64)
        spans[:, 0] = np.arange(begin, end)
        if not self.is_ragged:
            return spans
        spans[:, 1] = np.maximum(first - self.offsets[begin:end], 0)
        spans[:, 2] = np.minimum(stop, self.offsets[begin + 1 : end + 1])
        spans[:, 2] -= self.offsets[begin:end]
        return spans[spans[:, 2] > spans[:, 1]]


def flatten_column(column: Any) -> Any:
    """Return the values of a column as one array (rows, *shape); strings as a list."""
    if isinstance(column, list):
        return column
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(column.lengths, out=offsets[1:])
    values = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
    column.fill(values, offsets, None)
    return values

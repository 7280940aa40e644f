"""Columns of one batch that were read from several shards, as one column in batch order.

Place in the flow: stores with several open shards return it if a batch touches more than one.
Reads: columns. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Column
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.columns import SpanColumn
from seqdata.storage.fields import extents_of


class MultiShardColumn:
    """One field of spans of several shards or stores.

    Implements ``Column``.

    Args:
        columns: One per shard or store, with its pieces in the order of the batch.
        owner: The index of the column that has each piece, integers (n,).
        index: The index of each piece in its column, integers (n,).
    """

    __slots__ = ("_columns", "_index", "_owner")

    def __init__(
        self,
        columns: Sequence[Column],
        owner: NDArray[np.int64],
        index: NDArray[np.int64],
    ) -> None:
        self._columns = columns
        self._owner = owner
        self._index = index

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of one element."""
        return self._columns[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one timestep."""
        return self._columns[0].shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        lengths = np.empty(len(self._owner), dtype=np.int64)
        for owner, column in enumerate(self._columns):
            lengths[self._owner == owner] = column.lengths
        return lengths

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Return one piece, (length, *shape): a read-only view."""
        return self._columns[int(self._owner[index])][int(self._index[index])]

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad; see ``protocols.Column.fill``."""
        columns = [column for column in self._columns if isinstance(column, SpanColumn)]
        if len(columns) < len(self._columns):  # not every column can be sliced
            self._fill_through_copies(out, bounds, padding)
            return
        breaks = np.flatnonzero(np.diff(self._owner)) + 1
        for first, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(self)], strict=True):
            if first < stop:
                at = int(self._index[first])
                column = columns[int(self._owner[first])].slice(at, at + stop - first)
                column.fill(out, bounds[first : stop + 1], padding)

    def _fill_through_copies(
        self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None
    ) -> None:
        """Fill one buffer per column, and copy from these: not every column can be sliced."""
        values, offsets, column_offsets = [], [], [0]
        for column in self._columns:
            piece_offsets = np.zeros(len(column) + 1, dtype=np.int64)
            np.cumsum(column.lengths, out=piece_offsets[1:])
            flat = np.empty((int(piece_offsets[-1]), *self.shape), dtype=self.dtype)
            column.fill(flat, piece_offsets, None)
            values.append(flat)
            offsets.append(piece_offsets)
            column_offsets.append(column_offsets[-1] + len(column))
        spans = np.zeros((len(self), 3), dtype=np.int64)
        spans[:, 0] = np.array(column_offsets)[self._owner] + self._index
        spans[:, 2] = self.lengths
        engine, width = get_kernel(), self.dtype.itemsize
        for size in self.shape:
            width *= size
        source = engine.source(tuple(values), extents_of(offsets), np.array(column_offsets), width)
        if out.dtype != self.dtype or engine.fill(source, spans, bounds, out, padding) != -1:
            raise ValueError(
                f"fill: `out` must be {self.dtype}, but is {out.dtype}. Pass such an array"
            )


def assign_owners(
    shards: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Any]]:
    """Return the owner of each piece, its index in the owner, and the rows of each owner.

    Args:
        shards: The shard of each piece, integers (n,).

    Returns:
        Indices into the shards that occur, int64 (n,); indices in these shards, int64 (n,); and
        for each shard that occurs the rows of its pieces.
    """
    present, owner = np.unique(shards, return_inverse=True)
    index = np.empty(len(shards), dtype=np.int64)
    rows = [np.flatnonzero(owner == each) for each in range(len(present))]
    for owned in rows:
        index[owned] = np.arange(len(owned))
    return owner, index, rows


def join_columns(
    found: Sequence[Mapping[str, Any]],
    names: Iterable[str],
    owner: NDArray[np.int64],
    index: NDArray[np.int64],
) -> dict[str, Any]:
    """Return the columns of a batch from those of its shards.

    Args:
        found: Per shard, the columns of its pieces.
        names: Names of the fields.
        owner: The index in ``found`` of the shard of each piece, integers (n,).
        index: The index of each piece in its column, integers (n,).
    """
    columns_of_batch: dict[str, Any] = {}
    for name in names:
        columns = [columns_of_shard[name] for columns_of_shard in found]
        if not all(isinstance(column, list | ArrayColumn) for column in columns):
            columns_of_batch[name] = MultiShardColumn(columns, owner, index)
            continue
        pairs = zip(owner.tolist(), index.tolist(), strict=True)
        pieces = [columns[which][at] for which, at in pairs]
        texts = isinstance(columns[0], list)
        columns_of_batch[name] = (
            pieces if texts else ArrayColumn(columns[0].dtype, columns[0].shape, pieces)
        )
    return columns_of_batch

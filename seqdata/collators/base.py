"""Protocols and helpers of collators: memory of outputs, per-sequence fields, flat fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LayoutName
from seqdata.protocols import Column, Columns
from seqdata.storage.dataset_items import ItemForm

Allocator = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""``allocate(shape, dtype) -> array``, C-contiguous and writable, with undefined content."""


@runtime_checkable
class SupportsAllocator(Protocol):
    """A collator that makes its outputs with an allocator, so that memory can be reused."""

    def with_allocator(self, allocate: Allocator) -> Self:
        """Return a copy of the collator with another allocator."""
        ...


@runtime_checkable
class SupportsWorkerCollate(Protocol):
    """A collator whose work can be done in a worker process, without the batch."""

    def collate_columns(self, columns: Columns, axes: Axes, count: int) -> Any:
        """Return the result for the columns of ``count`` rows, one span each."""
        ...

    def fill_batch(self, result: Any, batch: SequenceBatch) -> SequenceBatch:
        """Put the result into a batch."""
        ...


@runtime_checkable
class SupportsJointTargets(Protocol):
    """A collator that makes inputs and targets of a shift from one column that holds both."""

    @property
    def joint_targets(self) -> bool:
        """Whether inputs and targets are one column; otherwise targets are a column ``targets``."""
        ...


class PaddedOffsets(NamedTuple):
    """Positions of the pieces of a column in flat padded rows.

    Attributes:
        offsets: int64 (n+1,), offset of each of n pieces, and the end.
        width: Timesteps of a row.
    """

    offsets: NDArray[np.int64]
    width: int


@runtime_checkable
class SupportsPaddedOffsets(Protocol):
    """A collator that can use offsets of pieces in padded rows that were computed ahead."""

    def collate(
        self, columns: Columns, batch: SequenceBatch, planned: PaddedOffsets | None
    ) -> SequenceBatch:
        """Fill ``batch.data``.

        Args:
            columns: Columns with a piece per span.
            batch: The batch with its metadata.
            planned: Offsets of the pieces in rows of ``planned.width`` timesteps, for the columns
                whose padded rows have this width; None if not computed yet.
        """
        ...


@runtime_checkable
class SupportsItemForm(Protocol):
    """A collator of items of a Dataset, in the form in which the Dataset returned them."""

    def with_item_form(self, form: ItemForm | None) -> Self:
        """Return a copy of the collator for a form of items; None: dicts of tensors."""
        ...


@runtime_checkable
class SupportsDatasetItems(Protocol):
    """A collator of items of a Dataset as they are, whatever they hold."""

    def with_items(self) -> Self:
        """Return a copy of the collator for the Dataset's own items."""
        ...


@runtime_checkable
class SupportsPadding(Protocol):
    """A collator that pads with a value that can be chosen."""

    def with_padding(self, padding: float | Mapping[str, float]) -> Self:
        """Return a copy of the collator with another value of padding, for all fields or by name.

        Raises:
            ConfigError: If the collator already has such a value.
        """
        ...


@runtime_checkable
class SupportsSingleOutput(Protocol):
    """A collator whose result is the output of a loader, if no other output is requested."""

    @property
    def output_field(self) -> str:
        """Key of the result in ``batch.data``."""
        ...


@runtime_checkable
class SupportsLayout(Protocol):
    """A collator that declares its layout of ragged fields."""

    @property
    def layout(self) -> LayoutName:
        """The layout of its batches."""
        ...


def collate_per_sequence(column: Column, batch: SequenceBatch) -> Tensor:
    """Return a per-sequence field, (r, *shape), with the value of each row's first span."""
    values = np.empty((len(column), *column.shape), dtype=column.dtype)
    column.fill(values, np.arange(len(column) + 1), None)
    return torch.from_numpy(values if batch.segments is None else values[first_spans(batch)])


def collate_texts(values: list[Any], batch: SequenceBatch) -> list[Any]:
    """Return a list of str or bytes with the value of each row's first span."""
    if batch.segments is None:
        return values
    return [values[span] for span in first_spans(batch).tolist()]


def first_spans(batch: SequenceBatch) -> NDArray[np.int64]:
    """Return the index of each row's first span, int64 (r,)."""
    if batch.segments is None:
        return np.arange(len(batch))
    return np.searchsorted(rows_for_spans(batch.segments), np.arange(len(batch)))


def rows_for_spans(segments: Tensor) -> NDArray[np.int64]:
    """Return the row of each span, int64 (n,)."""
    rows: NDArray[np.int64] = segments[:, 0].numpy()
    return rows


def fill_flat(columns: Columns, batch: SequenceBatch, allocate: Allocator) -> SequenceBatch:
    """Fill ``batch.data`` with flat ragged fields, row after row: layout ``varlen``.

    Raises:
        DataError: If a column's recorded offsets or checksum are wrong.
    """
    batch.layout = "varlen"
    column: Any
    for name, column in columns.items():
        axis = batch.axes.along(name)
        if isinstance(column, list):
            batch.data[name] = collate_texts(column, batch)
        elif axis is None:
            batch.data[name] = collate_per_sequence(column, batch)
        else:
            if axis != batch.axes.axis:
                batch.lengths_of[axis] = torch.from_numpy(sum_by_row(column.lengths, batch))
            batch.data[name] = _fill_flat_tensor(column, allocate)
    return batch


def _fill_flat_tensor(column: Column, allocate: Allocator) -> Tensor:
    lengths = column.lengths
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = allocate((int(offsets[-1]), *column.shape), column.dtype)
    column.fill(out, offsets, None)
    return torch.from_numpy(out)


def sum_by_row(lengths: NDArray[np.int64], batch: SequenceBatch) -> NDArray[np.int64]:
    """Return the sum of span lengths by row, int64 (r,)."""
    rows = np.arange(len(batch)) if batch.segments is None else rows_for_spans(batch.segments)
    return np.bincount(rows, weights=lengths, minlength=len(batch)).astype(np.int64)

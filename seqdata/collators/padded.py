"""Collator ``padded``: every row as long as the longest, each final tensor filled once.

Place in the flow: the columns of one step -> the tensors of one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.axes import TARGETS, format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LayoutName
from seqdata.collators.base import (
    Allocator,
    PaddedOffsets,
    collate_texts,
    first_spans,
    rows_for_spans,
    sum_by_row,
)
from seqdata.errors import ConfigError, must_be
from seqdata.plan_table import offsets_from_sizes
from seqdata.protocols import Column, Columns


@dataclass(frozen=True, slots=True)
class Padded:
    """Lays out each ragged field as (rows, longest row, *shape), padded at the end.

    Args:
        padding: Value of padding, for all fields or by name; 0 for fields without one.
        allocate: Allocator of the outputs.

    Raises:
        ConfigError: At the first batch, if ``padding`` names an unknown field or does not fit the
            dtype of a field.
    """

    layout: ClassVar[LayoutName] = "padded"
    padding: float | Mapping[str, float] = 0
    allocate: Allocator = field(default=np.empty, compare=False, repr=False)
    _padding_cache: dict[str, tuple[np.dtype[Any], bytes | None]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # field -> dtype, one element of padding

    @property
    def joint_targets(self) -> bool:
        """Whether inputs and targets of a shift are one tensor: if they are padded alike."""
        return not isinstance(self.padding, Mapping) or TARGETS not in self.padding

    def with_padding(self, padding: float | Mapping[str, float]) -> Padded:
        """Return a copy of the collator with another value of padding, for all fields or by name.

        Raises:
            ConfigError: If the collator has a value other than 0 already.
        """
        if self.padding != 0:
            raise ConfigError(
                f"loader: `padding` is {padding!r}, and `collator` has {self.padding!r}. Leave one "
                "of them out"
            )
        return replace(self, padding=padding)

    def with_allocator(self, allocate: Allocator) -> Padded:
        """Return a copy of the collator with another allocator."""
        return replace(self, allocate=allocate)

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``: ragged fields padded, others by the first span of each row.

        Raises:
            ConfigError: If ``padding`` names an unknown field, or does not fit a field's dtype.
            DataError: If a column's recorded offsets or checksum are wrong.
        """
        return self.collate(columns, batch, None)

    def collate(
        self, columns: Columns, batch: SequenceBatch, planned: PaddedOffsets | None
    ) -> SequenceBatch:
        """Fill ``batch.data``; see ``SupportsPaddedOffsets``."""
        axes, data = batch.axes, batch.data
        column: Any
        for name, column in columns.items():
            axis = axes.axis_of.get(name, axes.axis)
            if isinstance(column, list):
                data[name] = collate_texts(column, batch)
            elif axis is None:
                values = np.empty((len(column), *column.shape), dtype=column.dtype)
                column.fill(values, np.arange(len(column) + 1), None)
                rows = values if batch.segments is None else values[first_spans(batch)]
                data[name] = torch.from_numpy(rows)
            elif axis == axes.axis:
                self._collate_planned(name, column, columns, batch, planned)
            else:
                data[name] = self._collate_by_lengths(name, columns, batch, axis)
        return batch

    def _collate_planned(
        self,
        name: str,
        column: Column,
        columns: Columns,
        batch: SequenceBatch,
        planned: PaddedOffsets | None,
    ) -> None:
        """Fill a field of the planned axis in rows of the planned length."""
        data, shift = batch.data, 0 if TARGETS in columns else batch.axes.shift.get(name, 0)
        width = batch.padded_length + batch.horizon + shift
        if planned is not None and planned.width == width:
            bounds = planned.offsets
        elif batch.segments is None or shift:  # a piece is a row
            bounds = np.arange(0, batch.lengths.shape[0] * width + 1, width, dtype=np.int64)
        else:
            data[name] = self._collate_by_lengths(name, columns, batch, batch.axes.axis)
            return
        padded = self._fill_padded(name, column, bounds, width, columns)
        data[name] = padded[:, :-shift] if shift else padded
        if shift:
            data[TARGETS] = padded[:, shift:]

    def _collate_by_lengths(
        self, name: str, columns: Columns, batch: SequenceBatch, axis: str
    ) -> Tensor:
        """Return a field of another axis, or with several spans in a row."""
        column = cast("Column", columns[name])
        lengths = column.lengths
        if axis == batch.axes.axis and int(lengths.sum()) == len(batch) * batch.padded_length:
            bounds = offsets_from_sizes(lengths)  # no row has padding
            return self._fill_padded(name, column, bounds, batch.padded_length, columns)
        if batch.segments is None and axis != batch.axes.axis:  # a piece is a row
            width = max(1, int(lengths.max(initial=0)))
            batch.lengths_of[axis] = torch.from_numpy(np.array(lengths, dtype=np.int64))
            bounds = np.arange(0, len(lengths) * width + 1, width, dtype=np.int64)
            return self._fill_padded(name, column, bounds, width, columns)
        rows = np.arange(len(batch)) if batch.segments is None else rows_for_spans(batch.segments)
        per_row = sum_by_row(lengths, batch)
        width = batch.padded_length
        if axis != batch.axes.axis:
            batch.lengths_of[axis] = torch.from_numpy(per_row)
            width = max(1, int(per_row.max(initial=0)))
        offsets = np.cumsum(lengths) - lengths
        row_offsets = np.cumsum(per_row) - per_row
        positions = offsets - row_offsets[rows] + rows * width
        bounds = np.append(positions, len(batch) * width)
        return self._fill_padded(name, column, bounds, width, columns)

    def _fill_padded(
        self, name: str, column: Column, bounds: NDArray[np.int64], width: int, columns: Columns
    ) -> Tensor:
        """Return (rows, width, *shape) with piece i at ``bounds[i]``, followed by padding."""
        dtype, shape, total = column.dtype, column.shape, int(bounds[-1])
        cached = self._padding_cache.get(name)
        if cached is None or cached[0] != dtype:
            cached = self._prepare_padding(name, dtype, columns)
        padding = cached[1]
        out = self.allocate((total, *shape), dtype)
        if bounds[0]:  # rows without a span come first
            out[: bounds[0]] = 0 if padding is None else np.frombuffer(padding, dtype)[0]
        column.fill(out, bounds, padding)
        return torch.from_numpy(out.reshape(total // width, width, *shape))

    def _prepare_padding(
        self, name: str, dtype: np.dtype[Any], columns: Columns
    ) -> tuple[np.dtype[Any], bytes | None]:
        """Return the dtype and one element of a field's padding (None: zeros), and cache them."""
        value = self.padding
        if isinstance(value, Mapping):
            for unknown in value.keys() - columns.keys():
                raise ConfigError(
                    f"collator 'padded': `padding`: {format_unknown_name(unknown, columns)}"
                )
            value = value.get(name, 0)
        prepared = dtype, _encode_padding(name, dtype, value)
        self._padding_cache[name] = prepared
        return prepared


def _encode_padding(name: str, dtype: np.dtype[Any], value: float) -> bytes | None:
    """Return padding as the bytes of one element; None for zeros."""
    error_to_raise = ConfigError(
        must_be(
            f"collator 'padded': `padding` of field {name!r}",
            f"a value of {dtype}",
            repr(value),
            "Pass another value, or one by field",
        )
    )
    with np.errstate(all="ignore"):
        try:
            element = np.array(value, dtype=dtype)
        except (OverflowError, ValueError, TypeError) as error:
            raise error_to_raise from error
    has_overflowed = np.isfinite(value) and not np.isfinite(element)
    if has_overflowed or (dtype.kind != "f" and element != value):
        raise error_to_raise
    encoded = element.tobytes()
    return encoded if any(encoded) else None

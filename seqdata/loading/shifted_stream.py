"""Input and target columns of a shifted stream, whose rows continue across sequence ends.

Every row is read with the timesteps that follow it in the stream, so inputs and targets are two
parts of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.plan_table import ArrayTable, PlanBatch, offsets_from_sizes
from seqdata.protocols import Column, Columns
from seqdata.sharing import RankSteps, Step
from seqdata.storage.array_column import ArrayColumn


def simplify_rows(step: Step) -> Step:
    """Return a step of lanes with a span per row, if every row lies in a single sequence."""
    if step.rows is None or step.lanes is None or len(step.spans) != len(step.weights):
        return step
    if step.extended is not None and len(step.extended.spans) != len(step.spans):
        return step
    if not (np.diff(step.rows) == 1).all():
        return step
    return step._replace(rows=None, extended=None)


def find_single_span_rows(steps: RankSteps) -> list[bool]:
    """Return whether each of many steps has a span per row after ``simplify_rows``."""
    if steps.lanes is None:
        return [steps.table.rows is None] * len(steps.table)
    tables = [
        batch_table for batch_table in (steps.table, steps.extended) if batch_table is not None
    ]
    is_single_span = np.ones(len(steps.table), dtype=np.bool_)
    for table in tables:
        if table.rows is not None:
            is_single_span &= (np.diff(table.rows).reshape(len(is_single_span), -1) == 1).all(
                axis=1
            )
    return is_single_span.tolist()


def compute_padded_offsets(
    table: ArrayTable, widths: NDArray[np.int64]
) -> Sequence[NDArray[np.int64]]:
    """Return the offsets of each step's spans in its padded rows.

    Args:
        table: A batch per step, all with the same number of rows.
        widths: int64 (k,), length of each step's padded rows.
    """
    count = int(table.offsets[1])
    if table.rows is None:
        return list(np.arange(count + 1) * widths[:, None])
    begins = (np.arange(count) * widths[:, None]).reshape(-1)
    span_offsets = offsets_from_sizes(table.spans[:, 2] - table.spans[:, 1])
    padded_offsets = span_offsets[:-1] + (begins - span_offsets[table.rows[:-1]]).repeat(
        np.diff(table.rows)
    )
    step_offsets = table.rows[table.offsets]
    padded_offsets = np.insert(
        padded_offsets, step_offsets[1:], count * widths
    )  # the end of every step
    bounds = pairwise((step_offsets + np.arange(len(step_offsets))).tolist())
    return [padded_offsets[low:high] for low, high in bounds]


def select_step_columns(
    columns: Columns, axes: Axes, step: Step, extended: PlanBatch, *, joint_targets: bool
) -> dict[str, Any]:
    """Return the columns of a step's spans, cut from those of its extended rows.

    Args:
        columns: Columns with one piece per extended span.
        axes: Axis of each field, and the field that is shifted.
        step: The spans, in rows.
        extended: The rows extended along the stream; they begin with the same spans.
        joint_targets: Whether the shifted field is one column with a piece per row, inputs and
            targets; else targets are a column of their own.
    """
    extended_offsets = (
        extended.rows if extended.rows is not None else np.arange(len(extended.spans) + 1)
    )
    selected: dict[str, Any] = {}
    column: Any
    if joint_targets and axes.shift.keys() == columns.keys():  # nothing to cut
        for name, column in columns.items():
            selected[name] = RowColumn(column, extended_offsets)
        return selected
    rows = step.rows if step.rows is not None else np.arange(len(step.spans) + 1)
    piece_numbers = np.arange(len(step.spans)) + np.repeat(
        (extended_offsets - rows)[:-1], np.diff(rows)
    )
    lengths = step.spans[:, 2] - step.spans[:, 1]
    for name, column in columns.items():
        if isinstance(column, list):
            selected[name] = [column[number] for number in piece_numbers.tolist()]
        elif name in axes.shift and joint_targets:
            selected[name] = RowColumn(column, extended_offsets)
        elif axes.along(name) == axes.axis:
            selected[name] = _select_pieces(column, piece_numbers, lengths)
            if name in axes.shift:
                selected[TARGETS] = _select_pieces(column, piece_numbers, lengths, axes.shift[name])
        else:
            selected[name] = _select_pieces(column, piece_numbers, column.lengths[piece_numbers])
    return selected


def _select_pieces(
    column: Column, piece_numbers: NDArray[np.int64], lengths: NDArray[np.int64], delay: int = 0
) -> ArrayColumn:
    """Return some pieces of a column, cut to lengths, shifted by ``delay`` timesteps along rows."""
    offsets = offsets_from_sizes(column.lengths)
    flat = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
    column.fill(flat, offsets, None)
    begins = offsets[piece_numbers] + delay
    pieces = [
        flat[begin : begin + length]
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    return ArrayColumn(column.dtype, column.shape, pieces)


@dataclass(frozen=True, slots=True, eq=False)
class RowColumn:
    """A ``Column`` with one piece per row, over a column with several.

    Attributes:
        column: The column of the pieces.
        row_offsets: int64 (r+1,), row -> pieces.
    """

    column: Column
    row_offsets: NDArray[np.int64]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an element."""
        return self.column.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a timestep."""
        return self.column.shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each row, int64 (r,)."""
        offsets = offsets_from_sizes(self.column.lengths)
        lengths: NDArray[np.int64] = offsets[self.row_offsets[1:]] - offsets[self.row_offsets[:-1]]
        return lengths

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one row, (length, *shape): a copy."""
        first, stop = self.row_offsets[number : number + 2].tolist()
        pieces = [self.column[piece] for piece in range(first, stop)]
        return np.concatenate([np.empty((0, *self.shape), dtype=self.dtype), *pieces])

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all rows into place, each followed by padding.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (r+1,), non-decreasing offsets of the rows.
            padding: The bytes of one element; None: zeros.

        Raises:
            DataError: If a piece's recorded offsets or checksum are wrong.
        """
        offsets = offsets_from_sizes(self.column.lengths)
        row_bounds = offsets[self.row_offsets]
        if not np.array_equal(row_bounds, bounds):  # rows are followed by padding
            padding_shifts = (bounds[:-1] - row_bounds[:-1]).repeat(np.diff(self.row_offsets))
            offsets = np.append(offsets[:-1] + padding_shifts, bounds[-1])
        self.column.fill(out, offsets, padding)

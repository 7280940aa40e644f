"""Columns of a stream that is shifted as a whole: rows go on over the ends of sequences.

Every row was read with the timesteps that follow it in the stream, so inputs and targets are two
parts of one row. Place in the flow: wide columns of a step -> the columns that collators take.
Reads: columns. Makes: columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.plan_table import ArrayTable, PlanBatch, running
from seqdata.protocols import Column, Columns
from seqdata.sharing import Step, Steps
from seqdata.storage.array_column import PieceColumn


def plain(step: Step) -> Step:
    """Give a step whose rows are spans by themselves, where every row lies in one sequence."""
    if step.rows is None or len(step.spans) != len(step.weights):
        return step
    if step.wide is not None and len(step.wide.spans) != len(step.spans):
        return step
    if not (np.diff(step.rows) == 1).all():
        return step
    return step._replace(rows=None, wide=None)


def whole_rows(steps: Steps) -> list[bool]:
    """Tell which of many steps ``plain`` makes plain: every row lies in one sequence."""
    tables = [one for one in (steps.table, steps.wide) if one is not None]
    single = np.ones(len(steps.table), dtype=np.bool_)
    for table in tables:
        if table.rows is not None:
            single &= (np.diff(table.rows).reshape(len(single), -1) == 1).all(axis=1)
    return single.tolist()


def bounds_of(table: ArrayTable, widths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Give where each span begins in the padded rows of its step, and where they end.

    Args:
        table: A batch for each step, all of as many rows.
        widths: int64 (k,), timesteps of a padded row of each.
    """
    count = int(table.offsets[1])
    if table.rows is None:
        yield from np.arange(count + 1) * widths[:, None]
        return
    begins = (np.arange(count) * widths[:, None]).reshape(-1)
    ends = running(table.spans[:, 2] - table.spans[:, 1])
    places = ends[:-1] + (begins - ends[table.rows[:-1]]).repeat(np.diff(table.rows))
    edges = table.rows[table.offsets]
    places = np.insert(places, edges[1:], count * widths)  # every step's end
    for low, high in pairwise((edges + np.arange(len(edges))).tolist()):
        yield places[low:high]


def narrowed(
    columns: Columns, axes: Axes, step: Step, wide: PlanBatch, *, together: bool
) -> dict[str, Any]:
    """Give the columns of a step's spans, of those of its wide rows.

    Args:
        columns: One piece per wide span.
        axes: Which field runs along which axis, and which one is shifted.
        step: Its spans, in rows.
        wide: The same rows with what follows them; they begin with the same spans.
        together: Whether the shifted field is one column with a piece per row, inputs and targets;
            else targets are a column of their own.
    """
    edges = wide.rows if wide.rows is not None else np.arange(len(wide.spans) + 1)
    made: dict[str, Any] = {}
    column: Any
    if together and axes.shift.keys() == columns.keys():  # nothing is cut
        for name, column in columns.items():
            made[name] = Joined(column, edges)
        return made
    rows = step.rows if step.rows is not None else np.arange(len(step.spans) + 1)
    places = np.arange(len(step.spans)) + np.repeat((edges - rows)[:-1], np.diff(rows))
    lengths = step.spans[:, 2] - step.spans[:, 1]
    for name, column in columns.items():
        if isinstance(column, list):
            made[name] = [column[place] for place in places.tolist()]
        elif name in axes.shift and together:
            made[name] = Joined(column, edges)
        elif axes.along(name) == axes.axis:
            made[name] = _picked(column, places, lengths)
            if name in axes.shift:
                made[TARGETS] = _picked(column, places, lengths, axes.shift[name])
        else:
            made[name] = _picked(column, places, column.lengths[places])
    return made


def _picked(
    column: Column, places: NDArray[np.int64], lengths: NDArray[np.int64], later: int = 0
) -> PieceColumn:
    """Give some pieces of a column, cut to lengths; ``later`` timesteps further along the rows."""
    ends = running(column.lengths)
    flat = np.empty((int(ends[-1]), *column.shape), dtype=column.dtype)
    column.fill(flat, ends, None)
    begins = ends[places] + later
    pieces = [
        flat[begin : begin + length]
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    return PieceColumn(column.dtype, column.shape, pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A column with one piece per row, of one with several: a ``Column``.

    Attributes:
        column: Its pieces.
        rows: int64 (r+1,), row -> pieces.
    """

    column: Column
    rows: NDArray[np.int64]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one element."""
        return self.column.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one timestep."""
        return self.column.shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each row, int64 (r,)."""
        ends = running(self.column.lengths)
        lengths: NDArray[np.int64] = ends[self.rows[1:]] - ends[self.rows[:-1]]
        return lengths

    def __len__(self) -> int:
        return len(self.rows) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Give one row, (length, *shape): a copy."""
        first, stop = self.rows[number : number + 2].tolist()
        parts = [self.column[piece] for piece in range(first, stop)]
        return np.concatenate([np.empty((0, *self.shape), dtype=self.dtype), *parts])

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all rows into place; what is left behind a row is padding.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (r+1,), rising: where each row begins.
            padding: The bytes of one element; None: zeros.

        Raises:
            DataError: If a piece's recorded place is wrong, or its checksum.
        """
        ends = running(self.column.lengths)
        of_rows = ends[self.rows]
        if not np.array_equal(of_rows, bounds):  # a row has padding behind it
            moved = (bounds[:-1] - of_rows[:-1]).repeat(np.diff(self.rows))
            ends = np.append(ends[:-1] + moved, bounds[-1])
        self.column.fill(out, ends, padding)

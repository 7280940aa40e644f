"""Columnar transforms: columns to what they see, and back; no Python per sequence.

Place in the flow: called by ``transforming`` in place of one call per sequence. Reads: columns.
Makes: ``Ragged`` values and results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seqdata.batch.axes import Axes
from seqdata.errors import DecodeError
from seqdata.loading.transforms.declare import Ragged
from seqdata.loading.transforms.results import Flat, Results
from seqdata.protocols import Columns


def shown(columns: Columns, axes: Axes) -> dict[str, Any]:
    """Give what a columnar transform sees: arrays that it may write into.

    Args:
        columns: What was read.
        axes: Which field runs along which axis.
    """
    seen: dict[str, Any] = {}
    column: Any
    for name, column in columns.items():
        if isinstance(column, list):
            seen[name] = column
            continue
        ragged = axes.along(name) is not None
        lengths = column.lengths if ragged else np.ones(len(column), dtype=np.int64)
        bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=bounds[1:])
        values = np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype)
        column.fill(values, bounds, None)
        seen[name] = Ragged(values, lengths) if ragged else values
    return seen


def taken(result: Any, count: int, axes: Axes, where: Callable[[], str]) -> Results:
    """Give what a columnar transform gave, checked as far as one field shows.

    Args:
        result: What it gave.
        count: Sequences of the batch.
        axes: Which field runs along which axis; a new ragged one along the planned axis.
        where: Says who gave it, for messages.

    Raises:
        DecodeError: If it is no dict, or a field has not one entry per sequence.
    """
    if result is None or not isinstance(result, Mapping):
        what = "None" if result is None else type(result).__name__
        raise DecodeError(
            f"{where()}: gave {what}, must give a dict of columns for all {count} sequences: it "
            "never drops one; change the transform"
        )
    columns: dict[str, Any] = {}
    axis_of: dict[str, str | None] = {}
    for name, value in result.items():
        axis_of[name] = None
        if isinstance(value, Ragged):
            columns[name] = _flat(value, count, name, where)
            axis_of[name] = axes.along(name) or axes.axis
            continue
        if _is_text(value):
            columns[name] = list(value)
        else:
            array = np.asarray(value)
            if array.dtype.kind not in "biufc" or not array.ndim:
                raise DecodeError.at(
                    f"{where()}: gave field {name!r} as {value!r:.60}, must be a Ragged, an array "
                    "of numbers or a list of text; change the transform",
                    field=name,
                )
            values = np.ascontiguousarray(array)
            columns[name] = Flat(values, np.ones(len(values), dtype=np.int64))
        if len(value) != count:
            raise DecodeError.at(
                f"{where()}: gave field {name!r} {len(value)} values, must give one for each of "
                f"{count} sequences; where it is ragged, give a Ragged",
                field=name,
            )
    return Results(columns, axis_of)


def _flat(value: Ragged, count: int, name: str, where: Callable[[], str]) -> Flat:
    values = np.ascontiguousarray(value.values)
    lengths = np.asarray(value.lengths)
    right = lengths.shape == (count,) and lengths.dtype.kind in "iu"
    if not right or not values.ndim or (lengths < 0).any() or int(lengths.sum()) != len(values):
        raise DecodeError.at(
            f"{where()}: gave field {name!r} with lengths {lengths.dtype}{list(lengths.shape)} for "
            f"{values.shape} values, must have one length for each of {count} sequences that add up"
            " to the values; change the transform",
            field=name,
        )
    if values.dtype.kind not in "biufc":
        raise DecodeError.at(
            f"{where()}: gave field {name!r} as {values.dtype}, must be numbers; change the "
            "transform",
            field=name,
        )
    return Flat(values, lengths.astype(np.int64))


def _is_text(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str | bytes) for one in value)

"""Columnar transforms: columns to what they see, and back; no Python per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seqdata.batch.axes import Axes
from seqdata.errors import DecodeError
from seqdata.loading.transforms.declare import Ragged
from seqdata.loading.transforms.results import FlatValues, TransformResults
from seqdata.protocols import Columns


def make_inputs(columns: Columns, axes: Axes) -> dict[str, Any]:
    """Return what a columnar transform sees: arrays that it may write into.

    Args:
        columns: What was read.
        axes: Which field runs along which axis.
    """
    inputs: dict[str, Any] = {}
    column: Any
    for name, column in columns.items():
        if isinstance(column, list):
            inputs[name] = column
            continue
        ragged = axes.along(name) is not None
        lengths = column.lengths if ragged else np.ones(len(column), dtype=np.int64)
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
        column.fill(values, offsets, None)
        inputs[name] = Ragged(values, lengths) if ragged else values
    return inputs


def check_columnar_result(
    result: Any, count: int, axes: Axes, describe: Callable[[], str]
) -> TransformResults:
    """Return what a columnar transform gave, checked as far as one field shows.

    Args:
        result: What it gave.
        count: Sequences of the batch.
        axes: Which field runs along which axis; a new ragged one along the planned axis.
        describe: Says who gave it, for messages.

    Raises:
        DecodeError: If it is no dict, or a field has not one entry per sequence.
    """
    if result is None or not isinstance(result, Mapping):
        kind = "None" if result is None else type(result).__name__
        raise DecodeError(
            f"{describe()}: gave {kind}, must give a dict of columns for all {count} sequences: it "
            "never drops one; change the transform"
        )
    columns: dict[str, Any] = {}
    axis_of: dict[str, str | None] = {}
    for name, value in result.items():
        axis_of[name] = None
        if isinstance(value, Ragged):
            columns[name] = _make_flat(value, count, name, describe)
            axis_of[name] = axes.along(name) or axes.axis
            continue
        if _is_text(value):
            columns[name] = list(value)
        else:
            array = np.asarray(value)
            if array.dtype.kind not in "biufc" or not array.ndim:
                raise DecodeError.at(
                    f"{describe()}: gave field {name!r} as {value!r:.60}, must be a Ragged, an "
                    "array "
                    "of numbers or a list of text; change the transform",
                    field=name,
                )
            values = np.ascontiguousarray(array)
            columns[name] = FlatValues(values, np.ones(len(values), dtype=np.int64))
        if len(value) != count:
            raise DecodeError.at(
                f"{describe()}: gave field {name!r} {len(value)} values, must give one for each of "
                f"{count} sequences; where it is ragged, give a Ragged",
                field=name,
            )
    return TransformResults(columns, axis_of)


def _make_flat(value: Ragged, count: int, name: str, describe: Callable[[], str]) -> FlatValues:
    values = np.ascontiguousarray(value.values)
    lengths = np.asarray(value.lengths)
    is_valid_shape = lengths.shape == (count,) and lengths.dtype.kind in "iu"
    if (
        not is_valid_shape
        or not values.ndim
        or (lengths < 0).any()
        or int(lengths.sum()) != len(values)
    ):
        raise DecodeError.at(
            f"{describe()}: gave field {name!r} with lengths {lengths.dtype}{list(lengths.shape)} "
            "for "
            f"{values.shape} values, must have one length for each of {count} sequences that add up"
            " to the values; change the transform",
            field=name,
        )
    if values.dtype.kind not in "biufc":
        raise DecodeError.at(
            f"{describe()}: gave field {name!r} as {values.dtype}, must be numbers; change the "
            "transform",
            field=name,
        )
    return FlatValues(values, lengths.astype(np.int64))


def _is_text(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str | bytes) for item in value)

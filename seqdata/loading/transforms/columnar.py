"""Input and results of columnar transforms, converted without Python code per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.errors import DecodeError, must_be
from seqdata.loading.transforms.declare import Ragged
from seqdata.loading.transforms.results import (
    FlatValues,
    TransformResults,
    is_whole_value,
    to_array,
)
from seqdata.protocols import Columns


def make_inputs(columns: Columns, axes: Axes) -> dict[str, Any]:
    """Return the input of a columnar transform: arrays that it may write to.

    Args:
        columns: The columns that were read.
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
    """Return a columnar transform's result after checking each field.

    Args:
        result: The result.
        count: Number of sequences of the batch.
        axes: Which field runs along which axis; a new ragged one along the planned axis.
        describe: Returns the name of the transform and its sequences, for messages.

    Raises:
        DecodeError: If it is not a dict, or a field does not have one entry per sequence.
    """
    if result is None or not isinstance(result, Mapping):
        returned = "None" if result is None else type(result).__name__
        raise DecodeError(
            f"{describe()}: must return a dict of columns for all {count} sequences, but "
            f"returned {returned}. Change the transform; it cannot drop sequences."
        )
    columns: dict[str, Any] = {}
    axis_of: dict[str, str | None] = {}
    for name, value in result.items():
        axis_of[name] = None
        if isinstance(value, Ragged):
            columns[name] = _make_flat(value, count, name, describe)
            axis_of[name] = axes.along(name) or axes.axis
            continue
        if _are_whole_values(value):
            columns[name] = list(value)
        else:
            values = _to_values(
                value, name, "a Ragged, an array of numbers or a list of text", describe
            )
            columns[name] = FlatValues(values, np.ones(len(values), dtype=np.int64))
        if len(value) != count:
            raise DecodeError.at(
                f"{describe()}: field {name!r} must have one value for each of {count} "
                f"sequences, but has {len(value)}. Return a Ragged for a ragged field.",
                field=name,
            )
    return TransformResults(columns, axis_of)


def _make_flat(value: Ragged, count: int, name: str, describe: Callable[[], str]) -> FlatValues:
    values = _to_values(value.values, name, "a Ragged of numbers", describe)
    lengths = np.asarray(value.lengths)
    is_valid_shape = lengths.shape == (count,) and lengths.dtype.kind in "iu"
    if not is_valid_shape or (lengths < 0).any() or int(lengths.sum()) != len(values):
        raise DecodeError.at(
            f"{describe()}: the lengths of field {name!r} must be {count} integers, one for each "
            "sequence, whose sum is the number of values, but are "
            f"{lengths.dtype}{list(lengths.shape)} for {values.shape} values. Change the "
            "transform.",
            field=name,
        )
    return FlatValues(values, lengths.astype(np.int64))


def _to_values(value: Any, name: str, needed: str, describe: Callable[[], str]) -> NDArray[Any]:
    """Return a column's values, C-contiguous, with at least one dimension."""
    problem = ""
    try:
        array = to_array(value)
    except (TypeError, RuntimeError, ValueError) as error:
        array, problem = np.empty(()), f" ({error})"
    if not array.ndim:
        raise DecodeError.at(
            must_be(
                f"{describe()}: field {name!r}", needed, f"{value!r:.60}{problem}",
                "Change the transform",
            ),
            field=name,
        )  # fmt: skip
    return np.ascontiguousarray(array)


def _are_whole_values(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(is_whole_value, value))

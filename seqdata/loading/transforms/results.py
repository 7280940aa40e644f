"""The checked results of a transform for the sequences of a batch, ready to be cut.

Two forms: ``SeparateArrays``, an array per sequence, and ``FlatValues``, the contiguous values of
all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.protocols import Column, Field
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.columns import BufferSource, SpanColumn
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.dataset_items import OpaqueItem


@dataclass(frozen=True, slots=True, eq=False)
class SeparateArrays:
    """An array per sequence, all of one dtype and timestep shape."""

    arrays: list[NDArray[Any]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each array, int64 (n,)."""
        return np.array([len(array) for array in self.arrays], dtype=np.int64)

    def cut(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Column:
        """Return timesteps ``begins[i]:ends[i]`` of each array, as views."""
        cuts = zip(self.arrays, begins.tolist(), ends.tolist(), strict=True)
        first = self.arrays[0]
        pieces = [array[begin:end] for array, begin, end in cuts]
        return ArrayColumn(first.dtype, first.shape[1:], pieces)


@dataclass(frozen=True, slots=True, eq=False)
class FlatValues:
    """The contiguous values of all sequences.

    Attributes:
        values: (N, *shape), C-contiguous.
        lengths: int64 (n,), number of timesteps of each sequence; their sum is N.
    """

    values: NDArray[Any]
    lengths: NDArray[np.int64]

    def cut(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Column:
        """Return timesteps ``begins[i]:ends[i]`` of each sequence; nothing is copied."""
        count = len(self.lengths)
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        field = Field(self.values.dtype.name, self.values.shape[1:])
        layout = ShardLayout("transform", ("transform",), [0, count], {"time": self.lengths})
        source = BufferSource.from_arrays("transform", field, layout, [self.values], [offsets])
        spans = np.empty((count, 3), dtype=np.int64)
        spans[:, 0], spans[:, 1], spans[:, 2] = np.arange(count), begins, ends
        return SpanColumn(source, spans)


@dataclass(frozen=True, slots=True, eq=False)
class TransformResults:
    """The results of a transform, by field.

    Attributes:
        columns: Field -> ``SeparateArrays`` or ``FlatValues``, or a list of ``str`` or ``bytes``.
        axis_of: Field -> its axis; None: one value per sequence.
    """

    columns: dict[str, Any]
    axis_of: dict[str, str | None]

    def along(self, axis: str) -> list[str]:
        """Return the names of the fields along an axis."""
        return [name for name in self.columns if self.axis_of[name] == axis]


ErrorFactory = Callable[[int, str], DecodeError]
"""Returns the error about a piece's result: ``make_error(piece, problem)``."""
FindAxis = Callable[[str, int], str | None]
"""Returns the axis of an array, from its field's name and number of dimensions."""


def is_whole_value(value: object) -> TypeGuard[str | bytes | OpaqueItem]:
    """Return whether a value belongs to its sequence as a whole and is not an array.

    Workers, repair and collators treat such values as lists. Further kinds are added here.
    """
    return isinstance(value, str | bytes | OpaqueItem)


def to_array(value: Any) -> NDArray[Any]:
    """Return a value of a transform as an array of numbers, in this machine's byte order.

    Raises:
        TypeError: If it is not an array of numbers, or torch has no dtype for them.
        RuntimeError: If it is a tensor with a gradient.
        ValueError: If it is a list of lists of unequal lengths.
    """
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.kind not in "biufc":
        raise TypeError(f"{dtype} is not a dtype of numbers")
    if dtype.char in "gG":
        raise TypeError(f"torch has no {dtype}: return float64 or complex128")
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def check_result(
    result: Any, piece: int, find_axis: FindAxis, make_error: ErrorFactory
) -> dict[str, Any]:
    """Return one sequence's result with its values as arrays.

    Raises:
        DecodeError: If it is not a dict, or a field is not an array that torch can take.
    """
    if result is None:
        raise make_error(
            piece,
            (
                "must return a dict of arrays, but returned None. It cannot drop a sequence: leave "
                "sequences out with `where`"
            ),
        )
    if type(result) is not dict and not isinstance(result, Mapping):
        raise make_error(
            piece, f"must return a dict of arrays, but returned {type(result).__name__}"
        )
    arrays: dict[str, Any] = {}
    for name, value in result.items():
        if not isinstance(value, np.ndarray) and is_whole_value(value):
            arrays[name] = value
            continue
        try:
            array = to_array(value)
        except (TypeError, RuntimeError, ValueError) as error:
            raise make_error(piece, f"{_describe_problem(name, value)} ({error})") from error
        if find_axis(name, array.ndim) is not None and not array.ndim:
            raise make_error(piece, _describe_problem(name, value))
        arrays[name] = array
    return arrays


def _describe_problem(name: str, value: Any) -> str:
    return f"must return field {name!r} as an array, but returned {value!r:.60}"


def concat_results(
    results: list[dict[str, Any]],
    find_axis: FindAxis,
    make_error: ErrorFactory,
    describe_sequence: Callable[[int], str],
) -> TransformResults:
    """Return the results of all sequences, joined by field.

    Args:
        results: The result of each sequence.
        find_axis: Returns the axis of an array.
        make_error: Returns the error about the result with an index.
        describe_sequence: Returns the name of the sequence of the result with an index.

    Raises:
        DecodeError: If a result differs from the first one in its fields, dtypes or shapes.
    """
    columns: dict[str, Any] = {}
    axes: dict[str, str | None] = {}
    for name, first in results[0].items():
        is_whole = is_whole_value(first)
        axis = None if is_whole else find_axis(name, first.ndim)
        form = _find_form(first, axis)
        values: list[Any] = []
        for piece, result in enumerate(results):
            value = result.get(name)
            if _find_form(value, axis) != form or len(result) != len(results[0]):
                raise make_error(
                    piece,
                    (
                        f"returned {_format_result(result)}, unlike {_format_result(results[0])} "
                        f"of sequence {describe_sequence(0)}"
                    ),
                )
            values.append(value)
        axes[name] = axis
        if is_whole:
            columns[name] = values
        else:
            columns[name] = SeparateArrays(
                values if axis is not None else [scalar[None] for scalar in values]
            )
    return TransformResults(columns, axes)


def _find_form(value: Any, axis: str | None) -> object:
    """Return the type, dtype and shape that must be equal for all sequences."""
    if not isinstance(value, np.ndarray):
        return type(value)
    return value.dtype, value.ndim, value.shape if axis is None else value.shape[1:]


def _format_result(result: Mapping[str, Any]) -> str:
    descriptions = (
        f"{name}: {value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else f"{name}: {type(value).__name__}"
        for name, value in result.items()
    )
    return "{" + ", ".join(descriptions) + "}"

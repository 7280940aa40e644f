"""Repair of batches: sequences that cannot be read or transformed are masked or replaced.

The number of rows stays as planned, on every rank: a bad row is masked (weight 0, zeros), or
replaced by the longest other row of the batch, cropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.errors import DataError, SeqDataError, find_interruption
from seqdata.loading.fetcher import Fetcher, FieldReader
from seqdata.loading.options import OnError, ValueOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.results import is_whole_value
from seqdata.protocols import Columns, Field
from seqdata.sharing import Step
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.dataset_items import OpaqueItem
from seqdata.storage.fields import kind_of

_MAX_PROBES = 16  # sequences that are transformed to learn the fields of the results


@dataclass(frozen=True, slots=True, eq=False)
class RepairedBatch:
    """The columns of a batch whose bad rows are masked or replaced.

    Attributes:
        step: The step with its new weights and spans.
        columns: The columns of all rows.
        axes: Axis of each field.
        errors: Index of a span -> its error.
        replacement_row: Index of the row that replaces failed rows; None if they are masked.
    """

    step: Step
    columns: Columns
    axes: Axes
    errors: Mapping[int, Exception]
    replacement_row: int | None = None


def is_about_data(error: Exception) -> bool:
    """Return whether an error may concern a single sequence: its stored data, or user code."""
    if find_interruption(error) is not None:
        return False
    if isinstance(error, SeqDataError):
        return isinstance(error, DataError)
    return not isinstance(error, MemoryError)


def repair_batch(
    fetcher: Fetcher, step: Step, request: StepRequest, on_error: OnError
) -> RepairedBatch | None:
    """Return the batch of a step, read span by span, with failed rows masked or replaced.

    Args:
        fetcher: Fetcher of columns.
        step: The planned step.
        request: The request of the step.
        on_error: ``mask`` or ``replace``; rows of several spans are masked.

    Returns:
        None if no span fails by itself.
    """
    planned_step = step
    if step.extended is not None:  # a row includes the timesteps that follow it in the stream
        step = step._replace(spans=step.extended.spans, rows=step.extended.rows)
    rows: list[dict[str, Any]] = []
    errors: dict[int, Exception] = {}
    axes = fetcher.reader.axes
    is_idle = request.is_idle
    for number in range(len(request.ids)):
        if is_idle[number]:
            rows.append({})
            continue
        try:
            pieces, axes = _fetch_one(fetcher, request, number)
        except Exception as error:
            if not is_about_data(error):
                raise
            errors[number] = error
            pieces = {}
        rows.append(pieces)
    if not errors and not is_idle.all():
        return None
    replacement = _find_replacement(request, errors)
    replacement_row = replacement if on_error == "replace" and step.rows is None else None
    if replacement_row is not None:
        reader = fetcher.reader
        step = _replace_bad_rows(step, request, rows, errors, replacement_row, axes, reader)
    else:
        step = _mask_bad_rows(step, errors)
    if replacement is not None:
        template = rows[replacement]
    else:
        template, axes = _make_template(fetcher, request)
    for number, pieces in enumerate(rows):
        if not pieces:
            rows[number] = _make_zeros(fetcher, request, number, template, axes)
    if planned_step.extended is not None:
        step = planned_step._replace(weights=step.weights)
    return RepairedBatch(step, _make_columns(rows, template), axes, errors, replacement_row)


def shorten_step(step: Step, columns: Columns, axes: Axes) -> Step:
    """Return a step with the delivered lengths, which may be below the planned ones.

    An empty row has weight 0.
    """
    ragged_names = (name for name in columns if name != TARGETS and axes.along(name) == axes.axis)
    name = next(ragged_names, None)
    if name is None:
        return step
    column: Any = columns[name]
    lengths = np.asarray(column.lengths, dtype=np.int64)
    if TARGETS not in columns:  # inputs and targets are one column
        lengths = np.maximum(lengths - axes.shift.get(name, 0), 0)
    spans, weights = step.spans.copy(), step.weights.copy()
    spans[:, 2] = spans[:, 1] + lengths
    if step.rows is not None:
        lengths = np.add.reduceat(lengths, step.rows[:-1])
    weights[lengths == 0] = 0
    return step._replace(spans=spans, lengths=lengths, weights=weights)


def _fetch_one(fetcher: Fetcher, request: StepRequest, number: int) -> tuple[dict[str, Any], Axes]:
    """Return the pieces of one span by field: arrays (length, *shape), or strings."""
    only = slice(number, number + 1)
    occurrences = request.occurrences
    single_request = request.with_spans(
        request.spans[only], ids=request.ids[only],
        occurrences=None if occurrences is None else occurrences[only],
    )  # fmt: skip
    columns, axes = fetcher.fetch(single_request)
    pieces: dict[str, Any] = {}
    column: Any
    for name, column in columns.items():
        pieces[name] = column[0] if isinstance(column, list) else _copy_piece(column)
    return pieces, axes


def _copy_piece(column: Any) -> NDArray[Any]:
    """Return a copy of the only piece of a column, with all checks of ``fill``."""
    length = int(column.lengths[0])
    out = np.empty((length, *column.shape), dtype=column.dtype)
    column.fill(out, np.array([0, length], dtype=np.int64), None)
    return out


def _find_replacement(request: StepRequest, errors: Mapping[int, Exception]) -> int | None:
    """Return the index of the longest good span; None without one."""
    lengths = request.lengths.copy()
    lengths[list(errors)] = -1
    longest = int(lengths.argmax())
    return longest if lengths[longest] > 0 else None


def _replace_bad_rows(
    step: Step, request: StepRequest, rows: list[dict[str, Any]], errors: Mapping[int, Exception],
    replacement: int, axes: Axes, reader: FieldReader,
) -> Step:  # fmt: skip
    """Return the step with bad rows replaced by another row, cropped to the planned length."""
    spans, weights = request.spans.copy(), step.weights.copy()
    weights[list(errors)] = weights[replacement]
    replacement_length = int(request.lengths[replacement])
    for number in errors:
        length = min(replacement_length, int(request.lengths[number]))
        spans[number] = spans[replacement]
        spans[number, 2] = spans[replacement, 1] + length
        linked = reader.follow(spans[number : number + 1], request.horizon) or {}
        rows[number] = {
            name: piece[: len(piece) - replacement_length + length]
            if _is_ragged(axes, name, piece)
            else _crop_linked(piece, linked.get(axes.along(name) or ""))
            for name, piece in rows[replacement].items()
        }
    return step._replace(spans=spans, lengths=spans[:, 2] - spans[:, 1], weights=weights)


def _crop_linked(piece: Any, spans: NDArray[np.int64] | None) -> Any:
    """Return a piece of a linked axis cropped to the length of its span."""
    return piece if spans is None else piece[: int(spans[0, 2] - spans[0, 1])]


def _is_ragged(axes: Axes, name: str, piece: Any) -> bool:
    return not is_whole_value(piece) and axes.along(name) == axes.axis


def _mask_bad_rows(step: Step, errors: Mapping[int, Exception]) -> Step:
    """Return the step with weight 0 for each row that contains a bad span."""
    weights = step.weights.copy()
    rows = np.array(list(errors), dtype=np.int64)
    if step.rows is not None:
        rows = np.searchsorted(step.rows, rows, side="right") - 1
    weights[rows] = 0
    return step._replace(weights=weights)


def _make_template(fetcher: Fetcher, request: StepRequest) -> tuple[dict[str, Any], Axes]:
    """Return example pieces by field, and their axes, if no span of the batch is good.

    Raises:
        DataError: If the fields of the transform's results are unknown.
    """
    reader = fetcher.reader
    if reader.transform is not None or reader.is_opaque:
        return _probe_others(fetcher, request)
    fields: Mapping[str, Field] = reader.store.fields
    fields_by_name = {name: fields[name] for name in reader.axes.axis_of}
    if (
        reader.shifted_field is not None
        and not request.is_shifted_stream
        and not request.joint_targets
    ):
        fields_by_name[TARGETS] = fields[reader.shifted_field]
    value_options = fetcher.value_options or ValueOptions()
    pieces = {
        name: np.empty(
            (0, *field.shape),
            dtype=value_options.resolve_dtype(name, field.dtype, reader.shifted_field),
        )
        if kind_of(field).is_array
        else kind_of(field).empty
        for name, field in fields_by_name.items()
    }
    return pieces, reader.axes


def _probe_others(fetcher: Fetcher, request: StepRequest) -> tuple[dict[str, Any], Axes]:
    """Return the result for another sequence of the store, the first that can be transformed."""
    reader = fetcher.reader
    numbers = np.linspace(0, len(reader.store) - 1, _MAX_PROBES).astype(np.int64)
    for number in np.unique(numbers).tolist():
        spans = np.array([[number, 0, 0]], dtype=np.int64)
        beyond = reader.shift + request.horizon
        spans[:, 2] = np.maximum(0, reader.compute_planned_lengths(spans[:, 0]) - beyond)
        ids = reader.store.base_numbers(spans[:, 0])
        try:
            return _fetch_one(fetcher, request.with_spans(spans, ids=ids, occurrences=None), 0)
        except Exception as error:
            if not is_about_data(error):
                raise
    raise DataError(
        f"loader: {'reading' if reader.is_opaque else 'the transform'} fails for every sequence of "
        f"a batch and for {len(numbers)} others, so that the fields of its results are unknown. "
        "Repair the data or the transform."
    )


def _make_zeros(
    fetcher: Fetcher, request: StepRequest, number: int, template: Mapping[str, Any], axes: Axes
) -> dict[str, Any]:
    """Return zeros of the planned length of a span, so that the batch keeps its shape."""
    pieces: dict[str, Any] = {}
    length = int(request.lengths[number])
    reader, span = fetcher.reader, request.spans[number : number + 1]
    lengths_of, linked = reader.store.lengths_of, reader.follow(span, request.horizon) or {}
    for name, example in template.items():
        if is_whole_value(example):  # an opaque item cannot be made, so the example is used
            pieces[name] = example if isinstance(example, OpaqueItem) else type(example)()
            continue
        axis, steps = axes.along(name), 1
        if axis == axes.axis:
            target_shift = axes.shift.get(name, 0) if request.joint_targets and length else 0
            steps = length + request.horizon + target_shift
        elif axis is not None and axis in linked:
            steps = int(linked[axis][0, 2] - linked[axis][0, 1])
        elif axis is not None:
            axis_lengths = lengths_of.get(axis)
            steps = 1 if axis_lengths is None else int(axis_lengths[request.spans[number, 0]])
        pieces[name] = np.zeros((steps, *example.shape[1:]), dtype=example.dtype)
    return pieces


def _make_columns(rows: list[dict[str, Any]], template: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, example in template.items():
        pieces = [row[name] for row in rows]
        columns[name] = (
            pieces
            if is_whole_value(example)
            else ArrayColumn(example.dtype, example.shape[1:], pieces)
        )
    return columns

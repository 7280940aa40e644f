"""A batch in which a sequence cannot be read or transformed, made without it.

The rows stay as many as they were planned, on every rank: a bad row is masked (weight 0, zeros), or
replaced by the longest other row of the batch, cropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.errors import DataError, SeqDataError
from seqdata.loading.fetcher import Fetcher
from seqdata.loading.options import OnError
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.value_options import ValueOptions
from seqdata.protocols import Columns, Field
from seqdata.sharing import Step
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.fields import kind_of

_MAX_PROBES = 16  # sequences that are transformed to see what a transform makes


@dataclass(frozen=True, slots=True, eq=False)
class RepairedBatch:
    """A batch without its bad rows.

    Attributes:
        step: With the weights and spans that it has now.
        columns: Of all rows.
        axes: Which field runs along which axis.
        errors: Span -> what was wrong with it.
    """

    step: Step
    columns: Columns
    axes: Axes
    errors: Mapping[int, Exception]


def is_about_data(error: Exception) -> bool:
    """Return whether an error may be one sequence's: of stored data, or of somebody else's code."""
    if isinstance(error, SeqDataError):
        return isinstance(error, DataError)
    return not isinstance(error, MemoryError)


def repair_batch(
    fetcher: Fetcher, step: Step, request: StepRequest, on_error: OnError
) -> RepairedBatch | None:
    """Read the spans of a step one by one, and make the batch without those that fail.

    Args:
        fetcher: Reads and transforms.
        step: What was planned.
        request: What it asks for.
        on_error: ``mask`` or ``replace``; rows of several spans are masked.

    Returns:
        None where no span fails by itself.
    """
    planned_step = step
    if step.wide is not None:  # what follows a row in the stream belongs to it
        step = step._replace(spans=step.wide.spans, rows=step.wide.rows)
    rows: list[dict[str, Any]] = []
    errors: dict[int, Exception] = {}
    axes = fetcher.reader.axes
    for number in range(len(request.ids)):
        try:
            pieces, axes = _fetch_one(fetcher, request, number)
        except Exception as error:
            if not is_about_data(error):
                raise
            errors[number] = error
            pieces = {}
        rows.append(pieces)
    if not errors:
        return None
    replacement = _find_replacement(request, errors)
    if on_error == "replace" and step.rows is None and replacement is not None:
        step = _replace_bad_rows(step, request, rows, errors, replacement, axes)
    else:
        step = _mask_bad_rows(step, errors)
    if replacement is not None:
        template = rows[replacement]
    else:
        template, axes = _make_template(fetcher, request)
    for number in errors:
        if not rows[number]:
            rows[number] = _make_zeros(fetcher, request, number, template, axes)
    if planned_step.wide is not None:
        step = planned_step._replace(weights=step.weights)
    return RepairedBatch(step, _make_columns(rows, template), axes, errors)


def shorten_step(step: Step, columns: Columns, axes: Axes) -> Step:
    """Return a step whose spans are as long as what was delivered, which may be less than planned.

    A row that holds nothing has weight 0.
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
    """Return the pieces of one span by field: arrays (length, *shape), or texts."""
    only = slice(number, number + 1)
    occurrences = request.occurrences
    single_request = replace(
        request, spans=request.spans[only], ids=request.ids[only],
        occurrences=None if occurrences is None else occurrences[only],
    )  # fmt: skip
    columns, axes = fetcher.fetch(single_request)
    pieces: dict[str, Any] = {}
    column: Any
    for name, column in columns.items():
        pieces[name] = column[0] if isinstance(column, list) else _copy_piece(column)
    return pieces, axes


def _copy_piece(column: Any) -> NDArray[Any]:
    """Copy the only piece of a column, with all checks that filling has."""
    length = int(column.lengths[0])
    out = np.empty((length, *column.shape), dtype=column.dtype)
    column.fill(out, np.array([0, length], dtype=np.int64), None)
    return out


def _find_replacement(request: StepRequest, errors: Mapping[int, Exception]) -> int | None:
    """Return the longest span that is good."""
    lengths = request.lengths.copy()
    lengths[list(errors)] = -1
    longest = int(lengths.argmax())
    return longest if lengths[longest] > 0 else None


def _replace_bad_rows(
    step: Step, request: StepRequest, rows: list[dict[str, Any]], errors: Mapping[int, Exception],
    replacement: int, axes: Axes,
) -> Step:  # fmt: skip
    """Put the donor, cropped to what was planned, in the place of each bad row."""
    spans = request.spans.copy()
    replacement_length = int(request.lengths[replacement])
    for number in errors:
        length = min(replacement_length, int(request.lengths[number]))
        spans[number] = spans[replacement]
        spans[number, 2] = spans[replacement, 1] + length
        rows[number] = {
            name: piece[: len(piece) - replacement_length + length]
            if _is_ragged(axes, name, piece)
            else piece
            for name, piece in rows[replacement].items()
        }
    return step._replace(spans=spans, lengths=spans[:, 2] - spans[:, 1])


def _is_ragged(axes: Axes, name: str, piece: Any) -> bool:
    return not isinstance(piece, str | bytes) and axes.along(name) == axes.axis


def _mask_bad_rows(step: Step, errors: Mapping[int, Exception]) -> Step:
    """Take the weight of each row that holds a bad span."""
    weights = step.weights.copy()
    rows = np.array(list(errors), dtype=np.int64)
    if step.rows is not None:
        rows = np.searchsorted(step.rows, rows, side="right") - 1
    weights[rows] = 0
    return step._replace(weights=weights)


def _make_template(fetcher: Fetcher, request: StepRequest) -> tuple[dict[str, Any], Axes]:
    """Return pieces that show what there is, and their axes, where no span of the batch can.

    Raises:
        DataError: If a transform makes fields that nobody has seen.
    """
    reader = fetcher.reader
    if reader.transform is not None:
        return _probe_transform(fetcher, request)
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
        name: np.empty((0, *field.shape), dtype=value_options.resolve_dtype(name, field.dtype))
        if kind_of(field).is_array
        else kind_of(field).empty
        for name, field in fields_by_name.items()
    }
    return pieces, reader.axes


def _probe_transform(fetcher: Fetcher, request: StepRequest) -> tuple[dict[str, Any], Axes]:
    """Transform other sequences of the store until one shows what is made of them."""
    reader = fetcher.reader
    numbers = np.linspace(0, len(reader.store) - 1, _MAX_PROBES).astype(np.int64)
    for number in np.unique(numbers).tolist():
        spans = np.array([[number, 0, 0]], dtype=np.int64)
        beyond = reader.shift + request.horizon
        spans[:, 2] = np.maximum(0, reader.compute_planned_lengths(spans[:, 0]) - beyond)
        ids = reader.store.base_numbers(spans[:, 0])
        try:
            return _fetch_one(fetcher, replace(request, spans=spans, ids=ids, occurrences=None), 0)
        except Exception as error:
            if not is_about_data(error):
                raise
    raise DataError(
        f"loader: the transform fails for every sequence of a batch and for {len(numbers)} others, "
        "so what it makes is not known, must be for `on_error`; repair the data or the transform"
    )


def _make_zeros(
    fetcher: Fetcher, request: StepRequest, number: int, template: Mapping[str, Any], axes: Axes
) -> dict[str, Any]:
    """Return zeros in place of one span: as long as planned, so that the batch has its shape."""
    pieces: dict[str, Any] = {}
    length = int(request.lengths[number])
    lengths_of = fetcher.reader.store.lengths_of
    for name, example in template.items():
        if isinstance(example, str | bytes):
            pieces[name] = type(example)()
            continue
        axis, steps = axes.along(name), 1
        if axis == axes.axis:
            target_shift = axes.shift.get(name, 0) if request.joint_targets and length else 0
            steps = length + request.horizon + target_shift
        elif axis is not None:
            axis_lengths = lengths_of.get(axis)
            steps = 1 if axis_lengths is None else int(axis_lengths[request.spans[number, 0]])
        pieces[name] = np.zeros((steps, *example.shape[1:]), dtype=example.dtype)
    return pieces


def _make_columns(rows: list[dict[str, Any]], template: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, example in template.items():
        pieces = [row[name] for row in rows]
        is_text = isinstance(example, str | bytes)
        columns[name] = pieces if is_text else ArrayColumn(example.dtype, example.shape[1:], pieces)
    return columns

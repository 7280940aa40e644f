"""A batch in which a sequence cannot be read or transformed, made without it.

The rows stay as many as they were planned, on every rank: a bad row is masked (weight 0, zeros), or
replaced by the longest other row of the batch, cropped. Place in the flow: where fetching has
failed and ``on_error`` is not ``raise``. Reads: the sequences again, one by one. Makes: columns and
the step that they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.errors import DataError, SeqDataError
from seqdata.loading.fetcher import Fetching
from seqdata.loading.options import OnError
from seqdata.loading.step_requests import Request
from seqdata.loading.value_options import Values
from seqdata.protocols import Columns, Field
from seqdata.sharing import Step
from seqdata.storage.array_column import PieceColumn
from seqdata.storage.fields import TEXTS

_TRIES = 16  # sequences that are transformed to see what a transform makes


@dataclass(frozen=True, slots=True, eq=False)
class Mended:
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
    """Tell whether an error may be one sequence's: of stored data, or of somebody else's code."""
    if isinstance(error, SeqDataError):
        return isinstance(error, DataError)
    return not isinstance(error, MemoryError)


def mend(fetching: Fetching, step: Step, request: Request, on_error: OnError) -> Mended | None:
    """Read the spans of a step one by one, and make the batch without those that fail.

    Args:
        fetching: Reads and transforms.
        step: What was planned.
        request: What it asks for.
        on_error: ``mask`` or ``replace``; rows of several spans are masked.

    Returns:
        None where no span fails by itself.
    """
    planned = step
    if step.wide is not None:  # what follows a row in the stream belongs to it
        step = step._replace(spans=step.wide.spans, rows=step.wide.rows)
    made: list[dict[str, Any]] = []
    errors: dict[int, Exception] = {}
    axes = fetching.reading.axes
    for number in range(len(request.ids)):
        try:
            pieces, axes = _one(fetching, request, number)
        except Exception as error:
            if not is_about_data(error):
                raise
            errors[number] = error
            pieces = {}
        made.append(pieces)
    if not errors:
        return None
    donor = _donor(request, errors)
    if on_error == "replace" and step.rows is None and donor is not None:
        step = _replaced(step, request, made, errors, donor, axes)
    else:
        step = _masked(step, errors)
    if donor is not None:
        like = made[donor]
    else:
        like, axes = _like(fetching, request)
    for number in errors:
        if not made[number]:
            made[number] = _zeros(fetching, request, number, like, axes)
    if planned.wide is not None:
        step = planned._replace(weights=step.weights)
    return Mended(step, _columns(made, like), axes, errors)


def shortened(step: Step, columns: Columns, axes: Axes) -> Step:
    """Return a step whose spans are as long as what was delivered, which may be less than planned.

    A row that holds nothing has weight 0.
    """
    along = (name for name in columns if name != TARGETS and axes.along(name) == axes.axis)
    name = next(along, None)
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


def _one(fetching: Fetching, request: Request, number: int) -> tuple[dict[str, Any], Axes]:
    """Give the pieces of one span by field: arrays (length, *shape), or texts."""
    part = slice(number, number + 1)
    occurrences = request.occurrences
    alone = replace(
        request, spans=request.spans[part], ids=request.ids[part],
        occurrences=None if occurrences is None else occurrences[part],
    )  # fmt: skip
    columns, axes = fetching.columns(alone)
    pieces: dict[str, Any] = {}
    column: Any
    for name, column in columns.items():
        pieces[name] = column[0] if isinstance(column, list) else _copied(column)
    return pieces, axes


def _copied(column: Any) -> NDArray[Any]:
    """Copy the only piece of a column, with all checks that filling has."""
    length = int(column.lengths[0])
    out = np.empty((length, *column.shape), dtype=column.dtype)
    column.fill(out, np.array([0, length], dtype=np.int64), None)
    return out


def _donor(request: Request, errors: Mapping[int, Exception]) -> int | None:
    """Give the longest span that is good."""
    lengths = request.lengths.copy()
    lengths[list(errors)] = -1
    best = int(lengths.argmax())
    return best if lengths[best] > 0 else None


def _replaced(
    step: Step, request: Request, made: list[dict[str, Any]], errors: Mapping[int, Exception],
    donor: int, axes: Axes,
) -> Step:  # fmt: skip
    """Put the donor, cropped to what was planned, in the place of each bad row."""
    spans = request.spans.copy()
    whole = int(request.lengths[donor])
    for number in errors:
        length = min(whole, int(request.lengths[number]))
        spans[number] = spans[donor]
        spans[number, 2] = spans[donor, 1] + length
        made[number] = {
            name: piece[: len(piece) - whole + length] if _runs(axes, name, piece) else piece
            for name, piece in made[donor].items()
        }
    return step._replace(spans=spans, lengths=spans[:, 2] - spans[:, 1])


def _runs(axes: Axes, name: str, piece: Any) -> bool:
    return not isinstance(piece, str | bytes) and axes.along(name) == axes.axis


def _masked(step: Step, errors: Mapping[int, Exception]) -> Step:
    """Take the weight of each row that holds a bad span."""
    weights = step.weights.copy()
    rows = np.array(list(errors), dtype=np.int64)
    if step.rows is not None:
        rows = np.searchsorted(step.rows, rows, side="right") - 1
    weights[rows] = 0
    return step._replace(weights=weights)


def _like(fetching: Fetching, request: Request) -> tuple[dict[str, Any], Axes]:
    """Return pieces that show what there is, and their axes, where no span of the batch can.

    Raises:
        DataError: If a transform makes fields that nobody has seen.
    """
    reading = fetching.reading
    if reading.transform is not None:
        return _transformed_elsewhere(fetching, request)
    fields: Mapping[str, Field] = reading.store.fields
    known = {name: fields[name] for name in reading.axes.axis_of}
    if reading.shifted is not None and not request.streamed and not request.together:
        known[TARGETS] = fields[reading.shifted]
    values = fetching.values or Values()
    empty: dict[str, Any] = {"str": "", "bytes": b""}
    pieces = {
        name: empty[field.dtype]
        if field.dtype in TEXTS
        else np.empty((0, *field.shape), dtype=values.dtype_of(name, field.dtype))
        for name, field in known.items()
    }
    return pieces, reading.axes


def _transformed_elsewhere(fetching: Fetching, request: Request) -> tuple[dict[str, Any], Axes]:
    """Transform other sequences of the store until one shows what is made of them."""
    reading = fetching.reading
    numbers = np.linspace(0, len(reading.store) - 1, _TRIES).astype(np.int64)
    for number in np.unique(numbers).tolist():
        spans = np.array([[number, 0, 0]], dtype=np.int64)
        beyond = reading.shift + request.horizon
        spans[:, 2] = np.maximum(0, reading.planned(spans[:, 0]) - beyond)
        ids = reading.store.base_numbers(spans[:, 0])
        try:
            return _one(fetching, replace(request, spans=spans, ids=ids, occurrences=None), 0)
        except Exception as error:
            if not is_about_data(error):
                raise
    raise DataError(
        f"loader: the transform fails for every sequence of a batch and for {len(numbers)} others, "
        "so what it makes is not known, must be for `on_error`; repair the data or the transform"
    )


def _zeros(
    fetching: Fetching, request: Request, number: int, like: Mapping[str, Any], axes: Axes
) -> dict[str, Any]:
    """Give zeros in place of one span: as long as planned, so that the batch has its shape."""
    pieces: dict[str, Any] = {}
    length = int(request.lengths[number])
    lengths_of = fetching.reading.store.lengths_of
    for name, one in like.items():
        if isinstance(one, str | bytes):
            pieces[name] = type(one)()
            continue
        axis, steps = axes.along(name), 1
        if axis == axes.axis:
            further = axes.shift.get(name, 0) if request.together and length else 0
            steps = length + request.horizon + further
        elif axis is not None:
            whole = lengths_of.get(axis)
            steps = 1 if whole is None else int(whole[request.spans[number, 0]])
        pieces[name] = np.zeros((steps, *one.shape[1:]), dtype=one.dtype)
    return pieces


def _columns(made: list[dict[str, Any]], like: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, one in like.items():
        pieces = [row[name] for row in made]
        text = isinstance(one, str | bytes)
        columns[name] = pieces if text else PieceColumn(one.dtype, one.shape[1:], pieces)
    return columns

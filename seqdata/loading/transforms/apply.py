"""Application of transforms between reading and collating, by sequence or by batch.

A transform that keeps lengths receives the spans (and what is read past them); one that changes
lengths receives whole sequences, and its results are cut to the spans. Its random generator is
keyed by (seed, epoch, sequence), so that results do not depend on threads, ranks or resumes. A
sequence's arrays and random numbers, which a transform receives, are its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes, format_unknown_name
from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, DecodeError, Detail, SeqDataError, must_be
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.declare import Ragged, is_columnar
from seqdata.loading.transforms.results import (
    FlatValues,
    TransformResults,
    check_result,
    concat_results,
    is_whole_value,
    to_array,
)
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Columns
from seqdata.storage.views import locate_sequence

if TYPE_CHECKING:
    from seqdata.loading.fetcher import FieldReader


_MAX_NAMED = 5  # sequences that are named in a message
_MAX_COPIED_BYTES = 8 << 20  # largest column, in bytes, that is copied in one go


def make_piece_getter(column: Any, *, ragged: bool) -> Callable[[int], Any]:
    """Return a function that returns a column's piece by index: a writable array, or a string.

    Args:
        column: A ``Column``, or a list.
        ragged: Whether it runs along an axis; else it has one value per sequence.

    Raises:
        DataError: If stored data is damaged: here, or when the piece is read.
    """
    if isinstance(column, list):
        return column.__getitem__
    lengths = column.lengths
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    timestep_bytes = column.dtype.itemsize * math.prod(column.shape)
    if (
        int(offsets[-1]) * timestep_bytes > _MAX_COPIED_BYTES
    ):  # long pieces: only one at a time is in memory
        if ragged:
            return lambda number: np.array(column[number])
        return lambda number: np.array(column[number])[0]
    flat = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
    column.fill(flat, offsets, None)
    if not ragged:
        return flat.__getitem__
    offset_list = offsets.tolist()
    return lambda number: flat[offset_list[number] : offset_list[number + 1]]


class SequenceGenerator:
    """Random numbers of sequences, each keyed by (seed, epoch) and its own counter.

    One generator is reset for each sequence, which costs a tenth of making one.

    Args:
        seed: Seed of the run.
        epoch: Epoch of the plan.
    """

    __slots__ = ("_counter", "_generator", "_philox", "_state")

    def __init__(self, seed: int, epoch: int) -> None:
        key = np.array([seed, epoch], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=np.zeros(4, dtype=np.uint64))
        self._state: Any = self._philox.state
        self._counter = self._state["state"]["counter"]
        self._counter[2] = Purpose.TRANSFORM
        self._generator = np.random.Generator(self._philox)

    def seek(self, occurrence: int, sequence: int) -> np.random.Generator:
        """Return the generator, reset to the start of a sequence's random numbers."""
        self._counter[1] = occurrence
        self._counter[3] = sequence
        self._philox.state = self._state
        return self._generator


@dataclass(frozen=True, slots=True, eq=False)
class TransformApplier:
    """Applies a transform to the sequences of a batch.

    Args:
        reader: Reader of the transform's input, with the planned lengths.
        seed: Seed of the generators.
        axes: The axis of each field, in the input and in the results.
    """

    reader: FieldReader
    seed: int
    axes: Axes
    _kept: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict, init=False)
    """Epoch, drawing and sequence -> the result, of whole sequences in lanes."""

    def apply(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the transformed columns of a step's spans.

        Returns:
            The columns, and the axis of each field.

        Raises:
            DecodeError: If a result is not a dict, its fields do not fit, or its length differs
                from the planned one; it names the sequence.
            ConfigError: If a shift does not fit the fields of the results.
        """
        reader, planned_request = self.reader, request
        has_idle = request.has_lanes and bool(request.is_idle.any())
        if has_idle:
            request = self._fill_idle(request)
        spans = request.spans
        read_spans = spans if request.is_shifted_stream else reader.extend(spans, request.horizon)
        linked = request.linked or reader.follow(spans, request.horizon)
        inputs = reader.read_inputs(read_spans, linked)
        results = self.compute_results(inputs, request)
        if reader.has_changed_lengths:
            planned = reader.compute_planned_lengths(spans[:, 0])
            begins = spans[:, 1]
        else:
            planned = read_spans[:, 2] - spans[:, 1]
            begins = np.zeros(len(spans), dtype=np.int64)
        self._check_lengths(results, planned, request.ids)
        if reader.has_bounded_lengths:
            request = self._shorten_spans(results, request)
            begins = request.spans[:, 1]
        if has_idle:
            ends = np.where(planned_request.is_idle, request.spans[:, 1], request.spans[:, 2])
            request = request.with_spans(np.column_stack([request.spans[:, :2], ends]))
        return self._cut_to_spans(results, begins, request)

    def _fill_idle(self, request: StepRequest) -> StepRequest:
        """Return the request with the shortest other span in place of the spans of idle lanes.

        A transform need not work for empty sequences, and these results are cut to 0 timesteps.
        """
        spans, ids, is_idle = request.spans.copy(), request.ids.copy(), request.is_idle
        lengths = np.where(is_idle, np.iinfo(np.int64).max, request.lengths)
        shortest = int(lengths.argmin())
        if is_idle.all():  # the first timestep of a sequence that has one
            stored = np.asarray(self.reader.store.lengths_of[self.axes.axis])
            spans[shortest] = int(np.argmax(stored > 0)), 0, 1
            ids[shortest] = self.reader.store.base_numbers(spans[shortest, :1])[0]
        spans[is_idle], ids[is_idle] = spans[shortest], ids[shortest]
        return request.with_spans(spans, ids=ids)

    def _shorten_spans(self, results: TransformResults, request: StepRequest) -> StepRequest:
        """Return the request with spans that end where the results end."""
        names, spans = results.along(self.axes.axis), request.spans.copy()
        if not names:
            return request
        lengths = results.columns[names[0]].lengths
        for name in names[1:]:
            bad = np.flatnonzero(results.columns[name].lengths != lengths)
            if len(bad):
                found_length, first_length = (
                    int(results.columns[name].lengths[bad[0]]),
                    int(lengths[bad[0]]),
                )
                raise self.make_error(
                    int(request.ids[bad[0]]),
                    (
                        f"returned {found_length} timesteps of field {name!r} and {first_length} "
                        f"of {names[0]!r}, which must be equal"
                    ),
                    field=name,
                )
        input_lengths = np.maximum(lengths - self.reader.shift, 0)
        spans[:, 1] = np.minimum(spans[:, 1], input_lengths)
        spans[:, 2] = np.minimum(spans[:, 2], input_lengths)
        return request.with_spans(spans)

    def compute_results(self, inputs: Columns, request: StepRequest) -> TransformResults:
        """Return the results for columns that were read; lengths are not checked.

        Raises:
            DecodeError: If a result is not a dict, or its fields do not fit.
        """
        if is_columnar(self.reader.transform):
            return self._apply_columnar(inputs, request)
        ids = request.ids
        make_error, drawings = self._make_error_factory(ids), request.get_occurrences().tolist()
        is_kept = request.has_lanes and self.reader.has_changed_lengths
        kept, results = dict(self._kept) if is_kept else {}, []
        self._kept.clear()
        pieces: list[tuple[str, Callable[[int], Any]]] = []
        generator = SequenceGenerator(self.seed, request.epoch)
        transform = self.reader.transform
        for number, base in enumerate(ids.tolist()):
            request.on_sequence(base)
            key = (request.epoch, drawings[number], base)
            if key not in kept:
                pieces = pieces or self._make_getters(inputs)
                sequence = {name: piece(number) for name, piece in pieces}
                try:
                    value = transform(sequence, generator.seek(drawings[number], base))
                except Exception as error:
                    place = f"transform of sequence {self.describe_sequence(base)}"
                    details = self._get_details(base)
                    raise _add_location(error, place, details) from error.__cause__
                value = check_result(value, number, self._find_axis, make_error)
            else:
                value = kept[key]
            results.append(value)
            if is_kept:
                kept[key] = self._kept[key] = value
        return concat_results(
            results,
            self._find_axis,
            make_error,
            lambda piece: self.describe_sequence(int(ids[piece])),
        )

    def _make_getters(self, inputs: Columns) -> list[tuple[str, Callable[[int], Any]]]:
        """Return, for each field, the function that returns its piece by index."""
        return [
            (name, make_piece_getter(column, ragged=self.reader.axes.along(name) is not None))
            for name, column in inputs.items()
        ]

    def describe_sequence(self, base: int) -> str:
        """Return the name of a sequence for messages."""
        return repr(get_base_keys(self.reader.store, np.array([base]))[0])

    def make_error(
        self, base: int, problem: str, *, remedy: str = "Change the transform", **details: int | str
    ) -> DecodeError:
        """Return the error about a transform's result for a sequence."""
        text = f"transform of sequence {self.describe_sequence(base)}: {problem}. {remedy}."
        return DecodeError.at(text, **{**self._get_details(base), **details})

    def _get_details(self, base: int) -> dict[str, Detail]:
        """Return the details about a sequence's location, without the remedy for damaged data."""
        details = locate_sequence(self.reader.store, base).details
        return {name: value for name, value in details.items() if name != "remedy"}

    def _apply_columnar(self, inputs: Columns, request: StepRequest) -> TransformResults:
        ids, drawings = request.ids, request.get_occurrences()
        seeds = Draw(self.seed, request.epoch).hash_each(Purpose.TRANSFORM, drawings, ids)

        def describe() -> str:  # only for errors: names may have to be read
            return self._describe_sequences(ids)

        try:
            result = self.reader.transform(make_inputs(inputs, self.reader.axes), seeds)
        except Exception as error:
            raise _add_location(error, describe(), {}) from error.__cause__
        return check_columnar_result(result, len(ids), self.axes, describe)

    def _describe_sequences(self, ids: NDArray[np.int64]) -> str:
        keys = [repr(key) for key in get_base_keys(self.reader.store, ids[:_MAX_NAMED])]
        more = ", …" if len(ids) > _MAX_NAMED else ""
        return f"transform of sequences {', '.join(keys)}{more}"

    def _find_axis(self, name: str, dimensions: int) -> str | None:
        return self.axes.axis_of.get(name, self.axes.axis if dimensions else None)

    def _make_error_factory(self, ids: NDArray[np.int64]) -> Any:
        return lambda piece, problem: self.make_error(int(ids[piece]), problem)

    def _check_lengths(
        self, results: TransformResults, planned: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> None:
        for name in results.along(self.axes.axis):
            lengths = results.columns[name].lengths
            has_bounded_lengths = self.reader.has_bounded_lengths
            bad = np.flatnonzero(lengths > planned if has_bounded_lengths else lengths != planned)
            if not len(bad):
                continue
            found_length, planned_length = int(lengths[bad[0]]), int(planned[bad[0]])
            bound = "at most " if has_bounded_lengths else ""
            raise self.make_error(
                int(ids[bad[0]]),
                f"returned {found_length} timesteps of field {name!r}, but {bound}{planned_length} "
                "are planned",
                remedy=self.reader.length_advice,
                field=name,
                planned=planned_length,
                found=found_length,
            )

    def _cut_to_spans(
        self, results: TransformResults, begins: NDArray[np.int64], request: StepRequest
    ) -> tuple[Columns, Axes]:
        axis, shift = self.axes.axis, self.reader.shift
        shifted_field = self._find_shifted_field(results) if shift else None
        lengths = request.lengths
        ends = begins + lengths + request.horizon
        target_shift = np.where(lengths > 0, shift, 0) if shift else 0
        columns: dict[str, Any] = {}
        axis_of = dict(results.axis_of)
        for name, result in results.columns.items():
            if isinstance(result, list):
                columns[name] = result
            elif axis_of[name] != axis:
                columns[name] = result.cut(np.zeros_like(begins), result.lengths)
            elif name != shifted_field or request.is_shifted_stream:
                columns[name] = result.cut(begins, ends)
            elif request.joint_targets:
                columns[name] = result.cut(begins, ends + target_shift)
            else:
                columns[name] = result.cut(begins, ends)
                columns[TARGETS] = result.cut(begins + target_shift, ends + target_shift)
                axis_of[TARGETS] = axis
        return columns, Axes(axis, axis_of, {} if shifted_field is None else {shifted_field: shift})

    def _find_shifted_field(self, results: TransformResults) -> str:
        """Return the field that is shifted: the named one, or the only ragged one."""
        ragged, name = results.along(self.axes.axis), self.reader.shifted_field
        if TARGETS in results.columns:
            raise ConfigError(
                "loader: `shift` adds a field 'targets', but the transform returns one. Leave "
                "one of them out."
            )
        if name is None and len(ragged) != 1:
            found = "none. Leave `shift` out, or change the transform"
            if ragged:
                found = f"{', '.join(ragged)}. Name one, as in shift={{{ragged[0]!r}: 1}}"
            raise ConfigError(
                "loader: `shift` without a field name must have one field of the results on axis "
                f"{self.axes.axis!r}, but there are {found}"
            )
        if name is not None and name not in ragged:
            raise ConfigError(
                f"loader: `shift` must name a field that the transform returns on axis "
                f"{self.axes.axis!r}: {format_unknown_name(name, ragged)}"
            )
        return name or ragged[0]


def make_transform_applier(reader: FieldReader, seed: int) -> TransformApplier:
    """Return the applier of a reader's transform."""
    return TransformApplier(reader, seed, Axes(reader.axis, reader.result_axes))


def _add_location(error: Exception, location: str, details: Mapping[str, Detail]) -> Exception:
    """Return the exception with a note that names the sequence."""
    if isinstance(error, SeqDataError):
        return error.with_place(f"in the {location}", **details).with_traceback(error.__traceback__)
    error.add_note(f"in the {location}")
    if details:
        with contextlib.suppress(AttributeError, TypeError):  # an exception that cannot have notes
            vars(error).setdefault("details", dict(details))
    return error


def make_inputs(columns: Columns, axes: Axes) -> dict[str, Any]:
    """Return the input of a columnar transform: arrays that it may write to.

    Args:
        columns: The columns that were read.
        axes: Axis of each field.
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
        axes: Axis of each field; a new ragged one runs along the planned axis.
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
                value, name, "a Ragged, an array of numbers or a list of strings", describe
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
        found = f"{lengths.dtype}{list(lengths.shape)}"
        if is_valid_shape:
            found += f" with a minimum of {lengths.min()} and a sum of {lengths.sum()}"
        raise DecodeError.at(
            f"{describe()}: the lengths of field {name!r} must be {count} integers, one for each "
            f"sequence, of at least 0, whose sum is the number of values, {len(values)}, but are "
            f"{found}. Change the transform.",
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

"""Prepares steps before any I/O: the request of each, and the metadata of its batch.

Every step, with or without lanes, is described as part of a run of steps, whose arrays are computed
at once: a batch costs views of them. Each tensor has its own part of the memory, so that changing
it in place affects no other batch. Place in the flow: RankPlan -> step requests and metadata ->
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.shifted_stream import compute_padded_offsets, find_whole_rows, simplify_rows
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.rng import Occurrences
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable, PartLabel, offsets_from_sizes
from seqdata.sharing import RankPlan, Step, Steps

_NO_LABEL = PartLabel(None, None)
_MAX_ROWS = 1 << 13  # of steps that are described at once


class PreparedStep(NamedTuple):
    """One step, before its data is read.

    Attributes:
        request: The spans to read.
        metadata: Attributes of its batch, without data and counts.
        make_step: Returns the step.
    """

    request: StepRequest
    metadata: SequenceBatch
    make_step: Callable[[], Step]


class _StepSpans(NamedTuple):
    """The spans of many steps, their base numbers, and the offsets of the steps.

    ``is_stream`` says that they are extended along a stream, as ``Steps.wide`` is.
    """

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    offsets: list[int]
    is_stream: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StepPreparer:
    """Prepares the steps of one epoch.

    Attributes:
        reader: Reads the fields.
        occurrences: Counts the draws of each sequence; None if nothing is random.
        joint_targets: Whether the collator takes inputs and targets of a shift as one column.
        plan: The plan of the epoch.
        epoch: Its number.
    """

    reader: FieldReader
    occurrences: Occurrences | None
    joint_targets: bool
    plan: Plan
    epoch: int

    def prepare_from(self, share: RankPlan, first: int) -> Iterator[PreparedStep]:
        """Return a step and some of the next ones, as far as they are prepared together."""
        return self._prepare_run(share.steps_from(first, _MAX_ROWS))

    def prepare(self, step: Step) -> PreparedStep:
        """Return a single step."""
        return next(self._prepare_run(Steps.of_one(step)))

    def _prepare_run(self, steps: Steps) -> Iterator[PreparedStep]:
        wide, has_whole_rows = steps.wide, find_whole_rows(steps)
        step_spans = self._locate_spans(steps.table)
        wide_spans = step_spans
        if wide is not None and not all(has_whole_rows):
            wide_spans = self._locate_spans(wide)._replace(is_stream=True)
        bounds = self._pad_offsets(steps, has_whole_rows)
        own_ids = self._find_own_ids(step_spans, steps)
        batches = describe_steps(
            steps, own_ids, has_whole_rows, self.plan, self.reader.axes, bounds
        )
        # No name and no zip holds a batch, so that its data are freed when the caller drops it.
        batches = map(_add_whole_rows, batches, self._describe_whole_rows(steps))
        for i, is_whole_row in enumerate(has_whole_rows):
            spans = step_spans if is_whole_row else wide_spans
            yield self._prepare_step(steps, i, spans, is_whole_row, next(batches))

    def _prepare_step(
        self,
        steps: Steps,
        i: int,
        step_spans: _StepSpans,
        is_whole_row: bool,
        metadata: SequenceBatch,
    ) -> PreparedStep:
        """Return step ``i`` of some, whose batch is ``metadata``."""
        part = slice(step_spans.offsets[i], step_spans.offsets[i + 1])
        spans = step_spans.spans[part]
        occurrences = None
        own_epoch = metadata.part_epoch  # of rows of several parts, draws are told apart below
        epoch = own_epoch if isinstance(own_epoch, int) else self.epoch
        if self.occurrences is not None:
            drawn = self.plan.drawn_batch(steps.numbers[i])
            if drawn is not None and drawn.epoch is not None:
                epoch = drawn.epoch
            occurrences = self.occurrences.number_spans(spans, epoch, drawn)
        request = StepRequest(
            spans=spans, ids=step_spans.ids[part], epoch=epoch,
            horizon=self.plan.lookahead - self.reader.shift,
            joint_targets=self.joint_targets and is_whole_row,
            occurrences=occurrences, is_shifted_stream=step_spans.is_stream,
            has_lanes=steps.lanes is not None,
        )  # fmt: skip
        return PreparedStep(request, metadata, partial(_make_step, steps, i))

    def _describe_whole_rows(self, steps: Steps) -> Iterator[SequenceBatch | None]:
        """Return the metadata of the rows whose parts the steps hold; None if they are whole."""
        if steps.whole_rows is None:
            return repeat(None)
        whole_rows = steps.whole_rows
        ids = self._find_own_ids(self._locate_spans(whole_rows.table), whole_rows)
        return describe_steps(
            whole_rows, ids, find_whole_rows(whole_rows), self.plan, self.reader.axes
        )

    def _locate_spans(self, table: ArrayTable) -> _StepSpans:
        offsets = table.offsets if table.rows is None else table.rows[table.offsets]
        ids = self.reader.store.base_numbers(table.spans[:, 0])
        return _StepSpans(table.spans, ids, offsets.tolist())

    def _find_own_ids(self, step_spans: _StepSpans, steps: Steps) -> NDArray[np.int64]:
        """Return the numbers by which batches name sequences: in their part, of a mixture."""
        own_numbers = getattr(self.reader.store, "own_numbers", None)  # of several parts as one
        if own_numbers is None or self.plan.label_parts(steps.numbers[:1]) is None:
            return step_spans.ids
        return cast(NDArray[np.int64], own_numbers(step_spans.spans[:, 0]))

    def _pad_offsets(
        self, steps: Steps, has_whole_rows: list[bool]
    ) -> Iterable[NDArray[np.int64] | None]:
        """Return the offsets of each step's pieces in padded rows; None if not needed."""
        reader, wide = self.reader, steps.wide
        is_planned = self.joint_targets and reader.transform is None and steps.lanes is not None
        if not is_planned or (wide is not None and reader.unshifted_fields):
            return repeat(None, len(has_whole_rows))
        has_targets = np.array([is_whole or wide is not None for is_whole in has_whole_rows])
        widths = _compute_widths(steps) + has_targets * reader.shift
        return compute_padded_offsets(steps.table if wide is None else wide, widths)


def _make_step(steps: Steps, i: int) -> Step:
    return simplify_rows(steps.step(i))


def make_metadata(step: Step, ids: NDArray[np.int64], plan: Plan, axes: Axes) -> SequenceBatch:
    """Return the metadata of a single step.

    Args:
        step: Its spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        plan: The plan of the step.
        axes: Which field runs along which axis.
    """
    return next(describe_steps(Steps.of_one(step), ids, [step.rows is None], plan, axes))


def describe_steps(
    steps: Steps,
    ids: NDArray[np.int64],
    has_whole_rows: Sequence[bool],
    plan: Plan,
    axes: Axes,
    bounds: Iterable[NDArray[np.int64] | None] = repeat(None),
) -> Iterator[SequenceBatch]:
    """Return the metadata of many steps.

    Args:
        steps: Their spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        has_whole_rows: Whether each step has no segments, since its rows are spans.
        plan: The plan of the steps.
        axes: Which field runs along which axis.
        bounds: Offsets of each step's spans in flat padded rows; None if they are computed later.
    """
    row_ids, start, positions = _describe_first_spans(steps.table, ids)
    context = _compute_context(steps, start, plan)
    rows: dict[str, NDArray[Any]] = {
        "lengths": steps.lengths, "ids": row_ids, "weight": steps.weights, "start": start,
        "positions": positions,
    }  # fmt: skip
    if steps.lanes is not None or plan.overlap:
        rows["burn_in"] = context
    if steps.lanes is not None:
        rows["reset"] = _find_resets(steps, start, plan)
        rows["lanes"] = np.tile(steps.lanes, len(steps.numbers))
    offsets = steps.table.offsets
    num_rows = np.diff(offsets)
    has_even_rows = bool((num_rows == num_rows[0]).all())
    labels = plan.label_parts(steps.numbers) or repeat(_NO_LABEL)
    values = zip(
        steps.numbers,
        zip(*(_split_rows(array, offsets, has_even_rows) for array in rows.values()), strict=True),
        _split_segments(steps.table, ids, has_whole_rows), _count_timesteps(steps, context),
        _compute_widths(steps).tolist(), [plan.lr_scale(number) for number in steps.numbers],
        strict=True,
    )  # fmt: skip
    endless = zip(values, bounds, labels)  # noqa: B905 - bounds and labels may have no end
    for (number, of_rows, segments, tokens, width, scale), starts, label in endless:
        described = dict(zip(rows, of_rows, strict=True))
        described["segments"] = segments
        known = {
            "carry": plan.carry, "overlap": plan.overlap, "axes": axes, "number": number,
            "num_tokens": tokens, "padded_length": width, "lr_scale": scale, "bounds": starts,
        }  # fmt: skip
        if label is not _NO_LABEL:
            known["part"], known["part_epoch"] = _cut_label(label, len(described["lengths"]))
        yield SequenceBatch.described(described, known)


def _add_whole_rows(batch: SequenceBatch, whole_rows: SequenceBatch | None) -> SequenceBatch:
    """Return a batch with the metadata of the rows whose parts it holds."""
    batch.whole = whole_rows
    return batch


def _cut_label(label: PartLabel, rows: int) -> PartLabel:
    """Return the label of so many rows; filler has the first row alone."""
    if not isinstance(label.part, list):
        return label
    return PartLabel(label.part[:rows], cast(list[int], label.epoch)[:rows])


def _split_rows(
    array: NDArray[Any], offsets: NDArray[np.int64], has_even_rows: bool
) -> Iterable[NDArray[Any]]:
    """Return the rows of each step; ``has_even_rows``: all have as many."""
    if has_even_rows:
        parts: Iterable[NDArray[Any]] = array.reshape(len(offsets) - 1, -1)  # faster than slicing
        return parts
    return [array[low:high] for low, high in pairwise(offsets.tolist())]


def _compute_widths(steps: Steps) -> NDArray[np.int64]:
    """Return the padded length of each step, int64 (k,)."""
    offsets = steps.table.offsets
    widths = np.maximum.reduceat(np.append(steps.lengths, 0), offsets[:-1])
    widths[offsets[:-1] == offsets[1:]] = 0  # reduceat returns the next value for an empty slice
    return np.maximum(widths, 1)


def _count_timesteps(steps: Steps, context: NDArray[np.int64]) -> list[int]:
    """Return the number of scored timesteps of each step, in the rows of weight above 0."""
    scored = offsets_from_sizes((steps.lengths - context) * (steps.weights > 0))
    counts: list[int] = np.diff(scored[steps.table.offsets]).tolist()
    return counts


def _describe_first_spans(table: ArrayTable, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return id, start and position of each row's first span, int64 (3, r); else -1, 0, -1."""
    spans = table.spans
    if table.rows is None:
        return np.stack([ids, spans[:, 1], spans[:, 0]])
    firsts, is_filled = table.rows[:-1], table.rows[1:] > table.rows[:-1]
    described = np.empty((3, len(firsts)), dtype=np.int64)
    if is_filled.all():
        first_spans = spans.take(firsts, axis=0)
        described[0], described[1], described[2] = (
            ids.take(firsts), first_spans[:, 1], first_spans[:, 0],
        )  # fmt: skip
        return described
    described.T[:] = -1, 0, -1
    firsts = firsts[is_filled]
    described[:, is_filled] = ids[firsts], spans[firsts, 1], spans[firsts, 0]
    return described


def _split_segments(
    table: ArrayTable, ids: NDArray[np.int64], has_whole_rows: Sequence[bool]
) -> Iterator[NDArray[np.int64] | None]:
    """Return row, id, start and stop of each step's spans, int64 (n, 4); None if rows are spans."""
    if table.rows is None or all(has_whole_rows):
        yield from repeat(None, len(has_whole_rows))
        return
    row_numbers = np.arange(len(table.rows) - 1)
    row_numbers -= np.repeat(table.offsets[:-1], np.diff(table.offsets))  # from 0 in every step
    segments = np.empty((len(table.spans), 4), dtype=np.int64)
    segments[:, 0] = row_numbers.repeat(np.diff(table.rows))
    segments[:, 1], segments[:, 2:] = ids, table.spans[:, 1:]
    bounds = pairwise(table.rows[table.offsets].tolist())
    for (low, high), is_whole_row in zip(bounds, has_whole_rows, strict=True):
        yield None if is_whole_row else segments[low:high]


def _compute_context(steps: Steps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.int64]:
    """Return how many timesteps at the head of each row the lane's previous row scored.

    Args:
        steps: The steps.
        start: int64 (r,), the first timestep of each row in its sequence.
        plan: The plan of the steps.
    """
    if not plan.overlap:
        return np.zeros_like(steps.lengths)
    context: NDArray[np.int64] = np.minimum(steps.lengths, plan.overlap)
    if not plan.carry:
        return np.where(start > 0, context, 0)
    if not steps.numbers[0]:
        context[: steps.table.offsets[1]] = 0
    return context


def _find_resets(steps: Steps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    """Return whether each lane begins a sequence; carried states begin only with the epoch."""
    resets: NDArray[np.bool_] = steps.lengths > 0
    if not plan.carry:
        resets &= start == 0
        return resets
    resets[0 if steps.numbers[0] else steps.table.offsets[1] :] = False
    return resets if steps.skipped is None else resets & (steps.skipped == 0)

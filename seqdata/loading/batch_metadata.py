"""Preparation of steps before any I/O: the request of each, and the metadata of its batch.

Every step, with or without lanes, is described as part of a run of steps, whose arrays are computed
at once: a batch costs views of them. Each tensor has its own part of the memory, so that changing
it in place affects no other batch. Place in the flow: RankPlan -> step requests and metadata ->
pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import PaddedOffsets
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.shifted_stream import (
    compute_padded_offsets,
    find_single_span_rows,
    simplify_rows,
)
from seqdata.loading.step_requests import LinkedSpans, StepRequest
from seqdata.loading.transforms.rng import Occurrences
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable, PartLabel, offsets_from_sizes
from seqdata.protocols import SupportsParts
from seqdata.sharing import RankPlan, RankSteps, Step

_MAX_ROWS = 1 << 13  # of steps that are described at once


class _StepSpans(NamedTuple):
    """The spans of many steps, their base indices, and the offsets of the steps.

    ``is_stream`` is True if they are extended along a stream, as ``RankSteps.extended`` is.
    ``linked`` are the spans of linked axes, if there are any.
    """

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    offsets: list[int]
    is_stream: bool = False
    linked: LinkedSpans | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepPreparer:
    """Prepares the steps of one epoch.

    Attributes:
        reader: Reader of the fields.
        occurrences: Counter of the draws of each sequence; None: nothing is random.
        joint_targets: Whether the collator takes inputs and targets of a shift as one column.
        plans_offsets: Whether the collator takes the offsets of the pieces in padded rows.
        plan: The plan of the epoch.
        epoch: Index of the epoch.
    """

    reader: FieldReader
    occurrences: Occurrences | None
    joint_targets: bool
    plans_offsets: bool
    plan: Plan
    epoch: int

    def prepare_from(self, share: RankPlan, first: int) -> PreparedSteps:
        """Return a step and the next ones that are prepared together with it."""
        return self._prepare_run(share.steps_from(first, _MAX_ROWS))

    def prepare(self, step: Step) -> PreparedStep:
        """Return the preparation of a single step."""
        return self._prepare_run(RankSteps.from_step(step)).prepare(0)

    def _prepare_run(self, steps: RankSteps) -> PreparedSteps:
        extended, has_single_spans = steps.extended, find_single_span_rows(steps)
        step_spans, reader = self._locate_spans(steps.table), self.reader
        if reader.linker is not None:
            linked = reader.follow(step_spans.spans, self.plan.lookahead - reader.shift)
            step_spans = step_spans._replace(linked=linked)
        extended_spans = step_spans
        if extended is not None and not all(has_single_spans):
            extended_spans = self._locate_spans(extended)._replace(is_stream=True)
        uncut_rows = steps.uncut_rows
        whole = None
        if uncut_rows is not None:
            ids = self._find_own_ids(self._locate_spans(uncut_rows.table), uncut_rows)
            whole = self._describe(uncut_rows, ids, find_single_span_rows(uncut_rows))
        own_ids = self._find_own_ids(step_spans, steps)
        return PreparedSteps(
            self, steps, has_single_spans, step_spans, extended_spans,
            self._pad_offsets(steps, has_single_spans),
            self._describe(steps, own_ids, has_single_spans, whole, step_spans),
        )  # fmt: skip

    def _describe(
        self,
        steps: RankSteps,
        ids: NDArray[np.int64],
        has_single_spans: list[bool],
        whole: RunMetadata | None = None,
        step_spans: _StepSpans | None = None,
    ) -> RunMetadata:
        axes, linker = self.reader.axes, self.reader.linker
        run = describe_steps(steps, ids, has_single_spans, self.plan, axes, whole)
        if linker is None or step_spans is None or step_spans.linked is None:
            return run
        context = step_spans.linked
        if self.plan.lookahead > self.reader.shift:  # a horizon, after the context
            context = linker.follow(step_spans.spans, context)
        return replace(run, linked=_describe_linked(steps.table, step_spans.linked, context))

    def _locate_spans(self, table: ArrayTable) -> _StepSpans:
        offsets = table.offsets if table.rows is None else table.rows[table.offsets]
        ids = self.reader.store.base_numbers(table.spans[:, 0])
        return _StepSpans(table.spans, ids, offsets.tolist())

    def _find_own_ids(self, step_spans: _StepSpans, steps: RankSteps) -> NDArray[np.int64]:
        """Return the indices by which batches name sequences: in a mixture those of their part."""
        store = self.reader.store
        if self.plan.label_parts(steps.numbers[:1]) is None or not isinstance(store, SupportsParts):
            return step_spans.ids
        return store.own_numbers(step_spans.spans[:, 0])

    def _pad_offsets(
        self, steps: RankSteps, has_single_spans: list[bool]
    ) -> list[PaddedOffsets] | None:
        """Return the offsets of each step's pieces in padded rows; None if not needed."""
        reader, extended = self.reader, steps.extended
        is_planned = self.plans_offsets and reader.transform is None and steps.lanes is not None
        if not is_planned or (extended is not None and reader.unshifted_fields):
            return None
        has_targets = np.array([is_whole or extended is not None for is_whole in has_single_spans])
        widths = _compute_widths(steps) + has_targets * reader.shift
        offsets = compute_padded_offsets(steps.table if extended is None else extended, widths)
        return list(map(PaddedOffsets, offsets, widths.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSteps:
    """Consecutive steps that are prepared together.

    Attributes:
        preparer: Preparer of the steps.
        steps: The steps.
        has_single_spans: Whether the rows of each step are single spans.
        step_spans: Spans of the steps.
        extended_spans: Spans of the steps, extended along a stream if there is one.
        offsets: Offsets of the pieces of each step in padded rows; None if not known.
        metadata: Metadata of the batches.
    """

    preparer: StepPreparer
    steps: RankSteps
    has_single_spans: list[bool]
    step_spans: _StepSpans
    extended_spans: _StepSpans
    offsets: list[PaddedOffsets] | None
    metadata: RunMetadata

    def __len__(self) -> int:
        return len(self.has_single_spans)

    def prepare(self, i: int) -> PreparedStep:
        """Return step ``i``."""
        preparer, is_single_span = self.preparer, self.has_single_spans[i]
        step_spans = self.step_spans if is_single_span else self.extended_spans
        own = slice(step_spans.offsets[i], step_spans.offsets[i + 1])
        spans = step_spans.spans[own]
        epoch, occurrences = preparer.epoch, None
        labels = self.metadata.labels
        own_epoch = None if labels is None else labels[i].epoch
        if isinstance(own_epoch, int):  # of rows of several parts, draws are told apart below
            epoch = own_epoch
        if preparer.occurrences is not None:
            drawn = preparer.plan.drawn_batch(self.steps.numbers[i])
            if drawn is not None and drawn.epoch is not None:
                epoch = drawn.epoch
            occurrences = preparer.occurrences.number_spans(spans, epoch, drawn)
        request = StepRequest(
            spans=spans, ids=step_spans.ids[own], epoch=epoch,
            horizon=preparer.plan.lookahead - preparer.reader.shift,
            joint_targets=preparer.joint_targets and is_single_span,
            occurrences=occurrences, is_shifted_stream=step_spans.is_stream,
            has_lanes=self.steps.lanes is not None,
        )  # fmt: skip
        if step_spans.linked is not None:
            request.linked = {axis: rows[own] for axis, rows in step_spans.linked.items()}
        return PreparedStep(request, self, i)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStep:
    """One step, before its data is read.

    Attributes:
        request: The spans to read.
        run: The steps that are prepared together with it.
        i: Index of the step in them.
    """

    request: StepRequest
    run: PreparedSteps
    i: int

    @property
    def batch_number(self) -> int:
        """Index of the batch in the plan."""
        return self.run.steps.numbers[self.i]

    def make_step(self) -> Step:
        """Return the step by itself."""
        return simplify_rows(self.run.steps.step(self.i))


def make_metadata(step: Step, ids: NDArray[np.int64], plan: Plan, axes: Axes) -> SequenceBatch:
    """Return the metadata of a single step.

    Args:
        step: The step.
        ids: int64 (n,), base index of each span's sequence.
        plan: The plan of the step.
        axes: Axis of each field.
    """
    return describe_steps(RankSteps.from_step(step), ids, [step.rows is None], plan, axes).batch(0)


@dataclass(frozen=True, slots=True, eq=False)
class RunMetadata:
    """The metadata of the batches of consecutive steps.

    Attributes:
        plan: The plan of the steps.
        axes: Axis of each field.
        numbers: Index of the batch of each step in the plan.
        lengths: int64 (r,), number of timesteps of each row of all steps.
        rows: The other attributes of rows, of all steps.
        row_offsets: Step -> its first row.
        row_spans: Row, id, start and stop of each step's spans, int64 (n, 4), ``batch.segments``;
            None if its rows are single spans.
        num_tokens: Number of scored timesteps of each step.
        num_counted: Number of rows of weight above 0 of each step.
        widths: Padded length of each step.
        lr_scales: Factor of the learning rate of each step.
        labels: Part of a mixture of each step; None without a mixture.
        whole: Metadata of the whole rows, if the steps have a time part of them.
        linked: Linked axis -> int64 (2, r), the first timestep of each row, and the timesteps of
            its context; None without linked axes.
    """

    plan: Plan
    axes: Axes
    numbers: Sequence[int]
    lengths: NDArray[np.int64]
    rows: dict[str, NDArray[Any]]
    row_offsets: list[int]
    row_spans: list[NDArray[np.int64] | None]
    num_tokens: list[int]
    num_counted: list[int]
    widths: list[int]
    lr_scales: list[float]
    labels: list[PartLabel] | None
    whole: RunMetadata | None = None
    linked: Mapping[str, NDArray[np.int64]] | None = None

    def batch(self, i: int) -> SequenceBatch:
        """Return the batch of step ``i``, without data and counts over ranks."""
        own = slice(self.row_offsets[i], self.row_offsets[i + 1])
        batch = SequenceBatch.described(self.lengths[own], (self.rows, own), self.axes)
        batch.carry, batch.overlap = self.plan.carry, self.plan.overlap
        batch.number, batch.num_tokens = self.numbers[i], self.num_tokens[i]
        batch.padded_length, batch.lr_scale = self.widths[i], self.lr_scales[i]
        row_spans = self.row_spans[i]
        if row_spans is not None:
            batch.segments = torch.from_numpy(row_spans)
        if self.labels is not None:
            lanes = self.rows["lanes"][own].tolist() if "lanes" in self.rows else None
            batch.part, batch.part_epoch = _cut_label(self.labels[i], own.stop - own.start, lanes)
        if self.whole is not None:
            batch.whole = self.whole.batch(i)
        if self.linked is not None:
            batch.linked = {axis: rows[:, own] for axis, rows in self.linked.items()}
        return batch


def describe_steps(
    steps: RankSteps,
    ids: NDArray[np.int64],
    has_single_spans: Sequence[bool],
    plan: Plan,
    axes: Axes,
    whole: RunMetadata | None = None,
) -> RunMetadata:
    """Return the metadata of many steps.

    Args:
        steps: Spans, rows and weights of the steps.
        ids: int64 (n,), base index of each span's sequence.
        has_single_spans: Whether the rows of each step are single spans.
        plan: The plan of the steps.
        axes: Axis of each field.
        whole: Metadata of the whole rows, if the steps have a time part of them.
    """
    row_ids, start, positions = _describe_first_spans(steps.table, ids)
    context = _compute_context(steps, start, plan)
    rows: dict[str, NDArray[Any]] = {
        "ids": row_ids, "weight": steps.weights, "start": start, "positions": positions,
    }  # fmt: skip
    if steps.lanes is not None or plan.overlap:
        rows["burn_in"] = context
    if steps.lanes is not None:
        rows["reset"] = _find_resets(steps, start, plan)
        rows["lanes"] = np.tile(steps.lanes, len(steps.numbers))
    return RunMetadata(
        plan, axes, steps.numbers, steps.lengths, rows, steps.table.offsets.tolist(),
        _split_row_spans(steps.table, ids, has_single_spans),
        _sum_steps(steps, (steps.lengths - context) * (steps.weights > 0)),
        _sum_steps(steps, steps.weights > 0), _compute_widths(steps).tolist(),
        list(map(plan.lr_scale, steps.numbers)), plan.label_parts(steps.numbers), whole,
    )  # fmt: skip


def _cut_label(label: PartLabel, rows: int, lanes: list[int] | None) -> PartLabel:
    """Return a label cut to a number of rows, or lanes; a padding row has that of the first row."""
    if not isinstance(label.part, list):
        return label
    if lanes is not None:
        epochs = cast(list[int], label.epoch)
        return PartLabel([label.part[lane] for lane in lanes], [epochs[lane] for lane in lanes])
    return PartLabel(label.part[:rows], cast(list[int], label.epoch)[:rows])


def _compute_widths(steps: RankSteps) -> NDArray[np.int64]:
    """Return the padded length of each step, int64 (k,)."""
    offsets = steps.table.offsets
    widths = np.maximum.reduceat(np.append(steps.lengths, 0), offsets[:-1])
    widths[offsets[:-1] == offsets[1:]] = 0  # reduceat returns the next value for an empty slice
    return np.maximum(widths, 1)


def _sum_steps(steps: RankSteps, values: NDArray[Any]) -> list[int]:
    """Return the sum over the rows of each step."""
    sums: list[int] = np.diff(offsets_from_sizes(values)[steps.table.offsets]).tolist()
    return sums


def _describe_first_spans(table: ArrayTable, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return id, start and position of each row's first span, int64 (3, r); -1, 0, -1 without."""
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


def _describe_linked(
    table: ArrayTable, linked: LinkedSpans, context: LinkedSpans
) -> dict[str, NDArray[np.int64]]:
    """Return linked axis -> first timestep of each row, and timesteps of its context, (2, r)."""
    found = {}
    for axis, spans in linked.items():
        starts, sizes = spans[:, 1], context[axis][:, 2] - context[axis][:, 1]
        if table.rows is not None:
            is_filled, firsts = table.rows[1:] > table.rows[:-1], table.rows[:-1]
            rows = np.zeros(len(firsts), dtype=np.int64)
            rows[is_filled] = starts[firsts[is_filled]]
            sums = offsets_from_sizes(sizes)[table.rows]
            starts, sizes = rows, np.diff(sums)
        found[axis] = np.stack([starts, sizes])
    return found


def _split_row_spans(
    table: ArrayTable, ids: NDArray[np.int64], has_single_spans: Sequence[bool]
) -> list[NDArray[np.int64] | None]:
    """Return row, id, start and stop of each step's spans, int64 (n, 4); None if rows are spans."""
    if table.rows is None or all(has_single_spans):
        return [None] * len(has_single_spans)
    row_numbers = np.arange(len(table.rows) - 1)
    row_numbers -= np.repeat(table.offsets[:-1], np.diff(table.offsets))  # from 0 in every step
    row_spans = np.empty((len(table.spans), 4), dtype=np.int64)
    row_spans[:, 0] = row_numbers.repeat(np.diff(table.rows))
    row_spans[:, 1], row_spans[:, 2:] = ids, table.spans[:, 1:]
    bounds = pairwise(table.rows[table.offsets].tolist())
    return [
        None if is_single_span else row_spans[low:high]
        for (low, high), is_single_span in zip(bounds, has_single_spans, strict=True)
    ]


def _compute_context(steps: RankSteps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.int64]:
    """Return the number of timesteps at the head of each row that an earlier row scored.

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
    begins = plan.lane_begins(steps.numbers)
    if begins is not None and steps.lanes is not None:
        return np.where(begins[:, steps.lanes].reshape(-1), 0, context)
    if not steps.numbers[0]:
        context[: steps.table.offsets[1]] = 0
    return context


def _find_resets(steps: RankSteps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    """Return whether the state of each row is reset; a carried one only where its stream begins."""
    resets: NDArray[np.bool_] = steps.lengths > 0
    begins = plan.lane_begins(steps.numbers)
    if begins is not None and steps.lanes is not None:  # in an epoch's first batch all do
        first = (np.asarray(steps.numbers) == 0)[:, None]
        resets &= (begins[:, steps.lanes] | first).reshape(-1) | ((start == 0) & (not plan.carry))
        return resets if steps.skipped is None else resets & (steps.skipped == 0)
    if not plan.carry:
        resets &= start == 0
        return resets
    resets[0 if steps.numbers[0] else steps.table.offsets[1] :] = False
    return resets if steps.skipped is None else resets & (steps.skipped == 0)

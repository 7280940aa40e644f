"""What is known of a step before it is read: what it asks for, and its batch without data.

Steps of lanes are made many at once, out of a run that is laid out already: a batch costs views.
Place in the flow: RankPlan -> requests and heads -> assembly. Reads: a plan. Makes: both, step by
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.batch import SequenceBatch
from seqdata.loading.batch_metadata import make_metadata
from seqdata.loading.field_reader import FieldReader
from seqdata.loading.lane_metadata import compute_widths, make_lane_metadata
from seqdata.loading.shifted_stream import compute_padded_offsets, find_whole_rows, simplify_rows
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.rng import Occurrences
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable
from seqdata.sharing import RankPlan, Step, Steps

_MAX_ROWS = 1 << 13  # of lanes that are described at once


class PreparedStep(NamedTuple):
    """One step.

    Attributes:
        request: What it asks for.
        metadata: Its batch, without data and counts.
        make_step: Gives the step itself.
    """

    request: StepRequest
    metadata: SequenceBatch
    make_step: Callable[[], Step]


class _StepSpans(NamedTuple):
    """Spans of many steps, their base numbers, and where each step's begin."""

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    offsets: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class StepPreparer:
    """Says what steps ask for, in one epoch.

    Attributes:
        reader: What is read.
        occurrences: Says which drawing of its sequence each span is; None: nothing is drawn.
        joint_targets: Whether the collator pads, and takes inputs and targets of a shift as one
            column.
        plan: Of the epoch.
        epoch: Its number.
    """

    reader: FieldReader
    occurrences: Occurrences | None
    joint_targets: bool
    plan: Plan
    epoch: int

    def prepare_from(self, share: RankPlan, first: int) -> Iterator[PreparedStep]:
        """Yield a step of lanes, and some that follow it: those that are at hand."""
        lanes = self.plan.lanes // share.world.size
        steps = share.steps_from(first, max(1, _MAX_ROWS // max(1, lanes)))
        if steps is None:  # the rank has no lane
            yield self.prepare(share[first])
        else:
            yield from self._prepare_window(steps)

    def prepare(self, step: Step) -> PreparedStep:
        """Return a single step."""
        if step.lanes is not None:
            step = simplify_rows(step)
        spans = step.spans if step.wide is None else step.wide.spans
        base_numbers = self.reader.store.base_numbers
        ids = row_ids = base_numbers(spans[:, 0])
        if step.wide is not None:
            row_ids = base_numbers(step.spans[:, 0])
        request = self._make_request(spans, ids, step.rows is None, step.wide is not None)
        metadata = make_metadata(step, row_ids, self.plan, self.reader.axes)
        return PreparedStep(request, metadata, lambda: step)

    def _prepare_window(self, steps: Steps) -> Iterator[PreparedStep]:
        wide, has_whole_rows = steps.wide, find_whole_rows(steps)
        step_spans = self._locate_spans(steps.table)
        wide_spans = step_spans if wide is None or all(has_whole_rows) else self._locate_spans(wide)
        padded_offsets = self._pad_offsets(steps, has_whole_rows)
        metadata_of_steps = make_lane_metadata(
            steps, step_spans.ids, has_whole_rows, self.plan, self.reader.axes, padded_offsets
        )
        for i, (is_whole_row, metadata) in enumerate(
            zip(has_whole_rows, metadata_of_steps, strict=True)
        ):
            chosen_spans = step_spans if is_whole_row else wide_spans
            rows = slice(chosen_spans.offsets[i], chosen_spans.offsets[i + 1])
            spans, ids = chosen_spans.spans[rows], chosen_spans.ids[rows]
            request = self._make_request(
                spans, ids, is_whole_row, wide is not None and not is_whole_row
            )
            yield PreparedStep(request, metadata, partial(_simplified_step, steps, i))

    def _locate_spans(self, table: ArrayTable) -> _StepSpans:
        offsets = table.offsets if table.rows is None else table.rows[table.offsets]
        ids = self.reader.store.base_numbers(table.spans[:, 0])
        return _StepSpans(table.spans, ids, offsets.tolist())

    def _pad_offsets(
        self, steps: Steps, has_whole_rows: list[bool]
    ) -> Iterable[NDArray[np.int64] | None]:
        """Say where the pieces of each step lie in padded rows; None: the collator works it out."""
        reader, wide = self.reader, steps.wide
        is_planned = self.joint_targets and reader.transform is None
        if not is_planned or (wide is not None and reader.unshifted_fields):
            return repeat(None, len(has_whole_rows))
        has_targets = np.array(
            [is_whole_row or wide is not None for is_whole_row in has_whole_rows]
        )  # with their targets
        return compute_padded_offsets(
            steps.table if wide is None else wide,
            compute_widths(steps) + has_targets * reader.shift,
        )

    def _make_request(
        self,
        spans: NDArray[np.int64],
        ids: NDArray[np.int64],
        is_whole_row: bool,
        is_shifted_stream: bool,
    ) -> StepRequest:
        occurrences = self.occurrences.number_spans(spans, self.epoch) if self.occurrences else None
        return StepRequest(
            spans=spans,
            ids=ids,
            epoch=self.epoch,
            horizon=self.plan.lookahead - self.reader.shift,
            joint_targets=self.joint_targets and is_whole_row,
            occurrences=occurrences,
            is_shifted_stream=is_shifted_stream,
        )


def _simplified_step(steps: Steps, i: int) -> Step:
    return simplify_rows(steps.step(i))

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
from seqdata.loading.batch_metadata import head_of
from seqdata.loading.field_reader import Reading
from seqdata.loading.lane_metadata import heads_of, widths_of
from seqdata.loading.shifted_stream import bounds_of, plain, whole_rows
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.rng import Occurrences
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable
from seqdata.sharing import RankPlan, Step, Steps

_ROWS = 1 << 13  # of lanes that are described at once


class Made(NamedTuple):
    """One step.

    Attributes:
        request: What it asks for.
        head: Its batch, without data and counts.
        step: Gives the step itself.
    """

    request: Request
    head: SequenceBatch
    step: Callable[[], Step]


class _Asked(NamedTuple):
    """Spans of many steps, their base numbers, and where each step's begin."""

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    edges: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """Says what steps ask for, in one epoch.

    Attributes:
        reading: What is read.
        occurrences: Says which drawing of its sequence each span is; None: nothing is drawn.
        together: Whether the collator pads, and takes inputs and targets of a shift as one column.
        plan: Of the epoch.
        epoch: Its number.
    """

    reading: Reading
    occurrences: Occurrences | None
    together: bool
    plan: Plan
    epoch: int

    def steps(self, share: RankPlan, first: int) -> Iterator[Made]:
        """Give a step of lanes, and some that follow it: those that are at hand."""
        lanes = self.plan.lanes // share.world.size
        steps = share.run(first, max(1, _ROWS // max(1, lanes)))
        if steps is None:  # the rank has no lane
            yield self.one(share[first])
        else:
            yield from self._run(steps)

    def one(self, step: Step) -> Made:
        """Give a single step."""
        if step.lanes is not None:
            step = plain(step)
        spans = step.spans if step.wide is None else step.wide.spans
        base = self.reading.store.base_numbers
        ids = own = base(spans[:, 0])
        if step.wide is not None:
            own = base(step.spans[:, 0])
        request = self._request(spans, ids, step.rows is None, step.wide is not None)
        head = head_of(step, own, self.plan, self.reading.axes)
        return Made(request, head, lambda: step)

    def _run(self, steps: Steps) -> Iterator[Made]:
        wide, whole = steps.wide, whole_rows(steps)
        narrow = self._asked(steps.table)
        broad = narrow if wide is None or all(whole) else self._asked(wide)
        bounds = self._bounds(steps, whole)
        heads = heads_of(steps, narrow.ids, whole, self.plan, self.reading.axes, bounds)
        for place, (alone, head) in enumerate(zip(whole, heads, strict=True)):
            asked = narrow if alone else broad
            part = slice(asked.edges[place], asked.edges[place + 1])
            spans, ids = asked.spans[part], asked.ids[part]
            request = self._request(spans, ids, alone, wide is not None and not alone)
            yield Made(request, head, partial(_step, steps, place))

    def _asked(self, table: ArrayTable) -> _Asked:
        edges = table.offsets if table.rows is None else table.rows[table.offsets]
        ids = self.reading.store.base_numbers(table.spans[:, 0])
        return _Asked(table.spans, ids, edges.tolist())

    def _bounds(self, steps: Steps, whole: list[bool]) -> Iterable[NDArray[np.int64] | None]:
        """Say where the pieces of each step lie in padded rows; None: the collator works it out."""
        reading, wide = self.reading, steps.wide
        planned = self.together and reading.transform is None
        if not planned or (wide is not None and reading.plain):
            return repeat(None, len(whole))
        joined = np.array([alone or wide is not None for alone in whole])  # with their targets
        return bounds_of(
            steps.table if wide is None else wide, widths_of(steps) + joined * reading.shift
        )

    def _request(
        self, spans: NDArray[np.int64], ids: NDArray[np.int64], alone: bool, streamed: bool
    ) -> Request:
        drawn = self.occurrences.of(spans, self.epoch) if self.occurrences else None
        return Request(
            spans=spans, ids=ids, epoch=self.epoch,
            horizon=self.plan.lookahead - self.reading.shift,
            together=self.together and alone, occurrences=drawn, streamed=streamed,
        )  # fmt: skip


def _step(steps: Steps, place: int) -> Step:
    return plain(steps.step(place))

"""A plan of lanes as a table: many steps are laid out at once when one of them is asked for.

A lane policy's ``Lanes`` say which spans any run of steps holds; a few runs are kept, so that a
batch is a slice. Place in the flow: below policy ``tbptt``; a BatchTable of ``plan``. Makes:
batches of spans, and their totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, PlanBatch, running

_ROWS = 1 << 14  # of a run
_KEPT_RUNS = 3


class Lanes(Protocol):
    """What each lane reads in each step."""

    @property
    def steps(self) -> int:
        """Steps of the epoch."""
        ...

    @property
    def lanes(self) -> int:
        """Lanes of a step."""
        ...

    def laid_out(self, first: int, stop: int) -> ArrayTable:
        """Give steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        ...

    def scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the timesteps that are scored before each of some steps, int64 (k,)."""
        ...

    def live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the rows before each of some steps that are not idle, int64 (k,)."""
        ...

    def widened(self, first: int, stop: int) -> ArrayTable | None:
        """Give steps ``first:stop`` with rows that go on along a stream; None: no row does."""
        ...

    def scale(self, step: int) -> float:
        """Give the length of a step's chunks over the usual one."""
        ...


class Run(NamedTuple):
    """Steps that are laid out.

    Attributes:
        first: The first of them.
        table: Their rows.
        scored: Timesteps that are scored before each of them, and before the one behind them.
        live: Rows that are not idle before each of them, and before the one behind them.
        wide: Their rows, longer along a stream; None: no row is.
    """

    first: int
    table: ArrayTable
    wide: ArrayTable | None
    scored: list[int]
    live: list[int]


@dataclass(frozen=True, eq=False, slots=True)
class RunTable:
    """The batches of an epoch, laid out a run of steps at a time.

    Attributes:
        lanes: What each lane reads.
        size: Steps of a run.
    """

    lanes: Lanes
    size: int
    _recent: dict[int, Run] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return self.lanes.steps

    def batch(self, number: int) -> PlanBatch:
        """Give one batch: a slice of its run."""
        run = self._run(number // self.size)
        return run.table.batch(number - run.first)

    def part(self, first: int, stop: int) -> ArrayTable:
        """Give batches ``first:stop`` of one run as a table of their own."""
        run = self._run(first // self.size)
        return run.table.part(first - run.first, stop - run.first)

    def widened(self, first: int, stop: int) -> ArrayTable | None:
        """Give batches of one run with rows that go on along a stream; None: no row does."""
        run = self._run(first // self.size)
        return None if run.wide is None else run.wide.part(first - run.first, stop - run.first)

    def scale(self, number: int) -> float:
        """Give the length of a batch's chunks over the usual one."""
        return self.lanes.scale(number)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Give scored timesteps and rows that are not idle of batches ``first:stop``."""
        del overlap  # the lanes know their own
        if first >= stop:
            return 0, 0
        if first // self.size == (stop - 1) // self.size:
            run = self._run(first // self.size)
            low, high = first - run.first, stop - run.first
            return run.scored[high] - run.scored[low], run.live[high] - run.live[low]
        edges = np.array([first, stop])
        scored, live = self.lanes.scored(edges), self.lanes.live(edges)
        return int(scored[1] - scored[0]), int(live[1] - live[0])

    def tables(self) -> Iterator[ArrayTable]:
        """Give all batches in order, a run after another; they are not kept."""
        for first in range(0, len(self), self.size):
            yield self.lanes.laid_out(first, min(first + self.size, len(self)))

    def prepare(self, number: int) -> int:
        """Lay out a batch's run; give the first batch behind it."""
        place = number // self.size
        self._run(place)
        return min((place + 1) * self.size, len(self))

    def _run(self, place: int) -> Run:
        run = self._recent.get(place)
        if run is None:
            first = place * self.size
            stop = min(first + self.size, len(self))
            edges = np.arange(first, stop + 1)
            scored, live = self.lanes.scored(edges).tolist(), self.lanes.live(edges).tolist()
            lanes = self.lanes
            table, wide = lanes.laid_out(first, stop), lanes.widened(first, stop)
            run = Run(first, table, wide, scored, live)
            for old in list(self._recent)[: 1 - _KEPT_RUNS]:  # a reader thread may do the same
                self._recent.pop(old, None)
            self._recent[place] = run
        return run


def run_table(lanes: Lanes) -> RunTable:
    """Give a table whose runs hold about as many rows, however many lanes there are."""
    return RunTable(lanes, max(1, _ROWS // max(1, lanes.lanes)))


def steps_of_rows(lanes: int, steps: int) -> NDArray[np.int64]:
    """Give where each of some steps begins, int64 (steps+1,): every lane has a row."""
    return np.arange(steps + 1) * lanes


def live_before(loads: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the rows before each of some steps, int64 (k,), of lanes that end after ``loads``.

    Args:
        loads: int64 (L,), steps of each lane.
        steps: int64 (k,).
    """
    ranked = np.sort(loads)
    sums = running(ranked)
    ended = np.searchsorted(ranked, steps)  # lanes that are over by then
    return sums[ended] + (len(ranked) - ended) * steps

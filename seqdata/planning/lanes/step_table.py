"""A plan of lanes as a table: when a step is asked for, many are computed at once.

The ``LaneSchedule`` of a policy returns the spans of any run of steps; a few runs are kept, so that
a batch is a slice.

Chunks are the pieces in which a lane reads long sequences. Chunk j begins at ``j * advance``;
neighbours overlap by ``chunk - advance``, and every chunk but the first ends with new timesteps.
Uneven chunks have the same lengths in all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, BatchTable, PlanBatch, offsets_from_sizes

_WINDOW_ROWS = 1 << 14  # of a run
_CACHED_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of one length.

    Attributes:
        chunk: Maximum number of timesteps of a chunk.
        advance: Timesteps from the start of a chunk to the start of the next.
    """

    chunk: int
    advance: int

    @property
    def overlap(self) -> int:
        """Timesteps that a chunk shares with the one before."""
        return self.chunk - self.advance

    def count_chunks(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of chunks of sequences of at least one timestep, int64 (n,)."""
        return 1 + np.maximum(0, -((self.chunk - lengths) // self.advance))

    def count_scored(
        self, chunk_counts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the timesteps that the first ``chunk_counts`` chunks score, int64 (n,)."""
        reached = chunk_counts * self.advance + self.overlap
        return np.where(chunk_counts > 0, np.minimum(reached, lengths), 0)

    def offsets_before(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timesteps of a lane that are read before each of some steps, int64 (k,)."""
        return np.where(steps > 0, steps * self.advance + self.overlap, 0)

    def scale(self, step: int) -> float:
        """Return the ratio of the length of a step's chunks to the usual one."""
        del step  # all are equal
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class UnevenChunks:
    """Chunks of various lengths, without overlap.

    Attributes:
        chunk: The usual length.
        offsets: int64 (steps+1,), running sums of the lengths.
    """

    chunk: int
    offsets: NDArray[np.int64]

    @property
    def overlap(self) -> int:
        """Timesteps that a chunk shares with the one before: 0."""
        return 0

    def count_chunks(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of chunks of lanes of some lengths, int64 (n,)."""
        return np.searchsorted(self.offsets, lengths)

    def offsets_before(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timesteps of a lane that are read before each of some steps, int64 (k,)."""
        return self.offsets[steps]

    def scale(self, step: int) -> float:
        """Return the ratio of the length of a step's chunks to the usual one."""
        return int(self.offsets[step + 1] - self.offsets[step]) / self.chunk


class LaneSchedule(Protocol):
    """The spans of each lane in each step."""

    @property
    def steps(self) -> int:
        """Steps of the epoch."""
        ...

    @property
    def lanes(self) -> int:
        """Lanes of a step."""
        ...

    def lay_out(self, first: int, stop: int) -> ArrayTable:
        """Return steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        ...

    def count_scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timesteps that are scored before each of some steps, int64 (k,)."""
        ...

    def count_live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows before each of some steps that are not idle, int64 (k,)."""
        ...

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return steps ``first:stop`` whose rows continue along a stream; None if no row does."""
        ...

    def scale(self, step: int) -> float:
        """Return the ratio of the length of a step's chunks to the usual one."""
        ...


class StepWindow(NamedTuple):
    """A run of computed steps.

    Attributes:
        first: The first step.
        table: Rows of the steps.
        extended: Rows of the steps, extended along a stream; None: no row is.
        scored: Timesteps that are scored before each step, and before the step after the run.
        live: Rows that are not idle before each step, and before the step after the run.
    """

    first: int
    table: ArrayTable
    extended: ArrayTable | None
    scored: list[int]
    live: list[int]


@dataclass(frozen=True, eq=False, slots=True)
class StepTable(BatchTable):
    """The batches of an epoch, computed a run of steps at a time.

    Attributes:
        schedule: Spans of each lane in each step.
        window_size: Number of steps of a run.
    """

    schedule: LaneSchedule
    window_size: int
    _cache: dict[int, StepWindow] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return self.schedule.steps

    def batch(self, number: int) -> PlanBatch:
        """Return one batch: a slice of its run."""
        window = self._window(number // self.window_size)
        return window.table.batch(number - window.first)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        window = self._window(first // self.window_size)
        return window.table.slice(first - window.first, stop - window.first)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return batches of one run with rows that continue along a stream; None if no row does."""
        window = self._window(first // self.window_size)
        if window.extended is None:
            return None
        return window.extended.slice(first - window.first, stop - window.first)

    def scale(self, number: int) -> float:
        """Return the ratio of the length of a batch's chunks to the usual one."""
        return self.schedule.scale(number)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return scored timesteps and rows that are not idle of batches ``first:stop``."""
        del overlap  # known to the schedule
        if first >= stop:
            return 0, 0
        if first // self.window_size == (stop - 1) // self.window_size:
            window = self._window(first // self.window_size)
            low, high = first - window.first, stop - window.first
            return window.scored[high] - window.scored[low], window.live[high] - window.live[low]
        bounds = np.array([first, stop])
        scored, live = self.schedule.count_scored(bounds), self.schedule.count_live(bounds)
        return int(scored[1] - scored[0]), int(live[1] - live[0])

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, run by run, without caching them."""
        for first in range(0, len(self), self.window_size):
            yield self.schedule.lay_out(first, min(first + self.window_size, len(self)))

    def prepare(self, number: int) -> int:
        """Compute a batch's run; return the first batch after it."""
        window_number = number // self.window_size
        self._window(window_number)
        return min((window_number + 1) * self.window_size, len(self))

    def _window(self, window_number: int) -> StepWindow:
        window = self._cache.get(window_number)
        if window is None:
            first = window_number * self.window_size
            stop = min(first + self.window_size, len(self))
            steps = np.arange(first, stop + 1)
            scored, live = (
                self.schedule.count_scored(steps).tolist(),
                self.schedule.count_live(steps).tolist(),
            )
            schedule = self.schedule
            table, extended = schedule.lay_out(first, stop), schedule.extend(first, stop)
            window = StepWindow(first, table, extended, scored, live)
            for old in list(self._cache)[: 1 - _CACHED_WINDOWS]:  # a reader thread may do the same
                self._cache.pop(old, None)
            self._cache[window_number] = window
        return window


def make_step_table(schedule: LaneSchedule) -> StepTable:
    """Return a table whose runs have about the same number of rows for any number of lanes."""
    return StepTable(schedule, max(1, _WINDOW_ROWS // max(1, schedule.lanes)))


def make_step_offsets(lanes: int, steps: int) -> NDArray[np.int64]:
    """Return the offsets of steps, int64 (steps+1,): every lane has a row."""
    return np.arange(steps + 1) * lanes


def count_live_before(loads: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of rows before each of some steps, int64 (k,).

    Args:
        loads: int64 (L,), number of steps of each lane.
        steps: int64 (k,), the steps.
    """
    ranked = np.sort(loads)
    offsets = offsets_from_sizes(ranked)
    ended = np.searchsorted(ranked, steps)  # lanes that have ended by then
    return offsets[ended] + (len(ranked) - ended) * steps

"""Plans of lanes as tables: when a step is asked for, many are computed at once.

The ``LaneSchedule`` of a policy returns the spans of any run of steps; a few runs are kept, so that
a batch is a slice. A lane reads a run of a stream of concatenated sequences, or one sequence after
another. A row of a stream may hold several sequences: lane j is a range ``lane_offsets[j:j+2]`` of
the stream, a column or the sequences that were packed into it. Queued sequences have a row of their
own for every chunk.

Chunks are the pieces in which a lane reads long sequences. Chunk j begins at ``j * advance``;
neighbours overlap by ``chunk - advance``, and every chunk but the first ends with new timesteps.
Uneven chunks have the same lengths in all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

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
        """Number of steps of the epoch."""
        ...

    @property
    def lanes(self) -> int:
        """Number of lanes of a step."""
        ...

    def lay_out(self, first: int, stop: int) -> ArrayTable:
        """Return steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        ...

    def count_scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timesteps that are scored before each of some steps, int64 (k,)."""
        ...

    def count_live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of non-idle rows before each of some steps, int64 (k,)."""
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
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
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


@dataclass(frozen=True, eq=False, slots=True)
class StreamLanes:
    """Lanes that are runs of a stream; made by ``make_stream_lanes``.

    Attributes:
        chunks: Chunks of every lane.
        steps: Number of steps of the epoch.
        numbers: Integers (n,), the sequences in the order of the stream.
        offsets: int64 (n+1,), start of each sequence in the stream, and the end.
        lane_offsets: int64 (L+1,), lane -> timesteps of the stream.
        loads: int64 (L,), number of steps of each lane.
        lookahead: Timesteps of the stream that are read past every row, for shifted targets.
    """

    chunks: Chunks | UnevenChunks
    steps: int
    numbers: NDArray[Any]
    offsets: NDArray[np.int64]
    lane_offsets: NDArray[np.int64]
    loads: NDArray[np.int64]
    lookahead: int

    @property
    def lanes(self) -> int:
        """Number of lanes of a step."""
        return len(self.loads)

    def lay_out(self, first: int, stop: int) -> ArrayTable:
        """Return steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        return self._make_table(first, stop, 0)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return steps ``first:stop`` with rows longer by ``lookahead``; None if that is 0."""
        return self._make_table(first, stop, self.lookahead) if self.lookahead else None

    def count_scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of timesteps scored before each of some steps, int64 (k,)."""
        reached = np.minimum(self.chunks.offsets_before(steps)[:, None], np.diff(self.lane_offsets))
        total: NDArray[np.int64] = reached.sum(axis=1)
        return total

    def count_live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of non-idle rows before each of some steps, int64 (k,)."""
        return count_live_before(self.loads, steps)

    def scale(self, step: int) -> float:
        """Return the ratio of the length of a step's chunks to the usual one."""
        return self.chunks.scale(step)

    def _make_table(self, first: int, stop: int, lookahead: int) -> ArrayTable:
        steps = np.arange(first, stop + 1)
        begin, end, low, high = self._row_bounds(steps, lookahead)
        is_live = (steps[:-1, None] < self.loads).reshape(-1)
        offsets = make_step_offsets(self.lanes, stop - first)
        if is_live.all():
            return ArrayTable(
                self._make_spans(begin, end, low, high), offsets_from_sizes(high - low), offsets
            )
        sizes = np.where(is_live, high - low, 1)
        rows = offsets_from_sizes(sizes)
        spans = np.zeros((int(rows[-1]), 3), dtype=np.int64)
        pieces = self._make_spans(begin[is_live], end[is_live], low[is_live], high[is_live])
        spans[np.repeat(is_live, sizes)] = pieces
        return ArrayTable(spans, rows, offsets)

    def _row_bounds(
        self, steps: NDArray[np.int64], lookahead: int
    ) -> tuple[NDArray[np.int64], ...]:
        """Return begin, end, first sequence and one past the last of rows, int64 (rows,) each."""
        read_before = self.chunks.offsets_before(steps)[:, None]
        reached = np.minimum(
            read_before + self.lane_offsets[:-1], self.lane_offsets[1:]
        )  # (steps + 1, L)
        end = reached[1:].reshape(-1)
        if not self.chunks.overlap:  # a row begins where the row before it in its lane ends
            begin = reached[:-1].reshape(-1)
            within = self._search(reached, "right") - 1
            low, last = within[: -self.lanes], within[self.lanes :]
            if not lookahead:
                return begin, end, low, last + (self.offsets[last] < end)
        else:
            row_starts = (
                np.maximum(read_before[:-1] - self.chunks.overlap, 0) + self.lane_offsets[:-1]
            )
            begin, low = row_starts.reshape(-1), self._search(row_starts, "right") - 1
        end = end + lookahead
        return begin, end, low, self._search(end.reshape(-1, self.lanes), "left")

    def _search(
        self, timesteps: NDArray[np.int64], side: Literal["left", "right"]
    ) -> NDArray[np.int64]:
        """Return the sequence of each timestep (steps, L) of the stream, int64 (steps * L,)."""
        by_lane = np.ascontiguousarray(timesteps.T)  # increasing: neighbours are found fast
        found = np.searchsorted(self.offsets, by_lane.reshape(-1), side=side)
        return found.reshape(by_lane.shape).T.reshape(-1)

    def _make_spans(
        self, begin: NDArray[np.int64], end: NDArray[np.int64], low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Return spans of runs of the stream that lie in sequences ``low:high``, int64 (n, 3)."""
        sizes = high - low
        offsets = offsets_from_sizes(sizes)
        positions = np.arange(int(offsets[-1])) + np.repeat(low - offsets[:-1], sizes)
        spans = np.empty((len(positions), 3), dtype=np.int64)
        spans[:, 0] = self.numbers[positions]
        spans[:, 1] = 0  # whole sequences, except at both ends of a run
        np.subtract(self.offsets[1:][positions], self.offsets[positions], out=spans[:, 2])
        spans[offsets[:-1], 1] = begin - self.offsets[low]
        spans[offsets[1:] - 1, 2] = end - self.offsets[high - 1]
        return spans


def make_stream_lanes(
    numbers: NDArray[Any], offsets: NDArray[np.int64], lane_offsets: NDArray[np.int64],
    chunks: Chunks | UnevenChunks, lookahead: int = 0,
) -> StreamLanes:  # fmt: skip
    """Cut a stream into lanes.

    Args:
        numbers: Integers (n,), the sequences in the order of the stream, none of them empty.
        offsets: int64 (n+1,), start of each sequence in the stream, and the end.
        lane_offsets: int64 (L+1,), lane -> timesteps of the stream.
        chunks: Chunks of every lane.
        lookahead: Timesteps that are read past every row.
    """
    widths = np.diff(lane_offsets)
    loads = np.where(widths > 0, chunks.count_chunks(np.maximum(widths, 1)), 0)
    return StreamLanes(
        chunks, int(loads.max()), numbers, offsets, lane_offsets, loads.astype(np.int64), lookahead
    )


def make_column_offsets(timesteps: int, lanes: int) -> NDArray[np.int64]:
    """Return the offsets of equal columns of a stream, int64 (lanes+1,): ``floor(j*N/L)``."""
    return np.arange(lanes + 1) * timesteps // lanes


@dataclass(frozen=True, eq=False, slots=True)
class QueuedLanes:
    """Lanes that read one sequence after another; made by ``make_queued_lanes``.

    Attributes:
        chunks: Chunks of sequences.
        steps: Number of steps of the epoch.
        numbers: Integers (n,), the sequences, lane after lane.
        first_steps: Integers (n,), first step of each sequence, plus ``lane * steps``.
        offsets: int64 (n+1,), cumulative timesteps of the sequences.
        lane_offsets: int64 (L+1,), lane -> sequences.
        loads: int64 (L,), number of steps of each lane.
    """

    chunks: Chunks
    steps: int
    numbers: NDArray[Any]
    first_steps: NDArray[Any]
    offsets: NDArray[np.int64]
    lane_offsets: NDArray[np.int64]
    loads: NDArray[np.int64]

    @property
    def lanes(self) -> int:
        """Number of lanes of a step."""
        return len(self.loads)

    def lay_out(self, first: int, stop: int) -> ArrayTable:
        """Return steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        steps = np.arange(first, stop)
        positions, chunk_numbers = self._locate(steps)
        starts = chunk_numbers * self.chunks.advance
        spans = np.empty((len(steps), self.lanes, 3), dtype=np.int64)
        by_lane = spans.transpose(1, 0, 2)
        by_lane[..., 0] = self.numbers[positions]
        by_lane[..., 1] = starts
        lengths = self.offsets[positions + 1] - self.offsets[positions]
        np.minimum(starts + self.chunks.chunk, lengths, out=by_lane[..., 2])
        by_lane[steps >= self.loads[:, None]] = 0
        return ArrayTable(spans.reshape(-1, 3), None, make_step_offsets(self.lanes, len(steps)))

    def count_scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of timesteps scored before each of some steps, int64 (k,)."""
        positions, chunk_numbers = self._locate(steps)
        lengths = self.offsets[positions + 1] - self.offsets[positions]
        read_before = self.offsets[positions] - self.offsets[self.lane_offsets[:-1]][:, None]
        reached = read_before + self.chunks.count_scored(chunk_numbers, lengths)
        lane_totals = (self.offsets[self.lane_offsets[1:]] - self.offsets[self.lane_offsets[:-1]])[
            :, None
        ]
        total: NDArray[np.int64] = np.where(steps < self.loads[:, None], reached, lane_totals).sum(
            axis=0
        )
        return total

    def count_live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of non-idle rows before each of some steps, int64 (k,)."""
        return count_live_before(self.loads, steps)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return None: every span is extended by itself."""
        del first, stop
        return None

    def scale(self, step: int) -> float:
        """Return the ratio of the length of a step's chunks to the usual one."""
        return self.chunks.scale(step)

    def _locate(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return sequence and chunk of each lane in each step, int64 (L, k) each.

        The entries of idle lanes are arbitrary.
        """
        keys = np.minimum(steps, self.steps - 1) + np.arange(self.lanes)[:, None] * self.steps
        positions = (
            np.searchsorted(self.first_steps, keys.astype(self.first_steps.dtype), side="right") - 1
        )
        positions = np.maximum(positions, 0)
        return positions, keys - self.first_steps[positions]


def make_queued_lanes(
    numbers: NDArray[Any],
    lengths: NDArray[np.int64],
    lane_offsets: NDArray[np.int64],
    chunks: Chunks,
    steps: int,
) -> QueuedLanes:
    """Return lanes that read sequences one after another.

    Args:
        numbers: Integers (n,), the sequences, lane after lane.
        lengths: int64 (n,), lengths of these sequences.
        lane_offsets: int64 (L+1,), lane -> sequences.
        chunks: Chunks of sequences.
        steps: Number of steps of the epoch: that of the longest lane.
    """
    lanes = len(lane_offsets) - 1
    chunk_offsets = offsets_from_sizes(chunks.count_chunks(lengths))
    loads = chunk_offsets[lane_offsets[1:]] - chunk_offsets[lane_offsets[:-1]]
    shift = np.arange(lanes) * steps - chunk_offsets[lane_offsets[:-1]]
    first_steps = chunk_offsets[:-1] + np.repeat(shift, np.diff(lane_offsets))
    dtype = np.int32 if lanes * steps < 1 << 31 else np.int64
    return QueuedLanes(
        chunks,
        steps,
        numbers,
        first_steps.astype(dtype),
        offsets_from_sizes(lengths),
        lane_offsets,
        loads,
    )

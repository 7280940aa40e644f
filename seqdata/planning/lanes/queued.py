"""Lanes that read one sequence after another, every chunk a row of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, offsets_from_sizes
from seqdata.planning.lanes.step_table import Chunks, count_live_before, make_step_offsets


@dataclass(frozen=True, eq=False, slots=True)
class QueuedLanes:
    """One sequence behind another in every lane; made by ``make_queued_lanes``.

    Attributes:
        chunks: How sequences are cut.
        steps: Steps of the epoch.
        numbers: Integers (n,), the sequences, lane after lane.
        first_steps: Integers (n,), step at which each begins, ``lane * steps`` further.
        offsets: int64 (n+1,), running sums of their timesteps.
        lane_offsets: int64 (L+1,), lane -> sequences.
        loads: int64 (L,), steps of each lane.
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
        """Lanes of a step."""
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
        """Return the timesteps that are scored before each of some steps, int64 (k,)."""
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
        """Return the rows before each of some steps that are not idle, int64 (k,)."""
        return count_live_before(self.loads, steps)

    def widen(self, first: int, stop: int) -> ArrayTable | None:
        """Return None: every span is widened by itself."""
        del first, stop
        return None

    def scale(self, step: int) -> float:
        """Return the length of a step's chunks over the usual one."""
        return self.chunks.scale(step)

    def _locate(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sequence of each lane in each step and which chunk of it, int64 (L, k) each.

        Those of an idle lane are arbitrary.
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
        lengths: int64 (n,), their timesteps.
        lane_offsets: int64 (L+1,), lane -> sequences.
        chunks: How they are cut.
        steps: Steps of the epoch; no lane has more.
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

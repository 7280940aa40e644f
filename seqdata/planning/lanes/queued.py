"""Lanes that read one sequence after another, every chunk a row of its own.

Place in the flow: queues of ``lanes`` -> ``running``. Reads: queues. Makes: spans of any steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, running
from seqdata.planning.lanes.chunks import Chunks
from seqdata.planning.lanes.step_table import live_before, steps_of_rows


@dataclass(frozen=True, eq=False, slots=True)
class QueuedLanes:
    """One sequence behind another in every lane; made by ``queued``.

    Attributes:
        chunks: How sequences are cut.
        steps: Steps of the epoch.
        numbers: Integers (n,), the sequences, lane behind lane.
        begins: Integers (n,), step at which each begins, ``lane * steps`` further.
        ends: int64 (n+1,), running sums of their timesteps.
        edges: int64 (L+1,), lane -> sequences.
        loads: int64 (L,), steps of each lane.
    """

    chunks: Chunks
    steps: int
    numbers: NDArray[Any]
    begins: NDArray[Any]
    ends: NDArray[np.int64]
    edges: NDArray[np.int64]
    loads: NDArray[np.int64]

    @property
    def lanes(self) -> int:
        """Lanes of a step."""
        return len(self.loads)

    def laid_out(self, first: int, stop: int) -> ArrayTable:
        """Give steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        steps = np.arange(first, stop)
        places, parts = self._find(steps)
        starts = parts * self.chunks.advance
        spans = np.empty((len(steps), self.lanes, 3), dtype=np.int64)
        by_lane = spans.transpose(1, 0, 2)
        by_lane[..., 0] = self.numbers[places]
        by_lane[..., 1] = starts
        lengths = self.ends[places + 1] - self.ends[places]
        np.minimum(starts + self.chunks.chunk, lengths, out=by_lane[..., 2])
        by_lane[steps >= self.loads[:, None]] = 0
        return ArrayTable(spans.reshape(-1, 3), None, steps_of_rows(self.lanes, len(steps)))

    def scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the timesteps that are scored before each of some steps, int64 (k,)."""
        places, parts = self._find(steps)
        lengths = self.ends[places + 1] - self.ends[places]
        before = self.ends[places] - self.ends[self.edges[:-1]][:, None]
        reached = before + self.chunks.scored(parts, lengths)
        whole = (self.ends[self.edges[1:]] - self.ends[self.edges[:-1]])[:, None]
        total: NDArray[np.int64] = np.where(steps < self.loads[:, None], reached, whole).sum(axis=0)
        return total

    def live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the rows before each of some steps that are not idle, int64 (k,)."""
        return live_before(self.loads, steps)

    def widened(self, first: int, stop: int) -> ArrayTable | None:
        """Give None: every span is widened by itself."""
        del first, stop
        return None

    def scale(self, step: int) -> float:
        """Give the length of a step's chunks over the usual one."""
        return self.chunks.scale(step)

    def _find(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the sequence of each lane in each step and which chunk of it, int64 (L, k) each.

        Of a lane that is idle they are those of any sequence.
        """
        keys = np.minimum(steps, self.steps - 1) + np.arange(self.lanes)[:, None] * self.steps
        places = np.searchsorted(self.begins, keys.astype(self.begins.dtype), side="right") - 1
        places = np.maximum(places, 0)
        return places, keys - self.begins[places]


def queued(
    numbers: NDArray[Any], lengths: NDArray[np.int64], edges: NDArray[np.int64], chunks: Chunks,
    steps: int,
) -> QueuedLanes:  # fmt: skip
    """Lay sequences out behind one another.

    Args:
        numbers: Integers (n,), the sequences, lane behind lane.
        lengths: int64 (n,), their timesteps.
        edges: int64 (L+1,), lane -> sequences.
        chunks: How they are cut.
        steps: Steps of the epoch; no lane has more.
    """
    lanes = len(edges) - 1
    taken = running(chunks.counts(lengths))
    loads = taken[edges[1:]] - taken[edges[:-1]]
    shift = np.arange(lanes) * steps - taken[edges[:-1]]
    begins = taken[:-1] + np.repeat(shift, np.diff(edges))
    kind = np.int32 if lanes * steps < 1 << 31 else np.int64
    return QueuedLanes(chunks, steps, numbers, begins.astype(kind), running(lengths), edges, loads)

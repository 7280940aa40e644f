"""Lanes that are runs of one stream: sequences laid end to end, a row may hold several.

Lane j is ``edges[j]:edges[j+1]`` of the stream: equal columns, or the sequences that were packed
into it. Place in the flow: policy ``tbptt`` -> ``running``. Reads: lengths. Makes: spans of any
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import ArrayTable, running
from seqdata.planning.lanes.chunks import Chunks, UnevenChunks
from seqdata.planning.lanes.step_table import live_before, steps_of_rows


@dataclass(frozen=True, eq=False, slots=True)
class StreamLanes:
    """Runs of a stream; made by ``streamed``.

    Attributes:
        chunks: How every lane is cut.
        steps: Steps of the epoch.
        numbers: Integers (n,), the sequences in the order of the stream.
        begins: int64 (n+1,), where each begins in the stream, and the end.
        edges: int64 (L+1,), lane -> timesteps of the stream.
        loads: int64 (L,), steps of each lane.
        ahead: Timesteps of the stream that are read past every row, for shifted targets.
    """

    chunks: Chunks | UnevenChunks
    steps: int
    numbers: NDArray[Any]
    begins: NDArray[np.int64]
    edges: NDArray[np.int64]
    loads: NDArray[np.int64]
    ahead: int

    @property
    def lanes(self) -> int:
        """Lanes of a step."""
        return len(self.loads)

    def laid_out(self, first: int, stop: int) -> ArrayTable:
        """Give steps ``first:stop``, a row per lane; an idle lane has a span 0, 0, 0."""
        return self._cut(first, stop, 0)

    def widened(self, first: int, stop: int) -> ArrayTable | None:
        """Give the same with rows that go on ``ahead`` timesteps; None where that is 0."""
        return self._cut(first, stop, self.ahead) if self.ahead else None

    def scored(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the timesteps that are scored before each of some steps, int64 (k,)."""
        reached = np.minimum(self.chunks.edges(steps)[:, None], np.diff(self.edges))
        total: NDArray[np.int64] = reached.sum(axis=1)
        return total

    def live(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the rows before each of some steps that are not idle, int64 (k,)."""
        return live_before(self.loads, steps)

    def scale(self, step: int) -> float:
        """Give the length of a step's chunks over the usual one."""
        return self.chunks.scale(step)

    def _cut(self, first: int, stop: int, ahead: int) -> ArrayTable:
        steps = np.arange(first, stop + 1)
        begin, end, low, high = self._rows(steps, ahead)
        live = (steps[:-1, None] < self.loads).reshape(-1)
        offsets = steps_of_rows(self.lanes, stop - first)
        if live.all():
            return ArrayTable(self._pieces(begin, end, low, high), running(high - low), offsets)
        sizes = np.where(live, high - low, 1)
        rows = running(sizes)
        spans = np.zeros((int(rows[-1]), 3), dtype=np.int64)
        pieces = self._pieces(begin[live], end[live], low[live], high[live])
        spans[np.repeat(live, sizes)] = pieces
        return ArrayTable(spans, rows, offsets)

    def _rows(self, steps: NDArray[np.int64], ahead: int) -> tuple[NDArray[np.int64], ...]:
        """Give begin, end, first sequence and one past the last of rows, int64 (rows,) each."""
        edges = self.chunks.edges(steps)[:, None]
        reached = np.minimum(edges + self.edges[:-1], self.edges[1:])  # (steps + 1, L)
        end = reached[1:].reshape(-1)
        if not self.chunks.overlap:  # a row begins where the one before it in its lane ends
            begin = reached[:-1].reshape(-1)
            within = self._found(reached, "right") - 1
            low, last = within[: -self.lanes], within[self.lanes :]
            if not ahead:
                return begin, end, low, last + (self.begins[last] < end)
        else:
            begun = np.maximum(edges[:-1] - self.chunks.overlap, 0) + self.edges[:-1]
            begin, low = begun.reshape(-1), self._found(begun, "right") - 1
        end = end + ahead
        return begin, end, low, self._found(end.reshape(-1, self.lanes), "left")

    def _found(self, at: NDArray[np.int64], side: Literal["left", "right"]) -> NDArray[np.int64]:
        """Find timesteps (steps, L) among where sequences begin, int64 (steps * L,)."""
        by_lane = np.ascontiguousarray(at.T)  # rising: neighbours are found fast
        found = np.searchsorted(self.begins, by_lane.reshape(-1), side=side)
        return found.reshape(by_lane.shape).T.reshape(-1)

    def _pieces(
        self, begin: NDArray[np.int64], end: NDArray[np.int64], low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Give the spans of runs of the stream that lie in sequences ``low:high``, int64 (n, 3)."""
        sizes = high - low
        within = running(sizes)
        places = np.arange(int(within[-1])) + np.repeat(low - within[:-1], sizes)
        spans = np.empty((len(places), 3), dtype=np.int64)
        spans[:, 0] = self.numbers[places]
        spans[:, 1] = 0  # but for the first and the last of a run, whole
        np.subtract(self.begins[1:][places], self.begins[places], out=spans[:, 2])
        spans[within[:-1], 1] = begin - self.begins[low]
        spans[within[1:] - 1, 2] = end - self.begins[high - 1]
        return spans


def streamed(
    numbers: NDArray[Any], begins: NDArray[np.int64], edges: NDArray[np.int64],
    chunks: Chunks | UnevenChunks, ahead: int = 0,
) -> StreamLanes:  # fmt: skip
    """Cut a stream into lanes.

    Args:
        numbers: Integers (n,), the sequences in the order of the stream.
        begins: int64 (n+1,), where each begins, and the end; none is empty.
        edges: int64 (L+1,), lane -> timesteps of the stream.
        chunks: How every lane is cut.
        ahead: Timesteps that are read past every row.
    """
    widths = np.diff(edges)
    loads = np.where(widths > 0, chunks.counts(np.maximum(widths, 1)), 0)
    return StreamLanes(
        chunks, int(loads.max()), numbers, begins, edges, loads.astype(np.int64), ahead
    )


def columns(timesteps: int, lanes: int) -> NDArray[np.int64]:
    """Give the edges of equal columns of a stream, int64 (lanes+1,): ``floor(j*N/L)``."""
    return np.arange(lanes + 1) * timesteps // lanes

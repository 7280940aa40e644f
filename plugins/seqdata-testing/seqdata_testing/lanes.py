"""Plans with lanes: a small policy that makes them, and checks of their promises (I6).

Row j of batch k+1 continues where row j of batch k ended, or begins a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.randomness import Draw, Purpose
from seqdata_testing import ConformanceError


@dataclass(frozen=True, slots=True)
class FewLanes:
    """Minimal policy with lanes, to test the sharing of lanes.

    The longest sequence is assigned first, to the lane with the fewest chunks; each epoch shuffles
    the lanes. Lanes without more chunks are idle rows.

    Args:
        lanes: Number of lanes.
        chunk: Maximum number of timesteps of a row.
        axis: The axis that is planned on.
    """

    lanes: int
    chunk: int
    axis: str = DEFAULT_AXIS

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        lanes = self._lanes(index)
        order = Draw(seed, epoch).permutation(Purpose.BLOCKS, self.lanes)
        spans = np.zeros((max(map(len, lanes)), self.lanes, 3), dtype=np.int64)  # 0, 0, 0: idle
        for lane, place in enumerate(order.tolist()):
            spans[: len(lanes[lane]), place] = np.array(lanes[lane]).reshape(-1, 3)
        offsets = np.arange(len(spans) + 1) * self.lanes
        return Plan(spans.reshape(-1, 3), offsets=offsets, lanes=self.lanes)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return max(map(len, self._lanes(index)))

    def _lanes(self, index: SequenceIndex) -> list[list[tuple[int, int, int]]]:
        lengths = np.asarray(index.run(self.axis, 0, len(index)), dtype=np.int64)
        lanes: list[list[tuple[int, int, int]]] = [[] for _ in range(self.lanes)]
        for number in np.argsort(-lengths, kind="stable").tolist():
            length = int(lengths[number])
            starts = range(0, length, self.chunk)
            chunks = [(number, start, min(start + self.chunk, length)) for start in starts]
            min(lanes, key=len).extend(chunks)
        return lanes


def check_lanes(plan: Plan, index: SequenceIndex, *, axis: str = DEFAULT_AXIS) -> None:
    """Check that every lane reads sequences completely and in order, and then stays idle (I6).

    If chunks overlap, a row begins with the end of the previous row. If state is carried, lanes are
    columns of one stream: each ends where the next begins, and lengths differ by at most one
    timestep.

    Args:
        plan: A plan with lanes.
        index: Index that it was planned over.
        axis: The axis that was planned on.

    Raises:
        ConformanceError: If a lane skips timesteps, leaves a sequence early, or a batch lacks a
            lane.
    """
    if not plan.lanes:
        raise ConformanceError("plan: must have lanes, but has none")
    if plan.carry:
        index = index.unshifted(axis)[0]
    lengths = np.asarray(index.run(axis, 0, len(index)), dtype=np.int64)
    lanes = [_Lane(f"plan: lane {number}", lengths, plan) for number in range(plan.lanes)]
    for number in range(len(plan)):
        batch = plan.batch(number)
        spans, rows = batch.spans, batch.rows
        edges = np.arange(len(spans) + 1) if rows is None else rows
        if len(edges) - 1 != plan.lanes:
            raise ConformanceError(
                f"plan: batch {number} has {len(edges) - 1} rows, but must have {plan.lanes}, one "
                "per "
                "lane"
            )
        for lane, first, stop in zip(lanes, edges[:-1], edges[1:], strict=True):
            row = spans[first:stop]
            lane.read(number, row[row[:, 1] < row[:, 2]])
    for lane in lanes:
        lane.end()
    if plan.carry:
        _check_columns(lanes, lengths)


@dataclass(slots=True, eq=False)
class _Lane:
    """Spans that one lane has read so far.

    Attributes:
        name: Name for messages.
        lengths: int64 (n,), number of timesteps of each sequence.
        plan: Plan that is read.
        rows: Spans that were read, a list per row.
        scored: Number of timesteps that are not context.
    """

    name: str
    lengths: NDArray[np.int64]
    plan: Plan
    rows: list[list[tuple[int, int, int]]] = field(default_factory=list)
    scored: int = 0
    _before: tuple[int, int] | None = None  # sequence, stop

    def read(self, number: int, spans: NDArray[np.int64]) -> None:
        """Check that a row continues where the lane ended."""
        where = f"{self.name} in batch {number}"
        row = [(int(span[0]), int(span[1]), int(span[2])) for span in spans]
        if row and len(self.rows) < number:
            raise ConformanceError(f"{where} continues after it was idle, but must stay idle")
        if not row:
            return
        news = self._without_context(where, row) if self.plan.carry and number else row
        for span in news:
            self._check_next(where, *span)
            self._before = span[0], span[2]
        overlap = 0 if self.plan.carry else self.plan.overlap
        self.scored += sum(
            stop - start - (min(overlap, stop - start) if start else 0) for _, start, stop in news
        )
        self.rows.append(row)

    def end(self) -> None:
        """Check that the lane read its last sequence to the end."""
        if self._before is None or self.plan.carry:
            return
        number, stop = self._before
        if stop != self.lengths[number]:
            raise ConformanceError(
                f"{self.name} ends with sequence {number} at timestep {stop}, but must continue to "
                f"{int(self.lengths[number])}"
            )

    def _without_context(
        self, where: str, row: list[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """Check that a row of a stream begins with the end of the previous row; return the rest."""
        steps = [(number, at) for number, start, stop in row for at in range(start, stop)]
        last = [(number, at) for number, start, stop in self.rows[-1] for at in range(start, stop)]
        overlap = self.plan.overlap
        if overlap and (steps[:overlap] != last[-overlap:] or len(steps) <= overlap):
            raise ConformanceError(
                f"{where} begins with {row[0]}, but must begin with the last {overlap} timesteps "
                f"of the row before and continue; that ends with {self.rows[-1][-1]}"
            )
        news = []
        for number, start, stop in row:
            skipped = min(overlap, stop - start)
            overlap -= skipped
            if start + skipped < stop:
                news.append((number, start + skipped, stop))
        return news

    def _check_next(self, where: str, number: int, start: int, stop: int) -> None:
        if self._before is None:
            if start and not self.plan.carry:
                raise ConformanceError(
                    f"{where} begins sequence {number} at timestep {start}, but must begin at 0"
                )
            return
        last, was = self._before
        overlap = 0 if self.plan.carry else self.plan.overlap
        if number == last and start == max(0, was - overlap) and start > 0 and stop > was:
            return
        if was != self.lengths[last]:
            raise ConformanceError(
                f"{where} leaves sequence {last} at timestep {was} for {[number, start, stop]}, "
                f"but must continue to {int(self.lengths[last])}"
            )
        if start:
            raise ConformanceError(
                f"{where} begins sequence {number} at timestep {start}, but must begin at 0"
            )


def _check_columns(lanes: list[_Lane], lengths: NDArray[np.int64]) -> None:
    """Check that lanes are equal columns of one stream, in order, read in rows of equal length."""
    total = sum(lane.scored for lane in lanes)
    for place, lane in enumerate(lanes):
        due = (place + 1) * total // len(lanes) - place * total // len(lanes)
        if lane.scored != due:
            raise ConformanceError(
                f"{lane.name} has {lane.scored} timesteps of a stream of {total}, but must have "
                f"{due}"
            )
    read = [lane for lane in lanes if lane.rows]
    for lane, following in pairwise(read):
        number, _, stop = lane.rows[-1][-1]
        then, start, _ = following.rows[0][0]
        if (then, start) != (number, stop) and (stop != lengths[number] or start):
            raise ConformanceError(
                f"{following.name} begins with sequence {then} at timestep {start}, but must "
                f"continue where {lane.name} ended: sequence {number}, timestep {stop}"
            )
    for number in range(max((len(lane.rows) for lane in read), default=0)):
        going = {
            sum(stop - start for _, start, stop in lane.rows[number])
            for lane in read
            if number < len(lane.rows) - 1
        }
        if len(going) > 1:
            raise ConformanceError(
                f"plan: batch {number} has rows of {sorted(going)} timesteps that continue, but "
                "must have "
                "rows of one length"
            )

"""Plans dealt by rows: a small policy that makes them, and what every one of them promises (I6).

Row j of batch k+1 goes on where row j of batch k stopped, or begins a sequence. Place in the flow:
policies such as TBPTT, and their authors' tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.randomness import Draw, Purpose
from seqdata.testing.verdict import ConformanceError


@dataclass(frozen=True, slots=True)
class FewLanes:
    """Deal chunks to lanes, in the fewest lines that exercise sharing by rows; for tests only.

    Sequences go, longest first, to the lane that has least; an epoch shuffles the lanes. Lanes that
    have run dry are idle rows.

    Args:
        lanes: Number of lanes.
        chunk: Most timesteps of a row.
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
        """Give the number of batches of every epoch."""
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
    """Check that every lane reads sequences whole and in order, and stays idle once it is (I6).

    Args:
        plan: A plan dealt by rows.
        index: What it was planned over.
        axis: The axis that was planned on.

    Raises:
        ConformanceError: If a lane jumps, leaves a sequence early, or a batch lacks a lane.
    """
    if not plan.lanes:
        raise ConformanceError("plan: is dealt by batches, must have lanes")
    lengths = np.asarray(index.run(axis, 0, len(index)), dtype=np.int64)
    before: list[tuple[int, int] | None] = [None] * plan.lanes  # sequence, stop
    idle = [False] * plan.lanes
    for number in range(len(plan)):
        spans, rows = plan.batch(number)
        edges = np.arange(len(spans) + 1) if rows is None else rows
        if len(edges) - 1 != plan.lanes:
            raise ConformanceError(
                f"plan: batch {number} has {len(edges) - 1} rows, must have {plan.lanes}, one per "
                "lane"
            )
        for lane in range(plan.lanes):
            where = f"plan: lane {lane} in batch {number}"
            for span in _real(spans[edges[lane] : edges[lane + 1]]):
                if idle[lane]:
                    raise ConformanceError(f"{where} goes on after it was idle, must stay idle")
                _check_next(where, span, before[lane], lengths, plan)
                before[lane] = (int(span[0]), int(span[2]))
            idle[lane] = not len(_real(spans[edges[lane] : edges[lane + 1]]))
    for lane, last in enumerate(before):
        if last is not None and not plan.carry and last[1] != lengths[last[0]]:
            raise ConformanceError(
                f"plan: lane {lane} ends with sequence {last[0]} at timestep {last[1]}, must go on "
                f"to {int(lengths[last[0]])}"
            )


def _check_next(
    where: str,
    span: NDArray[np.int64],
    before: tuple[int, int] | None,
    lengths: NDArray[np.int64],
    plan: Plan,
) -> None:
    number, start = int(span[0]), int(span[1])
    if before is None:
        if start and not plan.carry:
            raise ConformanceError(
                f"{where} begins sequence {number} at timestep {start}, must at 0"
            )
        return
    goes_on = number == before[0] and start == max(0, before[1] - plan.overlap) and start > 0
    if goes_on:
        return
    if before[1] != lengths[before[0]]:
        raise ConformanceError(
            f"{where} leaves sequence {before[0]} at timestep {before[1]} for {span.tolist()}, "
            f"must go on to {int(lengths[before[0]])}"
        )
    if start:
        raise ConformanceError(f"{where} begins sequence {number} at timestep {start}, must at 0")


def _real(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    return spans[spans[:, 1] < spans[:, 2]]

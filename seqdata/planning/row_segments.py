"""Segments of a mixture with rows of all parts in one batch: which rows a segment has.

The rows of a run are dealt to the parts in the order of parts, a row for an event, so weights may
change where a segment begins. Each part has an endless run of its own: its sequences in passes,
none again before all others have come. Neighbours in a pass lie evenly apart along the order of
length, so that the rows of any segment have the lengths of their part. Reads: lengths, weights.
Makes: the plan of a segment.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.planning.draws import DrawnSequences
from seqdata.planning.mixed_rows import MixedRowsTable, PartRows
from seqdata.planning.part_weights import find_piece
from seqdata.planning.parts import derive_part_seed
from seqdata.planning.policy import has_draws
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.segments import Segment, derive_segment_epoch
from seqdata.planning.weight_history import WeightChange
from seqdata.protocols import Policy
from seqdata.report import make_report

_SECTIONS = (0.6180, 0.3820, 0.7236, 0.2764)  # of a part, by the golden ratio: steps of a pass
_SEARCHED = 16  # steps on both sides of it


def check_rows_policy(policy: Policy) -> None:
    """Raise ConfigError if a policy draws, which is to make batches of rows that are drawn."""
    if has_draws(policy):
        name = type(policy).__name__
        raise ConfigError(
            "policy 'mix': `policy` must plan each sequence once with `rows`=True, but "
            f"{name} draws some several times. Pass the policy within, or mix batches: "
            f"Part(weight, {name}(...))."
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowSegments:
    """The segments of a mixture's rows.

    Attributes:
        parts: The rows of each part, in the order of the data.
        policy: Makes batches of them; as many rows make as many batches.
        index: The lengths of all parts.
        rates: Name -> how often rows of each part come, in the order of the data.
        declared: Name -> the weight that says so, in the order of the mixture.
        seed: Of the plan.
    """

    parts: Sequence[PartRows]
    policy: Policy
    index: SequenceIndex
    rates: Mapping[str, Fraction]
    declared: Mapping[str, float]
    seed: int

    def plan(self, segment: Segment, changes: Sequence[WeightChange]) -> Plan:
        """Return the plan of a segment.

        Args:
            segment: The segment.
            changes: Weights that were set up to it.
        """
        begin = self._count_before(segment, segment.epoch, segment.first)
        count = self._count_rows(segment)
        by_rows = [
            change._replace(epoch=0, first=self._count_before(segment, change.epoch, change.first))
            for change in changes
        ]
        of_rows = Segment(0, begin, count, count, 0)
        piece = find_piece(self.rates, self.declared, self.seed, 1, of_rows, by_rows)
        firsts, stops = (
            piece.order.count_events(position - piece.begin, len(self.parts))
            for position in (begin, begin + count)
        )
        drawn = [
            draw_run(part, self.seed, base + first, stop - first)
            for part, base, first, stop in zip(self.parts, piece.bases, firsts, stops, strict=True)
        ]
        return self._plan_drawn(drawn, derive_segment_epoch(segment, 0))

    def _plan_drawn(
        self, drawn: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], epoch: int
    ) -> Plan:
        """Return the plan of the numbers of rows and their passes."""
        numbers, passes = map(np.concatenate, zip(*drawn, strict=True))
        order = np.argsort(numbers, kind="stable")
        rows = DrawnSequences(numbers[order], self.index.select(numbers[order]))
        inner = self.policy.plan(rows.index, seed=self.seed, epoch=epoch)
        origin = PlanOrigin(fingerprint=str, report=make_report)
        return inner.with_table(
            lambda table: MixedRowsTable(table, rows, None, self.parts, passes[order], epoch=epoch),
            origin,
        )

    def _count_before(self, segment: Segment, epoch: int, first: int) -> int:
        """Return the rows of the run before a segment."""
        return epoch * self._total + first // segment.length * self._find_most(segment.length)

    def _count_rows(self, segment: Segment) -> int:
        """Return the rows of a segment; the last one of an epoch has those that are left."""
        if segment.first + segment.batches < segment.epoch_batches:
            return self._find_most(segment.batches)
        return self._total - segment.first // segment.length * self._find_most(segment.length)

    def _find_most(self, batches: int) -> int:
        """Return the most rows that make so many batches."""
        numbers = np.concatenate([part.first + part.ranked for part in self.parts])

        def count(rows: int) -> int:
            return self.policy.num_batches(self.index.select(np.resize(numbers, rows)))

        return self.index.remember(
            ("most rows", self.policy, self._total, batches),
            lambda: bisect_right(range(1, self._total + 1), batches, key=count),
        )

    @property
    def _total(self) -> int:
        """Rows of an epoch."""
        return sum(part.rows for part in self.parts)


def draw_run(
    part: PartRows, seed: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows ``first:first + count`` of a part's endless run.

    Returns:
        Number of the sequence of each row, and its pass: how often it came before, int64 (count,).
    """
    size = len(part.ranked)
    if not count:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    passes, within = np.divmod(np.arange(first, first + count), size)
    draw = Draw(derive_part_seed(seed, part.name), 0)
    words = draw.each(Purpose.ROWS, np.zeros_like(passes), passes)
    offsets = (words // np.uint64(len(_SECTIONS)) % np.uint64(size)).astype(np.int64)
    steps = np.array(_find_steps(size))[(words % np.uint64(len(_SECTIONS))).astype(np.int64)]
    ranks = (offsets + within * steps) % size
    return part.first + part.ranked[ranks], passes


def _find_steps(size: int) -> list[int]:
    """Return steps that go through all of so many: neighbours of a pass lie evenly apart.

    However many neighbours are taken, the gaps between them differ little where the quotients of
    the step's continued fraction are small (the three-gap theorem).
    """
    return [
        min(
            range(round(size * section) - _SEARCHED, round(size * section) + _SEARCHED + 1),
            key=lambda step: _find_largest_quotient(step % size, size),
        )
        % size
        for section in _SECTIONS
    ]


def _find_largest_quotient(step: int, size: int) -> float:
    """Return the largest quotient of ``step / size``; infinite if they have a common divisor."""
    rest, largest = size, 0
    while step:
        largest = max(largest, rest // step)
        rest, step = step, rest % step
    return largest if rest == 1 else math.inf

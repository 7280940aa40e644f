"""Rows of several parts in one batch: the draws of each sequence of a part.

In epochs a part of n sequences has m rows: each of its sequences ``m // n`` times, and ``m % n`` of
them once more. These are a *systematic* sample along the order of length, so lengths are those of
the part, and the sample moves on by one with each epoch: over n epochs each sequence has been in
exactly as many samples as any other.

In segments each part has an endless run of passes over its sequences; none comes again before all
others have come. Neighbours in a pass are evenly spaced along the order of length, so that the rows
of any segment have the lengths of their part.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import BatchTable, PartLabel
from seqdata.planning.build import order_longest_first
from seqdata.planning.draws import DrawnSequences, RenumberedTable
from seqdata.planning.part_order import WEIGHT_TOTAL, find_piece, scale_weights
from seqdata.planning.parts import derive_part_seed
from seqdata.planning.policy import find_planned, has_draws
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.segments import Segment, WeightChange, derive_segment_epoch
from seqdata.protocols import Policy
from seqdata.report import PlanReport, count_repeats, make_report

_SECTIONS = (0.6180, 0.3820, 0.7236, 0.2764)  # steps of a pass as fractions, by the golden ratio
_SEARCHED = 16  # steps that are tried on both sides


def check_rows_policy(policy: Policy) -> None:
    """Raise ConfigError if the policy that makes batches of drawn rows draws rows itself."""
    if has_draws(policy):
        name = type(policy).__name__
        raise ConfigError(
            "policy 'mix': `policy` must plan each sequence once with `rows=True`, but "
            f"{name} draws some of them several times. Pass the inner policy, or mix batches: "
            f"Part(weight, {name}(...))."
        )


@dataclass(frozen=True, slots=True, eq=False)
class PartRows:
    """The rows of one part.

    Attributes:
        name: Name of the part.
        first: Index of its first sequence in the mixture.
        ranked: int64 (n,), its sequences that can be drawn, longest first.
        rows: Number of rows of the part in every epoch.
    """

    name: str
    first: int
    ranked: NDArray[np.int64]
    rows: int

    def draw(self, seed: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of the part in an epoch.

        Returns:
            Sequence of each row, and the number of its earlier draws, int64 (rows,) each.
        """
        count = len(self.ranked)
        if not count:
            return self.ranked, self.ranked
        full_passes, sampled = divmod(self.rows, count)
        offset = Draw(seed, 0).below(Purpose.PARTS, count)
        ranks = np.arange(count) + offset
        before = epoch * full_passes + ranks * sampled // count - (ranks - epoch) * sampled // count
        is_sampled = (ranks - epoch) * sampled % count < sampled
        copies = full_passes + is_sampled
        numbers, passes = np.repeat(self.ranked, copies), np.repeat(before, copies)
        firsts = np.repeat(np.cumsum(copies) - copies, copies)
        return numbers + self.first, passes + np.arange(len(numbers)) - firsts


def make_part_rows(
    parts: Mapping[str, SequenceIndex],
    policy: Policy,
    weights: Sequence[Fraction],
) -> list[PartRows]:
    """Return the rows of each part; their total is the number of sequences that can be drawn.

    Args:
        parts: Name -> lengths.
        policy: Policy that makes batches of the rows.
        weights: Relative number of rows of each part, not all 0.
    """
    ranked = [
        _rank(index, policy, bool(weight))
        for index, weight in zip(parts.values(), weights, strict=True)
    ]
    total = sum(map(len, ranked))
    scaled = scale_weights(weights)
    edges = [edge * total // WEIGHT_TOTAL for edge in accumulate(scaled, initial=0)]
    starts = accumulate(map(len, parts.values()), initial=0)
    return [
        PartRows(name, first, own, stop - begin)
        for name, first, own, begin, stop in zip(  # noqa: B905 - one start more than parts
            parts, starts, ranked, edges, edges[1:]
        )
    ]


def _rank(index: SequenceIndex, policy: Policy, is_drawn: bool) -> NDArray[np.int64]:
    """Return the indices of the sequences that a policy plans, longest first."""
    if not is_drawn:
        return np.empty(0, dtype=np.int64)

    def rank() -> NDArray[np.int64]:
        numbers = np.flatnonzero(find_planned(index, policy))
        return numbers[order_longest_first(index.at(policy.axis, numbers))]

    return index.remember(("ranked", policy), rank)


@dataclass(frozen=True, slots=True, eq=False)
class MixedRowsTable(RenumberedTable):
    """Batches with rows of several parts.

    Attributes:
        parts: The rows of each part.
        passes: int64 (rows of the epoch,), number of earlier draws of each row's sequence.
    """

    parts: Sequence[PartRows]
    passes: NDArray[np.int64]

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each row of these batches, and the index of the pass over it.

        Raises:
            ConfigError: If rows hold several sequences, which may be of several parts.
        """
        names = [part.name for part in self.parts]
        starts = np.array([part.first for part in self.parts])
        labels = []
        for number in numbers:
            spans, rows = self.table.batch(number)
            if rows is not None:
                raise ConfigError(
                    "policy 'mix': with `rows=True`, `policy` must put one sequence in each row, "
                    "but packs several, and `batch.part` names only one part per row. Let each "
                    "part pack its own sequences: Part(weight, Packed(...)), without `rows`."
                )
            positions = spans[:, 0]
            found = np.searchsorted(starts, self.drawn.numbers[positions], side="right") - 1
            passes = self.passes[positions].tolist()
            labels.append(PartLabel([names[part] for part in found.tolist()], passes))
        return labels


def draw_rows(
    parts: Sequence[PartRows], index: SequenceIndex, seed: int, epoch: int
) -> tuple[DrawnSequences, NDArray[np.int64]]:
    """Return the rows of an epoch in the data's order, and the number of earlier draws of each."""
    return _join_rows([part.draw(seed, epoch) for part in parts], index)


def _join_rows(
    drawn: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], index: SequenceIndex
) -> tuple[DrawnSequences, NDArray[np.int64]]:
    """Return the rows of all parts in the data's order, and the pass of each."""
    numbers, passes = map(np.concatenate, zip(*drawn, strict=True))
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    return DrawnSequences(numbers, index.select(numbers)), passes[order]


def make_rows_report(
    batch_table: BatchTable,
    inner: Plan,
    drawn: DrawnSequences,
    parts: Sequence[PartRows],
    index: SequenceIndex,
) -> PlanReport:
    """Return the report of an epoch, with the sequences of drawn parts that are dropped."""
    report, is_dropped = inner.report, np.zeros(len(index), dtype=np.bool_)
    counts = map(len, index.parts.values())
    for part, count in zip(parts, counts, strict=True):
        if len(part.ranked):
            is_dropped[part.first : part.first + count] = True
        if part.rows:  # else its weight is too small for a row: none of it ever comes
            is_dropped[part.first + part.ranked] = False
    return replace(
        make_report(batch_table),
        dropped=np.flatnonzero(is_dropped),
        split=np.unique(drawn.numbers[report.split]),
        truncated=np.unique(drawn.numbers[report.truncated]),
        repeats=count_repeats(batch_table, index.bases),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowMixture:
    """A mixture with rows of all parts in one batch: plans of its epochs and of segments.

    Attributes:
        parts: The rows of each part, in the order of the data.
        policy: Policy that makes batches of the rows.
        index: The lengths of all parts.
        rates: Name -> relative number of rows of the part, in the order of the data.
        declared: Name -> declared weight of the part, in the order of the mixture.
        seed: Seed of the plan.
    """

    parts: Sequence[PartRows]
    policy: Policy
    index: SequenceIndex
    rates: Mapping[str, Fraction]
    declared: Mapping[str, float]
    seed: int

    def plan(self, epoch: int, fingerprint: Callable[[], str]) -> Plan:
        """Return the plan of an epoch.

        Args:
            epoch: The epoch.
            fingerprint: Function that returns the digest of the plan.
        """
        drawn, passes = draw_rows(self.parts, self.index, self.seed, epoch)
        inner = self.policy.plan(drawn.index, seed=self.seed, epoch=epoch)
        origin = PlanOrigin(
            fingerprint=fingerprint,
            report=lambda table: make_rows_report(table, inner, drawn, self.parts, self.index),
        )
        return inner.with_table(
            lambda table: MixedRowsTable(table, drawn, None, self.parts, passes), origin
        )

    def count_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        drawn, _ = draw_rows(self.parts, self.index, self.seed, epoch)
        return self.policy.num_batches(drawn.index)

    def plan_segment(self, segment: Segment, changes: Sequence[WeightChange]) -> Plan:
        """Return the plan of a segment, for policies that make equal batches of equally many rows.

        The rows of a run are distributed over the parts in the order of parts, a row for an event,
        so weights may change where a segment begins. Each part has an endless run of its own.

        Args:
            segment: The segment.
            changes: Weights that were set up to the segment.
        """
        begin = self._count_before(segment, segment.epoch, segment.first)
        count = self._count_rows(segment)
        row_changes = [
            change._replace(epoch=0, first=self._count_before(segment, change.epoch, change.first))
            for change in changes
        ]
        row_segment = Segment(0, begin, count, count, 0)
        piece = find_piece(self.rates, self.declared, self.seed, 1, row_segment, row_changes)
        firsts, stops = (
            piece.order.count_events(position - piece.begin, len(self.parts))
            for position in (begin, begin + count)
        )
        drawn, passes = _join_rows(
            [
                draw_run(part, self.seed, base + first, stop - first)
                for part, base, first, stop in zip(
                    self.parts, piece.bases, firsts, stops, strict=True
                )
            ],
            self.index,
        )
        epoch = derive_segment_epoch(segment, 0)
        inner = self.policy.plan(drawn.index, seed=self.seed, epoch=epoch)
        return inner.with_table(
            lambda table: MixedRowsTable(table, drawn, None, self.parts, passes, epoch=epoch),
            PlanOrigin(fingerprint=str, report=make_report),
        )

    def _count_before(self, segment: Segment, epoch: int, first: int) -> int:
        """Return the number of rows of the run before a segment."""
        return epoch * self._total + first // segment.length * self._find_most(segment.length)

    def _count_rows(self, segment: Segment) -> int:
        """Return the number of rows of a segment; the last of an epoch has the remaining rows."""
        if segment.first + segment.batches < segment.epoch_batches:
            return self._find_most(segment.batches)
        return self._total - segment.first // segment.length * self._find_most(segment.length)

    def _find_most(self, batches: int) -> int:
        """Return the maximum number of rows that make a number of batches."""
        numbers = np.concatenate([part.first + part.ranked for part in self.parts])

        def count(rows: int) -> int:
            return self.policy.num_batches(self.index.select(np.resize(numbers, rows)))

        return self.index.remember(
            ("most rows", self.policy, self._total, batches),
            lambda: bisect_right(range(1, self._total + 1), batches, key=count),
        )

    @property
    def _total(self) -> int:
        """Number of rows of an epoch."""
        return sum(part.rows for part in self.parts)


def draw_run(
    part: PartRows, seed: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows ``first:first + count`` of a part's endless run.

    Returns:
        Sequence of each row, and the number of earlier passes over it, int64 (count,) each.
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
    """Return steps that visit all of ``size`` ranks, with neighbours of a pass evenly spaced.

    The gaps between any number of neighbours differ little if the quotients of the step's continued
    fraction are small (the three-gap theorem).
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

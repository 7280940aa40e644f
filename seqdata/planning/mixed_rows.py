"""Rows of several parts in one batch: how often each sequence of a part comes in an epoch.

A part of n sequences has m rows in an epoch: each of its sequences ``m // n`` times, and ``m % n``
of them once more. These are a *systematic* sample along the order of length, so lengths are those
of the part, and the sample moves on by one with each epoch: over n epochs each sequence has been in
exactly as many samples as any other. Reads: lengths. Makes: numbers, and labels of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.plan_table import BatchTable, PartLabel
from seqdata.planning.build import order_longest_first
from seqdata.planning.draws import DrawnSequences, RenumberedTable
from seqdata.planning.part_order import WEIGHT_UNITS, scale_weights
from seqdata.planning.policy import find_planned
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Policy
from seqdata.report import PlanReport, count_repeats, make_report


@dataclass(frozen=True, slots=True, eq=False)
class PartRows:
    """The rows of one part.

    Attributes:
        name: Of the part.
        first: Number of its first sequence in the mixture.
        ranked: int64 (n,), numbers of its sequences that can be drawn, longest first.
        rows: Rows of the part in every epoch.
    """

    name: str
    first: int
    ranked: NDArray[np.int64]
    rows: int

    def draw(self, seed: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what an epoch holds of the part.

        Returns:
            Number of the sequence of each row, and how often it was drawn before, int64 (rows,).
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
    """Return the rows of each part: as many in all as there are sequences.

    Args:
        parts: Name -> lengths.
        policy: That makes batches of them.
        weights: How often rows of each part come, not all 0.
    """
    ranked = [
        _rank(index, policy, bool(weight))
        for index, weight in zip(parts.values(), weights, strict=True)
    ]
    total = sum(map(len, ranked))
    units = scale_weights(weights)
    edges = [edge * total // WEIGHT_UNITS for edge in accumulate(units, initial=0)]
    starts = accumulate(map(len, parts.values()), initial=0)
    return [
        PartRows(name, first, own, stop - begin)
        for name, first, own, begin, stop in zip(  # noqa: B905 - one start more than parts
            parts, starts, ranked, edges, edges[1:]
        )
    ]


def _rank(index: SequenceIndex, policy: Policy, is_drawn: bool) -> NDArray[np.int64]:
    """Return the numbers of the sequences that a policy plans, longest first."""
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
        passes: int64 (rows of the epoch,), how often each one's sequence was drawn before.
    """

    parts: Sequence[PartRows]
    passes: NDArray[np.int64]

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each row of these batches, and which pass over it the row is of.

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
                    "policy 'mix': `policy` must make rows of one sequence with `rows`=True, but "
                    "its rows hold several, and `batch.part` names one. Let each part pack its "
                    "own: Part(weight, Packed(...)) without `rows`."
                )
            positions = spans[:, 0]
            found = np.searchsorted(starts, self.drawn.numbers[positions], side="right") - 1
            passes = self.passes[positions].tolist()
            labels.append(PartLabel([names[part] for part in found.tolist()], passes))
        return labels


def draw_rows(
    parts: Sequence[PartRows], index: SequenceIndex, seed: int, epoch: int
) -> tuple[DrawnSequences, NDArray[np.int64]]:
    """Return the rows of an epoch in the data's order, and how often each was drawn before."""
    drawn = [part.draw(seed, epoch) for part in parts]
    numbers = np.concatenate([own for own, _ in drawn])
    passes = np.concatenate([own for _, own in drawn])
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
    """Return the report of an epoch: of the parts that are drawn, what the policy leaves out."""
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

"""The batches of an epoch that is made of pieces of several plans.

The piece of a batch follows from its index, and all questions about a batch are answered by its
plan. A mixture has pieces of the epochs of its parts, a run in stages pieces of passes over the
data, a run in segments the rounds of a segment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.plan import Plan
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    DrawnBatch,
    PartLabel,
    PlanBatch,
    join_rows,
    offsets_from_sizes,
)


class Piece(NamedTuple):
    """Consecutive batches of a table that are consecutive ones of a plan.

    Attributes:
        plan: The plan.
        start: Batch of the table at which the plan begins, which may lie before the table.
        stop: One past the last batch of the piece in the table.
        first_sequence: Index of the plan's first sequence in the table.
        part: Name of the plan's part of a mixture, for draws of sequences.
    """

    plan: Plan
    start: int
    stop: int
    first_sequence: int = 0
    part: str | None = None


class PieceSlice(NamedTuple):
    """Batches ``first:stop`` of a plan, and the index of its first sequence in a table."""

    plan: Plan
    first: int
    stop: int
    first_sequence: int


class PiecewiseTable(BatchTable):
    """A table whose batches are pieces of plans.

    Attributes:
        count: Number of its batches.
    """

    __slots__ = ()

    count: int

    @abstractmethod
    def _locate(self, number: int) -> Piece:
        """Return the piece that holds a batch; its batches before that one may be left out."""
        ...

    def _cut(self, first: int, stop: int) -> Iterator[PieceSlice]:
        """Yield the slices of plans that make up batches ``first:stop``."""
        while first < stop:
            piece = self._locate(first)
            end = min(piece.stop, stop)
            begin = piece.start
            yield PieceSlice(piece.plan, first - begin, end - begin, piece.first_sequence)
            first = end

    def __len__(self) -> int:
        return self.count

    def batch(self, number: int) -> PlanBatch:
        """Return one batch."""
        piece = self._locate(number)
        spans, rows = piece.plan.batch(number - piece.start)
        if piece.first_sequence:
            spans = spans + np.array([piece.first_sequence, 0, 0])
        return PlanBatch(spans, rows)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        pieces = list(self._cut(first, stop))
        if len(pieces) == 1 and not pieces[0].first_sequence:
            return pieces[0].plan.slice(pieces[0].first, pieces[0].stop)
        spans: list[NDArray[np.int64]] = []
        rows: list[NDArray[np.int64] | None] = []
        row_counts: list[int] = []
        for plan, low, high, _ in pieces:
            if high == low + 1:  # faster than a slice
                own_spans, own_rows = plan.batch(low)
                row_counts.append(len(own_spans) if own_rows is None else len(own_rows) - 1)
            else:
                table = plan.slice(low, high)
                own_spans, own_rows = table.spans, table.rows
                row_counts += (table.offsets[1:] - table.offsets[:-1]).tolist()
            spans.append(own_spans)
            rows.append(own_rows)
        joined = np.concatenate(spans)
        firsts = [piece.first_sequence for piece in pieces]
        joined[:, 0] += np.repeat(firsts, [len(own) for own in spans])
        return ArrayTable(joined, join_rows(rows, spans), offsets_from_sizes(np.array(row_counts)))

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of rows in batches ``first:stop``."""
        del overlap  # known to the plans
        timesteps = rows = 0
        for plan, low, high, _ in self._cut(first, stop):
            more = plan.totals(low, high)
            timesteps, rows = timesteps + more[0], rows + more[1]
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, one run after another, with rows if any of them has rows."""
        tables = []
        number = 0
        while number < self.count:
            stop = self._find_run_stop(number)
            tables.append(self.slice(number, stop))
            number = stop
        has_rows = any(table.rows is not None for table in tables)
        return add_rows(tables, has_rows=has_rows)

    def prepare(self, number: int) -> int:
        """Plan a batch's block; return the first batch after it."""
        return self._find_run_stop(number)

    def _find_run_stop(self, number: int) -> int:
        piece = self._locate(number)
        return min(piece.stop, piece.start + piece.plan.prepare(number - piece.start))

    def _by_piece(self, numbers: Sequence[int]) -> Iterator[tuple[Piece, list[int]]]:
        """Yield pieces, and the indices in their plans of the batches that lie in them."""
        i = 0
        while i < len(numbers):
            first, piece = numbers[i], self._locate(numbers[i])
            own = []
            while i < len(numbers) and first <= numbers[i] < piece.stop:
                own.append(numbers[i] - piece.start)
                i += 1
            yield piece, own

    def label(self, numbers: Sequence[int]) -> list[PartLabel] | None:
        """Return the part of each of these batches; None without a mixture."""
        labels: list[PartLabel] = []
        for piece, own in self._by_piece(numbers):
            found = piece.plan.label_parts(own)
            if found is None:
                return None
            labels += found
        return labels

    def drawn_batch(self, number: int) -> DrawnBatch | None:
        """Return the drawn sequences, and the batch as positions among them; None without draws."""
        piece = self._locate(number)
        drawn = piece.plan.drawn_batch(number - piece.start)
        return drawn if drawn is None or piece.part is None else drawn._replace(part=piece.part)

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches; None: all are 1."""
        if all(piece.plan.row_weights(own) is None for piece, own in self._by_piece(numbers)):
            return None
        return self._fill_weights(numbers)

    def _fill_weights(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return the weights of the rows of batches, float32 (rows,); 1 where a plan has none."""
        filled: list[NDArray[np.float32]] = []
        for piece, own in self._by_piece(numbers):
            weights = piece.plan.row_weights(own)
            if weights is None:
                rows = sum(len(piece.plan.batch(number).lengths) for number in own)
                weights = np.ones(rows, dtype=np.float32)
            filled.append(weights)
        return np.concatenate(filled)


def add_rows(tables: Iterable[ArrayTable], *, has_rows: bool) -> Iterator[ArrayTable]:
    """Yield tables, with rows in all of them if ``has_rows``."""
    for table in tables:
        if has_rows and table.rows is None:
            yield replace(table, rows=np.arange(len(table.spans) + 1), _cumulative_totals={})
        else:
            yield table

"""The arrays behind a plan: spans by row, rows by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex


class PlanBatch(NamedTuple):
    """One batch of a plan.

    Attributes:
        spans: int64 (n, 3): sequence, start, stop in timesteps.
        rows: int64 (r+1,), row -> spans, from 0; None: each span is a row.
    """

    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None

    def slice(self, first: int, stop: int) -> PlanBatch:
        """Return rows ``first:stop`` as a batch of their own."""
        if self.rows is None:
            return PlanBatch(self.spans[first:stop], None)
        rows = self.rows[first : stop + 1]
        low, high = rows[0], rows[-1]
        return PlanBatch(self.spans[low:high], rows - low if low else rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each row, int64 (r,)."""
        return compute_row_lengths(self.spans, self.rows)


class PartLabel(NamedTuple):
    """Origin of a batch of a mixture.

    Attributes:
        part: Name of its part, or a name for each row; None without a mixture.
        epoch: The part's own epoch, from 0, or the index of each row among the draws of its
            sequence; None without a mixture.
    """

    part: str | list[str] | None
    epoch: int | list[int] | None


class DrawnBatch(NamedTuple):
    """A batch of sequences that were drawn, some of them several times.

    Attributes:
        sequences: Index of all drawn sequences, by position.
        spans: int64 (n, 3), the batch's spans with positions in ``sequences``.
        epoch: Key of random numbers in place of the epoch; None: the plan's, or the part's own.
        part: The part of a mixture that the sequences are drawn from, by its own policy and seed.
    """

    sequences: SequenceIndex
    spans: NDArray[np.int64]
    epoch: int | None = None
    part: str | None = None


class BatchTable(ABC):
    """The source of a plan's batches; optional members have defaults."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def batch(self, number: int) -> PlanBatch:
        """Return one batch in O(batch), or O(block) if its block is not cached."""

    @abstractmethod
    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""

    @abstractmethod
    def tables(self) -> Iterator[ArrayTable]:
        """Return all batches in order, as arrays, one run of batches after another."""

    @abstractmethod
    def prepare(self, number: int) -> int:
        """Make the block of a batch, if it has one; return the first batch of the next block."""

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        batches = [self.batch(number) for number in range(first, stop)]
        spans = [batch.spans for batch in batches]
        rows = [batch.rows for batch in batches]
        counts = [
            len(own) if offsets is None else len(offsets) - 1
            for own, offsets in zip(spans, rows, strict=True)
        ]
        joined_rows, offsets = join_rows(rows, spans), offsets_from_sizes(np.array(counts))
        return ArrayTable(np.concatenate(spans), joined_rows, offsets)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return batches of one run whose rows continue along a stream; None if no row does."""
        del first, stop
        return None

    def scale(self, number: int) -> float:
        """Return the ratio of the length of a batch's chunks to the usual one."""
        del number
        return 1.0

    def label(self, numbers: Sequence[int]) -> list[PartLabel] | None:
        """Return the part of each of these batches; None without a mixture."""
        del numbers
        return None

    def lane_begins(self, numbers: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return whether each lane begins a new pass over its data in batches, bool (n, lanes).

        None: all lanes do in batch 0, and in no other.
        """
        del numbers
        return None

    def locate_parts(self, number: int) -> Mapping[str, tuple[int, int]] | None:
        """Return the positions of a mixture's parts before a batch; None without such parts.

        Returns:
            Name -> the part's own epoch, and the number of its earlier batches.
        """
        del number
        return None

    def drawn_batch(self, number: int) -> DrawnBatch | None:
        """Return the drawn sequences, and a batch as positions among them; None without draws."""
        del number
        return None

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches, one batch after another; None: all 1."""
        del numbers
        return None


@dataclass(frozen=True, eq=False)
class ArrayTable(BatchTable):
    """Batches as arrays; see ``Plan`` for their meaning."""

    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None
    offsets: NDArray[np.int64]
    carry: bool = False
    _cumulative_totals: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=dict
    )

    @classmethod
    def from_arrays(
        cls, spans: ArrayLike, rows: ArrayLike | None, offsets: ArrayLike | None, lanes: int
    ) -> ArrayTable:
        """Return a table over validated arrays of a user or a policy.

        Raises:
            PlanError: If the arrays do not fit together.
        """
        span_table = np.ascontiguousarray(spans, dtype=np.int64)
        if span_table.size % 3 or (span_table.size and span_table.shape[-1] % 3):
            raise PlanError(
                "plan: `spans` must have shape (n, 3): sequence, start, stop, but have shape "
                f"{span_table.shape}. Pass three integers for each span."
            )
        span_table = span_table.reshape(-1, 3)
        row_offsets = None if rows is None else np.ascontiguousarray(rows, dtype=np.int64)
        if offsets is None:
            raise PlanError(
                "plan: `offsets` must be the first row of each batch, but is None. Pass them, "
                "followed by the number of rows."
            )
        batch_offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        count = len(span_table) if row_offsets is None else len(row_offsets) - 1
        _check_offsets("offsets", batch_offsets, count)
        if row_offsets is not None:
            _check_offsets("rows", row_offsets, len(span_table))
        wrong = np.flatnonzero((span_table[:, 1] > span_table[:, 2]) | (span_table < 0).any(axis=1))
        if len(wrong):
            raise PlanError(
                "plan: every span must have 0 <= start <= stop and a sequence of at least 0, but "
                f"span {int(wrong[0])} is {span_table[wrong[0]].tolist()}."
            )
        counts = np.diff(batch_offsets)
        if lanes and (counts != lanes).any():
            number = int(np.flatnonzero(counts != lanes)[0])
            raise PlanError(
                f"plan: every batch must have exactly {lanes} rows, one per lane, but batch "
                f"{number} has {int(counts[number])}."
            )
        empty = np.flatnonzero(np.diff(batch_offsets) == 0)
        if len(empty):
            raise PlanError(
                f"plan: batch {int(empty[0])} must have at least one row, but has none. Leave it "
                "out."
            )
        return cls(span_table, row_offsets, batch_offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, number: int) -> PlanBatch:
        """Return one batch in O(batch)."""
        first, stop = self._offset_list[number : number + 2]
        return self._all_rows.slice(first, stop)

    @cached_property
    def _all_rows(self) -> PlanBatch:
        return PlanBatch(self.spans, self.rows)

    @cached_property
    def _offset_list(self) -> list[int]:
        offset_list: list[int] = self.offsets.tolist()  # a list is indexed faster than an array
        return offset_list

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
        if overlap not in self._cumulative_totals:
            self._cumulative_totals[overlap] = self._compute_cumulative_totals(overlap)
        timesteps, rows = self._cumulative_totals[overlap]
        return int(timesteps[stop] - timesteps[first]), int(rows[stop] - rows[first])

    def tables(self) -> Iterator[ArrayTable]:
        """Yield itself, if it has any batches."""
        if len(self):
            yield self

    def prepare(self, number: int) -> int:
        """Do nothing: all batches exist."""
        del number
        return len(self)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` as a table of their own."""
        bounds = self.offsets[first : stop + 1]
        offsets = bounds - bounds[0]
        if self.rows is None:
            return ArrayTable(self.spans[bounds[0] : bounds[-1]], None, offsets)
        rows = self.rows[bounds[0] : bounds[-1] + 1]
        return ArrayTable(self.spans[rows[0] : rows[-1]], rows - rows[0], offsets)

    def every(self, stride: int, max_rows: int) -> ArrayTable:
        """Return every ``stride``-th batch from the first one on.

        Args:
            stride: Number of batches from one to the next.
            max_rows: Maximum number of rows of the table; the first batch is always in it.
        """
        starts, stops = self.offsets[:-1:stride], self.offsets[1::stride]
        offsets = offsets_from_sizes(stops - starts)
        count = max(1, int(np.searchsorted(offsets[1:], max_rows, side="right")))
        if stride == 1:
            return self if count == len(self) else self.slice(0, count)
        starts, offsets = starts[:count], offsets[: count + 1]
        numbers = concat_ranges(starts, offsets)
        if self.rows is None:
            return ArrayTable(self.spans.take(numbers, axis=0), None, offsets)
        firsts = self.rows.take(numbers)
        rows = offsets_from_sizes(self.rows.take(numbers + 1) - firsts)
        return ArrayTable(self.spans.take(concat_ranges(firsts, rows), axis=0), rows, offsets)

    def select_lanes(self, first: int, stop: int, lanes: int) -> ArrayTable:
        """Return lanes ``first:stop`` of every batch, whose rows are the lanes."""
        if stop - first == lanes:
            return self
        count = len(self)
        offsets = np.arange(count + 1) * (stop - first)
        if self.rows is None:
            spans = self.spans.reshape(count, lanes, 3)[:, first:stop]
            return ArrayTable(spans.reshape(-1, 3), None, offsets)
        is_selected = np.zeros((count, lanes), dtype=np.bool_)
        is_selected[:, first:stop] = True
        sizes = np.diff(self.rows)
        spans = self.spans[is_selected.reshape(-1).repeat(sizes)]
        return ArrayTable(spans, offsets_from_sizes(sizes[is_selected.reshape(-1)]), offsets)

    def cut_rows(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> ArrayTable:
        """Return the same rows, each cut to a range of its timesteps.

        A row without timesteps has an empty span.

        Args:
            starts: int64 (r,), first timestep of each row to keep.
            stops: int64 (r,), one past the last timestep to keep.
        """
        spans = self.spans.copy()
        if self.rows is None:
            spans[:, 2] = spans[:, 1] + stops
            spans[:, 1] += starts
            return ArrayTable(spans, None, self.offsets)
        sizes, lengths = np.diff(self.rows), spans[:, 2] - spans[:, 1]
        row_numbers = np.repeat(np.arange(len(sizes)), sizes)
        offsets = offsets_from_sizes(lengths)
        begins = offsets[:-1] - offsets[self.rows[:-1]][row_numbers]  # of each span in its row
        low = np.clip(starts[row_numbers] - begins, 0, lengths)
        high = np.clip(stops[row_numbers] - begins, 0, lengths)
        spans[:, 2] = spans[:, 1] + high
        spans[:, 1] += low
        is_kept = high > low
        is_empty = np.bincount(row_numbers[is_kept], minlength=len(sizes)) == 0
        is_kept[self.rows[:-1][is_empty & (sizes > 0)]] = True
        counts = np.bincount(row_numbers[is_kept], minlength=len(sizes))
        return ArrayTable(spans[is_kept], offsets_from_sizes(counts), self.offsets)

    def row_lengths(self) -> NDArray[np.int64]:
        """Return the number of timesteps of each row, int64 (r,)."""
        return self._sum_per_row(self.spans[:, 2] - self.spans[:, 1])

    def _sum_per_row(self, per_span: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.rows is None:
            return per_span
        offsets = offsets_from_sizes(per_span)
        return offsets[self.rows[1:]] - offsets[self.rows[:-1]]

    def _compute_cumulative_totals(
        self, overlap: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = self.row_lengths()
        scored = lengths
        if overlap and self.carry:  # the epoch's first batch has nothing before it
            scored = lengths - np.minimum(overlap, lengths)
            scored[: self.offsets[1]] = lengths[: self.offsets[1]]
        elif overlap:
            span_lengths = self.spans[:, 2] - self.spans[:, 1]
            context = np.where(self.spans[:, 1] > 0, np.minimum(overlap, span_lengths), 0)
            scored = lengths - self._sum_per_row(context)
        return offsets_from_sizes(scored)[self.offsets], offsets_from_sizes(lengths > 0)[
            self.offsets
        ]


def concat_tables(table: BatchTable) -> ArrayTable:
    """Return all batches of a table as one, for small plans and tests."""
    arrays = list(table.tables())
    if not arrays:
        return ArrayTable(np.empty((0, 3), dtype=np.int64), None, np.zeros(1, dtype=np.int64))
    return join_tables(arrays)


def join_tables(arrays: Sequence[ArrayTable]) -> ArrayTable:
    """Return the batches of several tables, one after another, as one table."""
    spans = np.concatenate([table.spans for table in arrays])
    rows = None
    if arrays[0].rows is not None:
        rows = _concat_offsets([table.rows for table in arrays if table.rows is not None])
    return ArrayTable(spans, rows, _concat_offsets([table.offsets for table in arrays]))


def join_rows(
    rows: Sequence[NDArray[np.int64] | None], spans: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64] | None:
    """Concatenate the rows of batches or tables; None if each span is a row in all of them."""
    if all(own is None for own in rows):
        return None
    sizes = [
        np.ones(len(own_spans), dtype=np.int64) if own is None else own[1:] - own[:-1]
        for own, own_spans in zip(rows, spans, strict=True)
    ]
    return offsets_from_sizes(np.concatenate(sizes))


def compute_row_lengths(
    spans: NDArray[np.int64], rows: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the number of timesteps of each row, int64 (r,); without ``rows`` each span is one."""
    lengths: NDArray[np.int64] = spans[:, 2] - spans[:, 1]
    if rows is None:
        return lengths
    offsets = offsets_from_sizes(lengths)
    return offsets[rows[1:]] - offsets[rows[:-1]]


def _concat_offsets(offset_arrays: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return offsets_from_sizes(np.concatenate([np.diff(offsets) for offsets in offset_arrays]))


def concat_ranges(starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integers of ranges, one range after another.

    Args:
        starts: int64 (n,), start of each range.
        offsets: int64 (n+1,), offset of each range in the result, and the end.
    """
    shifts = np.repeat(starts - offsets[:-1], np.diff(offsets))
    return np.arange(int(offsets[-1])) + shifts


def offsets_from_sizes(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the exclusive prefix sums of n sizes, int64 (n+1,), from 0."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _check_offsets(name: str, offsets: NDArray[np.int64], count: int) -> None:
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != count:
        found = f"{offsets[[0, -1]].tolist()}" if offsets.ndim == 1 and len(offsets) else ""
        found = f"its ends are {found}" if found else f"it has shape {offsets.shape}"
        raise PlanError(f"plan: `{name}` must begin with 0 and end with {count}, but {found}.")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        pair = offsets[falls[0] : falls[0] + 2].tolist()
        raise PlanError(
            f"plan: `{name}` must be non-decreasing, but has {pair[0]} before {pair[1]}."
        )

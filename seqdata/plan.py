"""The plan of an epoch: a frozen table of which spans make which batch.

A plan knows no rank. Small plans hold their arrays; big ones are made block by block when a batch
is asked for. Place in the flow: a Policy makes it, ``share`` cuts it. Reads: nothing. Makes:
batches of spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import PlanError

PLAN_VERSION = 1
"""Part of every fingerprint; raised when the same inputs give another plan than before."""

_NO_NUMBERS = np.empty(0, dtype=np.int64)


class PlanBatch(NamedTuple):
    """One batch of a plan: ``spans`` int64 (n, 3); ``rows`` int64 (r+1,) from 0, or None."""

    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None


class BatchTable(Protocol):
    """Where a plan's batches come from."""

    def __len__(self) -> int:
        """Give the number of batches."""
        ...

    def batch(self, number: int) -> PlanBatch:
        """Give one batch in O(batch), or O(block) where its block is not at hand."""
        ...

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Give scored timesteps and rows that are not idle of batches ``first:stop``."""
        ...

    def tables(self) -> Iterator[ArrayTable]:
        """Give all batches in order, as arrays, one run of batches after another."""
        ...

    def prepare(self, number: int) -> int:
        """Make a batch's block, if it has one; give the first batch after it that has another."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a plan does to the data, known before the epoch starts.

    Attributes:
        sequences: Sequences that are planned, each counted once.
        timesteps: Real timesteps that are planned.
        padded: Timesteps after padding each batch to its longest row.
        dropped: int64, numbers of the sequences that are left out (too long, or empty).
        split: int64, numbers of the sequences that are cut into several spans.
        truncated: int64, numbers of the sequences whose end is left out.
        worst: Number of the most expensive batch; -1 without batches.
        worst_rows: Its rows.
        worst_length: Timesteps of its longest row.
    """

    sequences: int
    timesteps: int
    padded: int
    dropped: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    split: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    truncated: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    worst: int = -1
    worst_rows: int = 0
    worst_length: int = 0

    @property
    def waste(self) -> float:
        """Timesteps after padding per real timestep; 1.0 is none."""
        return self.padded / self.timesteps if self.timesteps else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What a plan was made from, asked for only when somebody wants a fingerprint or a report."""

    fingerprint: Callable[[], str]
    report: Callable[[BatchTable], Report]


@dataclass(frozen=True, init=False, eq=False, repr=False, slots=True)
class Plan:
    """The batches of one epoch.

    Args:
        spans: int64 (n, 3): sequence, start, stop in timesteps of the planned axis.
        rows: int64 (r+1,), row -> spans; None: each span is a row.
        offsets: int64 (batches+1,), batch -> rows.
        lanes: 0: a batch belongs to one rank. L > 0: every batch has L rows, dealt to all ranks.
        overlap: Timesteps at the head of a span that are context, not scored, when start > 0.
        carry: Whether recurrent state runs on over the ends of sequences.
        lookahead: Timesteps read past stop, for shifted targets.

    Raises:
        PlanError: If the arrays do not fit together.

    Example:
        >>> plan = Plan([[0, 0, 3], [1, 0, 2], [2, 0, 5]], offsets=[0, 2, 3])
        >>> len(plan), plan.batch(1).spans.tolist()
        (2, [[2, 0, 5]])
    """

    _table: BatchTable
    _origin: Origin | None
    lanes: int
    overlap: int
    carry: bool
    lookahead: int

    def __init__(
        self,
        spans: ArrayLike,
        rows: ArrayLike | None = None,
        offsets: ArrayLike | None = None,
        lanes: int = 0,
        *,
        overlap: int = 0,
        carry: bool = False,
        lookahead: int = 0,
    ) -> None:
        table = ArrayTable.checked(spans, rows, offsets, lanes)
        self._freeze(table, None, lanes, overlap, carry, lookahead)

    @classmethod
    def lazy(
        cls,
        table: BatchTable,
        origin: Origin,
        *,
        lanes: int = 0,
        overlap: int = 0,
        carry: bool = False,
        lookahead: int = 0,
    ) -> Plan:
        """Make a plan whose batches are made when they are asked for."""
        plan = cls.__new__(cls)
        plan._freeze(table, origin, lanes, overlap, carry, lookahead)
        return plan

    def _freeze(
        self,
        table: BatchTable,
        origin: Origin | None,
        lanes: int,
        overlap: int,
        carry: bool,
        lookahead: int,
    ) -> None:
        values = (table, origin, lanes, overlap, carry, lookahead)
        names = ("_table", "_origin", "lanes", "overlap", "carry", "lookahead")
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        dealt = f"{self.lanes} lanes" if self.lanes else "dealt by batches"
        return f"Plan({len(self)} batches, {dealt})"

    def batch(self, number: int) -> PlanBatch:
        """Give one batch: its spans, and its rows from 0.

        Raises:
            PlanError: If there is no such batch.
        """
        if not 0 <= number < len(self._table):
            raise PlanError(f"plan: no batch {number}, must be in [0, {len(self)})")
        return self._table.batch(number)

    def totals(self, first: int, stop: int) -> tuple[int, int]:
        """Give the scored timesteps and the rows that are not idle of batches ``first:stop``."""
        return self._table.totals(first, stop, self.overlap)

    def prepare(self, number: int) -> int:
        """Plan a batch's block ahead of its use; give the first batch of the next block."""
        return self._table.prepare(number)

    def with_lookahead(self, lookahead: int) -> Plan:
        """Give the same batches, read ``lookahead`` timesteps past their stops."""
        plan = Plan.__new__(Plan)
        plan._freeze(self._table, self._origin, self.lanes, self.overlap, self.carry, lookahead)
        return plan

    @property
    def spans(self) -> NDArray[np.int64]:
        """All spans, int64 (n, 3): for small plans and tests."""
        return self._whole().spans

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Row -> spans of the whole plan, int64 (r+1,) or None: for small plans and tests."""
        return self._whole().rows

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Batch -> rows of the whole plan, int64 (batches+1,): for small plans and tests."""
        return self._whole().offsets

    @property
    def fingerprint(self) -> str:
        """Digest of what the plan was made from (32 hex digits): equal plans have equal ones."""
        if self._origin is not None:
            return self._origin.fingerprint()
        whole = self._whole()
        made = hashlib.sha256(f"{PLAN_VERSION};{self.lanes};{self.overlap};{self.carry}".encode())
        for array in (whole.spans, whole.rows, whole.offsets):
            made.update(b"-" if array is None else array.astype("<i8").tobytes())
        return made.hexdigest()[:32]

    @property
    def report(self) -> Report:
        """What the plan does to the data; one pass over all its batches."""
        return self._origin.report(self._table) if self._origin else report_of(self._table)

    def _whole(self) -> ArrayTable:
        return self._table if isinstance(self._table, ArrayTable) else _gather(self._table)


@dataclass(frozen=True, eq=False)
class ArrayTable:
    """Batches as arrays; see ``Plan`` for their meaning."""

    spans: NDArray[np.int64]
    rows: NDArray[np.int64] | None
    offsets: NDArray[np.int64]
    _sums: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    @classmethod
    def checked(
        cls, spans: ArrayLike, rows: ArrayLike | None, offsets: ArrayLike | None, lanes: int
    ) -> ArrayTable:
        """Make a table of what a user or a policy gives.

        Raises:
            PlanError: If the arrays do not fit together.
        """
        table = np.ascontiguousarray(spans, dtype=np.int64).reshape(-1, 3)
        of_rows = None if rows is None else np.ascontiguousarray(rows, dtype=np.int64)
        if offsets is None:
            raise PlanError("plan: `offsets` is None, must say where each batch begins; pass it")
        of_batches = np.ascontiguousarray(offsets, dtype=np.int64)
        count = len(table) if of_rows is None else len(of_rows) - 1
        _check_edges("offsets", of_batches, count)
        if of_rows is not None:
            _check_edges("rows", of_rows, len(table))
        if (table[:, 1] > table[:, 2]).any() or (table < 0).any():
            raise PlanError("plan: `spans` has start > stop or a negative number; must not")
        if lanes and (np.diff(of_batches) != lanes).any():
            raise PlanError(f"plan: a batch has not {lanes} rows, must have one per lane")
        return cls(table, of_rows, of_batches)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, number: int) -> PlanBatch:
        """Give one batch in O(batch)."""
        first, stop = self.offsets[number], self.offsets[number + 1]
        if self.rows is None:
            return PlanBatch(self.spans[first:stop], None)
        rows = self.rows[first : stop + 1]
        return PlanBatch(self.spans[rows[0] : rows[-1]], rows - rows[0])

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Give scored timesteps and rows that are not idle of batches ``first:stop``."""
        if overlap not in self._sums:
            self._sums[overlap] = self._running_sums(overlap)
        timesteps, rows = self._sums[overlap]
        return int(timesteps[stop] - timesteps[first]), int(rows[stop] - rows[first])

    def tables(self) -> Iterator[ArrayTable]:
        """Give itself, if it has any batches."""
        if len(self):
            yield self

    def prepare(self, number: int) -> int:
        """Do nothing: all is made."""
        del number
        return len(self)

    def part(self, first: int, stop: int) -> ArrayTable:
        """Give batches ``first:stop`` as a table of their own."""
        edges = self.offsets[first : stop + 1]
        offsets = edges - edges[0]
        if self.rows is None:
            return ArrayTable(self.spans[edges[0] : edges[-1]], None, offsets)
        rows = self.rows[edges[0] : edges[-1] + 1]
        return ArrayTable(self.spans[rows[0] : rows[-1]], rows - rows[0], offsets)

    def row_lengths(self) -> NDArray[np.int64]:
        """Give the timesteps of each row, int64 (r,)."""
        return self._per_row(self.spans[:, 2] - self.spans[:, 1])

    def _per_row(self, per_span: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.rows is None:
            return per_span
        sums = running(per_span)
        return sums[self.rows[1:]] - sums[self.rows[:-1]]

    def _running_sums(self, overlap: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = self.spans[:, 2] - self.spans[:, 1]
        scored = lengths
        if overlap:
            context = np.where(self.spans[:, 1] > 0, np.minimum(overlap, lengths), 0)
            scored = lengths - context
        timesteps = running(self._per_row(scored))[self.offsets]
        rows = running(self._per_row(lengths) > 0)[self.offsets]
        return timesteps, rows


def _check_edges(name: str, edges: NDArray[np.int64], count: int) -> None:
    if edges.ndim != 1 or not len(edges) or edges[0] != 0 or edges[-1] != count:
        raise PlanError(f"plan: `{name}` must run from 0 to {count}; check how it is counted")
    if (np.diff(edges) < 0).any():
        raise PlanError(f"plan: `{name}` falls, must never; check how it is counted")


def _gather(table: BatchTable) -> ArrayTable:
    parts = list(table.tables())
    if not parts:
        return ArrayTable(np.empty((0, 3), dtype=np.int64), None, np.zeros(1, dtype=np.int64))
    spans = np.concatenate([part.spans for part in parts])
    rows = None
    if parts[0].rows is not None:
        rows = _join([part.rows for part in parts if part.rows is not None])
    return ArrayTable(spans, rows, _join([part.offsets for part in parts]))


def _join(edges: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return running(np.concatenate([np.diff(one) for one in edges]))


def running(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Give the running sums of n sizes, int64 (n+1,), from 0."""
    sums = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=sums[1:])
    return sums


def report_of(table: BatchTable) -> Report:
    """Add up a table, a run of batches at a time."""
    timesteps = padded = worst_cost = done = 0
    worst, worst_rows, worst_length = -1, 0, 0
    seen = np.zeros(0, dtype=np.bool_)
    for part in table.tables():
        lengths, rows = part.row_lengths(), np.diff(part.offsets)
        longest = np.maximum.reduceat(lengths, part.offsets[:-1])
        costs = longest * rows
        timesteps, padded = timesteps + int(lengths.sum()), padded + int(costs.sum())
        top = int(np.argmax(costs))
        if int(costs[top]) > worst_cost:
            worst, worst_cost = done + top, int(costs[top])
            worst_rows, worst_length = int(rows[top]), int(longest[top])
        real = part.spans[part.spans[:, 1] < part.spans[:, 2]]  # idle lanes name no sequence
        seen = _mark(seen, real[:, 0])
        done += len(part)
    return Report(
        sequences=int(seen.sum()), timesteps=timesteps, padded=padded,
        worst=worst, worst_rows=worst_rows, worst_length=worst_length,
    )  # fmt: skip


def _mark(seen: NDArray[np.bool_], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    missing = int(numbers.max(initial=-1)) + 1 - len(seen)
    if missing > 0:
        seen = np.concatenate([seen, np.zeros(missing, dtype=np.bool_)])
    seen[numbers] = True
    return seen

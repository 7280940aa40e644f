"""Plan of an epoch: a frozen table of the spans of each batch.

A plan is independent of ranks. Small plans store their arrays. Large plans are made block by block,
when a batch is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import PlanError
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    DrawnBatch,
    PartLabel,
    PlanBatch,
    concat_tables,
)
from seqdata.plotting.axes import draw
from seqdata.plotting.page import render_figure, render_object
from seqdata.plotting.plans import chart_plan
from seqdata.report import BatchMeasures, PlanReport, make_report, measure_batches

_MOST_IN_HTML = 1 << 15  # batches that are measured for a notebook

PLAN_VERSION = 2
"""Part of every fingerprint; incremented when the same inputs give another plan than before."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanOrigin:
    """Inputs of a plan, which are read only for a fingerprint or a report.

    Attributes:
        fingerprint: Function that returns the digest of the inputs.
        report: Function of the batches that returns their report.
        order: Order of the epoch in words; None: unknown, or the order of the inner plan.
    """

    fingerprint: Callable[[], str]
    report: Callable[[BatchTable], PlanReport]
    order: str | None = None


@dataclass(frozen=True, init=False, eq=False, repr=False, slots=True)
class Plan:
    """Batches of one epoch.

    Args:
        spans: int64 (n, 3): sequence, start, stop in timesteps of the planned axis.
        rows: int64 (r+1,), row -> spans; None: each span is a row.
        offsets: int64 (batches+1,), batch -> rows.
        lanes: Number of lanes, which are the rows of every batch; ranks divide the lanes among
            them. 0: each batch belongs to one rank.
        overlap: Number of timesteps at the beginning of a span that are context and not scored, if
            start > 0. With ``carry``, at the beginning of a row, in every batch except the first.
        carry: Whether recurrent state is carried over the ends of sequences.
        lookahead: Number of timesteps to read after stop, for shifted targets.

    Raises:
        PlanError: If the arrays are inconsistent.

    Examples:
        >>> plan = Plan([[0, 0, 3], [1, 0, 2], [2, 0, 5]], offsets=[0, 2, 3])
        >>> len(plan), plan.batch(1).spans.tolist()
        (2, [[2, 0, 5]])
    """

    _table: BatchTable
    _origin: PlanOrigin | None
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
        table = replace(ArrayTable.from_arrays(spans, rows, offsets, lanes), carry=carry)
        self._freeze(table, None, lanes, overlap, carry, lookahead)

    @classmethod
    def lazy(
        cls,
        table: BatchTable,
        origin: PlanOrigin,
        *,
        lanes: int = 0,
        overlap: int = 0,
        carry: bool = False,
        lookahead: int = 0,
    ) -> Plan:
        """Return a plan that makes its batches on demand.

        Args:
            table: Table that makes the batches.
            origin: Inputs of the plan.
            lanes: As in ``Plan``.
            overlap: As in ``Plan``.
            carry: As in ``Plan``.
            lookahead: As in ``Plan``.
        """
        plan = cls.__new__(cls)
        plan._freeze(table, origin, lanes, overlap, carry, lookahead)
        return plan

    def _freeze(
        self,
        table: BatchTable,
        origin: PlanOrigin | None,
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
        sharing_text = f"{self.lanes} lanes" if self.lanes else "a batch per rank"
        order = self.order
        return f"Plan({len(self)} batches, {sharing_text}{f', {order}' if order else ''})"

    def _repr_html_(self) -> str:
        chart = chart_plan(self, "batches", most=_MOST_IN_HTML)
        pictures = [chart, chart_plan(self)] if self.lanes else [chart]
        return render_object(repr(self), map(render_figure, pictures))

    def plot(self, ax: Any = None, *, kind: str | None = None, label: str = "") -> Any:
        """Draw the plan with matplotlib.

        Neighbouring batches of a large plan share a bar, of their mean: there are at most 60 bars.

        Args:
            ax: Axes to draw into; None: axes of a new figure.
            kind: ``batches``: real timesteps and padding of each batch, in the order of the epoch.
                ``padding``: padding of each batch, most padded first, to compare several plans in
                the same axes. ``lengths``: histogram of timesteps per row. ``lanes``: sequences of
                each lane in the first 40 steps. ``parts``: share of each part of a mixture. None:
                ``lanes`` for a plan with lanes, else ``batches``.
            label: Name of the plan in the legend or the title.

        Returns:
            The axes.

        Raises:
            ConfigError: If matplotlib is not installed, an argument is invalid, or the plan has no
                lanes or parts to draw.

        Examples:
            >>> plan = Plan([[0, 0, 3], [1, 0, 2], [2, 0, 5]], offsets=[0, 2, 3])
            >>> plan.plot().get_title()
            '2 batches: 9.1 % padding'
        """
        return draw(chart_plan(self, kind, label=label), ax)

    def batch(self, index: int) -> PlanBatch:
        """Return one batch: its spans, and its rows counted from 0.

        Raises:
            PlanError: If the batch does not exist.
        """
        if not 0 <= index < len(self._table):
            raise PlanError(f"plan: no batch {index}: indices are in [0, {len(self)}).")
        return self._table.batch(index)

    def totals(self, first: int, stop: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of non-empty rows in batches ``first:stop``."""
        return self._table.totals(first, stop, self.overlap)

    def prepare(self, index: int) -> int:
        """Plan the block of a batch before its use; return the first batch of the next block."""
        return self._table.prepare(index)

    def with_lookahead(self, lookahead: int) -> Plan:
        """Return the same batches with ``lookahead`` timesteps to read after each stop."""
        plan = Plan.__new__(Plan)
        plan._freeze(self._table, self._origin, self.lanes, self.overlap, self.carry, lookahead)
        return plan

    def with_table(self, wrap: Callable[[BatchTable], BatchTable], origin: PlanOrigin) -> Plan:
        """Return a plan whose table wraps that of this plan, for a policy around a policy.

        Args:
            wrap: Function of the table that returns the new table.
            origin: Inputs of the new plan.
        """
        if origin.order is None:
            origin = replace(origin, order=self.order)
        return Plan.lazy(
            wrap(self._table), origin, lanes=self.lanes, overlap=self.overlap, carry=self.carry,
            lookahead=self.lookahead,
        )  # fmt: skip

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` as one table.

        Args:
            first: Index of the first batch.
            stop: One past the last batch, at most ``prepare(first)``.
        """
        return self._table.slice(first, stop)

    def extend(self, first: int, stop: int) -> ArrayTable | None:
        """Return batches ``first:stop`` with rows extended by ``lookahead`` along a stream.

        None if there is no lookahead, or if each span is extended separately.
        """
        return self._table.extend(first, stop)

    def label_parts(self, indices: Sequence[int]) -> list[PartLabel] | None:
        """Return the label of the part of each given batch; None without a mixture."""
        return self._table.label(indices)

    def lane_begins(self, indices: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return whether each lane begins a new pass over its data in batches, bool (n, lanes).

        None: all lanes begin a pass in batch 0, and none in other batches.
        """
        return self._table.lane_begins(indices)

    def locate_parts(self, index: int) -> Mapping[str, tuple[int, int]] | None:
        """Return the positions of the parts of a mixture before a batch; None without parts.

        Args:
            index: Index of the batch; ``len()`` for the end of the epoch.

        Returns:
            Name -> epoch of the part, and number of its earlier batches in this epoch.
        """
        return self._table.locate_parts(index)

    def drawn_batch(self, index: int) -> DrawnBatch | None:
        """Return the drawn sequences and a batch of them; None if each sequence occurs once."""
        return self._table.drawn_batch(index)

    def row_weights(self, indices: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches, float32 (rows,); None if all are 1."""
        return self._table.row_weights(indices)

    def lr_scale(self, index: int) -> float:
        """Return the ratio of the chunk length of a batch to the usual one; 1 without chunks."""
        return self._table.scale(index)

    @property
    def spans(self) -> NDArray[np.int64]:
        """All spans, int64 (n, 3), for small plans and tests."""
        return self.as_arrays().spans

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Row -> spans of the whole plan, int64 (r+1,) or None, for small plans and tests."""
        return self.as_arrays().rows

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Batch -> rows of the whole plan, int64 (batches+1,), for small plans and tests."""
        return self.as_arrays().offsets

    @property
    def fingerprint(self) -> str:
        """Digest of the inputs of the plan, or of its arrays if it has none (32 hex digits)."""
        if self._origin is not None:
            return self._origin.fingerprint()
        arrays = self.as_arrays()
        digest = hashlib.sha256(f"{PLAN_VERSION};{self.lanes};{self.overlap};{self.carry}".encode())
        for array in (arrays.spans, arrays.rows, arrays.offsets):
            digest.update(b"-" if array is None else array.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    @property
    def order(self) -> str | None:
        """Order of the epoch in words, and number of ranks for which its steps are balanced.

        None if the policy does not describe the order.
        """
        return None if self._origin is None else self._origin.order

    @property
    def measures(self) -> BatchMeasures:
        """Rows and timesteps of each batch, computed in one pass over all batches."""
        return measure_batches(self._table)

    @property
    def report(self) -> PlanReport:
        """Effect of the plan on the data, computed in one pass over all batches."""
        return self._origin.report(self._table) if self._origin else make_report(self._table)

    def as_arrays(self) -> ArrayTable:
        """Return all batches as one table of arrays, for small plans and tests."""
        return self._table if isinstance(self._table, ArrayTable) else concat_tables(self._table)

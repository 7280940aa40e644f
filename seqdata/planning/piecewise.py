"""The batches of an epoch that are those of several plans, one piece after another.

Which plan a batch is from follows from its number. What is asked of a batch is asked of that plan.
Reads: plans. Makes: a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable, DrawnBatch, PartLabel, PlanBatch


class PiecewiseTable(ABC):
    """A table whose batches are pieces of plans.

    Attributes:
        count: Its batches.
    """

    __slots__ = ()

    count: int

    @abstractmethod
    def _locate(self, number: int) -> tuple[Plan, int, int]:
        """Return the plan of a batch, where the plan begins, and one past its last batch here.

        Both are numbers of this table; the plan may begin before it.
        """
        ...

    def __len__(self) -> int:
        return self.count

    def batch(self, number: int) -> PlanBatch:
        """Return one batch."""
        plan, first, _ = self._locate(number)
        return plan.batch(number - first)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        plan, start, _ = self._locate(first)
        return plan.slice(first - start, stop - start)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return scored timesteps and rows of batches ``first:stop``."""
        del overlap  # nothing that is drawn has any
        timesteps = rows = 0
        while first < stop:
            plan, start, end = self._locate(first)
            end = min(end, stop)
            more = plan.totals(first - start, end - start)
            timesteps, rows, first = timesteps + more[0], rows + more[1], end
        return timesteps, rows

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, one run of a plan after another."""
        tables = []
        number = 0
        while number < self.count:
            plan, start, stop = self._locate(number)
            stop = min(stop, start + plan.prepare(number - start))
            tables.append(plan.slice(number - start, stop - start))
            number = stop
        has_rows = any(table.rows is not None for table in tables)
        for table in tables:
            if has_rows and table.rows is None:
                yield replace(table, rows=np.arange(len(table.spans) + 1), _cumulative_totals={})
            else:
                yield table

    def prepare(self, number: int) -> int:
        """Plan a batch's block; return the first batch after it."""
        plan, start, stop = self._locate(number)
        return min(stop, start + plan.prepare(number - start))

    def label(self, numbers: Sequence[int]) -> list[PartLabel] | None:
        """Return where each of these batches is from; None without a mixture."""
        labels: list[PartLabel] = []
        for number in numbers:
            plan, start, _ = self._locate(number)
            label = plan.label_parts([number - start])
            if label is None:
                return None
            labels += label
        return labels

    def drawn_batch(self, number: int) -> DrawnBatch | None:
        """Return what tells the draws of a sequence apart."""
        plan, start, _ = self._locate(number)
        return plan.drawn_batch(number - start)

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches; None: all are 1."""
        weights = []
        for number in numbers:
            plan, start, _ = self._locate(number)
            rows = plan.row_weights([number - start])
            if rows is None:
                return None
            weights.append(rows)
        return np.concatenate(weights)

"""Makes the batch of one step: read, transform, collate; an error is told where it happened.

Place in the flow: RankPlan -> batches. Reads: a store. Makes: one batch for each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch import SequenceBatch
from seqdata.errors import SeqDataError
from seqdata.loading.head import head_of
from seqdata.loading.options import Update
from seqdata.loading.output import Output
from seqdata.loading.reading import Reading
from seqdata.loading.transforming import Rows, Transforming
from seqdata.protocols import Collator, Columns
from seqdata.sharing import RankPlan, Step


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """What makes batches, the same for all epochs of a loader.

    Attributes:
        reading: Reads columns.
        transforming: Changes them.
        collator: Lays them out.
        output: Chooses what is handed out.
        together: Whether the collator takes inputs and targets of a shift as one column.
    """

    reading: Reading
    transforming: Transforming | None
    collator: Collator
    output: Output | None
    together: bool


@dataclass(slots=True, eq=False)
class Assembly:
    """The batches of one rank in one epoch, by step.

    Args:
        tools: What makes batches.
        share: The rank's steps.
        epoch: Of the plan.
        update: How steps make optimizer updates.
    """

    tools: Tools
    share: RankPlan
    epoch: int
    update: Update
    _update_number: int = field(default=-1, init=False)
    _update_totals: tuple[int, int] = field(default=(0, 0), init=False)

    def batch(self, step: int) -> Any:
        """Make the batch of a step, or what is chosen of it."""
        return self._chosen(self._whole(step))

    def sized(self, step: int) -> tuple[Any, int]:
        """Make the same, and say how many bytes of tensors it holds."""
        batch = self._whole(step)
        size = sum(value.nbytes for value in batch.data.values() if isinstance(value, Tensor))
        return self._chosen(batch), size

    def _chosen(self, batch: SequenceBatch) -> Any:
        output = self.tools.output
        return batch if output is None else output(batch)

    def _whole(self, number: int) -> SequenceBatch:
        step = self.share[number]
        try:
            return self._read(step, number)
        except SeqDataError as error:
            raise self._placed(error, step.number, number) from error
        except Exception as error:
            error.add_note(f"in {self._place(step.number, number)}")
            raise

    def _read(self, step: Step, number: int) -> SequenceBatch:
        tools = self.tools
        reading = tools.reading
        numbers: NDArray[np.int64] = step.spans[:, 0]
        ids = reading.store.base_numbers(numbers)
        batch = head_of(step, ids, self.share.plan, reading.axes)
        self._count(batch, number)
        horizon = batch.horizon = self.share.plan.lookahead - reading.shift
        together = tools.together and step.rows is None
        columns: Columns
        if tools.transforming is None:
            columns = reading.columns(step.spans, together=together, horizon=horizon)
        else:
            rows = Rows(step.spans, ids, self.epoch, horizon)
            columns, batch.axes = tools.transforming.columns(rows, together=together)
        return tools.collator(columns, batch)

    def _count(self, batch: SequenceBatch, number: int) -> None:
        """Say what the step and its update count over all ranks: known from the plan."""
        update, share = self.update, self.share
        accumulate = update.accumulate
        if share.world.size == 1 and not share.plan.lanes:  # the step is this batch
            step_totals = batch.num_tokens, len(batch)
        else:
            step_totals = share.totals(number, number + 1)
        if accumulate == 1:
            totals = step_totals
            if update.steps is not None and number >= update.steps:
                totals = (0, 0)
        else:
            if number // accumulate != self._update_number:
                self._update_number = number // accumulate
                self._update_totals = self._totals_of(self._update_number)
            totals = self._update_totals
        scale = share.world.size * (accumulate if update.divided else 1)
        batch.epoch = self.epoch
        batch.global_num_tokens = step_totals[0]
        batch.update_num_tokens = totals[0]
        batch.loss_scale = scale / totals[0] if totals[0] else 0.0
        batch.sequence_scale = scale / totals[1] if totals[1] else 0.0

    def _totals_of(self, update_number: int) -> tuple[int, int]:
        steps = len(self.share) if self.update.steps is None else self.update.steps
        first = update_number * self.update.accumulate
        stop = min(first + self.update.accumulate, steps, len(self.share))
        return self.share.totals(first, stop) if first < stop else (0, 0)

    def _placed(self, error: SeqDataError, batch: int, step: int) -> SeqDataError:
        facts = dict(error.facts)
        facts.update(epoch=self.epoch, batch=batch, step=step, rank=self.share.world.rank)
        return type(error).at(f"{error}\n  {self._place(batch, step)}", **facts)

    def _place(self, batch: int, step: int) -> str:
        world = self.share.world
        return f"epoch {self.epoch}, batch {batch} (step {step}, rank {world.rank} of {world.size})"

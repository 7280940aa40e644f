"""Makes the batch of one step: read, transform, collate; an error is told where it happened.

Place in the flow: RankPlan -> batches. Reads: a store. Makes: one batch for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import Splitting
from seqdata.errors import SEE, SeqDataError, step_line
from seqdata.loading.bad_sequences import is_about_data, mend, shortened
from seqdata.loading.batch_metadata import delivered
from seqdata.loading.error_log import Tally
from seqdata.loading.fetcher import Fetching
from seqdata.loading.options import OnError, Update
from seqdata.loading.output import Output
from seqdata.loading.profiler_ranges import COLLATE, FETCH, ranged
from seqdata.loading.shifted_stream import narrowed
from seqdata.loading.step_preparer import Made, Making
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.rng import Occurrences
from seqdata.protocols import Collator
from seqdata.sharing import RankPlan, Step

Fetch = Callable[[Request], tuple[Any, Axes]]
"""Gives the columns of a request, here or from a worker process; or what that has collated."""


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """What makes batches, the same for all epochs of a loader.

    Attributes:
        fetching: Reads and transforms columns.
        occurrences: Says which drawing of its sequence each span is; None: nothing is drawn.
        collator: Lays columns out.
        output: Chooses what is handed out.
        together: Whether the collator takes inputs and targets of a shift as one column.
        on_error: What becomes of a sequence that cannot be read or transformed.
        tally: Counts them.
        see: Says what shows a batch, by epoch and number; None: nothing does.
        name: Of the loader.
    """

    fetching: Fetching
    occurrences: Occurrences | None
    collator: Collator
    output: Output | None
    together: bool
    on_error: OnError
    tally: Tally
    see: Callable[[int, int], str] | None = None
    name: str = ""


@dataclass(slots=True, eq=False)
class Assembly:
    """The batches of one rank in one epoch, by step.

    Args:
        tools: What makes batches.
        share: The rank's steps.
        epoch: Of the plan.
        update: How steps make optimizer updates.
        fetch: Gives columns; by default in this process.
    """

    tools: Tools
    share: RankPlan
    epoch: int
    update: Update
    fetch: Fetch
    _making: Making = field(init=False)
    _asked: dict[int, Made] = field(default_factory=dict, init=False)
    _coming: Iterator[Made] = field(default=iter(()), init=False)
    _next: int = field(default=-1, init=False)  # the step that comes first
    _update_number: int = field(default=-1, init=False)
    _update_totals: tuple[int, int] = field(default=(0, 0), init=False)

    def __post_init__(self) -> None:
        tools, plan = self.tools, self.share.plan
        reading = tools.fetching.reading
        self._making = Making(reading, tools.occurrences, tools.together, plan, self.epoch)

    def request(self, number: int) -> Request:
        """Say what a step will ask for; the step is kept until its batch is made."""
        made = self._asked[number] = self._made(number)
        return made.request

    def batch(self, step: int) -> Any:
        """Make the batch of a step, or what is chosen of it."""
        return self._chosen(self.whole(step))

    def sized(self, step: int) -> tuple[Any, int]:
        """Make the same, and say how many bytes of tensors it holds."""
        batch = self.whole(step)
        size = sum(value.nbytes for value in batch.data.values() if isinstance(value, Tensor))
        return self._chosen(batch), size

    def _made(self, number: int) -> Made:
        if not self.share.plan.lanes:
            return self._making.one(self.share[number])
        made = next(self._coming, None) if number == self._next else None
        if made is None:
            self._coming = self._making.steps(self.share, number)
            made = next(self._coming)
        self._next = number + 1
        return made

    def _chosen(self, batch: SequenceBatch) -> Any:
        output = self.tools.output
        return batch if output is None else output(batch)

    def headed(self, step: int) -> SequenceBatch:
        """Make the batch of a step without its data: nothing is read."""
        return self._counted(self._made(step), step)

    def whole(self, number: int) -> SequenceBatch:
        """Make the batch of a step, whatever is chosen of it."""
        made = self._asked.pop(number, None) or self._made(number)
        try:
            try:
                return self._read(made, number)
            except Exception as error:
                if self.tools.on_error == "raise" or not is_about_data(error):
                    raise
                return self._mended(made.step(), made.request, number, error)
        except SeqDataError as error:
            placed = self._placed(error, made.head.number, number)
            raise placed.with_traceback(error.__traceback__) from error.__cause__
        except StopIteration as error:  # as it is, it would end the epoch of whoever asks
            stopped = RuntimeError(
                "loader: a transform, collator or data set raised StopIteration, must give "
                "something; pass a default to its next()"
            )
            for note in getattr(error, "__notes__", ()):
                stopped.add_note(note)
            raise self._noted(stopped, made.head.number, number) from error
        except Exception as error:
            self._noted(error, made.head.number, number)
            raise

    def _read(self, made: Made, number: int) -> SequenceBatch:
        batch = self._counted(made, number)
        with ranged(FETCH):
            columns, axes = self.fetch(made.request)
        if self.tools.fetching.reading.bounded:
            made = self._making.one(shortened(made.step(), columns, axes))
            batch = self._counted(made, number)
            batch.num_tokens = delivered(batch)
        batch.axes = axes
        with ranged(COLLATE):
            return self._collated(columns, batch, made)

    def _collated(self, columns: Any, batch: SequenceBatch, made: Made) -> SequenceBatch:
        collator = self.tools.collator
        if self.tools.fetching.collate is not None and isinstance(collator, Splitting):
            return collator.filled(columns, batch)  # a worker has collated them
        if made.request.streamed and batch.bounds is None:
            columns = self._narrowed(columns, batch, made.step())
        batch = collator(columns, batch)
        batch.bounds = None  # it has served
        return batch

    def _narrowed(self, columns: Any, batch: SequenceBatch, step: Step) -> Any:
        if step.wide is None:
            return columns
        together = self.tools.together
        return narrowed(columns, batch.axes, step, step.wide, together=together)

    def _counted(self, made: Made, number: int) -> SequenceBatch:
        """Give the batch of a step with what it counts, without data."""
        batch = made.head
        self._count(batch, number)
        batch.loader = self.tools.name
        batch.horizon = made.request.horizon
        return batch

    def _mended(self, step: Step, request: Request, number: int, error: Exception) -> SequenceBatch:
        """Make a batch without the sequences that fail, as many rows as were planned."""
        tools = self.tools
        mended = mend(tools.fetching, step, request, tools.on_error)
        if mended is None:  # it is the batch that fails, and no sequence
            raise error
        counts = step.weights.any()  # filler is another rank's row, who counts it
        for span, found in sorted(mended.errors.items()) if counts else ():
            sequence = int(request.ids[span])
            tools.tally.add(
                found, loader=tools.name, sequence=sequence, epoch=self.epoch, batch=step.number
            )
        step = mended.step
        if tools.fetching.reading.bounded:
            step = shortened(step, mended.columns, mended.axes)
        batch = self._counted(self._making.one(step), number)
        batch.num_tokens = delivered(batch)
        batch.axes = mended.axes
        return tools.collator(self._narrowed(mended.columns, batch, step), batch)

    def _count(self, batch: SequenceBatch, number: int) -> None:
        """Say what the step and its update count over all ranks: known from the plan."""
        update, share = self.update, self.share
        accumulate = update.accumulate
        sure = self.tools.on_error == "raise" and not self.tools.fetching.reading.bounded
        if share.world.size == 1 and not share.plan.lanes and sure:  # the step is this batch
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
        world, worker = self.share.world, error.facts.get("worker")
        line = self._place(batch, step, worker if isinstance(worker, int) else None)
        placed = error.with_place(line, epoch=self.epoch, batch=batch, step=step, rank=world.rank)
        see = self._see(batch)
        return placed if see is None else placed.shown_by(see)

    def _noted(self, error: Exception, batch: int, step: int) -> Exception:
        see = self._see(batch)
        error.add_note(f"in {self._place(batch, step)}" + (f". {SEE}{see}" if see else ""))
        return error

    def _see(self, batch: int) -> str | None:
        see = self.tools.see
        return None if see is None else see(self.epoch, batch)

    def _place(self, batch: int, step: int, worker: int | None = None) -> str:
        world = self.share.world
        return step_line(
            epoch=self.epoch, batch=batch, step=step, rank=world.rank, size=world.size,
            worker=worker,
        )  # fmt: skip

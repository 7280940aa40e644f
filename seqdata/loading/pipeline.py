"""The making of a batch: read, transform, collate; errors get the position of the batch.

Place in the flow: step request -> columns -> batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.autograd import profiler
from torch.autograd.profiler import record_function

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LAYOUTS, check_layout
from seqdata.collators.base import (
    PaddedOffsets,
    SupportsPaddedOffsets,
    SupportsWorkerCollate,
)
from seqdata.errors import (
    REPLAY_PREFIX,
    ConfigError,
    SeqDataError,
    describe_stop,
    format_step,
)
from seqdata.loading.bad_sequences import RepairedBatch, is_about_data, repair_batch, shorten_step
from seqdata.loading.batch_metadata import PreparedStep, PreparedSteps, StepPreparer
from seqdata.loading.error_log import ErrorLog
from seqdata.loading.fetcher import Fetcher
from seqdata.loading.options import OnError, UpdateSchedule
from seqdata.loading.output import Output, ShapedOutput, pin
from seqdata.loading.shifted_stream import select_step_columns
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.rng import Occurrences
from seqdata.protocols import Collator
from seqdata.sharing import RankPlan, Step

FETCH, COLLATE = "seqdata.fetch", "seqdata.collate"
_COUNTS = (
    "epoch", "loader", "horizon", "ends_update", "global_num_tokens", "update_num_tokens",
    "loss_scale", "sequence_scale",
)  # fmt: skip

FetchFn = Callable[[StepRequest], tuple[Any, Axes]]
"""Returns the columns of a request, or its collated result, here or from a worker process."""

CollateFn = Callable[[Any, SequenceBatch, PaddedOffsets | None], SequenceBatch]
"""The ``collate`` of a ``SupportsPaddedOffsets``."""


@dataclass(frozen=True, slots=True, eq=False)
class PipelineComponents:
    """The components that make batches, shared by all epochs of a loader.

    Attributes:
        fetcher: Fetcher of columns.
        occurrences: Counter of the draws of each sequence; None: nothing is random.
        collator: Collator of columns.
        output: Selection of the output; None: the batch itself.
        joint_targets: Whether the collator takes inputs and targets of a shift as one column.
        on_error: Treatment of a sequence that cannot be read or transformed.
        error_log: Log of these errors.
        replay_hint: Called with the epoch and index of a batch; returns the command that replays
            it. None: there is no such command.
        name: Name of the loader.
    """

    fetcher: Fetcher
    occurrences: Occurrences | None
    collator: Collator
    output: Output | ShapedOutput | None
    joint_targets: bool
    on_error: OnError
    error_log: ErrorLog
    replay_hint: Callable[[int, int], str] | None = None
    name: str = ""


@dataclass(slots=True, eq=False)
class BatchPipeline:
    """The batches of one rank in one epoch, by step.

    Args:
        components: The components that make batches.
        share: The rank's steps.
        epoch: Epoch of the plan.
        update_schedule: Grouping of steps into optimizer updates.
        fetch: Function that fetches columns, here or in workers.
    """

    components: PipelineComponents
    share: RankPlan
    epoch: int
    update_schedule: UpdateSchedule
    fetch: FetchFn
    _preparer: StepPreparer = field(init=False)
    _requested: dict[int, PreparedStep] = field(default_factory=dict, init=False)
    _run: PreparedSteps | None = field(default=None, init=False)
    _run_steps: range = field(default=range(0), init=False)
    _collate_padded: CollateFn | None = field(init=False)  # takes planned offsets
    _update_number: int = field(default=-1, init=False)
    _update_totals: tuple[int, int] = field(default=(0, 0), init=False)
    _has_bounded_lengths: bool = field(init=False)
    _is_step_of_one_batch: bool = field(init=False)  # and of the planned lengths
    _horizon: int = field(init=False)
    _loss_scale: int = field(init=False)  # by how many losses the caller divides
    _num_trained: int = field(init=False)  # steps of the epoch that are trained

    def __post_init__(self) -> None:
        components, plan = self.components, self.share.plan
        reader, joint_targets = components.fetcher.reader, components.joint_targets
        joint = components.collator if joint_targets else None
        self._collate_padded = joint.collate if isinstance(joint, SupportsPaddedOffsets) else None
        self._preparer = StepPreparer(
            reader, components.occurrences, joint_targets, self._collate_padded is not None, plan,
            self.epoch,
        )  # fmt: skip
        self._horizon = plan.lookahead - reader.shift
        world, update_schedule = self.share.world, self.update_schedule
        self._has_bounded_lengths = reader.has_bounded_lengths
        is_exact = components.on_error == "raise" and not self._has_bounded_lengths
        is_alone = world.size == world.time_parts == 1
        self._is_step_of_one_batch = is_alone and is_exact
        accumulate = update_schedule.accumulate if update_schedule.is_loss_divided else 1
        self._loss_scale = world.size * accumulate
        limit = update_schedule.steps
        self._num_trained = len(self.share) if limit is None else min(limit, len(self.share))

    def prepare_request(self, step: int) -> StepRequest:
        """Return the request of a step; the step is kept until its batch is made."""
        prepared = self._requested[step] = self._prepare(step)
        return prepared.request

    def iterate(self, steps: range, *, is_pinned: bool) -> Generator[Any, None, None]:
        """Yield the outputs of steps, without a reference to one while the next is made."""
        make = self.make_batch if self.components.output is None else self.make_output
        for step in steps:
            yield pin(make(step)) if is_pinned else make(step)

    def make_output(self, step: int) -> Any:
        """Return the output of a step."""
        output, batch = self.components.output, self.make_batch(step)
        return batch if output is None else output(batch)

    def make_sized_output(self, step: int) -> tuple[Any, int]:
        """Return the output of a step, and the number of bytes of the tensors of the batch."""
        batch = self.make_batch(step)
        size = sum(value.nbytes for value in batch.data.values() if isinstance(value, Tensor))
        output = self.components.output
        return batch if output is None else output(batch), size

    def _prepare(self, step: int) -> PreparedStep:
        run = self._run
        if run is None or step not in self._run_steps:
            run = self._run = self._preparer.prepare_from(self.share, step)
            self._run_steps = range(step, step + len(run))
        return run.prepare(step - self._run_steps.start)

    def make_metadata(self, step: int) -> SequenceBatch:
        """Return the batch of a step without its data; nothing is read."""
        return self._describe(self._prepare(step), step)

    def make_batch(self, step: int) -> SequenceBatch:
        """Return the batch of a step, before the output is selected."""
        requested = self._requested
        prepared = requested.pop(step) if step in requested else self._prepare(step)
        try:
            try:
                return self._fetch_and_collate(prepared, step)
            except Exception as error:
                if self.components.on_error == "raise" or not is_about_data(error):
                    raise
                return self._repair(prepared.make_step(), prepared.request, step, error)
        except SeqDataError as error:
            located_error = self._locate_error(error, prepared.batch_number, step)
            raise located_error.with_traceback(error.__traceback__) from error.__cause__
        except StopIteration as error:  # unchanged, it would end the caller's epoch
            stop_error = RuntimeError(describe_stop("loader: a transform, collator or dataset"))
            for note in getattr(error, "__notes__", ()):
                stop_error.add_note(note)
            raise self._add_note(stop_error, prepared.batch_number, step) from error
        except Exception as error:
            self._add_note(error, prepared.batch_number, step)
            raise

    def _fetch_and_collate(self, prepared: PreparedStep, step: int) -> SequenceBatch:
        fetch, collate = self.fetch, self._collate
        if profiler._is_profiler_enabled:  # a range takes time also where nothing records it
            fetch, collate = record_function(FETCH)(fetch), record_function(COLLATE)(collate)
        columns, axes = fetch(prepared.request)
        if self._has_bounded_lengths:
            prepared = self._preparer.prepare(shorten_step(prepared.make_step(), columns, axes))
        batch = self._describe(prepared, step)
        batch.axes = axes
        return collate(columns, batch, prepared)

    def _collate(self, columns: Any, batch: SequenceBatch, prepared: PreparedStep) -> SequenceBatch:
        collator, run = self.components.collator, prepared.run
        is_collated = self.components.fetcher.collate is not None  # by a worker
        if is_collated and isinstance(collator, SupportsWorkerCollate):
            return collator.fill_batch(columns, batch)
        planned = None if run.offsets is None else run.offsets[prepared.i]
        if planned is None and prepared.request.is_shifted_stream:
            columns = self._select_step_columns(columns, batch, prepared.make_step())
        width = batch.padded_length
        if self._collate_padded is None:
            batch = collator(columns, batch)
        else:
            batch = self._collate_padded(columns, batch, planned)
        if batch.layout not in LAYOUTS:
            check_layout(batch.layout)  # raises
        if batch.horizon and batch.padded_length != width:
            raise ConfigError(
                f"collator: `padded_length` of windows with a horizon must stay {width}, since the "
                f"horizon follows it, but is {batch.padded_length}. Pad the input of the model, "
                "not the batch."
            )
        return batch

    def _select_step_columns(self, columns: Any, batch: SequenceBatch, step: Step) -> Any:
        if step.extended is None:
            return columns
        joint_targets = self.components.joint_targets
        return select_step_columns(
            columns, batch.axes, step, step.extended, joint_targets=joint_targets
        )

    def _describe(self, prepared: PreparedStep, step: int) -> SequenceBatch:
        """Return the batch of a step with its counts, without data."""
        metadata, i = prepared.run.metadata, prepared.i
        batch = metadata.batch(i)
        if self._is_step_of_one_batch:
            step_totals = batch.num_tokens, metadata.num_counted[i]
        else:
            step_totals = self.share.totals(step, step + 1)
        totals, schedule, scale = step_totals, self.update_schedule, self._loss_scale
        if schedule.accumulate > 1:
            totals = self._find_update_totals(batch, step)
        elif schedule.steps is not None and step >= schedule.steps:
            totals = (0, 0)
        batch.epoch, batch.loader, batch.horizon = self.epoch, self.components.name, self._horizon
        batch.global_num_tokens = step_totals[0]
        batch.update_num_tokens = totals[0]
        batch.loss_scale = scale / totals[0] if totals[0] else 0.0
        batch.sequence_scale = scale / totals[1] if totals[1] else 0.0
        if batch.whole is not None:
            for name in _COUNTS:
                setattr(batch.whole, name, getattr(batch, name))
        return batch

    def _find_update_totals(self, batch: SequenceBatch, step: int) -> tuple[int, int]:
        """Return the totals of a step's update, and set ``batch.ends_update``."""
        accumulate = self.update_schedule.accumulate
        batch.ends_update = not (step + 1) % accumulate or step + 1 == self._num_trained
        if step // accumulate != self._update_number:
            self._update_number = step // accumulate
            self._update_totals = self._sum_update(self._update_number)
        return self._update_totals

    def _repair(
        self, planned: Step, request: StepRequest, step: int, error: Exception
    ) -> SequenceBatch:
        """Return the batch without the sequences that fail, with the planned number of rows."""
        fetcher, on_error = self.components.fetcher, self.components.on_error
        repaired = repair_batch(fetcher, planned, request, on_error)
        if repaired is None:  # the whole batch fails, not a single sequence
            raise error
        if planned.weights.any():  # the rank that owns a padding row counts it
            self._log_errors(planned, request, repaired.errors)
        made = repaired.step
        if self._has_bounded_lengths:
            made = shorten_step(made, repaired.columns, repaired.axes)
        batch = self._describe(self._preparer.prepare(made), step)
        batch.axes = repaired.axes
        if repaired.replacement_row is not None and isinstance(batch.part, list):
            batch.part = _copy_label(batch.part, repaired)
            batch.part_epoch = _copy_label(batch.part_epoch, repaired)
        columns = self._select_step_columns(repaired.columns, batch, made)
        return self.components.collator(columns, batch)

    def _log_errors(
        self, step: Step, request: StepRequest, errors: Mapping[int, Exception]
    ) -> None:
        """Add the errors of spans to the log, each with its part of a mixture."""
        prepared, name = self._preparer.prepare(step), self.components.name
        part = prepared.run.metadata.batch(0).part
        for span, error in sorted(errors.items()):
            row = span if step.rows is None else int(np.searchsorted(step.rows, span, "right")) - 1
            own_part = part[row] if isinstance(part, list) else part
            self.components.error_log.add(
                error, request, span,
                loader=name, epoch=self.epoch, batch=step.number, part=own_part,
            )  # fmt: skip

    def _sum_update(self, update_number: int) -> tuple[int, int]:
        first = update_number * self.update_schedule.accumulate
        stop = min(first + self.update_schedule.accumulate, self._num_trained)
        return self.share.totals(first, stop) if first < stop else (0, 0)

    def _locate_error(self, error: SeqDataError, batch_number: int, step: int) -> SeqDataError:
        world, worker = self.share.world, error.details.get("worker")
        line = self._describe_step(batch_number, step, worker if isinstance(worker, int) else None)
        located = error.with_place(
            line, epoch=self.epoch, batch=batch_number, step=step, rank=world.rank
        )
        hint = self._get_replay_hint(batch_number)
        return located if hint is None else located.shown_by(hint)

    def _add_note(self, error: Exception, batch_number: int, step: int) -> Exception:
        hint = self._get_replay_hint(batch_number)
        end = f". {REPLAY_PREFIX}{hint}" if hint else ""
        error.add_note(f"in {self._describe_step(batch_number, step)}{end}")
        return error

    def _get_replay_hint(self, batch_number: int) -> str | None:
        hint = self.components.replay_hint
        return None if hint is None else hint(self.epoch, batch_number)

    def _describe_step(self, batch_number: int, step: int, worker: int | None = None) -> str:
        world = self.share.world
        return format_step(
            epoch=self.epoch, batch=batch_number, step=step, rank=world.rank, size=world.size,
            worker=worker,
        )  # fmt: skip


def _copy_label(labels: Any, repaired: RepairedBatch) -> list[Any]:
    """Return the labels of rows, with those of replaced rows from the row in their place."""
    return [
        labels[repaired.replacement_row if row in repaired.errors else row]
        for row in range(len(labels))
    ]

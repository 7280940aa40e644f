"""The base of engines, which iterate over epochs for one rank.

An engine has no position: each iteration is told where to begin, so that a resume costs no more
than a start. Place in the flow: between the Loader or the DataModule, which keep the position, and
the batches.

The iterator over one epoch's batches continues after an error in a batch. A generator ends when it
raises: a loop that catches the error and calls ``next()`` would take the epoch for complete. Here
``next()`` then continues with the next batch.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, cast

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import (
    ConfigError,
    IncompleteEpochError,
    PlanError,
    find_interruption,
    must_be,
    warn,
)
from seqdata.index import SequenceIndex
from seqdata.loading.options import EngineOptions, UpdateSchedule
from seqdata.loading.segmented_run import SegmentedRun
from seqdata.plan import Plan
from seqdata.planning.blocks import MAX_BLOCK_ITEMS
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import (
    as_policy,
    balance_ranks,
    continues_passes,
    find_base_policy,
)
from seqdata.planning.segments import WeightHistory
from seqdata.protocols import (
    Policy,
    Store,
    SupportsBase,
    SupportsShardCache,
)
from seqdata.resume_state import EpochProgress, RunPosition
from seqdata.sharing import RankPlan, count_steps

_FATAL_ERRORS = (ConfigError, PlanError)  # errors that every batch would raise


class EpochBatches(Iterator[Any]):
    """An iterator over a rank's batches of one epoch.

    Nothing happens before the first ``next()``. After an error ``next()`` continues with the batch
    after the failed one. An error that concerns no single batch is raised again, and a batch that
    Ctrl-C or a signal handler interrupted is rebuilt.

    Args:
        begin: Returns the epoch's progress, with the rank's share.
        make_source: Returns a generator of the batches of a share, from a step on.
        tag: Called with each batch, its step and the seconds spent on it; returns the item to
            deliver. None: the batch itself is delivered.

    Attributes:
        step: Index of the step whose batch comes next; -1 before the first ``next()``.
    """

    def __init__(
        self,
        begin: Callable[[], EpochProgress],
        make_source: Callable[[EpochProgress, int], Generator[Any, None, None]],
        tag: Callable[[Any, int, float], Any] | None = None,
    ) -> None:
        self.step = -1
        self._tag = tag
        self._begin_epoch = begin
        self._make_source = make_source
        self._progress: EpochProgress | None = None
        self._source: GeneratorType[Any, None, None] | None = None
        self._fatal_error: IncompleteEpochError | None = None  # nothing to continue with
        self._is_closed = False

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            ConfigError: If another call makes a batch: in another thread, or one whose transform
                calls this.
            IncompleteEpochError: If the batches end before the plan does.
            BaseException: The error of the batch, or the exception that interrupted it, such as
                that of a signal handler.
        """
        source = self._source
        if source is not None and source.gi_running:
            raise ConfigError(
                must_be(
                    "loader: an iterator", "asked for one batch at a time",
                    "asked while it is making one",
                    "Call next() in one thread or under a lock, and never in a transform",
                )
            )  # fmt: skip
        asked_at = time.perf_counter()
        try:
            batch = next(self._begin() if source is None else source)
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._source = None
            interruption = find_interruption(error)
            if interruption is None:
                self._note_error(error)
            elif interruption is not error:
                raise interruption from interruption.__cause__  # unchanged
            raise
        self.step += 1
        if self._progress is not None:
            self._progress.step = self.step
        if self._tag is None:
            return batch
        return self._tag(batch, self.step - 1, time.perf_counter() - asked_at)

    def close(self) -> None:
        """Leave the epoch, as ``break`` does: nothing more is read for it."""
        self._is_closed = True
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _begin(self) -> Iterator[Any]:
        if self._is_closed:
            return iter(())
        if self._fatal_error is not None:
            raise self._fatal_error.with_traceback(None)
        if self._progress is None:
            self._progress = self._begin_epoch()
            self.step = self._progress.step
        source = self._make_source(self._progress, self.step)
        self._source = cast("GeneratorType[Any, None, None]", source)  # it has `gi_running`
        return self._source

    def _note_error(self, error: BaseException) -> None:
        """Record an error in place of a batch."""
        if isinstance(error, IncompleteEpochError):
            self._fatal_error = error
        elif not isinstance(error, _FATAL_ERRORS):
            self.step += 1

    def _end(self) -> None:
        """Record that the epoch is delivered; raise IncompleteEpochError if batches are missing."""
        progress = self._progress
        if progress is None or self._is_closed:
            return
        share = progress.share
        if self.step == len(share):
            progress.step = self.step  # the last batch may have been an error
            return
        self._source = None
        self._fatal_error = IncompleteEpochError(
            f"loader: only {self.step - share.first_step} of {len(share) - share.first_step} "
            f"batches of epoch {progress.epoch} were delivered, because the loader was shut down"
        )
        raise self._fatal_error


StepBatch = SequenceBatch | dict[str, SequenceBatch]
"""Data of a step: a batch, or one of each part that is zipped."""

_CACHED_PLANS = 2
_LONG_EPOCH = 100  # batches, from which on empty lanes are worth a warning
_MANY_FETCHES = 2  # fetches of all data in an epoch, from which on a warning is shown


class RankOrder(NamedTuple):
    """Number of ranks that the steps of an epoch are balanced for, in place of the world's.

    Attributes:
        epoch: Index of the epoch; None: all.
        ranks: Number of ranks; 0: that of the world.
    """

    epoch: int | None
    ranks: int


class BaseEngine(ABC):
    """Iterates over the epochs of data under one policy for one rank.

    Args:
        store: The data.
        policy: Policy of the epochs.
        options: All other options.

    Attributes:
        index: The lengths that are planned.
        num_batches: Number of batches of the first epoch, and of every epoch unless they vary.
        segments: The run's segments, where weights may change; None without segments.
        order: The number of ranks that steps are balanced for, and its epoch (``RankOrder``).
    """

    index: SequenceIndex
    num_batches: int
    segments: SegmentedRun | None = None

    def __init__(self, store: Store, policy: Policy, options: EngineOptions) -> None:
        self.store = store
        self.policy = policy
        self.options = options
        self._plans: dict[int, Plan] = {}
        self.order = RankOrder(None, 0)
        self._has_checked_lanes = False
        self._has_estimated = False  # how often the store fetches its shards
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out plans, threads, workers and locks; keep the weights that a run has set."""
        history = None if self.segments is None else self.segments.history
        state = history, self.order
        return _rebuild_engine, (type(self), self.store, self.policy, self.options, state)

    @property
    def num_steps(self) -> int:
        """Number of steps of the first epoch, and of every epoch unless they vary."""
        return self.count_steps(0)

    @property
    def has_varying_epochs(self) -> bool:
        """Whether epochs differ in their number of batches."""
        return as_policy(self.policy).varies

    def count_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        if not self.has_varying_epochs:
            return self.num_batches
        epoch = self._effective_epoch(epoch)
        policy, seed = as_policy(self.policy), self.options.seed
        return policy.count_batches(self.index, seed=seed, epoch=epoch)

    def count_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch, equal on all ranks."""
        options, lanes = self.options, self._get_any_plan().lanes
        return count_steps(self.count_batches(epoch), options.world, options.tail, lanes)

    def plan(self, epoch: int) -> Plan:
        """Return the plan of an epoch; the last two are cached."""
        number = self._effective_epoch(epoch)
        ranks = self.find_ranks(epoch)
        with self._lock:
            plan = self._plans.pop(number, None)
            if plan is None:
                plan = self._build_plan(number, ranks)
            self._plans[number] = plan
            for old_epoch in list(self._plans)[:-_CACHED_PLANS]:
                del self._plans[old_epoch]
        return plan

    def find_ranks(self, epoch: int) -> int:
        """Return the number of ranks that the steps of an epoch are balanced for."""
        if self.order.ranks and self.order.epoch in (None, epoch):
            return self.order.ranks
        return self._own_ranks

    @property
    def _own_ranks(self) -> int:
        options = self.options
        return options.batches_per_update or options.balance_ranks or options.world.size

    @property
    def depends_on_ranks(self) -> bool:
        """Whether the order of an epoch depends on the number of ranks with which it begins."""
        if self.options.batches_per_update is not None:
            return False
        own, other = (balance_ranks(self.policy, ranks) for ranks in (1, 2))
        return bool(own != other)

    def continue_order(self, run_position: RunPosition, ranks: int | None) -> str:
        """Continue in the order of a run that was balanced for another number of ranks.

        The current epoch keeps its order, or all epochs do if a pass over the data may continue
        over the end of an epoch.

        Args:
            run_position: Position of the run.
            ranks: Number of ranks that its steps are balanced for; None: unknown, nothing changes.

        Returns:
            A warning if the steps of all later epochs are uneven on the current ranks; else empty.
        """
        goes_on = continues_passes(self.policy)
        is_inside = run_position.position > 0 or (goes_on and run_position.epoch > 0)
        if ranks is None or not is_inside:
            self.set_order(None, 0)
            return ""
        self.set_order(None if goes_on else run_position.epoch, ranks)
        size = self.options.world.size
        if not goes_on or ranks % size == 0 or not self.depends_on_ranks:
            return ""
        return (
            f"the passes over the data continue in the order for {ranks} ranks with which the run "
            f"began, but there are {size}: each sequence still comes once in a pass, but the ranks "
            "of a step may have batches of different parts or lengths. Continue on a number of "
            f"ranks that divides {ranks}, or pass `balance_ranks` to the policy of a new run"
        )

    def set_order(self, epoch: int | None, ranks: int) -> None:
        """Balance the steps of an epoch (None: all) for a number of ranks (0: its own)."""
        order = RankOrder(None, 0) if ranks in (0, self._own_ranks) else RankOrder(epoch, ranks)
        if self.order != order:
            self.order = order
            self.forget_plans()

    def fingerprint(self, epoch: int) -> str:
        """Return a digest (32 hex digits) of all that determines the plan of an epoch."""
        return self.plan(epoch).fingerprint

    def describe(self) -> dict[str, int | str]:
        """Return the inputs of a plan by name, to explain why a state does not fit."""
        return {
            "data": self.index.fingerprint,
            "policy": describe_policy(self.policy),
            "seed": self.options.seed,
            "shift": self.shift,
        }

    def describe_weights(self, run_position: RunPosition) -> str | None:
        """Return the entry of a state for the weights that a run has set; None without any."""
        return None if self.segments is None else self.segments.describe_changes(run_position)

    @abstractmethod
    def share(self, epoch: int, first: int) -> RankPlan:
        """Return this rank's steps from batch ``first`` of an epoch on.

        Raises:
            PlanError: If ``first`` is outside the plan, or ``tail='drop'`` leaves no step in it.
            ConfigError: If there will be padding rows that the output does not mark.
        """

    @property
    @abstractmethod
    def shift(self) -> int:
        """Number of timesteps between inputs and targets."""

    @property
    @abstractmethod
    def transform_label(self) -> str:
        """The transform's name and a digest of its code, computed at the first access."""

    def describe_transform_change(self, saved_label: Any) -> str:
        """Return the warning if a resume changes the transform; empty if it is unchanged.

        Args:
            saved_label: The label in a saved state; None if it has none.
        """
        if saved_label is None or saved_label == self.transform_label:
            return ""
        return (
            f"`transform` was {saved_label}, but is now {self.transform_label}: the next batches "
            "are made by different code. Pass the transform that the run began "
            "with, unless this is intended"
        )

    def iterate(
        self, epoch: int, first: int, update_schedule: UpdateSchedule | None = None
    ) -> EpochBatches:
        """Return an iterator over the batches of an epoch, from batch ``first`` of its plan.

        Nothing happens before the first ``next``. The iterator ends only after each planned batch
        was delivered, or raised its own error.

        Args:
            epoch: Epoch of the plan.
            first: Number of batches of the plan that are trained already.
            update_schedule: Grouping of steps into optimizer updates; None: each step is one.
        """
        return self.iterate_from(lambda: self.begin(epoch, first), update_schedule)

    def begin(self, epoch: int, first: int) -> EpochProgress:
        """Return the progress of an epoch before batch ``first`` of its plan.

        Raises:
            PlanError: If ``first`` is outside the plan, or ``tail='drop'`` leaves no step in it.
            ConfigError: If there will be padding rows that the output does not mark.
        """
        share = self.share(epoch, first)
        self._warn_of_fetches(share.plan)
        self._warn_of_empty_lanes(share.plan)
        return EpochProgress(epoch, share, share.first_step)

    def _warn_of_empty_lanes(self, plan: Plan) -> None:
        """Warn once if more than half of the lanes of a long epoch have no sequence."""
        if self._has_checked_lanes or not plan.lanes or len(plan) < _LONG_EPOCH:
            return
        self._has_checked_lanes = True
        rows = int((plan.batch(0).lengths > 0).sum())
        if 2 * rows < plan.lanes:
            warn(
                f"loader: sequences fill {rows} of {plan.lanes} lanes, and the other rows of each "
                "batch are padding. Pass `continuous=True`, with which one stream of all sequences "
                "is cut into a column per lane, or fewer lanes"
            )

    def _warn_of_fetches(self, plan: Plan) -> None:
        """Warn once if an epoch fetches the shards of a remote store several times."""
        base = self.store.base if isinstance(self.store, SupportsBase) else self.store
        is_shuffled = getattr(find_base_policy(self.policy), "shuffle", False) is True
        if self._has_estimated or not is_shuffled or not isinstance(base, SupportsShardCache):
            return
        self._has_estimated = True
        factor = base.estimate_fetches(len(plan), len(self.index) / max(1, len(plan)))
        if factor < _MANY_FETCHES:
            return
        advice = "pass remote='ranges' to `open_store`, raise Remote(cache_bytes=...)"
        if len(self.index) > MAX_BLOCK_ITEMS:
            advice = f"pass shuffle='blocks' to the policy (blocks of neighbours), {advice}"
        warn(
            "loader: shuffle=True draws each batch from all shards, but the cache is smaller than "
            f"the data: an epoch fetches the data about {factor:.0f} times. To fetch less, "
            f"{advice}, or write the data in a random order (`write_store(..., shuffle=seed)`) and "
            "pass shuffle='blocks'.",
        )

    def iterate_from(
        self,
        begin: Callable[[], EpochProgress],
        update_schedule: UpdateSchedule | Callable[[], UpdateSchedule] | None = None,
        tag: Callable[[Any, int, float], Any] | None = None,
    ) -> EpochBatches:
        """Return an iterator over the rest of an epoch.

        Args:
            begin: Returns the epoch's progress at the first ``next``, which is then updated with
                each delivered batch.
            update_schedule: Grouping of steps into optimizer updates, or a function that returns it
                once the epoch has begun; None: each step is one.
            tag: Returns the items for batches; see ``EpochBatches``.
        """

        def make_source(progress: EpochProgress, first_step: int) -> Generator[Any, None, None]:
            share = progress.share
            schedule = update_schedule
            if not isinstance(schedule, UpdateSchedule):
                schedule = (schedule or UpdateSchedule)()
            iterate_steps = partial(self.iterate_share, share, progress.epoch, schedule)
            if self.segments is None:
                return iterate_steps(range(first_step, len(share)))
            return self.segments.iterate(progress, first_step, schedule, iterate_steps)

        return EpochBatches(begin, make_source, tag)

    @abstractmethod
    def iterate_share(
        self, steps: RankPlan, epoch: int, update_schedule: UpdateSchedule, numbers: range
    ) -> Generator[Any, None, None]:
        """Return a generator of the outputs of some steps.

        Args:
            steps: This rank's steps of the epoch.
            epoch: Index of the epoch.
            update_schedule: Grouping of steps into optimizer updates.
            numbers: Indices of consecutive steps.
        """

    @abstractmethod
    def remake_batch(
        self,
        steps: RankPlan,
        epoch: int,
        step: int,
        update_schedule: UpdateSchedule,
        *,
        fill: bool = True,
    ) -> StepBatch:
        """Return one batch, or those of zipped parts by name, as ``iterate`` makes it.

        It is made in this process, without output options.

        Args:
            steps: The steps of any rank.
            epoch: Epoch of its plan.
            step: Index of the step.
            update_schedule: Grouping of steps into optimizer updates.
            fill: Whether to read the data.

        Raises:
            DataError: If stored data is damaged.
        """

    def count_errors_before(self, epoch: int, position: int) -> int:
        """Return the number of errors in the data that this process skipped before a batch."""
        return self.options.error_log.count_before(self.options.name, epoch, position)

    @property
    @abstractmethod
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop all threads and worker processes; iterations that need them end with an error."""

    def end_workers(self) -> None:
        """End the workers, if there are any, and the iterations that use them."""
        if self.worker_pids:
            self.shutdown()

    def forget_plans(self) -> None:
        """Drop the cached plans, which are then made again."""
        self._plans.clear()

    def _effective_epoch(self, epoch: int) -> int:
        return 0 if self.options.overfit else epoch

    @abstractmethod
    def _build_plan(self, epoch: int, ranks: int) -> Plan: ...

    def _get_any_plan(self) -> Plan:
        return next(iter(self._plans.values()), None) or self.plan(0)


def _rebuild_engine(
    engine_type: Callable[[Store, Policy, EngineOptions], BaseEngine],
    store: Store,
    policy: Policy,
    options: EngineOptions,
    state: tuple[WeightHistory | None, RankOrder],
) -> BaseEngine:
    engine = engine_type(store, policy, options)
    history, order = state
    engine.set_order(*order)
    if engine.segments is not None and history is not None:
        engine.segments.history = history
        engine.forget_plans()  # which were made with another history
    return engine

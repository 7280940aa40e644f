"""Engines, which iterate over the epochs of a store, or of zipped parts, for one rank.

An engine has no position: each iteration is told where to begin, so that a resume costs no more
than a start. The parts of a ``Zip`` are read, transformed and collated by an engine each, with
workers of its own, all at the same step: their plans have equally many batches. Place in the flow:
Store + Policy + World -> batches; Loader and DataModule use it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import (
    SupportsAllocator,
    SupportsDatasetItems,
    SupportsItemForm,
    SupportsJointTargets,
    SupportsPadding,
    SupportsSingleOutput,
    SupportsWorkerCollate,
)  # fmt: skip
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError, SeqDataError, StopIterationGuard, must_be
from seqdata.index import SequenceIndex
from seqdata.loading.base_engine import BaseEngine, StepBatch
from seqdata.loading.fetcher import Fetcher
from seqdata.loading.field_selection import (
    check_bounded_lengths,
    check_context,
    check_dummy_marks,
    check_ends,
    check_mask_marks,
    check_plan,
    check_time_parts,
    link_fields,
    make_empty_plan_error,
    make_reader,
    pass_items,
)
from seqdata.loading.options import EngineOptions, UpdateSchedule, ValueOptions
from seqdata.loading.output import (
    BATCH_KEYS,
    BufferPool,
    Output,
    ShapedOutput,
    check_cuda,
    make_output,
    pin,
)
from seqdata.loading.pipeline import BatchPipeline, PipelineComponents
from seqdata.loading.prefetch import Prefetcher, PrefetchSource, make_plan_ahead
from seqdata.loading.segmented_run import SegmentedRun
from seqdata.loading.transforms.apply import make_transform_applier
from seqdata.loading.transforms.declare import length_map_for, qualified_name
from seqdata.loading.transforms.rng import CropNumbersFn, Occurrences, count_occurrences
from seqdata.loading.workers.session import WorkerPoolCache
from seqdata.plan import Plan
from seqdata.plan_table import DrawnBatch
from seqdata.planning.batch_order import sort_within_batches
from seqdata.planning.parts import derive_part_seed, number_part_crops
from seqdata.planning.policy import (
    as_policy,
    balance_ranks,
    find_base_policy,
    resolve_seconds,
)
from seqdata.policies.segments import Segments
from seqdata.protocols import (
    Collator,
    Policy,
    Store,
    SupportsBase,
    SupportsItems,
    SupportsParts,
)  # fmt: skip
from seqdata.sharing import RankPlan, World, share
from seqdata.storage.dataset_items import ItemForm

_SHUTDOWN_TIMEOUT = 5.0  # seconds for which a shutdown waits for each thread


class EpochEngine(BaseEngine):
    """Iterates over the epochs of one store under one policy for one rank.

    Args:
        store: The store to read.
        policy: Policy of the epochs.
        options: All other options.
        index: The lengths as changed by ``options``; None: computed here.

    Raises:
        ConfigError: If policy, fields, shift or output do not fit the store, or the output does not
            mark the padding rows that there will be.
        PlanError: If no sequence is left.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        options: EngineOptions,
        index: SequenceIndex | None = None,
    ) -> None:
        super().__init__(store, policy, options)
        output = make_output(options.as_tuple, options.as_dict, options.as_batch)
        user_collator: Any = options.collator
        if output is None and isinstance(user_collator, SupportsSingleOutput):
            output = Output((user_collator.output_field,), is_single=True)
        reader = make_reader(store, policy.axis, options, output)
        self._reader = link_fields(reader, policy, options.whole)
        if isinstance(user_collator, SupportsDatasetItems):
            self._reader = pass_items(self._reader, policy, options)
        if isinstance(output, Output):
            if self._reader.transform is None and options.collator is None:
                output.check(self._reader.field_names)
            check_mask_marks(output, self._reader.field_names, options.on_error)
        if options.pin_memory:
            check_cuda()
        self._buffer_pool = BufferPool()
        collator: Any = self._make_collator()
        joint_targets = isinstance(collator, SupportsJointTargets) and collator.joint_targets
        fetcher, occurrences = self._make_fetcher()
        sorts, base = options.sort_within_batch, find_base_policy(policy)
        check_bounded_lengths(self._reader, base, options.on_error, sorts=sorts)
        check_time_parts(self._reader, options)
        check_context(store, find_base_policy(policy), self._reader)
        check_ends(self._reader, policy)
        collates = isinstance(collator, SupportsWorkerCollate) and options.num_workers > 0
        if collates and not self._reader.has_bounded_lengths:
            fetcher = replace(fetcher, collate=collator.collate_columns)
        self._components = PipelineComponents(
            fetcher, occurrences, collator, output, joint_targets, options.on_error,
            options.error_log, options.replay_hint, options.name,
        )  # fmt: skip
        self._worker_pools: WorkerPoolCache | None = None
        if options.num_workers:
            self._worker_pools = WorkerPoolCache(self._components.fetcher, options)
        self._prefetchers: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()
        self.index = self._reader.build_index() if index is None else index
        if isinstance(policy, Segments):
            self.segments = SegmentedRun(policy, self.index)
        self._check_epoch(policy)

    def _check_epoch(self, policy: Policy) -> None:
        """Count the batches, and raise if there is none, or rows could not be told apart."""
        options, output = self.options, self._components.output
        self.num_batches = policy.num_batches(self.index)
        self.num_batches = self.count_batches(0)
        if not self.num_batches:
            raise make_empty_plan_error(self.index, policy, self._reader)
        if (
            isinstance(output, ShapedOutput)
            and options.on_error != "raise"
            and not self._marks_rows
        ):
            check_mask_marks(output, self._reader.field_names, options.on_error)
        self._check_dummy_marks(self.num_batches)
        if options.on_error == "replace" and self._get_any_plan().lanes:
            raise ConfigError(
                must_be(
                    "loader: `on_error`",
                    "'mask' or 'raise' with lanes",
                    "'replace'",
                    ("A row of another sequence would continue from the state of the replaced one"),
                )
            )

    def share(self, epoch: int, first: int) -> RankPlan:
        """Return this rank's steps from batch ``first`` of an epoch on.

        Raises:
            PlanError: If ``first`` is outside the plan, or ``tail='drop'`` leaves no step in it.
            ConfigError: If there will be padding rows that the output does not mark.
        """
        options, plan = self.options, self.plan(epoch)
        self._check_dummy_marks(len(plan) - first)
        return share(plan, options.world, first=first, tail=options.tail)

    @property
    def shift(self) -> int:
        """Timesteps between inputs and targets."""
        return self._reader.shift

    @functools.cached_property
    def transform_label(self) -> str:
        """The transform's name and a digest of its code, as it was at the first access."""
        return self._reader.transform_label

    def remake_batch(
        self,
        steps: RankPlan,
        epoch: int,
        step: int,
        update_schedule: UpdateSchedule,
        *,
        fill: bool = True,
    ) -> SequenceBatch:
        """Return one batch of this store; see ``BaseEngine.remake_batch``."""
        components = self._components
        plan_epoch, fetch = self._effective_epoch(epoch), components.fetcher.fetch
        pipeline = BatchPipeline(components, steps, plan_epoch, update_schedule, fetch)
        return pipeline.make_batch(step) if fill else pipeline.make_metadata(step)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [] if self._worker_pools is None else self._worker_pools.pids

    def shutdown(self) -> None:
        """Stop all threads and worker processes; iterations that need them end with an error."""
        prefetchers = list(self._prefetchers)
        if self._worker_pools is not None:
            self._worker_pools.cancel()
        if self.segments is not None:
            self.segments.shutdown()
        for prefetcher in prefetchers:
            prefetcher.close()
        for prefetcher in prefetchers:
            prefetcher.join(timeout=_SHUTDOWN_TIMEOUT)
        if self._worker_pools is not None:
            self._worker_pools.close()
        self._buffer_pool.clear()

    def iterate_share(
        self, steps: RankPlan, epoch: int, update_schedule: UpdateSchedule, numbers: range
    ) -> Generator[Any, None, None]:
        """Return an iterator over the outputs of some steps of a share."""
        epoch = self._effective_epoch(epoch)
        components, pools = self._components, self._worker_pools
        make_pipeline = functools.partial(BatchPipeline, components, steps, epoch, update_schedule)
        if pools is not None and numbers:
            return self._iterate_with_workers(pools, make_pipeline, numbers)
        return self._iterate_pipeline(make_pipeline(components.fetcher.fetch), numbers)

    def _iterate_with_workers(
        self, pools: WorkerPoolCache, make_pipeline: Callable[..., BatchPipeline], numbers: range
    ) -> Generator[Any, None, None]:
        with pools.open_session() as session:
            pipeline = make_pipeline(lambda _: session.take())
            session.begin(map(pipeline.prepare_request, numbers))
            yield from self._iterate_pipeline(pipeline, numbers)

    def _iterate_pipeline(
        self, pipeline: BatchPipeline, numbers: range
    ) -> Generator[Any, None, None]:
        is_pinned = self.options.pin_memory
        if not self.options.prefetch or len(numbers) < 2:
            return pipeline.iterate(numbers, is_pinned=is_pinned)

        def make_pinned(step: int) -> tuple[Any, int]:
            output, size = pipeline.make_sized_output(step)
            return pin(output), size

        on_handover = make_plan_ahead(pipeline.share, self._reader.store, numbers.start)
        source = PrefetchSource(
            make_pinned if is_pinned else pipeline.make_sized_output, numbers, on_handover
        )
        prefetcher = Prefetcher(source, self.options.prefetch)
        self._prefetchers.add(prefetcher)
        return iter(prefetcher)

    def _build_plan(self, epoch: int, ranks: int) -> Plan:
        seed, policy = self.options.seed, balance_ranks(self.policy, ranks)
        with StopIterationGuard("loader: `policy`", self.policy):
            if self.segments is None:
                plan = policy.plan(self.index, seed=seed, epoch=epoch)
            else:
                plan = self.segments.plan(policy, seed=seed, epoch=epoch)
        time_parts, count = self.options.world.time_parts, self.count_batches(epoch)
        check_plan(plan, self.policy, self._reader, epoch, count, time_parts)
        plan = plan.with_lookahead(plan.lookahead + self._reader.shift)
        if self.options.sort_within_batch:
            plan = sort_within_batches(plan)
        if self.options.on_plan_ready is not None:
            self.options.on_plan_ready(plan)
        return plan

    def _make_fetcher(self) -> tuple[Fetcher, Occurrences | None]:
        """Return the fetcher, and the counter of each sequence's draws."""
        reader, seed = self._reader, self.options.seed
        policy = find_base_policy(self.policy)
        values: ValueOptions | None = self.options.value_options
        values = None if values == ValueOptions() else values
        if reader.transform is None:
            return Fetcher(reader, None, value_options=values), None
        fetcher = Fetcher(reader, make_transform_applier(reader, seed), value_options=values)
        if self.options.world.time_parts > 1:  # by timestep: nothing is random
            return fetcher, None
        crop_numbers: CropNumbersFn | None = None
        if as_policy(policy).cuts_windows and as_policy(policy).random:
            crop_numbers = functools.partial(self._number_crops, policy)
        return fetcher, count_occurrences(reader.store, crop_numbers)

    def _number_crops(
        self,
        policy: Policy,
        spans: NDArray[np.int64],
        epoch: int,
        drawn: DrawnBatch | None,
    ) -> NDArray[np.int64]:
        index, seed = self.index if drawn is None else drawn.sequences, self.options.seed
        if drawn is not None and drawn.part is not None:
            part_policies = as_policy(policy).policies
            if part_policies:
                seed, policy = derive_part_seed(seed, drawn.part), part_policies[drawn.part]
        return number_part_crops(policy, index, spans, seed=seed, epoch=epoch)

    def _make_collator(self) -> Collator:
        collator: Any = self.options.collator
        padding = self.options.padding
        if collator is None:
            return Padded(0 if padding is None else padding, allocate=self._buffer_pool.allocate)
        if padding is not None:
            if not isinstance(collator, SupportsPadding):
                raise ConfigError(
                    f"loader: `padding` requires a collator that pads, but `collator` is "
                    f"{collator!r:.100}. Leave one of them out"
                )
            collator = collator.with_padding(padding)
        if isinstance(collator, SupportsItemForm):
            collator = collator.with_item_form(self._find_item_form())
        if self._reader.is_opaque and isinstance(collator, SupportsDatasetItems):
            collator = collator.with_items()
        if isinstance(collator, SupportsAllocator):
            collator = collator.with_allocator(self._buffer_pool.allocate)
        result: Collator = collator
        return result

    def _find_item_form(self) -> ItemForm | None:
        """Return the form of samples for a ``collate_fn``, if the data is an unchanged Dataset."""
        reader = self._reader
        if reader.transform is not None or reader.shift:
            return None
        base = reader.store.base if isinstance(reader.store, SupportsBase) else reader.store
        return base.item_form if isinstance(base, SupportsItems) else None

    def _check_dummy_marks(self, num_left: int) -> None:
        """Raise ConfigError if there will be padding rows that the output does not mark."""
        output, options = self._components.output, self.options
        fields = self._reader.field_names
        if output is not None and options.world.size > 1 and not output.find_marks(fields):
            lanes = self._get_any_plan().lanes
            check_dummy_marks(output, fields, options, lanes, num_left, lambda: self._marks_rows)

    @functools.cached_property
    def _marks_rows(self) -> bool:
        """Whether the result of ``as_batch`` depends on the weight, as a padding row shows."""
        output, plan = self._components.output, self._get_any_plan()
        if not isinstance(output, ShapedOutput):
            return False
        others = plan.lanes or len(plan)  # one rank more than there are batches or lanes
        world = World(0 if plan.lanes else others, others + 1)
        steps = RankPlan(plan, world, "fill", 0, 0, 1, 1 if plan.lanes else world.size)
        schedule = UpdateSchedule()
        return output.marks_rows(lambda: self.remake_batch(steps, 0, 0, schedule))


def make_engine(store: Store, policy: Policy, options: EngineOptions) -> BaseEngine:
    """Return the engine of a policy.

    Args:
        store: The store to read, or several as the parts of one.
        policy: Policy of the epochs.
        options: All other options.

    Raises:
        ConfigError: If policy and options do not fit the store, or another policy is around one
            that zips.
        PlanError: If no sequence is left.
    """
    policy = _resolve_seconds(policy, store, options)
    if as_policy(policy).zips_parts:
        if not isinstance(store, SupportsParts):
            zip_policy: Any = policy
            zip_policy.split(SequenceIndex.from_store(store))  # raises: it needs parts
        return ZipEngine(store, policy, options)
    base_policy = find_base_policy(policy)
    if as_policy(base_policy).zips_parts:
        raise ConfigError(
            f"loader: a {type(policy).__name__} must wrap the policy of a part, but "
            f"wraps a {type(base_policy).__name__}. Name it in the parts: Zip({{name: "
            f"{type(policy).__name__}(...), ...}})."
        )
    return EpochEngine(store, policy, options)


def _resolve_seconds(policy: Policy, store: Store, options: EngineOptions) -> Policy:
    """Return a policy whose seconds are timesteps of a store.

    Raises:
        ConfigError: If the policy has ``seconds``, and a sampling rate is not known or a transform
            changes lengths.
    """
    resolved = resolve_seconds(policy, store)
    transform = options.transform
    if resolved is policy or transform is None or length_map_for(transform) is None:
        return resolved
    raise ConfigError(
        f"loader: the transform {qualified_name(transform)} must keep lengths with a policy in "
        "`seconds`, since the sampling rate is that of the stored timesteps, but changes them. "
        "Give the size in timesteps of its results"
    )


class ZipEngine(BaseEngine):
    """Iterates over the epochs of several parts at the same time, a batch of each in every step.

    Args:
        store: The parts.
        policy: Policy of the parts, and the part that leads.
        options: All other options; each part has those that concern its fields.

    Attributes:
        engines: Name -> the engine of the part.

    Raises:
        ConfigError: If policy and options do not fit a part; it names the part.
        PlanError: If a part has no sequence left.
    """

    def __init__(self, store: Any, policy: Any, options: EngineOptions) -> None:
        super().__init__(store, policy, options)
        parts: Mapping[str, Store] = store.parts
        _check_names(parts, options)
        own_options = {name: _select_options(name, parts, options) for name in parts}
        indexes = {
            name: _build_index(name, part, policy.policies.get(name), own_options[name])
            for name, part in parts.items()
        }
        self.index = SequenceIndex.from_parts(indexes)
        self.num_batches = policy.num_batches(self.index)
        policies = policy.split(self.index)
        self.engines: dict[str, EpochEngine] = {}
        for name, part in parts.items():
            try:
                self.engines[name] = EpochEngine(
                    part, policies[name], own_options[name], indexes[name]
                )
            except SeqDataError as error:
                raise _name_part(error, name) from error

    @property
    def shift(self) -> int:
        """Maximum number of timesteps between inputs and targets, over all parts."""
        return max(engine.shift for engine in self.engines.values())

    @cached_property
    def transform_label(self) -> str:
        """The transform of each part, described at the first access; ``none`` without any."""
        labels = {name: engine.transform_label for name, engine in self.engines.items()}
        distinct = set(labels.values())
        if len(distinct) == 1:
            return distinct.pop()
        return "; ".join(f"{name}: {label}" for name, label in labels.items())

    def share(self, epoch: int, first: int) -> RankPlan:
        """Return this rank's steps from position ``first`` of an epoch on.

        Raises:
            PlanError: If ``first`` is outside the plan, or ``tail='drop'`` leaves no step in it.
            ConfigError: If there will be padding rows that the output does not mark.
        """
        for engine in self.engines.values():
            engine.share(epoch, first)
        options = self.options
        return share(self.plan(epoch), options.world, first=first, tail=options.tail)

    def iterate_share(
        self, steps: RankPlan, epoch: int, update_schedule: UpdateSchedule, numbers: range
    ) -> Generator[dict[str, Any], None, None]:
        """Yield a dict for each of some steps: name -> the output of the part."""
        with ExitStack() as opened:
            sources = []
            for engine in self.engines.values():
                own_steps = self._share_of(engine, steps, epoch)
                source = engine.iterate_share(own_steps, epoch, update_schedule, numbers)
                sources.append(opened.enter_context(closing(source)))
            # One that is shut down ends the epoch. No name holds a step while the next is made.
            yield from map(lambda *outputs: dict(zip(self.engines, outputs, strict=True)), *sources)

    def remake_batch(
        self,
        steps: RankPlan,
        epoch: int,
        step: int,
        update_schedule: UpdateSchedule,
        *,
        fill: bool = True,
    ) -> StepBatch:
        """Return the batches of all parts; see ``BaseEngine.remake_batch``."""
        return {
            name: engine.remake_batch(
                self._share_of(engine, steps, epoch), epoch, step, update_schedule, fill=fill
            )
            for name, engine in self.engines.items()
        }

    def count_errors_before(self, epoch: int, position: int) -> int:
        """Return the number of errors in the data that this process skipped before a batch."""
        engines = self.engines.values()
        return sum(engine.count_errors_before(epoch, position) for engine in engines)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers of all parts."""
        return [pid for engine in self.engines.values() for pid in engine.worker_pids]

    def shutdown(self) -> None:
        """Stop all threads and worker processes; iterations that need them end with an error."""
        for engine in self.engines.values():
            engine.shutdown()

    def _share_of(self, engine: EpochEngine, steps: RankPlan, epoch: int) -> RankPlan:
        """Return the same steps of one part."""
        return share(engine.plan(epoch), steps.world, first=steps.first, tail=steps.tail)

    def set_order(self, epoch: int | None, ranks: int) -> None:
        """Balance the steps of an epoch (None: all) for a number of ranks (0: its own)."""
        super().set_order(epoch, ranks)
        for engine in self.engines.values():
            engine.set_order(epoch, ranks)

    def _build_plan(self, epoch: int, ranks: int) -> Plan:
        policy = balance_ranks(self.policy, ranks)
        return policy.plan(self.index, seed=self.options.seed, epoch=epoch)


def _select_options(name: str, parts: Mapping[str, Store], options: EngineOptions) -> EngineOptions:
    """Return the options of a part, with the fields that it has."""
    changed: dict[str, Any] = {
        "seed": derive_part_seed(options.seed, name),
        "name": f"{options.name}/{name}" if options.name else name,
    }
    fields = parts[name].fields
    others = {field for part in parts.values() for field in part.fields} - set(fields)
    if options.fields is not None:
        changed["fields"] = tuple(field for field in options.fields if field in fields)
    if options.whole is not None:
        own_whole = tuple(field for field in options.whole if field not in others)
        changed["whole"] = own_whole or None
    if options.as_dict is not None:
        known = others - set(BATCH_KEYS)
        changed["as_dict"] = tuple(field for field in options.as_dict if field not in known)
    if isinstance(options.shift, Mapping) and set(options.shift) <= others:
        changed["shift"] = 0
    if isinstance(options.dtype, Mapping):
        own = {field: dtype for field, dtype in options.dtype.items() if field not in others}
        changed["dtype"] = own or None
    if isinstance(options.padding, Mapping):
        values = options.padding.items()
        changed["padding"] = {field: value for field, value in values if field not in others}
    return replace(options, **changed)


def _check_names(parts: Mapping[str, Store], options: EngineOptions) -> None:
    """Raise ConfigError if no part has a named field, or a part has none of the named fields."""
    names = {field: None for part in parts.values() for field in part.fields}
    for field in options.fields or ():
        if field not in names:
            raise ConfigError(f"loader: `fields`: {format_unknown_name(field, tuple(names))}")
    for name, part in parts.items():
        if options.fields is not None and not set(options.fields) & set(part.fields):
            raise ConfigError(
                f"loader: `fields` must name at least one field of part {name!r}, but names only "
                f"{', '.join(options.fields)}. Add one of {', '.join(part.fields)}."
            )


def _build_index(
    name: str, part: Store, policy: Policy | None, options: EngineOptions
) -> SequenceIndex:
    """Return the lengths of a part as they are planned."""
    if policy is None:
        return SequenceIndex.from_store(part)  # the policy then says that it lacks the part
    output = make_output(options.as_tuple, options.as_dict, options.as_batch)
    try:
        return make_reader(part, policy.axis, options, output).build_index()
    except SeqDataError as error:
        raise _name_part(error, name) from error


def _name_part(error: SeqDataError, name: str) -> SeqDataError:
    return type(error).at(f"part {name!r}: {error}", **error.details)

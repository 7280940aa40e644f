"""The engine of zipped parts: one engine a part, all at the same step.

The parts' plans have equally many batches, so epoch and position are those of all of them. Each
part is read, transformed and collated by an engine of its own, with workers of its own, as if it
were alone. Place in the flow: parts -> a dict of batches, a batch of each part.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from typing import Any

from seqdata.batch.axes import format_unknown_name
from seqdata.errors import ConfigError, SeqDataError
from seqdata.index import SequenceIndex
from seqdata.loading.base_engine import BaseEngine, StepBatch
from seqdata.loading.engine import EpochEngine
from seqdata.loading.field_selection import make_reader
from seqdata.loading.options import EngineOptions, UpdateSchedule
from seqdata.loading.output import BATCH_PARTS, make_output
from seqdata.plan import Plan
from seqdata.planning.parts import derive_part_seed
from seqdata.planning.policy import as_policy, balance_ranks, find_base_policy
from seqdata.protocols import Policy, Store, SupportsParts
from seqdata.sharing import RankPlan, share


def make_engine(store: Store, policy: Policy, options: EngineOptions) -> BaseEngine:
    """Return the engine of a policy.

    Args:
        store: The store to read, or several as the parts of one.
        policy: How epochs are batched.
        options: All other options.

    Raises:
        ConfigError: If policy and options do not fit the store, or another policy is around one
            that zips.
        PlanError: If no sequence is left.
    """
    if as_policy(policy).zips_parts:
        if not isinstance(store, SupportsParts):
            zip_policy: Any = policy
            zip_policy.split(SequenceIndex.from_store(store))  # raises: it needs parts
        return ZipEngine(store, policy, options)
    base_policy = find_base_policy(policy)
    if as_policy(base_policy).zips_parts:
        raise ConfigError(
            f"loader: a {type(policy).__name__} must be around the policy of a part, but is "
            f"around a {type(base_policy).__name__}. Name it in the parts: Zip({{name: "
            f"{type(policy).__name__}(...), ...}})."
        )
    return EpochEngine(store, policy, options)


class ZipEngine(BaseEngine):
    """Iterates over the epochs of several parts at the same time, a batch of each in every step.

    Args:
        store: The parts.
        policy: How each part is batched, and which one leads.
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
        """Timesteps between inputs and targets, of the part where they are most."""
        return max(engine.shift for engine in self.engines.values())

    @cached_property
    def transform_label(self) -> str:
        """The transform of each part, as it was at the first access; ``none`` without any."""
        labels = {name: engine.transform_label for name, engine in self.engines.items()}
        distinct = set(labels.values())
        if len(distinct) == 1:
            return distinct.pop()
        return "; ".join(f"{name}: {label}" for name, label in labels.items())

    def share(self, epoch: int, first: int) -> RankPlan:
        """Return this rank's steps from position ``first`` of an epoch on.

        Raises:
            PlanError: If ``first`` lies outside the plan, or no step is left.
            ConfigError: If there will be filler rows that the output does not mark.
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
        number: int,
        update_schedule: UpdateSchedule,
        *,
        fill: bool = True,
    ) -> StepBatch:
        """Return the batches of all parts; see ``BaseEngine.remake_batch``."""
        return {
            name: engine.remake_batch(
                self._share_of(engine, steps, epoch), epoch, number, update_schedule, fill=fill
            )
            for name, engine in self.engines.items()
        }

    def count_errors_before(self, epoch: int, position: int) -> int:
        """Return how many errors in its data this process skipped before a batch of the plans."""
        engines = self.engines.values()
        return sum(engine.count_errors_before(epoch, position) for engine in engines)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers of all parts."""
        return [pid for engine in self.engines.values() for pid in engine.worker_pids]

    def shutdown(self) -> None:
        """Stop all threads and worker processes; running iterations end with an error."""
        for engine in self.engines.values():
            engine.shutdown()

    def _share_of(self, engine: EpochEngine, steps: RankPlan, epoch: int) -> RankPlan:
        """Return the same steps of one part."""
        return share(engine.plan(epoch), steps.world, first=steps.first, tail=steps.tail)

    def set_order(self, epoch: int | None, ranks: int) -> None:
        """Balance the steps of an epoch, or of all with None, for some ranks; 0: for its own."""
        super().set_order(epoch, ranks)
        for engine in self.engines.values():
            engine.set_order(epoch, ranks)

    def _build_plan(self, epoch: int, ranks: int) -> Plan:
        policy = balance_ranks(self.policy, ranks)
        return policy.plan(self.index, seed=self.options.seed, epoch=epoch)


def _select_options(name: str, parts: Mapping[str, Store], options: EngineOptions) -> EngineOptions:
    """Return the options of a part: of names of fields, those that it has."""
    changed: dict[str, Any] = {
        "seed": derive_part_seed(options.seed, name),
        "name": f"{options.name}/{name}" if options.name else name,
    }
    fields = parts[name].fields
    others = {field for part in parts.values() for field in part.fields} - set(fields)
    if options.fields is not None:
        changed["fields"] = tuple(field for field in options.fields if field in fields)
    if options.as_dict is not None:
        known = others - set(BATCH_PARTS)
        changed["as_dict"] = tuple(field for field in options.as_dict if field not in known)
    if isinstance(options.shift, Mapping) and set(options.shift) <= others:
        changed["shift"] = 0
    if isinstance(options.dtype, Mapping):
        own = {field: dtype for field, dtype in options.dtype.items() if field not in others}
        changed["dtype"] = own or None
    return replace(options, **changed)


def _check_names(parts: Mapping[str, Store], options: EngineOptions) -> None:
    """Raise ConfigError if no part has a field that is named, or a part has none of them."""
    names = {field: None for part in parts.values() for field in part.fields}
    for field in options.fields or ():
        if field not in names:
            raise ConfigError(f"loader: `fields` names {format_unknown_name(field, tuple(names))}")
    for name, part in parts.items():
        if options.fields is not None and not set(options.fields) & set(part.fields):
            raise ConfigError(
                f"loader: `fields` must name a field of part {name!r}, but are "
                f"{tuple(options.fields)}. It has {', '.join(part.fields)}."
            )


def _build_index(
    name: str, part: Store, policy: Policy | None, options: EngineOptions
) -> SequenceIndex:
    """Return the lengths of a part as they are planned."""
    if policy is None:
        return SequenceIndex.from_store(part)  # the policy then says that it lacks the part
    output = make_output(options.as_tuple, options.as_dict)
    try:
        return make_reader(part, policy.axis, options, output).build_index()
    except SeqDataError as error:
        raise _name_part(error, name) from error


def _name_part(error: SeqDataError, name: str) -> SeqDataError:
    return type(error).at(f"part {name!r}: {error}", **error.details)

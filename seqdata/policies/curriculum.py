"""Policy ``curriculum``: short sequences first, by rules that are declared before the run.

The same policy plans each epoch, or each segment of the run, with the limit of length at that time.
Numbers of batches are therefore known, and a resumed run has the plans of an uninterrupted run.

With a declared number of batches, a run consists of stages, in each of which one policy makes the
batches. A stage reads its sequences in passes, which continue across the end of an epoch: batch
``j`` of a stage is batch ``j % n`` of its pass ``j // n``. A stage therefore repeats no sequence
before it has read all others, and any batch is found by its index.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from typing import Any, cast

import numpy as np

from seqdata.errors import ConfigError, PlanError, StopIterationGuard, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import BatchTable, DrawnBatch
from seqdata.planning.build import (
    check_counts,
    make_fingerprint,
)
from seqdata.planning.parts import derive_part_seed
from seqdata.planning.piecewise import Piece, PiecewiseTable
from seqdata.planning.policy import (
    WrapperPolicy,
    as_policy,
    find_base_policy,
    replace_inner_policy,
)
from seqdata.protocols import Policy
from seqdata.report import PlanReport, make_report

# Two, because a reader may already be in the next pass.
_CACHED_PASSES = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of a run: consecutive batches that one policy makes.

    Attributes:
        first: Index of the first batch in the run.
        policy: Policy that makes the batches.
        pass_batches: Number of batches of each pass.
    """

    first: int
    policy: Policy
    pass_batches: int

    def plan_pass(self, index: SequenceIndex, seed: int, number: int) -> Plan:
        """Return the plan of a pass; each stage has different random numbers.

        Args:
            index: Lengths of the sequences.
            seed: Seed of the run.
            number: Index of the pass.

        Raises:
            PlanError: If the plan does not have the number of batches that the policy declares.
        """
        own_seed = derive_part_seed(seed, f"stage from {self.first}") if self.first else seed
        with StopIterationGuard("stages: `policy`", self.policy):
            plan = self.policy.plan(index, seed=own_seed, epoch=number)
        if len(plan) != self.pass_batches:
            raise PlanError(
                f"stages: epoch {number} of {type(self.policy).__name__} must have "
                f"{self.pass_batches} batches, as its `num_batches` says, but has {len(plan)}. Use "
                "a policy whose epochs are alike."
            )
        return plan


@dataclass(frozen=True, slots=True, eq=False)
class StagedTable(PiecewiseTable):
    """Batches of one epoch of a run in stages.

    Attributes:
        stages: Stages of the epoch, in order.
        index: Lengths of the sequences.
        seed: Seed of the plans.
        first: Number of batches of the run before this epoch.
        count: Number of batches of this epoch.
    """

    stages: Sequence[Stage]
    index: SequenceIndex
    seed: int
    first: int
    count: int
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    def drawn_batch(self, number: int) -> DrawnBatch:
        """Return the drawn sequences, with a key of random numbers that differs in each pass."""
        stage, own_pass, within = self._find_pass(number)
        plan = self._make_plan(stage, own_pass)
        drawn = plan.drawn_batch(within)
        if drawn is None:
            drawn = DrawnBatch(self.index, plan.batch(within).spans)
        labels = plan.label_parts([within])
        part_epoch = labels[0].epoch if labels else None
        if not isinstance(part_epoch, int):  # of rows of several parts, draws are counted
            part_epoch = None
        text = f"stage;{stage.first};{own_pass};{part_epoch};{drawn.epoch}"
        digest = hashlib.sha256(text.encode()).digest()
        return drawn._replace(epoch=int.from_bytes(digest[:8], "little") >> 1)

    @property
    def lookahead(self) -> int:
        """Number of timesteps that the plans read after their spans."""
        return self._locate(0).plan.lookahead

    def first_plans(self) -> list[Plan]:
        """Return the plan of the first pass of each stage of the epoch."""
        firsts = [max(stage.first - self.first, 0) for stage in self.stages]
        return [self._make_plan(*self._find_pass(number)[:2]) for number in firsts]

    def _locate(self, number: int) -> Piece:
        stage, own_pass, within = self._find_pass(number)
        start = number - within
        stop = min(self.count, start + stage.pass_batches)
        later = bisect_right(self.stages, stage.first, key=_get_first)
        if later < len(self.stages):
            stop = min(stop, self.stages[later].first - self.first)
        return Piece(self._make_plan(stage, own_pass), start, stop)

    def _find_pass(self, number: int) -> tuple[Stage, int, int]:
        """Return the stage of a batch, the index of its pass, and its index there."""
        position = self.first + number
        i = bisect_right(self.stages, position, key=_get_first) - 1
        stage = self.stages[i]
        return stage, *divmod(position - stage.first, stage.pass_batches)

    def _make_plan(self, stage: Stage, own_pass: int) -> Plan:
        key = stage.first, own_pass
        plan = self._plans.get(key)
        if plan is None:
            plan = stage.plan_pass(self.index, self.seed, own_pass)
            for old in list(self._plans)[: 1 - _CACHED_PASSES]:  # a reader thread may do the same
                self._plans.pop(old, None)
            self._plans[key] = plan
        return plan


def _get_first(stage: Stage) -> int:
    return stage.first


def make_staged_report(table: BatchTable, plans: Sequence[Plan]) -> PlanReport:
    """Return the report of an epoch.

    Args:
        table: Batches of the epoch.
        plans: A plan of each stage. The report lists sequences that all plans drop as dropped, and
            sequences that any plan splits or truncates as split or truncated.
    """
    reports = [plan.report for plan in plans]
    return replace(
        make_report(table),
        dropped=reduce(np.intersect1d, [report.dropped for report in reports]),
        split=reduce(np.union1d, [report.split for report in reports]),
        truncated=reduce(np.union1d, [report.truncated for report in reports]),
    )


_EXAMPLE = "Pass e.g. [(0, 256), (2, 1024), (5, None)]"
_LIMIT_OPTIONS = ("max_length", "too_long")


@dataclass(frozen=True, slots=True)
class Curriculum(WrapperPolicy):
    """Batches of another policy, with short sequences first.

    Sequences beyond the limit are dropped, or split or truncated if the inner policy sets
    ``too_long``. The ``max_length`` of the inner policy always applies.

    Without ``batches`` and ``segment``, each epoch is an epoch of the inner policy with the limit
    of that epoch. Epochs then differ in their number of batches, and a Trainer needs
    ``reload_dataloaders_every_n_epochs=1``. The exceptions are ``Weighted`` with ``draws`` and
    ``Mix`` with ``batches``.

    With ``batches`` or ``segment``, every epoch has the same number of batches. While a limit
    applies, the inner policy repeatedly reads all sequences within the limit, also across the end
    of an epoch. No sequence is repeated before all others have been read.

    For evaluation, only the inner policy plans the batches, without a limit.

    Args:
        policy: Policy that makes the batches: a policy with ``max_length``, a policy that wraps
            one, or a mixture of such policies.
        max_length: Pairs of an epoch, or of a segment, and the maximum number of timesteps of a row
            from then on, increasing from 0; None as a maximum: no limit.
        by: Function in place of ``max_length``: ``by(epoch)``, or ``by(segment)``, returns the
            maximum number of timesteps, or None for no limit.
        segment: Number of batches of a segment, over all ranks. Segments are counted from the
            beginning of the run, independent of epochs; None: ``max_length`` and ``by`` count
            epochs.
        batches: Number of batches of every epoch. None, with ``segment``: the number of the inner
            policy with the last limit of ``max_length``, or, with ``by``, without a limit.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> index = SequenceIndex.from_lengths([3, 1, 8])
        >>> policy = Curriculum(Fixed(1), max_length=[(0, 4), (2, None)])
        >>> [len(policy.plan(index, seed=0, epoch=epoch)) for epoch in range(4)]
        [2, 2, 3, 3]
        >>> policy = Curriculum(Fixed(1), max_length=[(0, 4), (2, None)], segment=3)
        >>> [int(policy.plan(index, seed=0, epoch=epoch).spans[:, 2].max()) for epoch in range(4)]
        [3, 3, 8, 8]
    """

    policy: Policy
    max_length: Sequence[tuple[int, int | None]] | None = None
    by: Callable[[int], int | None] | None = None
    segment: int | None = None
    batches: int | None = None

    def __post_init__(self) -> None:
        if (self.max_length is None) == (self.by is None):
            quantifier = "neither is" if self.by is None else "both are"
            raise ConfigError(
                "policy 'curriculum': exactly one of `max_length` and `by` must be given, but "
                f"{quantifier}. {_EXAMPLE}."
            )
        check_counts("curriculum", self, "segment", "batches", optional=True)
        if self.by is not None and not callable(self.by):
            raise ConfigError(
                must_be(
                    "policy 'curriculum': `by`",
                    f"a function of the {self._counted}",
                    f"{self.by!r}",
                )
            )
        if self.max_length is not None:
            object.__setattr__(self, "max_length", _make_rules(self.max_length, self._counted))
        _limit_length(self.policy, None)
        if self.repeats_sequences:
            self._check_passes()

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch.

        Raises:
            PlanError: If no sequence is within the limit.
        """
        if self.repeats_sequences and len(index):
            return self._plan_stages(index, seed, epoch)
        plan = self._for_epoch(epoch).plan(index, seed=seed, epoch=epoch)
        self._check_count(len(plan), index, epoch)
        return plan

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch, or, if it varies, of epoch 0 with seed 0.

        Raises:
            PlanError: If no sequence is within one of the declared limits.
        """
        rules = self.max_length or [(0, self._find_limit(0))]
        if self.repeats_sequences:
            for number, limit in rules if len(index) else ():
                self._count_pass(index, number, limit)
            return self._count_declared(index) if len(index) else 0
        for epoch, _ in rules if len(index) else ():  # a mistake is told before the run
            index.remember(
                ("curriculum", self, epoch),
                lambda epoch=epoch: self.count_batches(index, seed=0, epoch=epoch),  # type: ignore[misc]
            )
        return self.count_batches(index, seed=0, epoch=0)

    @property
    def repeats_sequences(self) -> bool:
        """Whether an epoch may repeat a sequence, because its number of batches is declared."""
        return self.segment is not None or self.batches is not None

    @property
    def varies(self) -> bool:
        """Whether epochs may differ in their number of batches."""
        if self.repeats_sequences:
            return False
        policy = as_policy(self.policy)
        if policy.draws_sequences:
            return policy.varies or getattr(policy, "draws", None) is None
        return not (policy.policies and getattr(policy, "batches", None))

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch.

        Raises:
            PlanError: If no sequence is within the limit.
        """
        if self.repeats_sequences:
            return self.num_batches(index)
        policy = as_policy(self._for_epoch(epoch))
        count = policy.count_batches(index, seed=seed, epoch=epoch)
        self._check_count(count, index, epoch)
        return count

    @property
    def _counted(self) -> str:
        """The word for what ``max_length`` and ``by`` count."""
        return "epoch" if self.segment is None else "segment"

    def _check_passes(self) -> None:
        """Raise if the inner policy's epochs vary in their number of batches."""
        policy = self.policy
        if as_policy(policy).varies:
            raise ConfigError(
                "policy 'curriculum': with `segment` or `batches`, the epochs of `policy` must all "
                f"have the same number of batches, but those of {type(policy).__name__} vary. Pass "
                "e.g. TokenBudget(16384), or Weighted(Bucketed(64))."
            )

    def _plan_stages(self, index: SequenceIndex, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch with a declared number of batches."""
        count = self.num_batches(index)
        stages = self._make_stages(index, epoch * count, (epoch + 1) * count)
        table = StagedTable(stages, index, seed, epoch * count, count)

        def make_fingerprint_of_stages() -> str:
            own = make_fingerprint(index, self, seed, epoch)
            text = ";".join([own, *(plan.fingerprint for plan in table.first_plans())])
            return hashlib.sha256(text.encode()).hexdigest()[:32]

        origin = PlanOrigin(
            fingerprint=make_fingerprint_of_stages,
            report=lambda batch_table: make_staged_report(batch_table, table.first_plans()),
        )
        return Plan.lazy(table, origin, lookahead=table.lookahead)

    def _make_stages(self, index: SequenceIndex, first: int, stop: int) -> list[Stage]:
        """Return the stages that batches ``first:stop`` of the run lie in."""
        length = self.segment or self._count_declared(index)
        changes = list(self._iterate_changes(-(-stop // length)))
        ends = [number * length for number, _ in changes[1:]] + [stop]
        return [
            Stage(
                number * length,
                self._limit(limit),
                self._count_pass(index, number, limit),
            )
            for (number, limit), end in zip(changes, ends, strict=True)
            if number * length < stop and end > first
        ]

    def _iterate_changes(self, count: int) -> Iterator[tuple[int, int | None]]:
        """Yield each epoch or segment at which another limit begins, and that limit."""
        last: tuple[int | None] | None = None
        numbers = range(count) if self.by is not None else [n for n, _ in self.max_length or ()]
        for number in numbers:
            limit = self._find_limit(number)
            if last != (limit,) and number < count:
                yield number, limit
            last = (limit,)

    def _count_declared(self, index: SequenceIndex) -> int:
        """Return the declared number of batches of every epoch."""
        if self.batches is not None:
            return self.batches
        number, limit = self.max_length[-1] if self.max_length else (0, None)
        return self._count_pass(index, number, limit)

    def _count_pass(self, index: SequenceIndex, number: int, limit: int | None) -> int:
        """Return the number of batches of a pass over the sequences within a limit."""
        policy = self._limit(limit)
        count = index.remember(("pass", policy), lambda: policy.num_batches(index))
        self._check_count(count, index, number)
        return count

    def _find_limit(self, number: int) -> int | None:
        """Return the maximum timesteps of a row in an epoch or segment; None: no limit."""
        if self.by is not None:
            name = f"policy 'curriculum': `by` of {self._counted} {number}"
            return _check_limit(self.by(number), name)
        rules = [limit for first, limit in self.max_length or () if first <= number]
        return rules[-1]

    def _for_epoch(self, epoch: int) -> Policy:
        """Return the policy of an epoch."""
        return self._limit(self._find_limit(epoch))

    def _limit(self, limit: int | None) -> Policy:
        return self.policy if limit is None else _limit_length(self.policy, limit)

    def _check_count(self, count: int, index: SequenceIndex, number: int) -> None:
        if not count and len(index):
            limit, name = self._find_limit(number), f"policy 'curriculum': {self._counted} {number}"
            if limit is None:
                raise PlanError(
                    f"{name} must have a sequence to plan, but `policy` drops all of "
                    f"{len(index)}. Pass another one."
                )
            raise PlanError(
                f"{name} must have a sequence of at most {limit} timesteps, but none of "
                f"{len(index)} has so few. Raise the limit."
            )


def _make_rules(rules: Any, counted: str) -> tuple[tuple[int, int | None], ...]:
    """Return the rules as pairs.

    Raises:
        ConfigError: If they are not pairs, or epochs (segments) do not increase from 0.
    """
    name = "policy 'curriculum': `max_length`"
    article = "an" if counted == "epoch" else "a"
    pairs_text = f"pairs of {article} {counted} and a length"
    if isinstance(rules, str) or not isinstance(rules, Sequence) or not rules:
        raise ConfigError(must_be(name, pairs_text, repr(rules), _EXAMPLE))
    pairs = []
    for rule in rules:
        if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) != 2:
            raise ConfigError(must_be(name, pairs_text, repr(rule), _EXAMPLE))
        epoch, limit = rule
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise ConfigError(
                must_be(f"{name}: {article} {counted}", "an integer", repr(epoch), _EXAMPLE)
            )
        pairs.append((epoch, _check_limit(limit, f"{name} of {counted} {epoch}")))
    epochs = [epoch for epoch, _ in pairs]
    if epochs[0] != 0 or epochs != sorted(set(epochs)):
        raise ConfigError(
            must_be(
                f"{name}: the list of {counted}s",
                "increasing, with 0 as the first",
                ", ".join(map(str, epochs)),
                _EXAMPLE,
            )
        )
    return tuple(pairs)


def _check_limit(limit: Any, name: str) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(must_be(name, "an integer of at least 1, or None", repr(limit)))
    return limit


def _limit_length(policy: Any, limit: int | None) -> Policy:
    """Return a policy whose rows have at most ``limit`` timesteps; None: no limit.

    Raises:
        ConfigError: If it does not have the options, or makes steps of several parts.
    """
    asked = as_policy(policy)
    if asked.zips_parts:
        raise ConfigError(
            "policy 'curriculum': `policy` must plan one dataset, or a mixture, but is a "
            f"{type(policy).__name__}. Limit the lengths of a part, with a fixed number of draws: "
            "Zip({name: Curriculum(Weighted(policy, draws=...), ...)})."
        )
    if asked.policies:
        return _limit_parts(policy, limit)
    if asked.inner_policy is not None:
        return replace_inner_policy(policy, _limit_length(asked.inner_policy, limit))
    is_object = is_dataclass(policy) and not isinstance(policy, type)
    options = {field.name for field in fields(policy)} if is_object else set()
    if missing := sorted(set(_LIMIT_OPTIONS) - options):
        raise ConfigError(
            f"policy 'curriculum': `policy` must have the options {' and '.join(_LIMIT_OPTIONS)}, "
            f"but {type(find_base_policy(policy)).__name__} has no {' and '.join(missing)}. Pass "
            "e.g. TokenBudget(16384)."
        )
    if limit is None or (policy.max_length is not None and policy.max_length <= limit):
        return cast(Policy, policy)
    too_long = "drop" if policy.too_long == "error" else policy.too_long
    return cast(Policy, replace(policy, max_length=limit, too_long=too_long))


def _limit_parts(mixture: Any, limit: int | None) -> Policy:
    parts = {
        name: part
        if part.policy is None
        else replace(part, policy=_limit_length(part.policy, limit))
        for name, part in mixture.parts.items()
    }
    policy = None if mixture.policy is None else _limit_length(mixture.policy, limit)
    return cast(Policy, replace(mixture, parts=parts, policy=policy))

"""Policy ``mix``: batches of several data sets in fixed shares, each going through its own epochs.

Which part a batch is from follows from its number alone, so shares are exact in every prefix, and a
run continues anywhere. A part's batches are those of its own policy: every sequence once in each of
the part's epochs, whatever the others do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import BatchTable
from seqdata.planning.build import make_fingerprint
from seqdata.planning.fixed_size import check_count
from seqdata.planning.mix_table import MixTable, PartRun
from seqdata.planning.part_order import WEIGHT_UNITS, make_part_order, scale_weights
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Policy, SupportsCrops, SupportsPlannedCounts, SupportsVaryingEpochs
from seqdata.report import PlanReport, make_report

ShareUnit = Literal["batches", "timesteps", "sequences"]
Keep = Literal["update", "batch"]
_DIGITS = 40  # of n^(1/T): the same on every machine


@dataclass(frozen=True, slots=True)
class Part:
    """What is drawn of one part of a mixture.

    Args:
        weight: Its share, relative to the weights of the others; 0: nothing is drawn of it.
        policy: How its batches are made; None: by the policy of the mixture.

    Raises:
        ConfigError: If an argument is invalid.
    """

    weight: float
    policy: Policy | None = None

    def __post_init__(self) -> None:
        weight: Any = self.weight
        is_number = isinstance(weight, int | float | np.integer | np.floating | Fraction)
        if isinstance(weight, bool) or not is_number or not math.isfinite(weight) or weight < 0:
            raise ConfigError(
                must_be(
                    "policy 'mix': a `weight`", "a finite number of at least 0", f"{weight!r}",
                    "Pass 0 to leave a part out",
                )
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mix:
    """Batches of several named data sets, in shares that hold for every prefix of an epoch.

    The data is given by name: ``Loader({"books": ..., "code": ...}, Mix(...))``. Each part goes
    through its own epochs, shuffled again each time, and continues in the next epoch of the
    mixture where it was. ``batch.part`` names the part, ``batch.part_epoch`` is its own epoch.

    Args:
        parts: Name -> ``Part``, or the weight alone.
        policy: How batches are made of the parts that have no policy of their own.
        by: What shares are counted in: ``batches``, ``timesteps`` or ``sequences``.
        batches: Batches of an epoch; None: about one pass over the part that is largest by weight,
            up to a whole number of groups.
        temperature: Weights are multiplied by n^(1/temperature), where n is a part's number of
            sequences: 1 is as the data has them, more makes them more even; None: they are not.
        keep: ``update``: ``batches_per_update`` batches of one part come one after another, so that
            the ranks of a step, and the batches of an update, are of the same part where their
            number divides it; ``batch``: each batch is chosen by itself.
        batches_per_update: How many these are. The order does not depend on the world size.
        shuffle: Whether the parts are shuffled; else each is in the data's order.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> lengths = {"books": [3, 1, 2, 2], "code": [5, 4]}
        >>> parts = {name: SequenceIndex.from_lengths(of) for name, of in lengths.items()}
        >>> mix = Mix({"books": 3, "code": 1}, Fixed(1), batches=8, keep="batch")
        >>> plan = mix.plan(SequenceIndex.from_parts(parts), seed=0, epoch=0)
        >>> [label.part for label in plan.label_parts(range(8))].count("code")
        2
    """

    parts: Mapping[str, Part | float]
    policy: Policy | None = None
    by: ShareUnit = "batches"
    batches: int | None = None
    temperature: float | None = None
    keep: Keep = "update"
    batches_per_update: int = 8
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise ConfigError(
                must_be(
                    "policy 'mix': `parts`", "a mapping of names to weights", f"{self.parts!r}",
                    'Write e.g. {"books": 0.7, "code": 0.3}',
                )
            )  # fmt: skip
        self._check_choices()
        parts = {name: _as_part(name, part) for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)
        if not any(part.weight for part in parts.values()):
            raise ConfigError(
                "policy 'mix': at least one `weight` must be above 0, but all are 0. Raise one."
            )
        for name in parts:
            self._check_policy(name)
        _ = self.axis

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)[1:]))

    @property
    def axis(self) -> str:
        """The axis that all parts are planned on."""
        axes = {name: policy.axis for name, policy in self.policies.items()}
        if len(set(axes.values())) > 1:
            raise ConfigError(
                f"policy 'mix': parts must be planned on one axis, but are on {axes}. Pass `axis` "
                "to their policies."
            )
        return next(iter(axes.values()))

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name -> the policy that batches the part."""
        return {name: self._get_policy(name) for name in self.parts}

    @property
    def random(self) -> bool:
        """Whether a part's windows lie at random places."""
        cropping = [one for one in self.policies.values() if isinstance(one, SupportsCrops)]
        return any(policy.random for policy in cropping)

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan: nothing but the parts' sizes is computed before it is used."""
        runs, weights = self._make_runs(index, seed), self._count_units(index)
        count = self._count_batches(index, weights)
        draw_order = make_part_order(weights, seed)
        table = MixTable(runs, draw_order, self._group, epoch * count, count)
        drawn = [run for run, weight in zip(runs, weights, strict=True) if weight]
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda made: _make_report(made, drawn),
        )
        return Plan.lazy(table, origin, lookahead=_find_lookahead(drawn))

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return self._count_batches(index, self._count_units(index))

    def crop_numbers(
        self, index: SequenceIndex, spans: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return which of its sequence's windows each span is, int64 (n,).

        Args:
            index: The lengths of all parts.
            spans: int64 (n, 3): sequence, start, stop.
            seed: Of the plan.
            epoch: Of the part: its own.
        """
        numbers = np.zeros(len(spans), dtype=np.int64)
        for run in self._make_runs(index, seed):
            own = (spans[:, 0] >= run.first) & (spans[:, 0] < run.first + len(run.index))
            if isinstance(run.policy, SupportsCrops) and own.any():
                own_spans = spans[own] - np.array([run.first, 0, 0])
                numbers[own] = run.policy.crop_numbers(
                    run.index, own_spans, seed=run.seed, epoch=epoch
                )
        return numbers

    @property
    def _group(self) -> int:
        return self.batches_per_update if self.keep == "update" else 1

    def _check_choices(self) -> None:
        for name, value, choices in (("by", self.by, ShareUnit), ("keep", self.keep, Keep)):
            if value not in get_args(choices):
                allowed = ", ".join(map(repr, get_args(choices)))
                raise ConfigError(
                    must_be(f"policy 'mix': `{name}`", f"one of {allowed}", repr(value))
                )
        check_count("mix", "batches_per_update", self.batches_per_update)
        if self.batches is not None:
            check_count("mix", "batches", self.batches)
        temperature: Any = self.temperature
        if temperature is not None and not (
            isinstance(temperature, int | float) and 0 < temperature < math.inf
        ):
            raise ConfigError(
                must_be("policy 'mix': `temperature`", "above 0, or None", f"{temperature!r}")
            )

    def _check_policy(self, name: str) -> None:
        """Raise if a part has no policy, or one whose batches cannot be mixed."""
        policy: Any = cast(Part, self.parts[name]).policy or self.policy
        if policy is None:
            raise ConfigError(
                f"policy 'mix': part {name!r} must have a policy, but has none. Write Part(weight, "
                "policy), or pass one `policy` for all parts."
            )
        missing = {"axis", "plan", "num_batches"} - set(dir(policy))
        if isinstance(policy, type) or missing:
            raise ConfigError(
                must_be(f"policy 'mix': the policy of part {name!r}", "a policy", f"{policy!r}")
            )
        if getattr(policy, "lanes", 0):
            raise ConfigError(
                f"policy 'mix': the batches of part {name!r} must be independent, but those of "
                f"{type(policy).__name__} have lanes, whose state is carried from batch to batch. "
                "Train on such a policy alone."
            )
        if isinstance(policy, SupportsVaryingEpochs) and policy.varies:
            raise ConfigError(
                f"policy 'mix': the epochs of part {name!r} must have equally many batches, but "
                f"those of {type(policy).__name__} vary. Use it alone, or around the mixture."
            )

    def _get_policy(self, name: str) -> Policy:
        part = cast(Part, self.parts[name])
        policy: Any = part.policy or self.policy
        if self.shuffle or not is_dataclass(policy) or isinstance(policy, type):
            return cast(Policy, policy)
        names = {field.name for field in fields(policy) if field.init}
        return cast(Policy, replace(policy, shuffle=False) if "shuffle" in names else policy)

    def _match_parts(self, index: SequenceIndex) -> dict[str, SequenceIndex]:
        """Return the index of each part, in the data's order.

        Raises:
            ConfigError: If the data has no names, or others than the mixture.
        """
        if not index.parts:
            raise ConfigError(
                "policy 'mix': the data must be several named stores, but is one. Pass them by "
                f"name: {{{', '.join(f'{name!r}: ...' for name in self.parts)}}}."
            )
        for name in self.parts:
            if name not in index.parts:
                hint = did_you_mean(name, index.parts)
                raise ConfigError(
                    f"policy 'mix': part {name!r} must be in the data, but the data has "
                    f"{', '.join(map(repr, index.parts))}. {hint or 'Pass its store.'}"
                )
        for name in index.parts:
            if name not in self.parts:
                raise ConfigError(
                    f"policy 'mix': {name!r} of the data must have a weight, but has none. Pass 0 "
                    "to leave it out."
                )
        return dict(index.parts)

    def _make_runs(self, index: SequenceIndex, seed: int) -> list[PartRun]:
        parts = self._match_parts(index)
        starts = accumulate(map(len, parts.values()), initial=0)
        return [
            PartRun(
                name, first, part_index, policy, _derive_seed(seed, name),
                policy.num_batches(part_index) if self._weigh(name, 1) else 0,
                getattr(policy, "horizon", 0),
            )
            for (name, part_index), first in zip(parts.items(), starts)  # noqa: B905 - one start more
            for policy in [self._get_policy(name)]
        ]  # fmt: skip

    def _weigh(self, name: str, count: int) -> Fraction:
        """Return the weight of a part of ``count`` sequences."""
        weight: Any = cast(Part, self.parts[name]).weight
        exact = Fraction(weight if isinstance(weight, int | Fraction) else repr(float(weight)))
        if self.temperature is None or not count:
            return exact
        return exact * _compute_root(count, self.temperature)

    def _count_units(self, index: SequenceIndex) -> list[int]:
        """Return how often batches of each part come, as integers that add up to a constant."""
        return scale_weights(
            [self._compute_rate(name, part) for name, part in self._match_parts(index).items()]
        )

    def _compute_rate(self, name: str, index: SequenceIndex) -> Fraction:
        """Return how often batches of a part come, relative to those of the others.

        Raises:
            PlanError: If the part has no batch.
        """
        rate = self._weigh(name, len(index))
        if not rate:
            return rate
        policy = self._get_policy(name)
        batches = policy.num_batches(index)
        if not batches:
            raise PlanError(
                f"policy 'mix': part {name!r} must have a sequence to draw, but has none: "
                f"{len(index)} sequences make no batch. Pass weight 0 to leave it out."
            )
        if self.by == "batches":
            return rate
        counts = _count_planned(policy, index)
        return rate * batches / (counts[0] if self.by == "sequences" else counts[1])

    def _count_batches(self, index: SequenceIndex, units: list[int]) -> int:
        """Return the batches of an epoch: one pass over the part that is largest by weight."""
        if self.batches is not None:
            return self.batches
        sizes = [
            (self._weigh(name, len(part)), self._get_policy(name).num_batches(part), unit)
            for (name, part), unit in zip(self._match_parts(index).items(), units, strict=True)
            if unit
        ]
        _, own_batches, unit = max(sizes)
        count = -(-own_batches * WEIGHT_UNITS // unit)
        return -(-count // self._group) * self._group


def _as_part(name: Any, part: Any) -> Part:
    if not isinstance(name, str):
        raise ConfigError(must_be("policy 'mix': a part's name", "a text", f"{name!r}"))
    return part if isinstance(part, Part) else Part(part)


def _derive_seed(seed: int, name: str) -> int:
    """Return the seed of a part: another for every name."""
    block = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return int(Draw(seed, 0).raw(Purpose.PARTS, 1, block)[0])


def _compute_root(count: int, temperature: float) -> Fraction:
    """Return ``count ** (1 / temperature)``, the same on every machine."""
    with localcontext(prec=_DIGITS):
        return Fraction(Decimal(count) ** (1 / Decimal(repr(temperature))))


def _count_planned(policy: Policy, index: SequenceIndex) -> tuple[int, int]:
    """Return the rows' sequences and the scored timesteps of one epoch of a part."""
    if isinstance(policy, SupportsPlannedCounts):
        return policy.count_planned(index)
    plan = policy.plan(index, seed=0, epoch=0)
    report = plan.report
    return report.sequences, report.timesteps


def _find_lookahead(drawn: list[PartRun]) -> int:
    """Return how far all parts read past their spans.

    Raises:
        ConfigError: If they differ.
    """
    lookaheads = {run.name: run.lookahead for run in drawn}
    if len(set(lookaheads.values())) > 1:
        raise ConfigError(
            f"policy 'mix': the windows of all parts must have one `horizon`, but have "
            f"{lookaheads}. Pass the same to their policies."
        )
    return next(iter(lookaheads.values()))


def _make_report(table: BatchTable, drawn: list[PartRun]) -> PlanReport:
    """Return the report of an epoch, with what the parts' policies leave out, split or truncate."""
    reports = [(run.first, run.plan(0).report) for run in drawn]
    return replace(
        make_report(table),
        dropped=np.concatenate([first + report.dropped for first, report in reports]),
        split=np.concatenate([first + report.split for first, report in reports]),
        truncated=np.concatenate([first + report.truncated for first, report in reports]),
    )

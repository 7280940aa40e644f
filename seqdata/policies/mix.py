"""Policy ``mix``: batches of several datasets in fixed fractions, each with its own epochs.

The index of a batch alone determines its part, so fractions are exact in every prefix, and a run
can continue at any batch. The policy of a part makes the batches of the part, with every sequence
once in each epoch of the part, independent of the other parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal, NoReturn, cast, get_args

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, check_flags, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.planning.build import (
    check_counts,
    make_fingerprint,
)
from seqdata.planning.mix_table import (
    LaneMixTable,
    MixTable,
    PartRun,
    find_lookahead,
    make_mix_report,
    number_crops,
)
from seqdata.planning.mixed_rows import RowMixture, check_rows_policy, make_part_rows
from seqdata.planning.part_order import (
    WEIGHT_TOTAL,
    find_piece,
    make_part_order,
    make_part_weights,
    scale_weights,
)
from seqdata.planning.parts import (
    Part,
    allot_lanes,
    as_part,
    check_lane_policies,
    check_part_policy,
    count_planned,
    derive_part_seed,
    match_parts,
    number_part_crops,
    weigh_part,
)
from seqdata.planning.policy import (
    BasePolicy,
    as_policy,
    disable_shuffle,
    find_base_policy,
)
from seqdata.planning.policy import balance_ranks as balance
from seqdata.planning.segments import RoundFn, Segment, WeightChange, Weights
from seqdata.protocols import Policy
from seqdata.report import make_report

MixedBy = Literal["batches", "timesteps", "sequences"]
Keep = Literal["update", "batch"]
_LEAST_TEMPERATURE = 0.01  # weights are multiplied by up to the 100th power of a count
_ROUNDED_BATCHES = 8  # an epoch is a multiple of so many: steps of so many ranks end with it


@dataclass(frozen=True, slots=True)
class Mix(BasePolicy):
    """Batches of several named datasets, in fractions that hold for every prefix of an epoch.

    The Loader or DataModule takes the datasets by name, for example ``Loader({"books": ..., "code":
    ...}, Mix(...))``. Each part is read in its own epochs and shuffled again after each pass. In
    the next epoch of the mixture, the part continues at its position. ``batch.part`` names the
    part, and ``batch.part_epoch`` is the epoch of the part.

    Policies with lanes can also be mixed. Either each part has its own policy, as in ``{"books":
    TBPTT(24, 256), "code": TBPTT(8, 256)}``, or the parts share the lanes of one policy by weight,
    as in ``Mix({"books": 3, "code": 1}, TBPTT(32, 256))``. Every step has all lanes. A lane belongs
    to one part, so that no state continues in another dataset, and ``batch.part`` names the part of
    each row. An epoch is a pass over the part with the largest weight. At its end states are
    reset, and other parts continue within their sequences.

    Args:
        parts: Dict from name to a weight, to a ``Part``, or to a policy with lanes. The weight of a
            policy with lanes is its number of lanes.
        policy: Policy of the parts for which ``parts`` has no policy.
        by: Quantity that weights are fractions of: ``batches``, ``timesteps`` or ``sequences``;
            None: ``batches``, or ``sequences`` with ``rows``.
        batches: Number of batches of an epoch, without ``rows``; None: about one pass over the part
            with the largest weight, with ``keep="update"`` rounded up to a multiple of
            ``batches_per_update``, or of 8.
        temperature: Weights are multiplied by n^(1/temperature), where n is the number of sequences
            of a part. With 1, fractions follow the sizes of the data; larger values make them more
            even. At least 0.01; None: weights do not change.
        rows: Whether a batch has rows of all parts. One policy then plans as many rows as all parts
            have sequences. Sequences of a part are drawn almost equally often (counts differ by at
            most one) and evenly over lengths. ``batch.part`` is a list. Epochs differ in their
            number of batches if that of the policy depends on lengths.
        keep: Number of batches for which the part is chosen together. ``update``: as many as a step
            has ranks or an update has batches, so that all ranks of a step have the same part; on
            one rank, the part of each batch is chosen separately. ``batch``: the part of each batch
            is chosen separately, on any number of ranks.
        batches_per_update: Number of batches of such a group; None: that of the DataModule, or else
            ``balance_ranks``.
        shuffle: Whether to shuffle the parts. Otherwise each part is in the order of the data, with
            each sequence once in each epoch of the part.
        balance_ranks: Number of ranks of a step, also for the policies of the parts. None: the
            number of ranks of the Loader or Trainer at the beginning of the run, or 1 if ``plan``
            is called directly.

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

    parts: Mapping[str, Part | float | Policy]
    policy: Policy | None = None
    by: MixedBy | None = None
    batches: int | None = None
    temperature: float | None = None
    rows: bool = False
    keep: Keep = "update"
    batches_per_update: int | None = None
    shuffle: bool = True
    balance_ranks: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise ConfigError(
                must_be(
                    "policy 'mix': `parts`", "a mapping of names to weights", f"{self.parts!r}",
                    'Write e.g. {"books": 0.7, "code": 0.3}',
                )
            )  # fmt: skip
        self._check_choices()
        given: Any = self.parts.values()
        has_lanes = any(getattr(getattr(each, "policy", each), "lanes", 0) for each in given)
        parts = {
            name: as_part(name, part, has_lanes=has_lanes) for name, part in self.parts.items()
        }
        object.__setattr__(self, "parts", parts)
        if not any(part.weight for part in parts.values()):
            raise ConfigError(
                "policy 'mix': at least one `weight` must be above 0, but all are 0. Raise one."
            )
        for name in parts:
            self._check_policy(name)
        if self.lanes:
            self._check_lanes()
        _ = self.axis

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)[1:]))

    @property
    def axis(self) -> str:
        """Axis of the plans of all parts."""
        axes = {name: policy.axis for name, policy in self.policies.items()}
        if len(set(axes.values())) > 1:
            raise ConfigError(
                f"policy 'mix': parts must be planned on one axis, but are on {axes}. Pass `axis` "
                "to their policies."
            )
        return next(iter(axes.values()))

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name -> policy, for each part."""
        return {name: self._get_policy(name) for name in self.parts}

    @property
    def lanes(self) -> int:
        """Number of lanes of all parts together; 0: batches are independent."""
        drawn = [cast(Part, part) for part in self.parts.values() if cast(Part, part).weight]
        own = sum(getattr(part.policy, "lanes", 0) for part in drawn)
        is_shared = any(part.policy is None for part in drawn)
        return own + (getattr(self.policy, "lanes", 0) if is_shared else 0)

    @property
    def random(self) -> bool:
        """Whether the windows of at least one part are at random positions."""
        policies = self.policies.values()
        makers = policies if self.rows else map(find_base_policy, policies)
        return any(as_policy(policy).random for policy in makers)

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch; before its first use, it computes only sizes of parts."""
        if self.rows:
            mixture = self._make_row_mixture(index, seed)
            return mixture.plan(epoch, lambda: make_fingerprint(index, self, seed, epoch))
        if self.lanes:
            return self._plan_lanes(index, seed, epoch)
        runs, weights = self._make_runs(index, seed), self._scale_weights(index)
        count = self._count_batches(index, weights)
        draw_order = make_part_order(weights, seed)
        table = MixTable(runs, draw_order, self._group, epoch * count, count)
        drawn = [run for run, weight in zip(runs, weights, strict=True) if weight]
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda batch_table: make_mix_report(batch_table, drawn),
            order=self._describe_order(),
        )
        return Plan.lazy(table, origin, lookahead=find_lookahead(drawn))

    def _plan_lanes(self, index: SequenceIndex, seed: int, epoch: int) -> Plan:
        runs, count = self._make_lane_runs(index, seed), self._count_lane_steps(index)
        for run in runs:
            if not run.num_batches:
                self._refuse_empty(run.name, run.index)
        plan = runs[0].plan(0)
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda table: make_mix_report(table, runs),
            order=", ".join(f"{run.lanes} lanes of {run.name!r}" for run in runs),
        )
        return Plan.lazy(
            LaneMixTable(runs, epoch * count, count), origin, lanes=self.lanes,
            overlap=plan.overlap, carry=plan.carry,
        )  # fmt: skip

    def for_updates(self, batches_per_update: int) -> Mix:
        """Return the mixture for updates of a number of batches; its own number has priority."""
        if self.batches_per_update is not None or self.lanes:
            return self
        return replace(self, batches_per_update=batches_per_update)

    def _describe_order(self) -> str:
        text = "each part shuffled by its policy" if self.shuffle else "not shuffled"
        ranks = "1 rank" if self._group == 1 else f"{self._group} ranks"
        return f"{text}, steps of one part for {ranks}"

    def for_ranks(self, ranks: int) -> Mix | None:
        """Return the mixture balanced for a number of ranks; None with lanes.

        The mixture's own ``balance_ranks`` or ``batches_per_update`` has priority.
        """
        if self.lanes:
            return None
        own = self.balance_ranks or self.batches_per_update or ranks
        parts = {
            name: part if part.policy is None else replace(part, policy=balance(part.policy, own))
            for name, part in cast(Mapping[str, Part], self.parts).items()
        }
        policy = None if self.policy is None else balance(self.policy, own)
        return replace(self, parts=parts, policy=policy, balance_ranks=own)

    @property
    def max_changes(self) -> None:
        """None: all changes of weights are kept, because they determine the positions of parts."""
        return

    def make_weights(self, index: SequenceIndex, weights: Any) -> Weights:
        """Return weights for ``plan_segment``.

        Args:
            index: Lengths of all parts.
            weights: Part -> weight, or the string of a saved state.

        Raises:
            ConfigError: If the weights are invalid, or the mixture has lanes.
        """
        del index
        self._refuse_segments()
        return make_part_weights(self._part_weights, weights)

    def plan_segment(
        self, index: SequenceIndex, *, seed: int, segment: Segment, changes: Sequence[WeightChange]
    ) -> RoundFn:
        """Return the function that plans the single round of a segment; parts continue."""
        self._refuse_segments()
        if self.rows:
            plan = self._make_row_mixture(index, seed).plan_segment(segment, changes)
            return lambda _: plan
        parts = self._match_parts(index)
        rates = {name: self._compute_rate(name, part) for name, part in parts.items()}
        runs = self._make_runs(index, seed)
        sizes = [run.num_batches for run in runs]
        piece = find_piece(rates, self._part_weights, seed, self._group, segment, changes, sizes)
        first = segment.epoch * segment.epoch_batches + segment.first - piece.begin
        table = MixTable(
            runs, piece.order, self._group, first, segment.batches, piece.bases, piece.origin
        )
        plan = Plan.lazy(table, PlanOrigin(fingerprint=str, report=make_report))
        return lambda _: plan

    def _refuse_segments(self) -> None:
        if self.lanes:
            raise ConfigError(
                "policy 'mix': weights of a mixture of lanes must not change, since each lane "
                "belongs to one part, but segments change them. Leave `Segments` out."
            )

    @property
    def _part_weights(self) -> dict[str, float]:
        return {name: cast(Part, part).weight for name, part in self.parts.items()}

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches, because it depends on lengths."""
        if not self.rows:
            return False
        return as_policy(self._rows_policy).items_per_sequence is None

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""
        if self.lanes:
            return self._count_lane_steps(index)
        if not self.rows:
            return self._count_batches(index, self._scale_weights(index))
        return index.remember(
            ("rows of a mixture", self, seed, epoch),
            lambda: self._make_row_mixture(index, seed).count_batches(epoch),
        )

    def crop_numbers(
        self, index: SequenceIndex, spans: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return the index of each span among the windows of its sequence, int64 (n,).

        Args:
            index: Lengths of all parts.
            spans: int64 (n, 3): sequence, start, stop.
            seed: Seed of the plan.
            epoch: Epoch of the part.
        """
        if self.rows:
            return number_part_crops(self._rows_policy, index, spans, seed=seed, epoch=epoch)
        return number_crops(self._make_runs(index, seed), spans, epoch)

    def _make_row_mixture(self, index: SequenceIndex, seed: int) -> RowMixture:
        parts = self._match_parts(index)
        rates = {name: self._compute_rate(name, part) for name, part in parts.items()}
        rows = make_part_rows(parts, self._rows_policy, list(rates.values()))
        return RowMixture(rows, self._rows_policy, index, rates, self._part_weights, seed)

    @property
    def _rows_policy(self) -> Policy:
        """The policy that makes batches of rows of all parts."""
        return self._get_policy(next(iter(self.parts)))

    @property
    def _group(self) -> int:
        """Number of consecutive batches of one part."""
        if self.keep == "batch":
            return 1
        return self.batches_per_update or self.balance_ranks or 1

    def _check_choices(self) -> None:
        for name, value, choices in (("by", self.by, MixedBy), ("keep", self.keep, Keep)):
            if value not in get_args(choices) and (value is not None or name == "keep"):
                allowed = "one of " + ", ".join(map(repr, get_args(choices)))
                raise ConfigError(must_be(f"policy 'mix': `{name}`", allowed, repr(value)))
        check_counts("mix", self, "batches_per_update", "balance_ranks", "batches", optional=True)
        check_flags("policy 'mix'", rows=self.rows, shuffle=self.shuffle)
        if self.rows and self.policy is None:
            raise ConfigError(
                "policy 'mix': with `rows=True`, `policy` must be given, but is None. Pass the one "
                "policy that makes batches of the rows of all parts."
            )
        if self.rows and (self.by == "batches" or self.batches is not None):
            found = "by='batches'" if self.batches is None else f"batches={self.batches}"
            raise ConfigError(
                "policy 'mix': with `rows=True`, `policy` determines the number of batches, so "
                f"`{found}` cannot be given. Leave it out."
            )
        temperature: Any = self.temperature
        is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        is_usable = is_number and _LEAST_TEMPERATURE <= temperature < math.inf
        if temperature is not None and not is_usable:
            needed = f"at least {_LEAST_TEMPERATURE}, or None"
            raise ConfigError(must_be("policy 'mix': `temperature`", needed, f"{temperature!r}"))

    def _check_policy(self, name: str) -> None:
        """Raise if a part has no policy, or one whose batches cannot be mixed."""
        own: Any = cast(Part, self.parts[name]).policy
        policy: Any = own or self.policy
        if self.rows and own is not None:
            raise ConfigError(
                f"policy 'mix': part {name!r} must have no policy of its own with `rows=True`, but "
                f"has {own!r}. Pass the weight alone."
            )
        if policy is None:
            raise ConfigError(
                f"policy 'mix': part {name!r} must have a policy, but has none. Write Part(weight, "
                "policy), or pass one `policy` for all parts."
            )
        if not self.lanes:
            check_part_policy("mix", name, policy, "Use it alone, or around the mixture.")
        if self.rows:
            check_rows_policy(self._get_policy(name))

    def _check_lanes(self) -> None:
        if self.rows or self.by is not None:
            found = "rows=True" if self.rows else f"by={self.by!r}"
            raise ConfigError(
                f"policy 'mix': `{found}` cannot be used with lanes, which are divided among "
                "parts by weight. Leave it out."
            )
        drawn = [name for name, part in self.parts.items() if cast(Part, part).weight]
        check_lane_policies({name: self._get_policy(name) for name in drawn})
        if self.temperature is None:
            allot_lanes(self.lanes, {name: self._weigh(name, 1) for name in drawn})  # raises

    def _make_lane_runs(self, index: SequenceIndex, seed: int) -> list[PartRun]:
        """Return the runs of the parts that have lanes, in the data's order."""
        parts = self._match_parts(index)
        weights = {name: self._weigh(name, len(part)) for name, part in parts.items()}
        lanes = allot_lanes(self.lanes, weights)
        starts = accumulate(map(len, parts.values()), initial=0)
        runs = []
        for (name, part_index), first in zip(parts.items(), starts):  # noqa: B905 - one start more
            if lanes[name]:
                policy: Any = self._get_policy(name)
                policy = replace(policy, lanes=lanes[name])
                steps = policy.num_batches(part_index)
                own_seed = derive_part_seed(seed, name)
                runs.append(
                    PartRun(name, first, part_index, policy, own_seed, steps, 0, lanes=lanes[name])
                )
        return runs

    def _count_lane_steps(self, index: SequenceIndex) -> int:
        """Return the number of steps of a pass over the part with the largest weight."""
        if self.batches is not None:
            return self.batches
        runs = self._make_lane_runs(index, 0)
        return max((self._weigh(run.name, len(run.index)), run.num_batches) for run in runs)[1]

    def _refuse_empty(self, name: str, index: SequenceIndex) -> NoReturn:
        raise PlanError(
            f"policy 'mix': part {name!r} must have a sequence to draw, but its policy makes no "
            f"batch from {len(index)} sequences. Pass weight 0 to leave the part out."
        )

    def _get_policy(self, name: str) -> Policy:
        part = cast(Part, self.parts[name])
        policy = cast(Policy, part.policy or self.policy)
        return policy if self.shuffle else disable_shuffle(policy)

    def _match_parts(self, index: SequenceIndex) -> dict[str, SequenceIndex]:
        """Return the index of each part, in the data's order."""
        advice = "Pass 0 to leave it out."
        return match_parts("mix", self.parts, index, "a weight", advice)

    def _make_runs(self, index: SequenceIndex, seed: int) -> list[PartRun]:
        parts = self._match_parts(index)
        starts = accumulate(map(len, parts.values()), initial=0)
        return [
            PartRun(
                name, first, part_index, policy, derive_part_seed(seed, name),
                policy.num_batches(part_index) if self._weigh(name, 1) else 0,
                as_policy(find_base_policy(policy)).horizon,
                group=getattr(find_base_policy(policy), "balance_ranks", None) or 1,
            )
            for (name, part_index), first in zip(parts.items(), starts)  # noqa: B905 - one start more
            for policy in [self._get_policy(name)]
        ]  # fmt: skip

    def _weigh(self, name: str, count: int) -> Fraction:
        """Return the weight of a part of ``count`` sequences."""
        return weigh_part(cast(Part, self.parts[name]).weight, count, self.temperature)

    def _scale_weights(self, index: SequenceIndex) -> list[int]:
        """Return the relative number of batches of each part, as integers of a constant sum."""
        return scale_weights(
            [self._compute_rate(name, part) for name, part in self._match_parts(index).items()]
        )

    def _compute_rate(self, name: str, index: SequenceIndex) -> Fraction:
        """Return the number of batches of a part, relative to those of the others.

        Raises:
            PlanError: If the part has no batch.
        """
        rate = self._weigh(name, len(index))
        if not rate:
            return rate
        policy = self._get_policy(name)
        batches = policy.num_batches(index)
        if not batches:
            self._refuse_empty(name, index)
        by = self.by or ("sequences" if self.rows else "batches")
        if by == "batches" or (by == "sequences" and self.rows):
            return rate
        sequences, timesteps = count_planned(policy, index, whole=self.rows)
        own = sequences if self.rows else batches  # counted by the rate
        return rate * own / (sequences if by == "sequences" else timesteps)

    def _count_batches(self, index: SequenceIndex, weights: list[int]) -> int:
        """Return the number of batches of a pass over the part with the largest weight."""
        if self.batches is not None:
            return self.batches
        sizes = [
            (self._weigh(name, len(part)), self._get_policy(name).num_batches(part), weight)
            for (name, part), weight in zip(self._match_parts(index).items(), weights, strict=True)
            if weight
        ]
        _, own_batches, weight = max(sizes)
        count = -(-own_batches * WEIGHT_TOTAL // weight)
        multiple = 1 if self.keep == "batch" else self.batches_per_update or _ROUNDED_BATCHES
        return -(-count // multiple) * multiple

"""Policy ``weighted``: sequences drawn by weight, then batched by another policy.

It does the work of a ``WeightedRandomSampler`` in the plan: the draws are the same on any number of
ranks and workers, the number of batches is exact, and a run resumes in the middle of an epoch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, check_flags, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import BatchTable
from seqdata.planning.build import check_counts, make_fingerprint
from seqdata.planning.draws import MAX_DRAWS, DrawnSequences, DrawRates, RenumberedTable
from seqdata.planning.policy import (
    WrapperPolicy,
    as_policy,
    find_base_policy,
    find_planned,
    find_varying,
    has_draws,
)
from seqdata.planning.randomness import Draw
from seqdata.planning.segments import RoundFn, Segment, WeightChange, derive_segment_epoch
from seqdata.protocols import Policy
from seqdata.report import PlanReport, count_repeats, make_report


class WeightArray:
    """Weights that were passed as an array; equal if their digests are.

    Args:
        values: The weights, float64 (n,).

    Attributes:
        values: The argument.
        digest: Digest of the values, 32 hex digits.
    """

    __slots__ = ("digest", "values")

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        self.digest = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"WeightArray({len(self.values)} of digest {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightArray) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def make_weight_array(weights: Any) -> WeightArray:
    """Return weights of sequences that were passed as an array or a sequence of numbers.

    Raises:
        ConfigError: If they are invalid.
    """
    try:
        values = np.asarray(weights)
    except ValueError:  # lists of several lengths
        values = np.empty(len(weights), dtype=np.object_)
    return WeightArray(check_weights(values, "`weights`"))


def check_weights(
    values: NDArray[Any], name: str, index: SequenceIndex | None = None
) -> NDArray[np.float64]:
    """Return weights as float64 (n,).

    Raises:
        ConfigError: If they are not numbers, one is negative, infinite or NaN, or none is above 0.
    """
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        advice = "" if index is None else ", or balanced(field) for a field of labels"
        raise ConfigError(
            f"policy 'weighted': {name} must be an array of one number per sequence, but has dtype "
            f"{values.dtype} and shape {values.shape}. Pass a number for each sequence{advice}."
        )
    weights = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        first = wrong[0]
        sequence = f"sequence {first if index is None else index.names([first])}"
        raise ConfigError(
            f"policy 'weighted': {name} must be finite and at least 0, but is {weights[first]} for "
            f"{sequence}. Give it 0 to leave it out."
        )
    if len(weights) and not weights.any():
        raise ConfigError(
            f"policy 'weighted': {name} must be above 0 for at least one sequence, but all are 0. "
            "Pass other weights."
        )
    return weights


def check_labels(values: NDArray[Any], name: str, index: SequenceIndex) -> None:
    """Raise ConfigError if a value of a field is infinite or NaN, and so cannot be a label."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(
            f"policy 'weighted': field {name!r} must be a label to balance by, but is "
            f"{values[first]} for sequence {index.names([first])}. Store a finite number or a "
            "string."
        )


def balance_labels(is_planned: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 / (number of planned sequences of equal value), 0 if not planned, float64 (n,)."""
    weights = np.zeros(len(values))
    _, value_numbers, counts = np.unique(
        values[is_planned], return_inverse=True, return_counts=True
    )
    weights[is_planned] = 1 / counts[value_numbers]
    return weights


_CACHED_EPOCHS = 2  # epochs whose draws are kept: a reader may be in the next one already


@dataclass(frozen=True, slots=True)
class Balanced:
    """Weights that draw each value of a field equally often; see ``balanced``."""

    field: str


def balanced(field: str) -> Balanced:
    """Return weights for ``Weighted`` that draw each value of a field equally often.

    The weight of a sequence is 1 / (number of sequences with the same value).

    Args:
        field: Name of a field with one value per sequence: a number or a string.

    Examples:
        >>> from seqdata import Bucketed, Loader, Weighted, balanced
        >>> data = [{"x": [1], "y": 0}] * 3 + [{"x": [2], "y": 1}]
        >>> loader = Loader(data, Weighted(Bucketed(4), weights=balanced("y")))
        >>> sorted(label for batch in loader for label in batch["y"].tolist())
        [0, 0, 1, 1]
    """
    return Balanced(field)


@dataclass(frozen=True, slots=True)
class Weighted(WrapperPolicy):
    """Batches of sequences that are drawn by weight, with other draws in every epoch.

    The policy draws a sequence ``draws * weight / sum of weights`` times on average. In each epoch
    the number is rounded down or up at random. With equal weights and without ``draws``, each
    sequence is drawn once. Sequences that the inner policy drops (too long, empty) are not drawn.

    For evaluation, only the inner policy plans the batches, and each sequence is read once.

    Args:
        policy: Policy that makes batches of the drawn sequences. It must not have lanes. To combine
            with ``Curriculum``, pass the ``Weighted`` policy to ``Curriculum``.
        weights: Name of a field with one number per sequence, an array (sequences,) in the order of
            the store, or a result of ``balanced``. None: all weights are equal.
        draws: Number of draws of an epoch; None: the number of sequences that the inner policy
            plans.
        importance: Whether ``batch.weight`` is 1 / (N p), where p is the probability of the
            sequence among N sequences. Weighted means then estimate those of the unweighted data.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> index = SequenceIndex.from_lengths([3, 1, 2])
        >>> plan = Weighted(Fixed(2), weights=[0, 1, 3], draws=4).plan(index, seed=0, epoch=0)
        >>> sorted(plan.spans[:, 0].tolist())
        [1, 2, 2, 2]
    """

    policy: Policy
    weights: str | Balanced | WeightArray | Sequence[float] | None = None
    draws: int | None = None
    importance: bool = False

    def __post_init__(self) -> None:
        _check_inner(self.policy)
        if not (self.weights is None or isinstance(self.weights, str | Balanced | WeightArray)):
            object.__setattr__(self, "weights", make_weight_array(self.weights))
        check_counts("weighted", self, "draws", optional=True)
        if self.draws is not None:
            _check_draws(self.draws)
        if self.weights is not None or self.draws is not None:
            _check_epochs(self.policy)
        check_flags("policy 'weighted'", importance=self.importance)

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        rates = self._find_rates(index)
        drawn = self._draw(index, rates, Draw(seed, epoch))
        return self._plan_drawn(index, rates, drawn, Draw(seed, epoch))

    def _plan_drawn(
        self,
        index: SequenceIndex,
        rates: DrawRates,
        drawn: DrawnSequences,
        draw: Draw,
        *,
        is_segment: bool = False,
    ) -> Plan:
        """Return the plan of the sequences drawn for an epoch, or for a round of a segment."""
        seed, epoch = draw.seed, draw.epoch
        inner = self.policy.plan(drawn.index, seed=seed, epoch=epoch)
        self._check_plan(inner)
        weights = rates.importance() if self.importance else None
        own_epoch = epoch if is_segment else None

        def make_fingerprint_of_draws() -> str:
            text = f"{make_fingerprint(index, self, seed, epoch)};{rates.digest}"
            return hashlib.sha256(text.encode()).hexdigest()[:32]

        def report(table: BatchTable) -> PlanReport:
            of_inner, numbers = inner.report, drawn.numbers.astype(np.int64)
            is_dropped = rates.fixed == 0
            is_dropped[numbers[of_inner.dropped]] = True
            return replace(
                make_report(table),
                dropped=np.flatnonzero(is_dropped),
                split=np.unique(numbers[of_inner.split]),
                truncated=np.unique(numbers[of_inner.truncated]),
                repeats=count_repeats(table, index.bases),
            )

        origin = PlanOrigin(fingerprint=make_fingerprint_of_draws, report=report)
        return inner.with_table(
            lambda table: RenumberedTable(table, drawn, weights, epoch=own_epoch), origin
        )

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches, as they do if it depends on lengths."""
        return as_policy(self.policy).items_per_sequence is None

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""
        rates = self._find_rates(index)
        if not rates.draws:
            return 0
        if self.varies:
            drawn = self._draw(index, rates, Draw(seed, epoch))
            return as_policy(self.policy).count_batches(drawn.index, seed=seed, epoch=epoch)

        def count() -> int:  # any of as many sequences make as many batches
            return self.policy.num_batches(index.select(np.resize(rates.support, rates.draws)))

        return index.remember(("batches drawn", self), count)

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return the number of rows of epoch 0 with seed 0, and their timesteps."""
        measures = self.plan(index, seed=0, epoch=0).measures
        return int(measures.rows.sum()), int(measures.timesteps.sum())

    def expected_draws(self, index: SequenceIndex) -> NDArray[np.float64]:
        """Return the mean number of draws of each sequence in an epoch, float64 (n,)."""
        return self._find_rates(index).to_float()

    @property
    def max_changes(self) -> int:
        """Number of changes of weights that are kept: 2, for the segment before the current one."""
        return 2

    def make_weights(self, index: SequenceIndex, weights: Any) -> WeightArray:
        """Return weights for ``plan_segment``.

        Raises:
            ConfigError: If the weights are invalid, or there is not one for each sequence.
        """
        array = weights if isinstance(weights, WeightArray) else make_weight_array(weights)
        replace(self, weights=array)._compute_weights(index)
        return array

    def plan_segment(
        self,
        index: SequenceIndex,
        *,
        seed: int,
        segment: Segment,
        changes: Sequence[WeightChange],
    ) -> RoundFn:
        """Return the function that plans the rounds of a segment, each with separate draws."""
        weights = changes[-1].weights if changes else self.weights
        draws = self._count_segment_draws(index, segment)
        rates = replace(self, weights=weights, draws=draws)._compute_rates(index)

        def make_round(number: int) -> Plan:
            draw = Draw(seed, derive_segment_epoch(segment, number))
            numbers = rates.draw_numbers(draw)
            drawn = DrawnSequences(numbers, index.select(numbers))
            return self._plan_drawn(index, rates, drawn, draw, is_segment=True)

        return make_round

    def _count_segment_draws(self, index: SequenceIndex, segment: Segment) -> int:
        """Return the number of draws of a segment, which does not depend on the weights."""
        rates = self._find_rates(index)
        batches = segment.epoch_batches
        if self.varies:  # more than fit, so that the rest does not bias lengths
            return rates.draws

        def count(draws: int) -> int:
            return self.policy.num_batches(index.select(np.resize(rates.support, draws)))

        def find_most(batches: int) -> int:
            return index.remember(
                ("segment draws", self, batches),
                lambda: max(1, bisect_right(range(1, rates.draws + 1), batches, key=count)),
            )  # one sequence may make more batches than a segment has

        if segment.first + segment.batches < batches:
            return find_most(segment.batches)
        left = rates.draws - segment.first // segment.length * find_most(segment.length)
        return left if left > 0 and count(left) == segment.batches else find_most(segment.batches)

    def _draw(self, index: SequenceIndex, rates: DrawRates, draw: Draw) -> DrawnSequences:
        """Return the sequences of an epoch; the last ones are kept."""
        empty: dict[Draw, DrawnSequences] = {}
        cache = index.remember(("drawn", self), lambda: empty)
        drawn = cache.get(draw)
        if drawn is None:
            numbers = rates.draw_numbers(draw)
            drawn = DrawnSequences(numbers, index.select(numbers))
            for old in list(cache)[: 1 - _CACHED_EPOCHS]:  # a reader thread may do the same
                cache.pop(old, None)
            cache[draw] = drawn
        return drawn

    def _find_rates(self, index: SequenceIndex) -> DrawRates:
        """Return the expected draws of sequences, computed once per index."""
        key = ("rates", self.policy, self.weights, self.draws)
        return index.remember(key, lambda: self._compute_rates(index))

    def _compute_rates(self, index: SequenceIndex) -> DrawRates:
        weights = self._compute_weights(index)
        positive = np.flatnonzero(weights)
        # raises what the policy refuses, before a run and not in the epoch that draws it
        self.policy.num_batches(index if len(positive) == len(index) else index.select(positive))
        is_planned = find_planned(index, self.policy)
        weights[~is_planned] = 0
        if not weights.any():
            return DrawRates(np.zeros(len(index), dtype=np.int64), 0)
        draws = int(np.count_nonzero(is_planned)) if self.draws is None else self.draws
        _check_draws(draws)
        if isinstance(self.weights, Balanced):
            weights = balance_labels(weights > 0, index.values(self.weights.field))
        return DrawRates.from_weights(weights, draws)

    def _compute_weights(self, index: SequenceIndex) -> NDArray[np.float64]:
        """Return the weight of each sequence, float64 (n,); all 1 for ``balanced`` and None."""
        weights = self.weights
        if isinstance(weights, str):
            values = index.values(weights)
            return check_weights(values, f"field {weights!r}", index)
        if isinstance(weights, Balanced):
            check_labels(index.values(weights.field), weights.field, index)
        elif weights is not None:
            values = cast(WeightArray, weights).values
            if len(values) != len(index):
                raise ConfigError(
                    f"policy 'weighted': `weights` must have a value for each of {len(index)} "
                    f"sequences, but has {len(values)}. Pass those of this store, in its order."
                )
            return values.copy()
        return np.ones(len(index))

    def _check_plan(self, inner: Plan) -> None:
        if inner.lanes:
            raise _make_lanes_error(inner.lanes)
        if self.importance and len(inner) and inner.batch(0).rows is not None:
            raise ConfigError(
                "policy 'weighted': `importance` must be False where a row holds several "
                "sequences, since a row has one weight. Leave it out."
            )


def _check_inner(policy: Any) -> None:
    missing = {"axis", "num_batches", "plan"} - set(dir(policy))
    if missing or isinstance(policy, type):
        raise ConfigError(
            must_be(
                "policy 'weighted': `policy`", "a policy", f"{policy!r}", "Pass e.g. Bucketed(64)"
            )
        )
    if as_policy(policy).zips_parts:
        raise ConfigError(
            f"policy 'weighted': `policy` must plan one dataset, but is a {type(policy).__name__}."
            " To weight the sequences of a part, write Zip({name: Weighted(...)})."
        )
    if as_policy(policy).policies:
        raise ConfigError(
            "policy 'weighted': `policy` must plan one dataset, but is a mixture. To weight the "
            "sequences of a part, write Mix({name: Part(1, Weighted(...))})."
        )
    lanes = getattr(policy, "lanes", 0)
    if isinstance(lanes, int) and lanes:
        raise _make_lanes_error(lanes)
    if as_policy(policy).repeats_sequences:
        raise ConfigError(
            "policy 'weighted': `policy` must plan each sequence once, but an epoch of a "
            f"{type(policy).__name__} with declared batches has some of them several times. Write "
            f"{type(policy).__name__}(Weighted(...), ...)."
        )
    if has_draws(policy):
        raise ConfigError(
            "policy 'weighted': `policy` must plan each sequence once, but draws by weight itself. "
            "Pass its inner policy, and the products of both weights."
        )


def _check_epochs(policy: Policy) -> None:
    """Raise if the sequences that a policy drops, and so may be drawn, depend on the epoch."""
    varying: Any = find_varying(policy)
    is_cut = getattr(find_base_policy(policy), "too_long", None) in ("split", "truncate")
    if varying is not None and as_policy(varying).inner_policy is not None and not is_cut:
        name = type(varying).__name__
        raise ConfigError(
            "policy 'weighted': `policy` must drop the same sequences in every epoch if there "
            f"are `weights` or `draws`, but the limit of {name} follows the epoch. Write "
            f"{name}(Weighted(...), ...)."
        )


def _make_lanes_error(lanes: int) -> ConfigError:
    return ConfigError(
        f"policy 'weighted': `policy` must make independent batches, but has {lanes} lanes, which "
        "carry a state from batch to batch. Pass e.g. Bucketed(64)."
    )


def _check_draws(draws: int) -> None:
    if draws > MAX_DRAWS:
        raise ConfigError(
            must_be("policy 'weighted': `draws`", f"at most {MAX_DRAWS}", f"{draws}", "Pass fewer")
        )

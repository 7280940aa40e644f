"""Policy ``curriculum``: short sequences first, by rules that are declared before the run.

Each epoch is planned by the same policy with the limit of length that holds then, so its number of
batches is known, and a resumed run plans what it would have planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

from seqdata.errors import ConfigError, PlanError, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.wrapping import (
    SupportsDraws,
    SupportsWrapping,
    count_epoch_batches,
    find_base_policy,
    replace_inner_policy,
)
from seqdata.protocols import Policy, SupportsMixing, SupportsZipping

_EXAMPLE = "Pass e.g. [(0, 256), (2, 1024), (5, None)]"
_LIMIT_OPTIONS = ("max_length", "too_long")


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Batches of another policy, whose longest sequences come later.

    Sequences beyond the limit of an epoch are left out of it, or split or truncated where the inner
    policy says so with ``too_long``. A ``max_length`` of the inner policy's own always holds.
    Epochs then differ in their number of batches, and a Trainer needs
    ``reload_dataloaders_every_n_epochs=1``; not around ``Weighted`` with ``draws``, or a ``Mix``
    with ``batches``.

    Evaluation is planned by the inner policy alone, without a limit.

    Args:
        policy: Makes the batches: a policy with ``max_length``, one around such a policy, or a
            mixture of such policies.
        max_length: Pairs of an epoch and the most timesteps of a row from then on, rising from
            epoch 0; None for no limit.
        by: Instead of these: ``by(epoch)`` returns the most timesteps, or None.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> index = SequenceIndex.from_lengths([3, 1, 8])
        >>> policy = Curriculum(Fixed(1), max_length=[(0, 4), (2, None)])
        >>> [len(policy.plan(index, seed=0, epoch=epoch)) for epoch in range(4)]
        [2, 2, 3, 3]
    """

    policy: Policy
    max_length: Sequence[tuple[int, int | None]] | None = None
    by: Callable[[int], int | None] | None = None

    def __post_init__(self) -> None:
        if (self.max_length is None) == (self.by is None):
            given = "neither" if self.by is None else "both"
            raise ConfigError(
                "policy 'curriculum': exactly one of `max_length` and `by` must be given, but "
                f"{given} is. {_EXAMPLE}."
            )
        if self.by is not None and not callable(self.by):
            raise ConfigError(
                must_be("policy 'curriculum': `by`", "a function of the epoch", f"{self.by!r}")
            )
        if self.max_length is not None:
            object.__setattr__(self, "max_length", _make_rules(self.max_length))
        _limit_length(self.policy, None)

    @property
    def axis(self) -> str:
        """The axis that is planned on."""
        return self.policy.axis

    @property
    def inner_policy(self) -> Policy:
        """The policy that makes the batches."""
        return self.policy

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan.

        Raises:
            PlanError: If no sequence is short enough.
        """
        plan = self._for_epoch(epoch).plan(index, seed=seed, epoch=epoch)
        self._check_count(len(plan), index, epoch)
        return plan

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch; if they vary, of seed 0's first.

        Raises:
            PlanError: If there is no sequence for one of the declared limits.
        """
        rules = self.max_length or [(0, None)]
        for epoch, _ in rules if len(index) else ():  # a mistake is told before the run
            index.remember(
                ("curriculum", self, epoch),
                lambda epoch=epoch: self.num_batches_drawn(index, seed=0, epoch=epoch),  # type: ignore[misc]
            )
        return self.num_batches_drawn(index, seed=0, epoch=0)

    @property
    def varies(self) -> bool:
        """Whether epochs may differ in their number of batches."""
        policy = self.policy
        if isinstance(policy, SupportsDraws):
            return bool(getattr(policy, "varies", True)) or getattr(policy, "draws", None) is None
        return not (isinstance(policy, SupportsMixing) and getattr(policy, "batches", None))

    def num_batches_of(self, index: SequenceIndex, epoch: int) -> int:
        """Return the number of batches of an epoch of seed 0."""
        return self.num_batches_drawn(index, seed=0, epoch=epoch)

    def num_batches_drawn(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""
        count = count_epoch_batches(self._for_epoch(epoch), index, seed=seed, epoch=epoch)
        self._check_count(count, index, epoch)
        return count

    def _find_limit(self, epoch: int) -> int | None:
        """Return the most timesteps of a row in an epoch; None: no limit."""
        if self.by is not None:
            return _check_limit(self.by(epoch), f"policy 'curriculum': `by` of epoch {epoch}")
        rules = [limit for first, limit in self.max_length or () if first <= epoch]
        return rules[-1]

    def _for_epoch(self, epoch: int) -> Policy:
        """Return the policy of an epoch."""
        limit = self._find_limit(epoch)
        return self.policy if limit is None else _limit_length(self.policy, limit)

    def _check_count(self, count: int, index: SequenceIndex, epoch: int) -> None:
        if not count and len(index):
            limit = self._find_limit(epoch)
            raise PlanError(
                f"policy 'curriculum': epoch {epoch} must have a sequence of at most {limit} "
                f"timesteps, but none of {len(index)} has so few. Raise the limit."
            )


def _make_rules(rules: Any) -> tuple[tuple[int, int | None], ...]:
    """Return the rules as pairs.

    Raises:
        ConfigError: If they are not pairs, or epochs do not rise from 0.
    """
    name = "policy 'curriculum': `max_length`"
    if isinstance(rules, str) or not isinstance(rules, Sequence) or not rules:
        raise ConfigError(must_be(name, "pairs of an epoch and a length", repr(rules), _EXAMPLE))
    pairs = []
    for rule in rules:
        if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) != 2:
            raise ConfigError(must_be(name, "pairs of an epoch and a length", repr(rule), _EXAMPLE))
        epoch, limit = rule
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise ConfigError(must_be(f"{name}: an epoch", "an integer", repr(epoch), _EXAMPLE))
        pairs.append((epoch, _check_limit(limit, f"{name} of epoch {epoch}")))
    epochs = [epoch for epoch, _ in pairs]
    if epochs[0] != 0 or epochs != sorted(set(epochs)):
        raise ConfigError(
            must_be(f"{name}: epochs", "rising from 0", ", ".join(map(str, epochs)), _EXAMPLE)
        )
    return tuple(pairs)


def _check_limit(limit: Any, name: str) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(must_be(name, "an integer of at least 1, or None", repr(limit)))
    return limit


def _limit_length(policy: Any, limit: int | None) -> Policy:
    """Return a policy whose rows have at most ``limit`` timesteps; None: as it is.

    Raises:
        ConfigError: If it has no such option.
    """
    if isinstance(policy, SupportsZipping):
        raise ConfigError(
            "policy 'curriculum': `policy` must plan one data set, or a mixture, but is a "
            f"{type(policy).__name__}. Limit the lengths of a part, with a fixed number of draws: "
            "Zip({name: Curriculum(Weighted(policy, draws=...), ...)})."
        )
    if isinstance(policy, SupportsMixing):
        return _limit_parts(policy, limit)
    if isinstance(policy, SupportsWrapping):
        return replace_inner_policy(policy, _limit_length(policy.inner_policy, limit))
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

"""What policies are asked for that change what another policy plans over, and by those that do.

A wrapper leaves the making of batches to its inner policy. What concerns rows (windows, truncation,
the order of evaluation) is asked of the innermost one.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SCAN_CHUNK, SequenceIndex
from seqdata.protocols import Policy, SupportsMixing, SupportsVaryingEpochs


@runtime_checkable
class SupportsWrapping(Protocol):
    """A policy that changes what another one plans over."""

    @property
    def inner_policy(self) -> Policy:
        """The policy that makes the batches; evaluation plans with it alone."""
        ...


@runtime_checkable
class SupportsDraws(Protocol):
    """A policy that draws sequences: an epoch has some several times, and others not at all."""

    def expected_draws(self, index: SequenceIndex) -> NDArray[np.float64]:
        """Return how often each sequence is drawn in an epoch on average, float64 (n,).

        In each epoch it is that number, rounded down or up.
        """
        ...


@runtime_checkable
class SupportsStagedRun(Protocol):
    """A policy whose epochs need not be passes over the data."""

    @property
    def repeats_sequences(self) -> bool:
        """Whether an epoch may have a sequence several times."""
        ...


@runtime_checkable
class SupportsDrawnEpochs(Protocol):
    """A policy whose epochs differ in their number of batches by what is drawn for them."""

    def num_batches_drawn(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""
        ...


@runtime_checkable
class SupportsUpdateGroups(Protocol):
    """A policy that may keep the batches of an optimizer update together."""

    def for_updates(self, batches_per_update: int) -> Policy:
        """Return the policy for updates of so many batches, over all ranks.

        A number of its own stays.
        """
        ...


@runtime_checkable
class SupportsRanks(Protocol):
    """A policy that may give the ranks of a step like work, or batches of the same part."""

    def for_ranks(self, ranks: int) -> Policy:
        """Return the policy for steps of so many ranks; a ``balance_ranks`` of its own stays."""
        ...


@runtime_checkable
class SupportsItemCounts(Protocol):
    """A policy that can say what it makes of a sequence, by its length alone."""

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many items each sequence makes, int64 (n,); 0: it is left out."""
        ...

    @property
    def items_per_sequence(self) -> int | None:
        """How many items each sequence makes that is not left out, if batches are cut by number.

        None if it differs, or the number of batches depends on lengths.
        """
        ...


def find_base_policy(policy: Policy) -> Policy:
    """Return the innermost policy, which makes the batches."""
    while isinstance(policy, SupportsWrapping):
        policy = policy.inner_policy
    return policy


def replace_inner_policy(wrapper: SupportsWrapping, policy: Policy) -> Policy:
    """Return a policy around another one than before."""
    dataclass_wrapper: Any = wrapper
    inner = wrapper.inner_policy
    names = [
        field.name
        for field in fields(dataclass_wrapper)
        if getattr(dataclass_wrapper, field.name) is inner
    ]
    return cast(Policy, replace(dataclass_wrapper, **dict.fromkeys(names, policy)))


def group_updates(policy: Policy, batches_per_update: int) -> Policy:
    """Return a policy that keeps the batches of an update together, if it can.

    Args:
        policy: Any; of a policy around another it is asked of the innermost one.
        batches_per_update: Batches of an optimizer update, over all ranks.
    """
    if isinstance(policy, SupportsUpdateGroups):
        return policy.for_updates(batches_per_update)
    if isinstance(find_base_policy(policy), SupportsUpdateGroups):
        wrapper: Any = policy
        return replace_inner_policy(
            wrapper, group_updates(wrapper.inner_policy, batches_per_update)
        )
    return policy


def balance_ranks(policy: Policy, ranks: int) -> Policy:
    """Return a policy whose steps are for so many ranks, if it can.

    Args:
        policy: Any; of a policy around another it is asked of the innermost one.
        ranks: Batches of a step, or of an optimizer update.
    """
    if isinstance(policy, SupportsRanks):
        return policy.for_ranks(ranks)
    if isinstance(find_base_policy(policy), SupportsRanks):
        wrapper: Any = policy
        return replace_inner_policy(wrapper, balance_ranks(wrapper.inner_policy, ranks))
    return policy


def continues_passes(policy: Policy) -> bool:
    """Return whether a pass over the data may continue over the end of an epoch.

    The rest of a pass is in the order in which it began, so that no sequence of it comes again: the
    ranks that steps are balanced for must stay.
    """
    while isinstance(policy, SupportsWrapping):
        if repeats_sequences(policy):
            return True
        policy = policy.inner_policy
    return isinstance(policy, SupportsMixing) and not getattr(policy, "rows", False)


def disable_shuffle(policy: Policy) -> Policy:
    """Return the policy that evaluation plans with: each sequence once, in a fixed order.

    Of a policy around another it is the innermost, and in the data's order where it has a choice.
    """
    policy = find_base_policy(policy)
    dataclass_policy: Any = policy  # by its type a Policy need not be a dataclass
    if not is_dataclass(dataclass_policy) or isinstance(dataclass_policy, type):
        return policy
    if "shuffle" not in {field.name for field in fields(dataclass_policy) if field.init}:
        return policy
    return cast(Policy, replace(cast(Any, dataclass_policy), shuffle=False))


def has_draws(policy: Policy) -> bool:
    """Return whether a policy, or one that it wraps, draws some sequences several times."""
    while isinstance(policy, SupportsWrapping):
        if isinstance(policy, SupportsDraws) or repeats_sequences(policy):
            return True
        policy = policy.inner_policy
    return isinstance(policy, SupportsDraws)


def has_importance(policy: Policy) -> bool:
    """Return whether a policy, or one that it wraps, gives rows importance weights."""
    while isinstance(policy, SupportsWrapping) and not getattr(policy, "importance", False):
        policy = policy.inner_policy
    return bool(getattr(policy, "importance", False))


def repeats_sequences(policy: Policy) -> bool:
    """Return whether an epoch may have a sequence several times, without weights."""
    return isinstance(policy, SupportsStagedRun) and policy.repeats_sequences


def find_varying(policy: Policy) -> Policy | None:
    """Return the policy whose number of batches follows the epoch: this one, or one that it wraps.

    None if there is none.
    """
    while not (isinstance(policy, SupportsVaryingEpochs) and policy.varies):
        if not isinstance(policy, SupportsWrapping):
            return None
        policy = policy.inner_policy
    return policy


def count_epoch_batches(policy: Policy, index: SequenceIndex, *, seed: int, epoch: int) -> int:
    """Return the number of batches of one epoch, whatever it depends on.

    Args:
        policy: Any.
        index: The lengths.
        seed: Of the plan.
        epoch: Its number.
    """
    if not (isinstance(policy, SupportsVaryingEpochs) and policy.varies):
        return policy.num_batches(index)
    if isinstance(policy, SupportsDrawnEpochs):
        return policy.num_batches_drawn(index, seed=seed, epoch=epoch)
    return policy.num_batches_of(index, epoch)


def find_planned(index: SequenceIndex, policy: Policy) -> NDArray[np.bool_]:
    """Return which sequences a policy makes anything of, bool (n,)."""
    is_planned = np.ones(len(index), dtype=np.bool_)
    if isinstance(policy, SupportsItemCounts):
        for first in range(0, len(index), SCAN_CHUNK):
            lengths = np.asarray(index.run(policy.axis, first, first + SCAN_CHUNK), dtype=np.int64)
            is_planned[first : first + SCAN_CHUNK] = policy.count_items(lengths) > 0
    return is_planned

"""The members of policies and their defaults.

The core's policies inherit ``BasePolicy``. A policy of a user is a plain object with ``axis``,
``plan`` and ``num_batches``; ``as_policy`` adds the defaults. A policy around another one leaves
the making of batches to it, so questions about rows (windows, truncation, the order of evaluation)
go to the innermost one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SCAN_CHUNK, SequenceIndex
from seqdata.plan import Plan
from seqdata.protocols import Policy, Store, SupportsParts


class BasePolicy(ABC):
    """The members of a policy; all but three have a default.

    Some policies have more:

    - A policy that draws sequences several times: ``expected_draws(index)``, the mean number of
      draws of each sequence in an epoch, float64 (n,). In each epoch it is rounded down or up.
    - A policy that cuts windows out of sequences: ``crop_numbers(index, spans, *, seed, epoch)``,
      the index of each span among its sequence's windows, int64 (n,). A transform has different
      random numbers for each of them, in any batch.
    - A policy whose steps have a batch of each part of the data: ``split(index)``, name -> the
      policy of the part, over its own store, with equally many batches each.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def axis(self) -> str:
        """The axis that is planned on."""

    @abstractmethod
    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch."""

    @abstractmethod
    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch; if they vary, of epoch 0 of seed 0."""
        return self.count_batches(index, seed=0, epoch=0)

    @property
    def varies(self) -> bool:
        """Whether epochs may differ in their number of batches."""
        return False

    @property
    def inner_policy(self) -> Policy | None:
        """The policy within this one, which makes the batches; None: this one makes them."""
        return None

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name -> the policy of each part of the data; empty: the data is one store."""
        return {}

    @property
    def zips_parts(self) -> bool:
        """Whether a step has a batch of each part."""
        return bool(self.policies) and hasattr(self, "split")

    @property
    def draws_sequences(self) -> bool:
        """Whether an epoch may have some sequences several times, and others not at all."""
        return hasattr(self, "expected_draws")

    @property
    def cuts_windows(self) -> bool:
        """Whether spans are windows of sequences, for which exact lengths are needed."""
        return hasattr(self, "crop_numbers")

    @property
    def changes_weights(self) -> bool:
        """Whether a run may change weights in an epoch."""
        return False

    @property
    def repeats_sequences(self) -> bool:
        """Whether an epoch may have a sequence several times, without weights."""
        return False

    @property
    def importance(self) -> bool:
        """Whether rows have importance weights."""
        return False

    @property
    def items_per_sequence(self) -> int | None:
        """Number of items of each planned sequence, if batches have a fixed number of items.

        None if it differs, or the number of batches depends on lengths.
        """
        return None

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each sequence, int64 (n,); 0: it is dropped."""
        return np.ones_like(lengths)

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return the number of sequences, or pieces of them, of epoch 0, and their timesteps."""
        plan = self.plan(index, seed=0, epoch=0)
        pieces = timesteps = first = 0
        while first < len(plan):
            stop = plan.prepare(first)
            spans = plan.slice(first, stop).spans
            lengths = spans[:, 2] - spans[:, 1]
            pieces, timesteps = pieces + int((lengths > 0).sum()), timesteps + int(lengths.sum())
            first = stop
        return pieces, timesteps

    @property
    def cuts_sequences(self) -> bool:
        """Whether spans are parts of sequences: windows, or chunks in lanes."""
        return self.cuts_windows

    def in_timesteps(self, store: Store) -> Policy | None:
        """Return the policy with its seconds as timesteps of a store's axis; None without seconds.

        Raises:
            ConfigError: If the sampling rate of the axis is not known, or a duration is too short.
        """
        del store
        return None

    @property
    def horizon(self) -> int:
        """Number of timesteps after each span that are its future, the only targets."""
        return 0

    @property
    def random(self) -> bool:
        """Whether spans are windows at random positions, different ones in every epoch."""
        return False

    def for_ranks(self, ranks: int) -> Policy | None:
        """Return the policy balanced for a number of ranks; None: it does not depend on them.

        A ``balance_ranks`` of its own stays.
        """
        del ranks
        return None

    def for_updates(self, batches_per_update: int) -> Policy | None:
        """Return the policy that keeps the batches of an update together; None if it cannot.

        Args:
            batches_per_update: Number of batches of an optimizer update, over all ranks; the
                policy's own number stays.
        """
        del batches_per_update
        return None


class _ForeignPolicy(BasePolicy):
    """A policy that does not inherit ``BasePolicy``: its members, and defaults for others."""

    __slots__ = ("_policy",)

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "_policy")
        if not name.startswith("_") and hasattr(own, name):
            return getattr(own, name)
        return object.__getattribute__(self, name)

    @property
    def axis(self) -> str:
        raise AttributeError("axis")  # a policy has its own

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        return self._policy.plan(index, seed=seed, epoch=epoch)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches, also by members of older releases."""
        policy: Any = self._policy
        if not self.varies:
            return cast(int, policy.num_batches(index))
        if hasattr(policy, "num_batches_drawn"):
            return cast(int, policy.num_batches_drawn(index, seed=seed, epoch=epoch))
        if hasattr(policy, "num_batches_of"):
            return cast(int, policy.num_batches_of(index, epoch))
        return cast(int, policy.num_batches(index))


def as_policy(policy: Policy) -> BasePolicy:
    """Return a policy with all members: the policy itself, or one that adds the defaults."""
    return policy if isinstance(policy, BasePolicy) else _ForeignPolicy(policy)


class WrapperPolicy(BasePolicy):
    """A policy around another one, its field ``policy``; evaluations leave the outer one out."""

    __slots__ = ()

    policy: Policy

    @property
    def axis(self) -> str:
        """The axis that is planned on."""
        return self.policy.axis

    @property
    def inner_policy(self) -> Policy:
        """The policy that makes the batches."""
        return self.policy


def find_base_policy(policy: Policy) -> Policy:
    """Return the innermost policy, which makes the batches."""
    while (inner := as_policy(policy).inner_policy) is not None:
        policy = inner
    return policy


def replace_inner_policy(wrapper: Policy, policy: Policy) -> Policy:
    """Return a copy of a wrapper around another policy."""
    dataclass_wrapper: Any = wrapper
    inner = dataclass_wrapper.inner_policy
    names = [
        field.name
        for field in fields(dataclass_wrapper)
        if getattr(dataclass_wrapper, field.name) is inner
    ]
    return cast(Policy, replace(dataclass_wrapper, **dict.fromkeys(names, policy)))


def resolve_seconds(policy: Policy, store: Store) -> Policy:
    """Return a policy whose seconds, and those of policies within it, are timesteps of a store.

    Args:
        policy: Any policy.
        store: The store that is planned. With named parts, each part's policy is resolved for the
            store of this part.

    Raises:
        ConfigError: If the sampling rate of an axis is not known, or a duration is too short.
    """
    changed = as_policy(policy).in_timesteps(store)
    if changed is not None:
        return changed
    dataclass_policy: Any = policy
    if not is_dataclass(dataclass_policy) or isinstance(dataclass_policy, type):
        return policy
    changes: dict[str, Any] = {}
    for option in fields(dataclass_policy):
        value = getattr(dataclass_policy, option.name)
        found = _resolve_option(value, store)
        if found is not value:
            changes[option.name] = found
    return cast(Policy, replace(dataclass_policy, **changes)) if changes else policy


def _resolve_option(value: Any, store: Store) -> Any:
    """Return an option of a policy with the seconds of policies in it resolved, or itself."""
    if isinstance(value, Mapping):
        parts = store.parts if isinstance(store, SupportsParts) else {}
        found = {key: _resolve_option(item, parts.get(key, store)) for key, item in value.items()}
        return found if any(found[key] is not value[key] for key in found) else value
    if isinstance(value, BasePolicy):
        return resolve_seconds(value, store)
    inner = getattr(value, "policy", None)  # of a part of a mixture
    if is_dataclass(value) and not isinstance(value, type) and isinstance(inner, BasePolicy):
        resolved = resolve_seconds(inner, store)
        return value if resolved is inner else replace(cast(Any, value), policy=resolved)
    return value


def group_updates(policy: Policy, batches_per_update: int) -> Policy:
    """Return a policy that keeps the batches of an update together, if it can.

    Args:
        policy: Any policy; the outermost one that can is changed.
        batches_per_update: Number of batches of an optimizer update, over all ranks.
    """
    return _replace_outermost(policy, lambda asked: asked.for_updates(batches_per_update))


def balance_ranks(policy: Policy, ranks: int) -> Policy:
    """Return a policy whose steps are balanced for a number of ranks, if it can.

    Args:
        policy: Any policy; the outermost one that can is changed.
        ranks: Number of batches of a step, or of an optimizer update.
    """
    return _replace_outermost(policy, lambda asked: asked.for_ranks(ranks))


def _replace_outermost(policy: Policy, change: Callable[[BasePolicy], Policy | None]) -> Policy:
    """Return a policy in which the outermost one that can is changed; itself if none can."""
    asked = as_policy(policy)
    if (changed := change(asked)) is not None:
        return changed
    if (inner := asked.inner_policy) is None:
        return policy
    return replace_inner_policy(policy, _replace_outermost(inner, change))


def continues_passes(policy: Policy) -> bool:
    """Return whether a pass over the data may continue over the end of an epoch.

    The rest of a pass keeps the order in which it began, so that no sequence of it comes again: the
    ranks that steps are balanced for must stay.
    """
    while (inner := as_policy(policy).inner_policy) is not None:
        if as_policy(policy).repeats_sequences:
            return True
        policy = inner
    return bool(as_policy(policy).policies) and not getattr(policy, "rows", False)


def disable_shuffle(policy: Policy) -> Policy:
    """Return the policy that plans evaluations: each sequence once, in a fixed order.

    It is the innermost policy, without shuffling if it has that option.
    """
    policy = find_base_policy(policy)
    dataclass_policy: Any = policy  # by its type a Policy need not be a dataclass
    if not is_dataclass(dataclass_policy) or isinstance(dataclass_policy, type):
        return policy
    if "shuffle" not in {field.name for field in fields(dataclass_policy) if field.init}:
        return policy
    return cast(Policy, replace(cast(Any, dataclass_policy), shuffle=False))


def has_draws(policy: Policy) -> bool:
    """Return whether a policy, or one within it, may have a sequence several times."""
    while True:
        asked = as_policy(policy)
        if asked.draws_sequences or asked.repeats_sequences:
            return True
        if asked.inner_policy is None:
            return False
        policy = asked.inner_policy


def has_importance(policy: Policy) -> bool:
    """Return whether a policy, or one within it, gives rows importance weights."""
    while not as_policy(policy).importance:
        inner = as_policy(policy).inner_policy
        if inner is None:
            return False
        policy = inner
    return True


def find_varying(policy: Policy) -> Policy | None:
    """Return the policy, or the one within it, whose number of batches varies; None without one."""
    while not as_policy(policy).varies:
        inner = as_policy(policy).inner_policy
        if inner is None:
            return None
        policy = inner
    return policy


def find_planned(index: SequenceIndex, policy: Policy) -> NDArray[np.bool_]:
    """Return a mask of the sequences that a policy does not drop, bool (n,)."""
    is_planned = np.ones(len(index), dtype=np.bool_)
    count_items = as_policy(policy).count_items
    for first in range(0, len(index), SCAN_CHUNK):
        lengths = np.asarray(index.run(policy.axis, first, first + SCAN_CHUNK), dtype=np.int64)
        is_planned[first : first + SCAN_CHUNK] = count_items(lengths) > 0
    return is_planned

"""What policies are asked for that change what another policy plans over, and by those that do.

A wrapper leaves the making of batches to its inner policy. What concerns rows (windows, truncation,
the order of evaluation) is asked of the innermost one. Place in the flow: between a policy and the
engine, the DataModule and the conformance kit. Reads: policies. Makes: counts of batches.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SCAN_CHUNK, SequenceIndex
from seqdata.protocols import Policy, SupportsVaryingEpochs


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
class SupportsDrawnEpochs(Protocol):
    """A policy whose epochs differ in their number of batches by what is drawn for them."""

    def num_batches_drawn(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch of a seed."""
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


def has_draws(policy: Policy) -> bool:
    """Return whether a policy, or one that it wraps, draws some sequences several times."""
    while isinstance(policy, SupportsWrapping):
        if isinstance(policy, SupportsDraws):
            return True
        policy = policy.inner_policy
    return isinstance(policy, SupportsDraws)


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

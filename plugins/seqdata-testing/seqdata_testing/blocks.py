"""Policies that plan in small blocks, so that few sequences exercise the code for 10^8."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.blocks import Shuffle
from seqdata.planning.build import FixedSizeCutter, build_plan, count_block_batches
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed, PackedRowsCutter
from seqdata.policies.token_budget import LengthBuckets, TokenBudget


@dataclass(frozen=True, slots=True)
class SmallBlocks:
    """A policy of the core that plans in blocks of few sequences.

    Args:
        policy: The policy.
        max_block: Maximum number of items that are planned as one block, instead of 2^18. Policies
            that cut every few rows still need at least 64 batches in a block.
        worst_first: Whether epoch 0 begins with the most expensive batch.
    """

    policy: Bucketed | Fixed | Packed | Sorted | TokenBudget
    max_block: int
    worst_first: bool = True

    @property
    def axis(self) -> str:
        """Axis that is planned on."""
        return self.policy.axis

    @property
    def shuffle(self) -> Shuffle:
        """Whether epochs are shuffled."""
        return self.policy.shuffle

    @property
    def balance_ranks(self) -> int | None:
        """Number of consecutive batches of similar lengths; None: no such groups."""
        return getattr(self.policy, "balance_ranks", None)

    def for_ranks(self, ranks: int) -> SmallBlocks:
        """Return the policy balanced for a number of ranks."""
        return replace(self, policy=self.policy.for_ranks(ranks))

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        items, worst = self.policy._select_items(index), self.worst_first
        return build_plan(self, items, self.cutter(), seed=seed, epoch=epoch, worst_first=worst)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return count_block_batches(self.policy._select_items(index), self.cutter(), self.shuffle)

    def cutter(self) -> FixedSizeCutter | PackedRowsCutter | LengthBuckets:
        """Return the cutter of the policy, with small blocks."""
        cutter: FixedSizeCutter | PackedRowsCutter | LengthBuckets = self.policy._make_cutter()
        return replace(cutter, max_block=self.max_block)

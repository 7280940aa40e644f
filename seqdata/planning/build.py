"""Builds a Plan with report and fingerprint from a policy's options, items and blocks.

The base of policies that plan block by block is here, too, and the cutting of a block every
``batch_size`` rows, which Fixed, Sorted, Bucketed and Windows share.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, as_whole_number, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import PLAN_VERSION, Plan, PlanOrigin
from seqdata.plan_table import BatchTable
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    Block,
    BlockBatches,
    BlockCost,
    Cutter,
    compute_block_costs,
    make_block_table,
)
from seqdata.planning.items import Items, WholeSequences, count_planned, find_sequences
from seqdata.planning.randomness import MAX_GROUP_SIZE, Draw, Purpose
from seqdata.report import PlanReport, make_report

Ordering = Callable[[NDArray[np.int64], Draw | None, int], NDArray[np.int64]]
"""``(lengths, draw, block) -> members``: the order in which a block's items are cut."""


@dataclass(frozen=True, slots=True)
class FixedSizeCutter:
    """Cut every ``batch_size`` items of an order.

    Attributes:
        batch_size: Rows of a batch.
        ordering: How a block's items are ordered before they are cut.
        is_arranged: Whether batches are then ordered by their longest row.
        max_block: Most items that are planned as one block.
    """

    batch_size: int
    ordering: Ordering
    is_arranged: bool
    max_block: int = MAX_BLOCK_ITEMS

    @property
    def block_items(self) -> int:
        """The largest multiple of 64 batches of at most ``max_block`` items, or 64 batches."""
        unit = MAX_GROUP_SIZE * self.batch_size
        return max(unit, self.max_block // unit * unit)

    def count_batches(self, items: Items, blocks: Sequence[Block]) -> list[BlockCost]:
        """Count each block's batches; costs are upper bounds, from the longest item nearby."""
        return [
            BlockCost(
                -(-(block.stop - block.first) // self.batch_size),
                items.peak(block.first, block.stop)
                * min(self.batch_size, block.stop - block.first),
            )
            for block in blocks
        ]

    def cut(self, lengths: NDArray[np.int64], draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches."""
        members = self.ordering(lengths, draw, block)
        starts = np.arange(0, len(members), self.batch_size, dtype=np.int64)
        return BlockBatches(members, np.append(starts, len(members)))


def order_longest_first(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of decreasing length, ties by number, int64 (n,)."""
    top = int(lengths.max(initial=0))
    rank = (top - lengths).astype(np.uint16 if top < 1 << 16 else np.int64)  # 16 bits: radix sort
    return np.argsort(rank, kind="stable")


def order_randomly(lengths: NDArray[np.int64], draw: Draw | None, block: int) -> NDArray[np.int64]:
    """Return a random order, or without a draw the data's, int64 (n,)."""
    if draw is None:
        return np.arange(len(lengths))
    return draw.permutation(Purpose.MEMBERS, len(lengths), block)


def check_counts(
    policy: str, options: object, *names: str, least: int = 1, optional: bool = False
) -> None:
    """Make options that count something plain integers.

    Args:
        policy: Name of the policy, for messages.
        options: The policy, a frozen dataclass.
        names: Its options, which may be integers of NumPy, too.
        least: The least that they may be.
        optional: Whether they may be None.

    Raises:
        ConfigError: If one is not an integer of at least ``least``.
    """
    for name in names:
        value = getattr(options, name)
        if optional and value is None:
            continue
        count = as_whole_number(value)
        if count is None or not least <= count < _MOST:
            needed = f"an integer of at least {least}"
            raise ConfigError(must_be(f"policy {policy!r}: `{name}`", needed, repr(value)))
        if type(value) is not int:
            object.__setattr__(options, name, count)


_MOST = 1 << 62  # of what is counted: sums of a few stay below 2**63

NONE_MEANS = "none means"
"""Key of a field's metadata: the value that None stands for, which is in the text."""

ADDED_LATER = "added later"
"""Key of a field's metadata: it is left out of the text at its default, as before it was there."""

_ADDED_OPTIONS = ("keep",)
"""Options added after states had been saved: left out of the text at their defaults."""


def build_plan(
    policy: Any, items: Items, cutter: Cutter, *, seed: int, epoch: int, worst_first: bool = False
) -> Plan:
    """Return the plan of a policy that works block by block.

    Args:
        policy: The policy, a frozen dataclass with a field ``shuffle``.
        items: What it puts into batches.
        cutter: How a block becomes batches.
        seed: The run's seed, in ``[0, 2**64)``.
        epoch: Number of the epoch, from 0.
        worst_first: Whether epoch 0 begins with the most expensive batch.

    Raises:
        ConfigError: If ``seed`` or ``epoch`` is out of range.
    """
    draw = Draw(seed, epoch)
    table = make_block_table(items, cutter, draw, shuffle=policy.shuffle, worst_first=worst_first)
    return Plan.lazy(
        table,
        PlanOrigin(
            fingerprint=lambda: make_fingerprint(
                items.index, policy, seed, epoch, draws=getattr(items.rule, "draws", False)
            ),
            report=lambda batch_table: make_full_report(items, batch_table),
        ),
    )


def count_batches(items: Items, cutter: Cutter) -> int:
    """Return the number of batches of every epoch."""
    return sum(count.batches for count in compute_block_costs(items, cutter))


def make_fingerprint(
    index: SequenceIndex, policy: object, seed: int, epoch: int, *, draws: bool = False
) -> str:
    """Return the digest of what a plan is made from (32 hex digits).

    Args:
        index: The lengths.
        policy: The policy.
        seed: The run's seed.
        epoch: Number of the epoch.
        draws: Whether positions are drawn per sequence; 0.1 did so by its number in a view.
    """
    text = f"{PLAN_VERSION};{index.fingerprint};{describe_policy(policy)};{seed};{epoch}"
    if draws and index.renumbers:
        text += ";by number in the data"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe_policy(policy: object) -> str:
    """Return a policy as text that is equal in every process and has all that determines a plan."""
    if not is_dataclass(policy):
        return type(policy).__qualname__
    parts = []
    for field in fields(policy):
        value = getattr(policy, field.name)
        is_later = field.name in _ADDED_OPTIONS or ADDED_LATER in field.metadata
        if is_later and value == field.default:
            continue
        if value is None:
            value = field.metadata.get(NONE_MEANS)
        parts.append(f"{field.name}={_describe_value(value)}")
    return f"{type(policy).__name__}({', '.join(parts)})"


def _describe_value(value: Any) -> str:
    """Return an option as text: what it holds, too, is equal in every process."""
    if isinstance(value, Mapping):
        items = [f"{name!r}: {_describe_value(item)}" for name, item in value.items()]
        return f"{{{', '.join(items)}}}"
    name = getattr(value, "__qualname__", None) if callable(value) else None
    if name is not None:
        return str(name)
    if isinstance(value, partial):
        arguments = [_describe_value(item) for item in (value.func, *value.args)]
        named = [f"{name}={_describe_value(item)}" for name, item in value.keywords.items()]
        return f"partial({', '.join(arguments + named)})"
    plain_repr: Any = object.__repr__  # with an address
    is_opaque = callable(value) or type(value).__repr__ is plain_repr
    is_object = is_dataclass(value) and not isinstance(value, type)
    return describe_policy(value) if is_object or is_opaque else repr(value)


def make_full_report(items: Items, table: BatchTable) -> PlanReport:
    """Return the report of a plan, with the sequences that it drops, splits or truncates."""
    rule, index, axis = items.rule, items.index, items.axis
    dropped = find_sequences(
        index,
        axis,
        ("dropped", rule),
        lambda lengths: rule.count_items(np.asarray(lengths, dtype=np.int64)) == 0,
    )
    report = replace(make_report(table), dropped=dropped)
    if not isinstance(rule, WholeSequences) or rule.max_length is None:
        return report
    max_length = rule.max_length
    if rule.too_long not in ("split", "truncate"):
        return report
    longer = find_sequences(
        index, axis, ("longer", max_length), lambda lengths: lengths > max_length
    )
    if rule.too_long == "split":
        return replace(report, split=longer)
    return replace(report, truncated=longer)


class BlockPolicy(ABC):
    """A policy whose batches are cut from blocks of items.

    A subclass is a frozen dataclass with ``axis`` and ``shuffle``, and ``worst_first`` if epoch 0
    may begin with the most expensive batch.
    """

    __slots__ = ()

    @abstractmethod
    def _select_items(self, index: SequenceIndex) -> Items:
        """Return what an epoch puts into batches."""

    @abstractmethod
    def _make_cutter(self) -> Cutter:
        """Return how a block becomes batches."""

    @abstractmethod
    def _make_rule(self) -> Any:
        """Return which items a sequence makes, with ``count_items`` and ``items_per_sequence``."""

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        items, cutter = self._select_items(index), self._make_cutter()
        worst = getattr(self, "worst_first", False)
        return build_plan(self, items, cutter, seed=seed, epoch=epoch, worst_first=worst)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return count_batches(self._select_items(index), self._make_cutter())

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return how many sequences, or pieces of them, an epoch holds, and their timesteps."""
        return count_planned(self._select_items(index))

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many items each sequence makes, int64 (n,); 0: it is left out."""
        counts: NDArray[np.int64] = self._make_rule().count_items(lengths)
        return counts

    @property
    def items_per_sequence(self) -> int | None:
        """How many items each sequence makes that is not left out; None: it differs."""
        items: int | None = self._make_rule().items_per_sequence
        return items

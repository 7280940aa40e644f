"""Construction of a Plan, with report and fingerprint, from a policy's options, items and blocks.

The bases of policies that plan block by block are here, too, and the cutting of a block every
``batch_size`` rows.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, as_integer, check_flags, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import PLAN_VERSION, Plan, PlanOrigin
from seqdata.plan_table import BatchTable
from seqdata.planning.batch_order import spread_copies
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    BlockBatches,
    BlockCost,
    BlockItems,
    Blocks,
    BlockTable,
    Cutter,
    Shuffle,
    compute_block_costs,
    make_block_table,
    split_blocks,
)
from seqdata.planning.items import (
    Cost,
    Items,
    WholeSequences,
    count_planned,
    find_sequences,
    select_items,
)
from seqdata.planning.policy import BasePolicy
from seqdata.planning.randomness import Draw, Purpose, stable_argsort
from seqdata.report import PlanReport, count_repeats, make_report

Ordering = Callable[[BlockItems, Draw | None, int], NDArray[np.int64]]
"""``(items, draw, block) -> keys``, int64 (n,): items are cut in decreasing order of keys,
ties in the order of the data."""

ADDED = "added"
"""Mark of options of a later release: at their default they are not described, so that plans and
checkpoints of earlier releases stay valid."""
IN_SECONDS = "in_seconds"
"""Mark of options in seconds, which plans do not depend on: they become timesteps first."""
_BLOCK_BATCHES = 64  # a block has a multiple of so many: steps of so many ranks end with it


@dataclass(frozen=True, slots=True)
class FixedSizeCutter:
    """Rule that cuts an order of items into batches of ``batch_size``.

    Attributes:
        batch_size: Number of rows of a batch.
        ordering: Sort keys of a block's items; None: random order, or the data's.
        is_arranged: Whether batches are then ordered by their longest row.
        max_block: Maximum number of items that are planned as one block.
    """

    batch_size: int
    ordering: Ordering | None
    is_arranged: bool
    max_block: int = MAX_BLOCK_ITEMS

    @property
    def block_items(self) -> int:
        """The largest multiple of 64 batches of at most ``max_block`` items, or 64 batches."""
        least = _BLOCK_BATCHES * self.batch_size
        return max(least, self.max_block // least * least)

    def count_batches(self, blocks: Blocks) -> list[BlockCost]:
        """Return the number of batches of each block, and the cost of its most expensive one.

        The cost of the block with the longest item is exact. If this item's batch is full, no batch
        costs more, and the other costs are 0; otherwise they are upper bounds.
        """
        items, sizes = blocks.items, [block.stop - block.first for block in blocks]
        costs = [0] * len(sizes)
        if self.is_arranged and sizes:
            longest = blocks.find(items.find_longest())
            peak = items.peak(0, len(items))
            others = 0 if sizes[longest] >= self.batch_size else peak * self.batch_size
            costs = [others] * len(sizes)
            costs[longest] = peak * min(self.batch_size, sizes[longest])
        return [
            BlockCost(-(-size // self.batch_size), cost)
            for size, cost in zip(sizes, costs, strict=True)
        ]

    def cut(self, items: BlockItems, draw: Draw | None, block: int) -> BlockBatches:
        """Cut a block's items into batches."""
        members = self._order(items, draw, block)
        starts = np.arange(0, len(members), self.batch_size, dtype=np.int64)
        return BlockBatches(members, np.append(starts, len(members)))

    def _order(self, items: BlockItems, draw: Draw | None, block: int) -> NDArray[np.int64]:
        """Return the order in which items are cut: by length, random, or that of the data."""
        if self.ordering is None:
            count = len(items.lengths)
            if draw is None:
                return np.arange(count)
            return draw.permutation(Purpose.MEMBERS, count, block)
        keys = self.ordering(items, draw, block)
        members = order_longest_first(keys)
        if items.copies is None or draw is None:
            return members
        return spread_copies(members, keys, items.copies, self.batch_size)


def order_longest_first(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of decreasing length, ties in the order of the data, int64 (n,)."""
    top = int(lengths.max(initial=0))
    if top < 1 << 16:
        return np.argsort((top - lengths).astype(np.uint16), kind="stable")  # radix sort
    return stable_argsort(top - lengths)


def check_counts(
    policy: str, options: object, *names: str, least: int = 1, optional: bool = False
) -> None:
    """Convert options that count something to Python integers.

    Args:
        policy: Name of the policy, for messages.
        options: The policy, a frozen dataclass.
        names: Names of the options, whose values may be integers of NumPy.
        least: Smallest allowed value.
        optional: Whether None is allowed.

    Raises:
        ConfigError: If one is not an integer of at least ``least``, and below 2^62.
    """
    for name in names:
        value = getattr(options, name)
        if optional and value is None:
            continue
        count = as_integer(value)
        if count is None or not least <= count < _MOST:
            needed = f"an integer of at least {least}"
            if count is not None and count >= _MOST:
                needed += " and below 2**62"
            raise ConfigError(must_be(f"policy {policy!r}: `{name}`", needed, repr(value)))
        if type(value) is not int:
            object.__setattr__(options, name, count)


def check_shuffle(policy: str, shuffle: object) -> None:
    """Raise ConfigError if a policy's ``shuffle`` is neither True, False nor "blocks"."""
    if not isinstance(shuffle, bool) and shuffle != "blocks":
        raise ConfigError(
            must_be(f"policy {policy!r}: `shuffle`", "True, False or 'blocks'", repr(shuffle))
        )


_MOST = 1 << 62  # limit of counts: sums of a few stay below 2**63


def build_plan(
    policy: Any, items: Items, cutter: Cutter, *, seed: int, epoch: int, worst_first: bool = False
) -> Plan:
    """Return the plan of a policy that works block by block.

    Args:
        policy: The policy, a frozen dataclass with a field ``shuffle``, and ``balance_ranks`` where
            batches are ordered by length.
        items: The items to put into batches.
        cutter: Rule by which a block becomes batches.
        seed: The run's seed, in ``[0, 2**64)``.
        epoch: Index of the epoch, from 0.
        worst_first: Whether epoch 0 begins with the most expensive batch.

    Raises:
        ConfigError: If ``seed`` or ``epoch`` is out of range.
    """
    draw = Draw(seed, epoch)
    group = getattr(policy, "balance_ranks", None) or 1
    table = make_block_table(
        items, cutter, draw, shuffle=policy.shuffle, group=group, worst_first=worst_first
    )
    return Plan.lazy(
        table,
        PlanOrigin(
            fingerprint=lambda: make_fingerprint(items.index, policy, seed, epoch),
            report=lambda batch_table: make_full_report(items, batch_table),
            order=describe_order(table),
        ),
    )


def describe_order(table: BlockTable) -> str:
    """Return a description of the shuffling, and of the ranks that steps are balanced for."""
    blocks, count = table.blocks, len(table.items)
    if not table.shuffle:
        return "not shuffled"
    text = "shuffled over all data"
    if not blocks.run and len(blocks) > 1:
        fraction = f"{100 * blocks.size / count:.2g} %"
        text = f"shuffled in blocks of {blocks.size:,} neighbours: a batch draws from {fraction}"
        text += " of the data"
    if not table.cutter.is_arranged:
        return text
    return f"{text}, balanced for {table.group} rank{'s' if table.group > 1 else ''}"


def count_block_batches(items: Items, cutter: Cutter, shuffle: Shuffle = True) -> int:
    """Return the number of batches of every epoch."""
    costs = compute_block_costs(split_blocks(items, cutter, shuffle), cutter)
    return sum(cost.batches for cost in costs)


def make_fingerprint(index: SequenceIndex, policy: object, seed: int, epoch: int) -> str:
    """Return the digest of the inputs of a plan (32 hex digits).

    Args:
        index: The lengths.
        policy: The policy.
        seed: The run's seed.
        epoch: Index of the epoch.
    """
    text = f"{PLAN_VERSION};{index.fingerprint};{describe_policy(policy)};{seed};{epoch}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe_policy(policy: object, *, brief: bool = False) -> str:
    """Return a policy as a string: equal in every process, with all that determines a plan.

    Args:
        policy: The policy.
        brief: Whether options that have their default are omitted, to be read by people.
    """
    if not is_dataclass(policy):
        return type(policy).__qualname__
    parts = [
        f"{field.name}={_describe_value(getattr(policy, field.name), brief=brief)}"
        for field in fields(policy)
        if not (field.metadata.get(ADDED) and getattr(policy, field.name) == field.default)
        and not (field.metadata.get(IN_SECONDS) and getattr(policy, field.name) is None)
        and not (brief and _is_default(field, getattr(policy, field.name)))
    ]
    return f"{type(policy).__name__}({', '.join(parts)})"


def _is_default(field: Field[Any], value: object) -> bool:
    """Return whether an option of a policy has its default."""
    return type(value) is type(field.default) and bool(value == field.default)


def _describe_value(value: Any, *, brief: bool = False) -> str:
    """Return an option as a string that is equal in every process."""
    if isinstance(value, Mapping):
        items = [f"{name!r}: {_describe_value(item, brief=brief)}" for name, item in value.items()]
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
    return describe_policy(value, brief=brief) if is_object or is_opaque else repr(value)


def make_full_report(items: Items, table: BatchTable) -> PlanReport:
    """Return the report of a plan, with the sequences that it drops, splits or truncates."""
    rule, index, axis = items.rule, items.index, items.axis
    dropped = find_sequences(
        index,
        axis,
        ("dropped", rule),
        lambda lengths: rule.count_items(np.asarray(lengths, dtype=np.int64)) == 0,
    )
    repeats = count_repeats(table, index.bases) if index.has_copies else 0
    report = replace(make_report(table), dropped=dropped, repeats=repeats)
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


class BlockPolicy(BasePolicy):
    """A policy whose batches are cut from blocks of items.

    A subclass is a frozen dataclass with ``axis`` and ``shuffle``, ``worst_first`` if epoch 0 may
    begin with the most expensive batch, and ``balance_ranks`` if it orders batches by length.
    """

    __slots__ = ()

    @abstractmethod
    def _select_items(self, index: SequenceIndex) -> Items:
        """Return the items that an epoch puts into batches."""

    @abstractmethod
    def _make_cutter(self) -> Cutter:
        """Return the rule by which a block becomes batches."""

    @abstractmethod
    def _make_rule(self) -> Any:
        """Return the rule by which sequences become items."""

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        items, cutter = self._select_items(index), self._make_cutter()
        worst = getattr(self, "worst_first", False)
        return build_plan(self, items, cutter, seed=seed, epoch=epoch, worst_first=worst)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of every epoch."""
        del seed, epoch  # all have equally many
        shuffle: Shuffle = getattr(self, "shuffle", True)
        return count_block_batches(self._select_items(index), self._make_cutter(), shuffle)

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return the number of sequences, or pieces of them, of an epoch, and their timesteps."""
        return count_planned(self._select_items(index))

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each sequence, int64 (n,); 0: it is dropped."""
        counts: NDArray[np.int64] = self._make_rule().count_items(lengths)
        return counts

    def for_ranks(self, ranks: int) -> Self:
        """Return the policy balanced for a number of ranks; its own ``balance_ranks`` stays."""
        if getattr(self, "balance_ranks", ranks) is not None:
            return self
        policy: Any = self
        balanced: Self = replace(policy, balance_ranks=ranks)
        return balanced

    @property
    def items_per_sequence(self) -> int | None:
        """Number of items of each sequence that is not left out; None: it differs."""
        items: int | None = self._make_rule().items_per_sequence
        return items


class SequencePolicy(BlockPolicy):
    """A policy that puts whole sequences into batches, but for empty and too long ones.

    A subclass has ``max_length``, ``too_long``, ``empty`` and ``keep``, too. Where rows have a
    limit of their own, ``_row_limit`` is the name of that option.
    """

    __slots__ = ()

    _name: ClassVar[str]
    _row_limit: ClassVar[str | None] = None

    def _check_options(self, *counts: str, optional_counts: tuple[str, ...] = ()) -> None:
        """Raise ConfigError if an option is invalid.

        Args:
            counts: Names of options that are counts.
            optional_counts: Names of further counts that may be None.
        """
        options: Any = self
        check_counts(self._name, self, *counts)
        check_shuffle(self._name, options.shuffle)
        common = ["max_length"]
        if hasattr(self, "balance_ranks"):
            check_flags(f"policy {self._name!r}", worst_first=options.worst_first)
            common.append("balance_ranks")
        check_counts(self._name, self, *optional_counts, *common, optional=True)
        self._make_rule()

    def _make_rule(self) -> WholeSequences:
        options: Any = self
        most = options.max_length
        if self._row_limit is not None:
            most = most or getattr(self, self._row_limit)
        return WholeSequences(most, options.too_long, options.empty, options.keep)

    def _find_cost(self) -> Cost | None:
        """Return the cost function of rows; None: a row costs its length."""
        return None

    def _select_items(self, index: SequenceIndex) -> Items:
        options: Any = self
        limit = "max_length" if options.max_length else self._row_limit or "max_length"
        return select_items(
            index,
            options.axis,
            self._make_rule(),
            policy=self._name,
            limit=limit,
            cost=self._find_cost(),
        )

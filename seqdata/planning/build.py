"""Put a policy's parts together: options, items, blocks, and a Plan with report and fingerprint.

Place in the flow: the last step of every block-wise policy. Reads: an index and a policy. Makes:
Plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from seqdata.index import SequenceIndex
from seqdata.plan import PLAN_VERSION, Origin, Plan
from seqdata.plan_table import BatchTable
from seqdata.planning.blocks import Cutter, block_table, counts_of
from seqdata.planning.items import Items, WholeSequences, find
from seqdata.planning.randomness import Draw
from seqdata.report import Report, report_of

_LATER = ("keep",)
"""Options of policies that came after states had been saved: left unsaid at their defaults."""


def plan_blocks(
    policy: Any, items: Items, cutter: Cutter, *, seed: int, epoch: int, worst_first: bool = False
) -> Plan:
    """Make the plan of a policy that works block by block.

    Args:
        policy: The policy, a frozen dataclass with a field ``shuffle``.
        items: What it batches.
        cutter: How a block becomes batches.
        seed: The run's seed, in ``[0, 2**64)``.
        epoch: Number of the epoch, from 0.
        worst_first: Whether epoch 0 begins with the most expensive batch.

    Raises:
        ConfigError: If ``seed`` or ``epoch`` is out of range.
    """
    draw = Draw(seed, epoch)
    table = block_table(items, cutter, draw, shuffle=policy.shuffle, worst_first=worst_first)
    return Plan.lazy(
        table,
        Origin(
            fingerprint=lambda: fingerprint_of(
                items.index, policy, seed, epoch, draws=getattr(items.rule, "draws", False)
            ),
            report=lambda made: whole_report(items, made),
        ),
    )


def count_blocks(items: Items, cutter: Cutter) -> int:
    """Give the number of batches of every epoch."""
    return sum(count.batches for count in counts_of(items, cutter))


def fingerprint_of(
    index: SequenceIndex, policy: object, seed: int, epoch: int, *, draws: bool = False
) -> str:
    """Digest what a plan is made from (32 hex digits).

    Args:
        index: The lengths.
        policy: The policy.
        seed: The run's seed.
        epoch: Number of the epoch.
        draws: Whether places are drawn for each sequence; 0.1 did so by its number in a view.
    """
    text = f"{PLAN_VERSION};{index.fingerprint};{describe(policy)};{seed};{epoch}"
    if draws and index.renumbers:
        text += ";by number in the data"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe(policy: object) -> str:
    """Write a policy as text that is the same in every process and says all that shapes a plan."""
    if not is_dataclass(policy):
        return type(policy).__qualname__
    parts = []
    for one in fields(policy):
        value = getattr(policy, one.name)
        if one.name in _LATER and value == one.default:
            continue
        shown = value.__qualname__ if isinstance(value, Callable) else repr(value)  # type: ignore[arg-type]
        parts.append(f"{one.name}={shown}")
    return f"{type(policy).__name__}({', '.join(parts)})"


def whole_report(items: Items, table: BatchTable) -> Report:
    """Add up a plan and say which sequences it drops, splits or truncates."""
    rule, index, axis = items.rule, items.index, items.axis
    dropped = find(
        index,
        axis,
        ("dropped", rule),
        lambda lengths: rule.counts(np.asarray(lengths, dtype=np.int64)) == 0,
    )
    report = replace(report_of(table), dropped=dropped)
    if not isinstance(rule, WholeSequences) or rule.max_length is None:
        return report
    most = rule.max_length
    if rule.too_long not in ("split", "truncate"):
        return report
    longer = find(index, axis, ("longer", most), lambda lengths: lengths > most)
    if rule.too_long == "split":
        return replace(report, split=longer)
    return replace(report, truncated=longer)

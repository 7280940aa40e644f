"""The endless order of a mixture's parts: event k -> (part, number of that part's event).

Parts are the leaves of a tree of pairs, the lightest paired first (Huffman, 1952). At each pair the
events are dealt evenly to both sides by integers: of the first k, ``(k * left + phase) // total``
go to the left. So an event is found in O(log(1 / weight)) without a table, and no part is ever 3
events off its share, however many parts there are and however small their weights: a side is at
most 3/4 of an event off what its pair has, and a side that is a pair itself has at most 2/3 of its
pair's weight, so what it passes on to its parts shrinks from pair to pair. (Events at the times
``(i + phase) / weight``, merged, are up to 11 off if many light parts stand next to a heavy one.)

When weights change, pairs are made again, for the same reason; each side begins with what its parts
were ahead or behind of their shares so far, and gets as many events less or more at first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.planning.randomness import Draw, Purpose

WEIGHT_UNITS = 1 << 40
"""What the weights of all parts add up to, as integers."""

_DIGITS = 40  # of n^(1/T): the same on every machine


class PartPair(NamedTuple):
    """A pair of sides, each a pair (its number) or a part (``~part``).

    Attributes:
        total: Weight of both sides.
        weight: Weight of the left side.
        phase: Where in a period the left side begins, in ``[0, total)``; below, it is ahead of its
            share and waits, and from ``total`` on it is behind, and comes first.
        left: The left side.
        right: The right side.
    """

    total: int
    weight: int
    phase: int
    left: int
    right: int

    def count_left(self, events: int) -> int:
        """Return how many of the pair's first events are those of the left side."""
        return min(max((events * self.weight + self.phase) // self.total, 0), events)


@dataclass(frozen=True, slots=True)
class PartOrder:
    """The order of the parts.

    Attributes:
        pairs: The pairs of the tree.
        root: The pair that all events go through; ``~part`` if there is only one part.
    """

    pairs: tuple[PartPair, ...]
    root: int

    def locate(self, event: int) -> tuple[int, int]:
        """Return the part of an event, and how many earlier events are that part's."""
        side = self.root
        while side >= 0:
            pair = self.pairs[side]
            before = pair.count_left(event)
            if pair.count_left(event + 1) > before:
                side, event = pair.left, before
            else:
                side, event = pair.right, event - before
        return ~side, event

    def locate_run(self, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the same of events ``first:first + count``: parts and numbers, int64 (count,)."""
        parts = np.empty(count, dtype=np.int64)
        numbers = np.empty(count, dtype=np.int64)
        waiting = [(self.root, first, np.arange(count))]
        while waiting:
            side, start, positions = waiting.pop()
            if side < 0:
                parts[positions] = ~side
                numbers[positions] = start + np.arange(len(positions))
                continue
            total, weight, phase, left, right = self.pairs[side]
            whole, remainder = divmod(start * weight + phase, total)
            steps = np.arange(len(positions) + 1)
            dealt = whole + (remainder + weight * steps) // total
            dealt = np.minimum(np.maximum(dealt, 0), start + steps)
            before = int(dealt[0])
            is_left = dealt[1:] > dealt[:-1]
            for child, begin, chosen in (
                (left, before, positions[is_left]),
                (right, start - before, positions[~is_left]),
            ):
                if len(chosen):
                    waiting.append((child, begin, chosen))
        return parts, numbers

    def count_events(self, events: int, count: int) -> list[int]:
        """Return how many of the first events are those of each of ``count`` parts."""
        counts = [0] * count
        waiting = [(self.root, events)]
        while waiting:
            side, own_events = waiting.pop()
            if side < 0:
                counts[~side] = own_events
                continue
            before = self.pairs[side].count_left(own_events)
            waiting += [
                (self.pairs[side].left, before),
                (self.pairs[side].right, own_events - before),
            ]
        return counts

    def count_batches(self, batches: int, group: int, count: int) -> list[int]:
        """Return how many of the first batches are those of each of ``count`` parts.

        Args:
            batches: How many come first; the last event may be cut off.
            group: Batches of an event.
            count: Of parts.
        """
        events, rest = divmod(batches, group)
        counts = [group * number for number in self.count_events(events, count)]
        if rest:
            counts[self.locate(events)[0]] += rest
        return counts


def make_part_order(
    weights: Sequence[int], seed: int, ahead: Sequence[int] | None = None, group: int = 1
) -> PartOrder:
    """Return the order of parts with these weights.

    Args:
        weights: Of the parts, at least 0 and not all 0; parts of weight 0 never come.
        seed: Where each pair's sides begin is drawn from it, once for all epochs.
        ahead: Batches that each part has had so far beyond its share, in units of 1 /
            ``WEIGHT_UNITS``; None: none has.
        group: Batches of an event.
    """
    sides = [(weight, number, ~number) for number, weight in enumerate(weights) if weight]
    heapq.heapify(sides)
    words = Draw(seed, 0).raw(Purpose.PARTS, max(1, len(sides) - 1)).tolist()
    pairs: list[PartPair] = []
    excess = {} if ahead is None else {~number: own for number, own in enumerate(ahead)}
    while len(sides) > 1:
        weight, _, left = heapq.heappop(sides)
        other_weight, _, right = heapq.heappop(sides)
        total = weight + other_weight
        phase = total // 4 + words[len(pairs)] % max(1, total // 2)  # neither side is ever 1 off
        if ahead is not None:
            own, both = excess[left], excess[left] + excess[right]
            phase -= (own * total - both * weight) // (group * WEIGHT_UNITS)
            excess[len(pairs)] = both
        heapq.heappush(sides, (total, len(weights) + len(pairs), len(pairs)))
        pairs.append(PartPair(total, weight, phase, left, right))
    return PartOrder(tuple(pairs), sides[0][2])


def scale_weights(weights: Sequence[Fraction]) -> list[int]:
    """Return weights as integers that add up to ``WEIGHT_UNITS``; above 0 they are at least 1.

    Args:
        weights: At least 0, not all 0.
    """
    total = sum(weights)
    exact = [weight * WEIGHT_UNITS / total for weight in weights]
    units = [max(int(share), share > 0) for share in exact]
    by_remainder = sorted(range(len(units)), key=lambda number: units[number] - exact[number])
    missing = WEIGHT_UNITS - sum(units)  # fewer than there are parts
    for number in by_remainder[:missing] if missing > 0 else ():
        units[number] += 1
    if missing < 0:  # parts that were raised to 1
        units[max(range(len(units)), key=units.__getitem__)] += missing
    return units


def compute_root(count: int, temperature: float) -> Fraction:
    """Return ``count ** (1 / temperature)``, the same on every machine."""
    with localcontext(prec=_DIGITS):
        return Fraction(Decimal(count) ** (1 / Decimal(repr(float(temperature)))))

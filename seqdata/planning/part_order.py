"""The endless order of a mixture's parts: event k -> (part, number of that part's event).

Parts are the leaves of a tree of pairs, the lightest paired first (Huffman, 1952). At each pair the
events are dealt evenly to both sides by integers: of the first k, ``(k * left + phase) // total``
go to the left. So an event is found in O(log(1 / weight)) without a table, and no part is ever 3
events off its share, however many parts there are and however small their weights: a side is at
most 3/4 of an event off what its pair has, and a side that is a pair itself has at most 2/3 of its
pair's weight, so what it passes on to its parts shrinks from pair to pair. (Events at the times
``(i + phase) / weight``, merged, are up to 11 off if many light parts stand next to a heavy one.)

When weights change, pairs are made again, for the same reason; each side begins with what its parts
were ahead or behind of their shares so far, and gets as many events less or more at first. A part
continues in its own epochs, so shares hold over changes.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.planning.part_positions import PartPositions
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.segments import Segment, WeightChange

WEIGHT_UNITS = 1 << 40
"""Sum of the weights of all parts, as integers."""

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
            count: Number of parts.
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
        weights: Weights of the parts, at least 0 and not all 0; parts of weight 0 never come.
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
    units = [max(int(units), units > 0) for units in exact]
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


_DTYPE = np.dtype("<f2")
_EXAMPLE = 'Pass e.g. {"books": 0.7, "code": 0.3}'


@dataclass(frozen=True, slots=True)
class PartWeights:
    """Weights of parts, relative to the largest, in 16 bits each.

    Attributes:
        values: float, in the order of the parts.
    """

    values: tuple[float, ...]

    @property
    def digest(self) -> str:
        """All values as text: 3 characters each."""
        return base64.b64encode(np.array(self.values, dtype=_DTYPE).tobytes()).decode()

    @classmethod
    def from_text(cls, text: str, count: int) -> PartWeights:
        """Return the weights of a ``digest``.

        Raises:
            ConfigError: If it is damaged, or has not ``count`` values.
        """
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), dtype=_DTYPE)
        except (binascii.Error, ValueError):
            values = np.zeros(0, dtype=_DTYPE)
        if len(values) != count or not np.isfinite(values).all() or values.min() < 0:
            raise ConfigError(
                must_be("policy 'mix': saved weights", f"{count} numbers", f"{text!r:.60}")
                + ". They are damaged."
            )
        return cls(tuple(values.tolist()))


def parse_part_weights(text: str, count: int) -> PartWeights | PartPositions:
    """Return what a state has of a change: weights, or the positions of parts that replace others.

    Args:
        text: A ``digest``.
        count: Number of parts.

    Raises:
        ConfigError: If it is damaged.
    """
    part_table = PartPositions if PartPositions.is_text(text) else PartWeights
    return part_table.from_text(text, count)


def make_part_weights(declared: Mapping[str, float], weights: Any) -> PartWeights | PartPositions:
    """Return weights of parts that were passed by name, or what a state has of a change.

    Args:
        declared: Name -> the weight that the mixture declares.
        weights: Name -> weight; or the text of a state.

    Raises:
        ConfigError: If a part is missing or unknown, a weight is invalid, or is above 0 for a part
            that the mixture leaves out.
    """
    if isinstance(weights, str):
        return parse_part_weights(weights, len(declared))
    name = "policy 'mix': `weights`"
    if not isinstance(weights, Mapping):
        raise ConfigError(must_be(name, "a mapping of parts to weights", repr(weights), _EXAMPLE))
    for part in [*weights, *declared]:
        if part not in declared or part not in weights:
            hint = did_you_mean(part, declared) if part not in declared else ""
            known = ", ".join(map(repr, declared))
            found = f"{part!r} is not one of them" if part not in declared else f"has no {part!r}"
            raise ConfigError(
                f"{name} must have each of the parts {known}, but {found}. "
                f"{hint or 'Pass 0 to draw nothing of a part'}."
            )
    values = [weights[part] for part in declared]
    for part, value in zip(declared, values, strict=True):
        is_number = isinstance(value, int | float | np.integer | np.floating | Fraction)
        if isinstance(value, bool) or not is_number or not math.isfinite(value) or value < 0:
            raise ConfigError(
                must_be(f"{name} of part {part!r}", "a finite number of at least 0", f"{value!r}")
                + ". Pass 0 to draw nothing of it."
            )
        if value and not declared[part]:
            raise ConfigError(
                must_be(f"{name} of part {part!r}", "0, as the mixture says", f"{value!r}")
                + ". Give the part a small weight in the Mix to change it later."
            )
    most = max(map(float, values))
    if not most:
        raise ConfigError(f"{name} must be above 0 for a part, but all are 0. Pass other weights.")
    relative = np.array([float(value) / most for value in values])
    rounded = relative.astype(_DTYPE)
    rounded[(relative > 0) & (rounded == 0)] = np.finfo(_DTYPE).smallest_subnormal
    return PartWeights(tuple(rounded.tolist()))


@dataclass(frozen=True, slots=True)
class OrderPiece:
    """A piece of a run within which the weights of parts do not change.

    Attributes:
        begin: Its first batch in the run.
        order: The order of parts, from there on.
        bases: Batches of each part before it.
        origin: Where the parts began with the mixture; None: with their first epochs.
        units: The weights of the order, which add up to ``WEIGHT_UNITS``.
        ahead: Batches that each part had had at ``begin`` beyond its share, in units of 1 /
            ``WEIGHT_UNITS``.
    """

    begin: int
    order: PartOrder
    bases: tuple[int, ...]
    origin: PartPositions | None = None
    units: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()


def find_piece(
    rates: Mapping[str, Fraction],
    declared: Mapping[str, float],
    seed: int,
    group: int,
    segment: Segment,
    changes: Sequence[WeightChange],
    sizes: Sequence[int] = (),
) -> OrderPiece:
    """Return the piece of a run that a segment lies in.

    Args:
        rates: Name -> how often batches of each part come, in the order of the data.
        declared: Name -> the weight that says so, in the order of the mixture.
        seed: Seed of the plan.
        group: Batches of an event.
        segment: The segment.
        changes: What was changed up to it: weights, and parts where they replaced others.
        sizes: Batches of an own epoch of each part, in the order of the data.
    """
    declared_units = tuple(scale_weights(list(rates.values())))
    declared_order, zeros = make_part_order(declared_units, seed), (0,) * len(rates)
    piece = OrderPiece(0, declared_order, zeros, None, declared_units, zeros)
    for epoch, first, weights in changes:
        begin = epoch * segment.epoch_batches + first
        if isinstance(weights, PartPositions):
            bases = weights.count_batches(sizes)
            piece = OrderPiece(begin, declared_order, bases, weights, declared_units, zeros)
            continue
        batches = begin - piece.begin
        counts = piece.order.count_batches(batches, group, len(rates))  # may cut off an event
        ahead = tuple(
            before + own * WEIGHT_UNITS - batches * unit
            for before, own, unit in zip(piece.ahead, counts, piece.units, strict=True)
        )
        values = dict(zip(declared, weights.values, strict=True))
        units = scale_weights(
            [
                rate * Fraction(values[name]) / Fraction(declared[name]) if rate else rate
                for name, rate in rates.items()
            ]
        )
        order = make_part_order(units, seed, ahead, group)
        bases = tuple(base + own for base, own in zip(piece.bases, counts, strict=True))
        piece = OrderPiece(begin, order, bases, piece.origin, tuple(units), ahead)
    return piece

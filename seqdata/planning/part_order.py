"""The endless order of a mixture's parts: event k -> (part, index of that part's event).

Parts are the leaves of a tree of pairs, the lightest paired first (Huffman, 1952). At each pair the
events are distributed evenly over both sides by integers: of the first k, ``(k * left + phase) //
total`` go to the left. So an event is found in O(log(1 / weight)) without a table, and no part is
ever 3 events off its fraction, however many parts there are and however small their weights: a side
is at most 3/4 of an event off what its pair has, and a side that is a pair itself has at most 2/3
of its pair's weight, so what it passes on to its parts shrinks from pair to pair. (Events at the
times ``(i + phase) / weight``, merged, are up to 11 off if many light parts stand next to a heavy
one.)

When weights change, pairs are made again, for the same reason; each side begins with what its parts
were ahead or behind of their fractions so far, and gets as many events less or more at first. A
part continues in its own epochs, so fractions hold over changes.
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

WEIGHT_TOTAL = 1 << 40
"""Sum of the weights of all parts, as integers."""

_DIGITS = 40  # of n^(1/T): the same on every machine


class PartPair(NamedTuple):
    """A pair of sides, each a pair (its index) or a part (``~part``).

    Attributes:
        total: Weight of both sides.
        weight: Weight of the left side.
        phase: Start of the left side in a period, in ``[0, total)``; below 0 it is ahead of its
            fraction and waits, and from ``total`` on it is behind, and comes first.
        left: The left side.
        right: The right side.
    """

    total: int
    weight: int
    phase: int
    left: int
    right: int

    def count_left(self, events: int) -> int:
        """Return the number of the left side's events among the first events of the pair."""
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
        """Return the part of an event, and the number of earlier events of that part."""
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
        """Return what ``locate`` returns for ``count`` events, int64 (count,) each."""
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
            counts = whole + (remainder + weight * steps) // total  # of the left side
            counts = np.minimum(np.maximum(counts, 0), start + steps)
            before = int(counts[0])
            is_left = counts[1:] > counts[:-1]
            for child, begin, chosen in (
                (left, before, positions[is_left]),
                (right, start - before, positions[~is_left]),
            ):
                if len(chosen):
                    waiting.append((child, begin, chosen))
        return parts, numbers

    def count_events(self, events: int, count: int) -> list[int]:
        """Return the number of events of each of ``count`` parts among the first events."""
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
        """Return the number of batches of each of ``count`` parts among the first batches.

        Args:
            batches: Number of first batches; the last event may be cut off.
            group: Number of batches of an event.
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
        seed: Seed of the phases of pairs, which are drawn once for all epochs.
        ahead: Batches that each part has had so far beyond its fraction, multiplied by
            ``WEIGHT_TOTAL``; None: 0.
        group: Number of batches of an event.
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
            phase -= (own * total - both * weight) // (group * WEIGHT_TOTAL)
            excess[len(pairs)] = both
        heapq.heappush(sides, (total, len(weights) + len(pairs), len(pairs)))
        pairs.append(PartPair(total, weight, phase, left, right))
    return PartOrder(tuple(pairs), sides[0][2])


def scale_weights(weights: Sequence[Fraction]) -> list[int]:
    """Return weights as integers with the sum ``WEIGHT_TOTAL``; above 0 they are at least 1.

    Args:
        weights: Weights of at least 0, not all 0.
    """
    total = sum(weights)
    exact = [weight * WEIGHT_TOTAL / total for weight in weights]
    scaled = [max(int(weight), weight > 0) for weight in exact]
    by_remainder = sorted(range(len(scaled)), key=lambda part: scaled[part] - exact[part])
    missing = WEIGHT_TOTAL - sum(scaled)  # fewer than there are parts
    for part in by_remainder[:missing] if missing > 0 else ():
        scaled[part] += 1
    if missing < 0:  # parts that were raised to 1
        scaled[max(range(len(scaled)), key=scaled.__getitem__)] += missing
    return scaled


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
        values: Weights in the order of the parts.
    """

    values: tuple[float, ...]

    @property
    def digest(self) -> str:
        """All values as a string in base64, about 3 characters for each value."""
        return base64.b64encode(np.array(self.values, dtype=_DTYPE).tobytes()).decode()

    @classmethod
    def from_text(cls, text: str, count: int) -> PartWeights:
        """Return the weights of a ``digest``.

        Raises:
            ConfigError: If it is damaged, or does not have ``count`` values.
        """
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), dtype=_DTYPE)
        except (binascii.Error, ValueError):
            values = np.zeros(0, dtype=_DTYPE)
        if len(values) != count or not np.isfinite(values).all() or values.min() < 0:
            raise ConfigError(
                f"policy 'mix': saved weights must be {count} numbers, but are {text!r:.60}. They "
                "are damaged."
            )
        return cls(tuple(values.tolist()))


def parse_part_weights(text: str, count: int) -> PartWeights | PartPositions:
    """Return a saved change: weights, or the positions of parts that replaced others.

    Args:
        text: A ``digest``.
        count: Number of parts.

    Raises:
        ConfigError: If it is damaged.
    """
    part_table = PartPositions if PartPositions.is_text(text) else PartWeights
    return part_table.from_text(text, count)


def make_part_weights(declared: Mapping[str, float], weights: Any) -> PartWeights | PartPositions:
    """Return weights of parts that were passed by name, or a saved change.

    Args:
        declared: Name -> the weight that the mixture declares.
        weights: Name -> weight; or the ``digest`` of a saved change.

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
            advice = "Pass 0 to draw nothing of a part." if part in declared else "Leave it out."
            raise ConfigError(
                f"{name} must have each of the parts {known}, but {found}. {hint or advice}"
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
        raise ConfigError(
            f"{name} must be above 0 for at least one part, but all are 0. Pass other weights."
        )
    relative = np.array([float(value) / most for value in values])
    rounded = relative.astype(_DTYPE)
    rounded[(relative > 0) & (rounded == 0)] = np.finfo(_DTYPE).smallest_subnormal
    return PartWeights(tuple(rounded.tolist()))


@dataclass(frozen=True, slots=True)
class OrderPiece:
    """A piece of a run within which the weights of parts do not change.

    Attributes:
        begin: Index of its first batch in the run.
        order: The order of parts from that batch on.
        bases: Number of batches of each part before that batch.
        origin: Positions of the parts where the mixture began; None: their first epochs.
        weights: The weights of the order, with the sum ``WEIGHT_TOTAL``.
        ahead: Batches that each part had had at ``begin`` beyond its fraction, multiplied by
            ``WEIGHT_TOTAL``.
    """

    begin: int
    order: PartOrder
    bases: tuple[int, ...]
    origin: PartPositions | None = None
    weights: tuple[int, ...] = ()
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
        rates: Name -> relative number of batches of the part, in the order of the data.
        declared: Name -> declared weight of the part, in the order of the mixture.
        seed: Seed of the plan.
        group: Number of batches of an event.
        segment: The segment.
        changes: Changes up to the segment: of weights, and of parts that replaced others.
        sizes: Number of batches of an own epoch of each part, in the order of the data.
    """
    declared_weights = tuple(scale_weights(list(rates.values())))
    declared_order, zeros = make_part_order(declared_weights, seed), (0,) * len(rates)
    piece = OrderPiece(0, declared_order, zeros, None, declared_weights, zeros)
    for epoch, first, weights in changes:
        begin = epoch * segment.epoch_batches + first
        if isinstance(weights, PartPositions):
            bases = weights.count_batches(sizes)
            piece = OrderPiece(begin, declared_order, bases, weights, declared_weights, zeros)
            continue
        batches = begin - piece.begin
        counts = piece.order.count_batches(batches, group, len(rates))  # may cut off an event
        ahead = tuple(
            before + own * WEIGHT_TOTAL - batches * weight
            for before, own, weight in zip(piece.ahead, counts, piece.weights, strict=True)
        )
        values = dict(zip(declared, weights.values, strict=True))
        scaled = scale_weights(
            [
                rate * Fraction(values[name]) / Fraction(declared[name]) if rate else rate
                for name, rate in rates.items()
            ]
        )
        order = make_part_order(scaled, seed, ahead, group)
        bases = tuple(base + own for base, own in zip(piece.bases, counts, strict=True))
        piece = OrderPiece(begin, order, bases, piece.origin, tuple(scaled), ahead)
    return piece

"""Weights of a mixture's parts that a run sets, and the order of parts that they make.

The weights of a part order are changed from piece to piece of a run. A part continues in its own
epochs, and the order begins with what each part is ahead or behind of its share, so that shares
hold over changes.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.planning.part_order import (
    WEIGHT_UNITS,
    PartOrder,
    make_part_order,
    scale_weights,
)
from seqdata.planning.part_positions import PartPositions
from seqdata.planning.segments import Segment
from seqdata.planning.weight_history import WeightChange

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
        count: Of parts.

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
        seed: Of the plan.
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

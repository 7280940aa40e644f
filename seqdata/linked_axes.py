"""Axes with a clock: a sampling rate and the time of the first sample.

Axes whose rates are known are *linked*: the timesteps of one that lie in a span of another follow
by integer arithmetic on fractions. A boundary between two timesteps goes to the nearest boundary
of the other axis, so that spans that adjoin along one axis adjoin along all of them, and nothing
drifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be

Number = int | float | str | Fraction
"""A number that is taken exactly: 0.1 is a tenth, ``"30000/1001"`` a fraction."""

_MOST = 1 << 31  # of numerators and denominators: products stay below 2**63
_DIGITS = range(1, 18)  # of a float
_RATE_EXAMPLE = "Write e.g. 500, 12.5 or '30000/1001'"


@dataclass(frozen=True, slots=True, repr=False)
class Axis:
    """Clock of an axis: sample k is at ``offset + k / rate`` seconds.

    Axes with a clock are linked: a window or chunk covers the same time on each of them.

    Args:
        rate: Sampling rate in samples per second, a number, or a fraction as a string such as
            ``"30000/1001"``.
        offset: Time of the first sample in seconds, equal in all sequences; may be negative.

    Raises:
        ConfigError: If the rate is not a number above 0 or the offset not a number, or one of them
            is too large. A rate must be a fraction of two integers below 2^31.

    Examples:
        >>> Axis(rate=500, offset=0.12)
        Axis(rate=500, offset='3/25')
        >>> Axis(12.5).rate
        Fraction(25, 2)
    """

    rate: Any
    offset: Any = 0

    def __post_init__(self) -> None:
        rate, offset = to_fraction(self.rate), to_fraction(self.offset)
        if rate is None or rate <= 0 or max(rate.numerator, rate.denominator) >= _MOST:
            needed = f"a number above 0 and below {_MOST}, in samples per second"
            if rate is not None and 0 < rate < _MOST:
                needed = f"a fraction of two integers below {_MOST}, in samples per second"
            raise ConfigError(must_be("axis: `rate`", needed, repr(self.rate), _RATE_EXAMPLE))
        if offset is None or abs(offset) >= _MOST:
            needed = f"a number of seconds, between -{_MOST} and {_MOST}"
            raise ConfigError(must_be("axis: `offset`", needed, repr(self.offset), "Leave it out"))
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "offset", offset)

    def __repr__(self) -> str:
        offset = f", offset={_to_plain(self.offset)!r}" if self.offset else ""
        return f"Axis(rate={_to_plain(self.rate)!r}{offset})"

    def to_plain(self) -> dict[str, int | str]:
        """Return rate and offset as integers or strings, for JSON and YAML."""
        return {"rate": _to_plain(self.rate), "offset": _to_plain(self.offset)}


def to_fraction(value: Any) -> Fraction | None:
    """Return a number as the simplest fraction that is equal to it; None if it is not a number.

    Examples:
        >>> to_fraction(0.1), to_fraction("30000/1001"), to_fraction(30000 / 1001)
        (Fraction(1, 10), Fraction(30000, 1001), Fraction(30000, 1001))
    """
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    try:
        fraction = Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    if isinstance(value, float):  # such as 0.1, whose binary digits are not meant
        simpler = (fraction.limit_denominator(10**digits) for digits in _DIGITS)
        return next((found for found in simpler if float(found) == value), fraction)
    return fraction


def round_half_up(value: Fraction) -> int:
    """Return the nearest integer, or the larger one of two equally near integers."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def as_axis(value: Any, argument: str) -> Axis:
    """Return the clock of an axis as a user passes it: an ``Axis``, its arguments, or a rate.

    Args:
        value: An ``Axis``, a mapping of ``rate`` and ``offset``, or the rate alone.
        argument: Name of the argument, for messages.

    Raises:
        ConfigError: If the value is of another type, or a rate or offset is invalid.
    """
    if isinstance(value, Axis):
        return value
    if isinstance(value, Mapping):
        arguments = dict(value.get("init_args", value))
        if "rate" in arguments and not arguments.keys() - {"rate", "offset"}:
            return Axis(**arguments)
        needed = "a rate, Axis(rate, offset), or a mapping of `rate` and `offset`"
        raise ConfigError(must_be(argument, needed, f"{value!r:.100}", _RATE_EXAMPLE))
    try:
        return Axis(value)
    except ConfigError as error:
        raise ConfigError(f"{argument}: {error}") from error


class Link(NamedTuple):
    """Boundary n of an axis -> the nearest one of another: (n * up + shift) // down.

    Attributes:
        up: Numerator of the ratio of the rates.
        down: Its denominator.
        shift: Offset between the clocks, in parts of a timestep, plus the half that rounds.
    """

    up: int
    down: int
    shift: int

    @classmethod
    def between(cls, source: Axis, target: Axis) -> Link:
        """Return the link of two axes.

        Raises:
            ConfigError: If the ratio of their rates is not one of integers below 2^31.

        Examples:
            >>> Link.between(Axis(500), Axis(4)).positions(np.array([0, 62, 63, 125]))
            array([0, 0, 1, 1])
        """
        ratio = target.rate / source.rate
        if max(ratio.numerator, ratio.denominator) >= _MOST:
            raise ConfigError(
                f"axis: the ratio of two rates must be one of integers below {_MOST}, but "
                f"{_to_plain(target.rate)} / {_to_plain(source.rate)} is "
                f"{ratio.numerator}/{ratio.denominator}. Pass rates as simpler fractions"
            )
        delay = (source.offset - target.offset) * target.rate + Fraction(1, 2)
        # n * up is an integer, so that rounding `shift` down does not change any quotient
        shift = delay.numerator * ratio.denominator // delay.denominator
        return cls(ratio.numerator, ratio.denominator, shift)

    def positions(self, boundaries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nearest boundaries of the other axis, of the same shape; not limited."""
        found: NDArray[np.int64]
        if self.down == 1:
            found = boundaries * self.up + self.shift
            return found
        whole, rest = np.divmod(boundaries, self.down)
        own, shift = divmod(self.shift, self.down)
        found = whole * self.up + own + (rest * self.up + shift) // self.down
        return found


def are_linked(linked: Mapping[str, Axis], axis: str, other: str | None) -> bool:
    """Return whether spans of one axis determine those of the other."""
    return other is None or other == axis or (axis in linked and other in linked)


def _to_plain(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else str(value)

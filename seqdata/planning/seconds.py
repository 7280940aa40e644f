"""Options of policies in seconds: checked, and turned into timesteps of a linked axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction
from typing import Any, NoReturn

from seqdata.capabilities import get_linked_axes
from seqdata.errors import ConfigError, must_be
from seqdata.index import DEFAULT_AXIS
from seqdata.linked_axes import round_half_up, to_fraction
from seqdata.planning.build import IN_SECONDS
from seqdata.protocols import Store

_MOST = 1 << 31  # of numerators and denominators
_REMEDY = "Write e.g. 2.0, 0.125 or '1/3'"


def seconds_option() -> Any:
    """Return the dataclass field of an option in seconds, None by default."""
    return field(default=None, kw_only=True, metadata={IN_SECONDS: True})


def check_seconds(policy: str, options: object, *names: str) -> None:
    """Raise ConfigError if an option in seconds is not None and not a number above 0."""
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        found = to_fraction(value)
        if found is None or found <= 0 or max(found.numerator, found.denominator) >= _MOST:
            needed = "a number of seconds above 0"
            if found is not None and found >= _MOST:
                needed += f" and below {_MOST}"
            elif found is not None and found > 0:
                needed = f"a fraction of two integers below {_MOST}, in seconds"
            raise ConfigError(must_be(f"policy {policy!r}: `{name}`", needed, repr(value), _REMEDY))


def check_one_unit(policy: str, options: object, *pairs: tuple[str, str]) -> None:
    """Raise ConfigError if an option is given both in timesteps and in seconds.

    Args:
        policy: Name of the policy.
        options: The policy.
        pairs: Names of the option in timesteps, whose default is None or 0, and in seconds.
    """
    for timesteps, seconds in pairs:
        found = getattr(options, timesteps)
        if getattr(options, seconds) is not None and found not in (None, 0):
            raise ConfigError(
                f"policy {policy!r}: at most one of `{timesteps}` and `{seconds}` must be given, "
                f"but both are: {found!r} and {getattr(options, seconds)!r}. Leave one out"
            )


class SecondsCounter:
    """Counter of the timesteps of seconds, along the axis that is planned on.

    This is the axis of the policy. If that is ``time``, it is the first of ``time`` and the linked
    axes, fastest first, on which all seconds are integer numbers of timesteps, or else the fastest.

    Args:
        store: The store to plan.
        policy: Name of the policy.
        axis: The axis of the policy.
        seconds: Options of the policy in seconds; None: not given.

    Raises:
        ConfigError: If the sampling rate of the axis is not known.
    """

    def __init__(self, store: Store, policy: str, axis: str, seconds: Sequence[Any]) -> None:
        linked, self._policy = get_linked_axes(store), policy
        given = [to_fraction(value) for value in seconds if value is not None]
        by_rate = sorted(linked, key=lambda name: -linked[name].rate)  # ties in their order
        names = [axis] if axis in linked else []
        if axis == DEFAULT_AXIS and (axis in linked or axis not in list(store.lengths_of)):
            names += [name for name in by_rate if name != axis]
        if not names:
            _refuse_unknown_rate(store, policy, axis)
        fits = (
            name
            for name in names
            if all(value and (value * linked[name].rate).denominator == 1 for value in given)
        )
        fastest = by_rate[0] if len(names) > 1 else names[0]
        self.axis = next(fits, fastest)
        self._rate: Fraction = linked[self.axis].rate

    def count(self, name: str, value: Any) -> int:
        """Return the nearest number of timesteps.

        Args:
            name: Name of the option.
            value: Its seconds.

        Raises:
            ConfigError: If the nearest number is 0.
        """
        exact = (to_fraction(value) or Fraction(0)) * self._rate
        timesteps = round_half_up(exact)
        if not timesteps:
            raise ConfigError(
                f"policy {self._policy!r}: `{name}` must be at least one timestep of axis "
                f"{self.axis!r} ({float(self._rate):g} Hz), but {value!r} s are {float(exact):g}. "
                "Pass a longer time, or the `axis` of a higher rate"
            )
        return timesteps

    def measure(self, name: str, value: Any) -> int | Fraction:
        """Return the exact number of timesteps, which need not be an integer.

        Args:
            name: Name of the option.
            value: Its seconds.

        Raises:
            ConfigError: If it is less than one timestep, or not a fraction of integers below 2^31.
        """
        exact = (to_fraction(value) or Fraction(0)) * self._rate
        is_short = exact < 1
        if is_short or max(exact.numerator, exact.denominator) >= _MOST:
            where = f"of axis {self.axis!r} ({float(self._rate):g} Hz)"
            needed = f"a number of timesteps {where} that is a fraction of integers below {_MOST}"
            advice = "another time"
            if is_short:
                needed = f"at least one timestep {where}"
                advice = "a longer time, or the `axis` of a higher rate"
            raise ConfigError(
                f"policy {self._policy!r}: `{name}` must be {needed}, but {value!r} s are {exact}. "
                f"Pass {advice}"
            )
        return int(exact) if exact.denominator == 1 else exact


def _refuse_unknown_rate(store: Store, policy: str, axis: str) -> NoReturn:
    linked, lengths_of = get_linked_axes(store), list(store.lengths_of)
    known = ", ".join(f"{name!r} {float(clock.rate):g} Hz" for name, clock in linked.items())
    shown = axis if axis in lengths_of else lengths_of[0]
    example = next((name for name, field in store.fields.items() if field.axis == shown), shown)
    remedy = "timesteps in place of seconds"
    if known:
        remedy = f"the `axis` of a known one, or {remedy}"
    raise ConfigError(
        f"policy {policy!r}: `seconds` needs the sampling rate of axis {axis!r}, which is not "
        f"known (known: {known or 'none'}). Pass e.g. rates={{{example!r}: 100}} to open_store or "
        f"to the DataModule, or {remedy}"
    )


def refuse_seconds(policy: str) -> NoReturn:
    """Raise the error of a policy in seconds that plans lengths of unknown rates.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"policy {policy!r}: `seconds` needs sampling rates, which an index of lengths does not "
        "have. Pass the policy and the store to a Loader or DataModule, or `policy.in_timesteps("
        "store)` for a plan by hand"
    )

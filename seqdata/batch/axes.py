"""Which field runs along which axis: one object for all batches of a loader.

Place in the flow: a Loader makes it from a store's fields, batches carry it. Makes: names of axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from seqdata.errors import UnknownNameError, did_you_mean
from seqdata.index import DEFAULT_AXIS

TARGETS = "targets"
"""The field that a shift makes."""


class Axes:
    """Which field runs along which axis: one object for all batches of a loader, never changed.

    Not a dataclass: Lightning walks through those inside a batch.

    Args:
        axis: The axis that is planned on: ``batch.lengths`` and ``batch.mask`` are about it.
        axis_of: Field -> its axis; None: one value per sequence. A field that is not here, and is
            not a list, runs along ``axis``.
        shift: Field -> timesteps between an input and its target.
    """

    __slots__ = ("axis", "axis_of", "shift")

    def __init__(
        self,
        axis: str = DEFAULT_AXIS,
        axis_of: Mapping[str, str | None] | None = None,
        shift: Mapping[str, int] | None = None,
    ) -> None:
        self.axis = axis
        self.axis_of = axis_of or {}
        self.shift = shift or {}

    def __repr__(self) -> str:
        return f"Axes({self.axis!r}, {dict(self.axis_of)}, shift={dict(self.shift)})"

    def along(self, name: str) -> str | None:
        """Return the axis of a field; None where it has one value per sequence."""
        return self.axis_of.get(name, self.axis)


def format_unknown_name(name: str, known: Iterable[str], kind: str = "field") -> str:
    """Return that a name is not there, which one may be meant, and which there are."""
    names = list(known)
    hint = "pass `shift=1` for it;" if name == TARGETS else did_you_mean(name, names)
    return f"no {kind} {name!r}; {hint}{' ' if hint else ''}there are: {', '.join(names) or 'none'}"


class FieldMap(dict[str, Any]):
    """Field -> values; a name that is not there is an error with the nearest one that is."""

    def __missing__(self, name: object) -> Any:
        raise UnknownNameError(f"batch: {format_unknown_name(str(name), self)}")


class AxisMap(dict[str, Any]):
    """Axis -> lengths; an axis that is not there is an error with those that are."""

    def __missing__(self, name: object) -> Any:
        raise UnknownNameError(f"batch: {format_unknown_name(str(name), self, 'axis')}")

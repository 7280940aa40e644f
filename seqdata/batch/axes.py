"""The axis of each field: one object for all batches of a loader."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from seqdata.errors import UnknownNameError, describe_unknown_name
from seqdata.index import DEFAULT_AXIS

TARGETS = "targets"
"""The field that a shift adds."""


class Axes:
    """The axis of each field: one immutable object for all batches of a loader.

    Not a dataclass, because Lightning traverses dataclasses inside a batch.

    Args:
        axis: The axis that is planned on, to which ``batch.lengths`` and ``batch.mask`` refer.
        axis_of: Field -> axis; None: one value per sequence. A missing field runs along ``axis``,
            unless its values are a list.
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
        """Return the axis of a field; None if it has one value per sequence."""
        return self.axis_of.get(name, self.axis)


def are_names(value: object) -> bool:
    """Return whether a value is a non-empty collection of names."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        return False
    names = list(value)
    return bool(names) and all(isinstance(name, str) for name in names)


def format_unknown_name(name: str, known: Iterable[str], kind: str = "field") -> str:
    """Return the text about an unknown name, with the most similar and all known names."""
    text = describe_unknown_name(kind, name, known)
    return f"{text}. Pass `shift=1` for targets" if name == TARGETS else text


class FieldMap(dict[str, Any]):
    """Mapping of fields to values, whose error for an unknown name has the most similar name."""

    def __missing__(self, name: object) -> Any:
        raise UnknownNameError(f"batch: {format_unknown_name(str(name), self)}")


class AxisMap(dict[str, Any]):
    """Mapping of axes to lengths, whose error for an unknown name has the names of all axes."""

    def __missing__(self, name: object) -> Any:
        raise UnknownNameError(f"batch: {format_unknown_name(str(name), self, 'axis')}")

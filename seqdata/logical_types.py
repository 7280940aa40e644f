"""Logical types of fields: what integers stand for, as in Arrow and Parquet.

Fields hold numbers; a date is stored as an int64 since 1970, a string as its index in a vocabulary.
A logical type says so, and turns integers into dates or strings and back. It is part of the schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Unit = Literal["D", "s", "ms", "us", "ns"]
UNITS: tuple[Unit, ...] = ("D", "s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Dates that are stored as int64 numbers of a unit since 1970-01-01 00:00 UTC.

    Attributes:
        unit: ``D``, ``s``, ``ms``, ``us`` or ``ns``.
        timezone: The zone in which dates are shown and read; None: dates have no zone.

    Examples:
        >>> Timestamp("s").decode(np.array([0, 86_400]))
        array(['1970-01-01T00:00:00', '1970-01-02T00:00:00'], dtype='datetime64[s]')
    """

    unit: Unit
    timezone: str | None = None

    dtype = "int64"

    def decode(self, values: NDArray[np.int64]) -> NDArray[np.datetime64]:
        """Return the dates of integers, datetime64 of the same shape, in UTC if there is a zone."""
        return np.asarray(values).view(f"datetime64[{self.unit}]")

    def __str__(self) -> str:
        zone = "" if self.timezone is None else f", {self.timezone}"
        return f"timestamp[{self.unit}{zone}]"

    def to_plain(self) -> dict[str, Any]:
        """Return the type as plain data, for JSON."""
        zone = {} if self.timezone is None else {"timezone": self.timezone}
        return {"type": "timestamp", "unit": self.unit, **zone}


@dataclass(frozen=True, slots=True)
class Duration:
    """Durations that are stored as int64 numbers of a unit.

    Attributes:
        unit: ``D``, ``s``, ``ms``, ``us`` or ``ns``.

    Examples:
        >>> Duration("s").decode(np.array([90]))
        array([90], dtype='timedelta64[s]')
    """

    unit: Unit

    dtype = "int64"

    def decode(self, values: NDArray[np.int64]) -> NDArray[np.timedelta64]:
        """Return the durations of integers, timedelta64 of the same shape."""
        return np.asarray(values).view(f"timedelta64[{self.unit}]")

    def __str__(self) -> str:
        return f"duration[{self.unit}]"

    def to_plain(self) -> dict[str, Any]:
        """Return the type as plain data, for JSON."""
        return {"type": "duration", "unit": self.unit}


@dataclass(frozen=True, eq=False)
class Categories:
    """Strings that are stored as int32 indices into a vocabulary.

    Attributes:
        values: The vocabulary, in the order of the data or of a categorical's own categories.

    Examples:
        >>> Categories(("red", "blue")).decode(np.array([1, 0, 1]))
        array(['blue', 'red', 'blue'], dtype='<U4')
    """

    values: tuple[str, ...]

    dtype = "int32"

    def decode(self, values: NDArray[np.int32]) -> NDArray[Any]:
        """Return the strings of codes, same shape: ``str_``, or objects if one ends in NUL."""
        return self._array[np.asarray(values)]

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """The code of each string."""
        return {value: code for code, value in enumerate(self.values)}

    @cached_property
    def _array(self) -> NDArray[Any]:
        loses_nul = any(value.endswith("\0") for value in self.values)
        return np.array(self.values, dtype=np.object_ if loses_nul else np.str_)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Categories) and self.values == other.values

    def __hash__(self) -> int:
        return hash((len(self.values), *self.values[:8]))

    def __getstate__(self) -> tuple[str, ...]:
        return self.values

    def __setstate__(self, state: tuple[str, ...]) -> None:
        object.__setattr__(self, "values", state)

    def __str__(self) -> str:
        return f"categories[{len(self.values)}]"

    def __repr__(self) -> str:  # short, but no two vocabularies have the same
        return f"Categories({len(self.values)} strings, {self._digest})"

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:16]

    def to_plain(self) -> dict[str, Any]:
        """Return the type as plain data, for JSON."""
        return {"type": "categories", "values": list(self.values)}


LogicalType = Timestamp | Duration | Categories


def parse_logical_type(plain: Any) -> LogicalType | None:
    """Return a logical type from plain data; None if it is not one."""
    match plain:
        case {"type": "timestamp", "unit": str(unit), **rest} if unit in UNITS:
            zone = rest.pop("timezone", None)
            is_zone = zone is None or (isinstance(zone, str) and zone)
            return Timestamp(unit, zone) if is_zone and not rest else None  # type: ignore[arg-type]
        case {"type": "duration", "unit": str(unit)} if unit in UNITS and len(plain) == 2:
            return Duration(unit)
        case {"type": "categories", "values": list(values)} if len(plain) == 2:
            is_vocabulary = all(type(value) is str for value in values)
            is_vocabulary = is_vocabulary and len(set(values)) == len(values)
            return Categories(tuple(values)) if is_vocabulary else None
    return None


def describe_codes(values: Sequence[str]) -> str:
    """Return the first values of a vocabulary, for messages."""
    more = f" and {len(values) - 5:,} more" if len(values) > 5 else ""
    return ", ".join(map(repr, values[:5])) + more

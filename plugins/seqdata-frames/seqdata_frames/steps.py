"""The order of the rows of each group: whether keys increase, repeat, or leave gaps in a grid.

Rows are added in parts, in the order in which they are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError

_NANOSECONDS = {
    "ns": 1, "us": 1000, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9,
    "D": 86_400 * 10**9, "W": 7 * 86_400 * 10**9,
}  # fmt: skip
_FREQUENCY = re.compile(r"(\d*)\s*(ns|us|ms|s|min|T|h|H|D|d|W)")
_ALIASES = {"T": "min", "H": "h", "d": "D"}


def parse_frequency(freq: str | int, unit: str | None, order: str) -> int:
    """Return the step of a regular grid in the unit of a column.

    Args:
        freq: Step such as ``"h"``, ``"15min"``, ``"D"``; an integer for a column of integers.
        unit: Unit of a column of dates (``"D"``, ``"s"``, ... ``"ns"``); None: the column holds
            integers.
        order: Name of the column, for messages.

    Raises:
        ConfigError: If ``freq`` is not a step of fixed length, not a multiple of the unit, or, for
            integers, not a positive integer.

    Examples:
        >>> parse_frequency("15min", "s", "timestamp")
        900
    """
    if unit is None:
        if isinstance(freq, bool) or not isinstance(freq, int) or freq < 1:
            raise ConfigError(
                f"frames: `freq` must be a positive integer for the column {order!r} of integers, "
                f"but is {freq!r}. Pass the step between two rows, such as 1"
            )
        return freq
    match = _FREQUENCY.fullmatch(str(freq))
    if match is None or match[1] == "0":
        raise ConfigError(
            f"frames: `freq` must be a step of fixed length ({', '.join(_NANOSECONDS)}, or a "
            f"multiple such as '15min'), but is {freq!r}. Months and years vary in length: make a "
            "column of integers that counts them, and pass freq=1"
        )
    step = int(match[1] or 1) * _NANOSECONDS[_ALIASES.get(match[2], match[2])]
    if step % _NANOSECONDS[unit]:
        raise ConfigError(
            f"frames: `freq` must be a multiple of the unit of column {order!r} ({unit}), but is "
            f"{freq!r}. Convert the column to a finer unit"
        )
    return step // _NANOSECONDS[unit]


@dataclass(slots=True)
class RowSteps:
    """The differences between the keys of consecutive rows of a group.

    Attributes:
        type_: Arrow type of the column, for messages.
        order: The column of the keys.
        step: The step of a regular grid; None: no grid.
        decreases: Number of rows whose key is lower than that of the row before.
        equals: Number of rows whose key is that of the row before.
        first_equal: Group and key of the first row with the key of the row before, or None.
        first_keys: int64 arrays, the key of the first row of each group in the order of rows; empty
            without a grid.
        off_grid: Group, key and previous key of the first row that is not on the grid, or None.
    """

    type_: Any
    order: str
    step: int | None = None
    decreases: int = 0
    equals: int = 0
    first_equal: tuple[int, Any] | None = None
    first_keys: list[NDArray[np.int64]] = field(default_factory=list)
    _gap_rows: list[NDArray[np.int64]] = field(default_factory=list)
    _gap_sizes: list[NDArray[np.int64]] = field(default_factory=list)
    _last: tuple[int, Any] | None = None
    _rows: int = 0
    off_grid: tuple[int, Any, Any] | None = None

    def add(self, codes: NDArray[np.integer[Any]], keys: NDArray[Any]) -> None:
        """Add rows.

        Args:
            codes: Integers (rows,), the group of each row.
            keys: (rows,), the sort key of each row.
        """
        if not len(codes):
            return
        not_after = np.flatnonzero(keys[1:] <= keys[:-1]) + 1
        not_after = not_after[codes[not_after] == codes[not_after - 1]]
        before = keys[not_after - 1]
        not_after_keys = keys[not_after]
        if self._last is not None and self._last[0] == codes[0] and keys[0] <= self._last[1]:
            not_after = np.concatenate(([0], not_after))
            not_after_keys = keys[not_after]
            before = np.concatenate(([self._last[1]], before)).astype(keys.dtype, copy=False)
        equal = not_after[not_after_keys == before]
        self.decreases += len(not_after) - len(equal)
        self.equals += len(equal)
        if len(equal) and self.first_equal is None:
            self.first_equal = int(codes[equal[0]]), keys[equal[0]]
        if self.step is not None:
            self._add_to_grid(codes, keys)
        self._last = int(codes[-1]), keys[-1]
        self._rows += len(codes)

    def _add_to_grid(self, codes: NDArray[np.integer[Any]], keys: NDArray[Any]) -> None:
        last_code, last_key = (-1, keys[0]) if self._last is None else self._last
        before = np.concatenate((np.array([last_key], dtype=keys.dtype), keys[:-1]))
        same = np.concatenate(([codes[0] == last_code], codes[1:] == codes[:-1]))
        self.first_keys.append(keys[~same].astype(np.int64))
        steps, rest = np.divmod(keys - before, self.step or 1)
        off = same & ((rest != 0) | (steps == 0))
        if off.any() and self.off_grid is None:
            row = int(np.argmax(off))
            self.off_grid = int(codes[row]), keys[row], before[row]
        gaps = np.flatnonzero(same & (steps > 1))
        self._gap_rows.append(gaps + self._rows)
        self._gap_sizes.append(steps[gaps].astype(np.int64) - 1)

    def show(self, key: Any) -> str:
        """Return a key as a string, in the form of the values of the column."""
        import pyarrow as pa

        if pa.types.is_temporal(self.type_):
            stored = pa.int32() if self.type_.bit_width == 32 else pa.int64()
            return str(pa.array([int(key)], stored).view(self.type_)[0])
        is_number = pa.types.is_integer(self.type_) or pa.types.is_floating(self.type_)
        return str(key) if is_number else str(np.datetime64(int(key), "us"))

    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row after each gap and the number of missing steps, int64 (gaps,) each."""
        if not self._gap_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(self._gap_rows), np.concatenate(self._gap_sizes)

    def refuse_off_grid(self, names: list[str], freq: str | int) -> None:
        """Raise if a row is not on the grid.

        Raises:
            DecodeError: If a row is not a positive integer number of steps after the row before it.
        """
        if self.off_grid is None:
            return
        code, key, before = self.off_grid
        what = "twice" if key == before else f"{self.show(key)} after {self.show(before)}"
        shown = f"{self.show(key)} {what}" if key == before else what
        raise DecodeError.at(
            f"table: column {self.order!r} must increase in steps of freq={freq!r} within a group, "
            f"but the rows of {names[code]!r} have {shown}. Pass the `freq` of the data, or "
            "resample it first",
            field=self.order,
        )

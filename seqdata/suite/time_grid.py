"""Regular grids of times: frequencies, the place of each row, and fields of the calendar."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, must_be
from seqdata.logical_types import Categories, LogicalType, Timestamp
from seqdata.storage.logical_values import EncodedValues

CALENDAR = ("minute", "hour", "dayofweek", "day", "dayofyear", "week", "month")
"""Fields that are computed from dates; each is scaled to [-0.5, 0.5]."""
_SECONDS = {
    "s": 1, "S": 1, "sec": 1, "min": 60, "T": 60, "h": 3600, "H": 3600, "d": 86_400, "D": 86_400,
    "w": 604_800, "W": 604_800,
}  # fmt: skip
_MONTHS = {"MS": 1, "ME": 1, "M": 1, "QS": 3, "QE": 3, "Q": 3, "YS": 12, "YE": 12, "Y": 12}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FREQ = re.compile(r"(\d*)\s*([A-Za-z]+)")
_MAX_FACTOR = 64  # most timesteps of a grid for each row of the table
_DAY = 86_400


@dataclass(frozen=True, slots=True, eq=False)
class TimeColumn:
    """Times of all series, as integers.

    Attributes:
        name: Name of the field.
        values: int64 (rows,).
        logical: A ``Timestamp``; None: the integers are numbers of steps.
    """

    name: str
    values: NDArray[np.int64]
    logical: Timestamp | None

    @classmethod
    def from_column(
        cls, name: str, values: NDArray[Any], logical: LogicalType | None, owner: str = "forecast"
    ) -> TimeColumn:
        """Return the times of a field: dates, strings that are dates, or whole numbers.

        Args:
            name: Name of the field.
            values: Values of the field (rows,).
            logical: Logical type of the field; None: numbers.
            owner: Beginning of a message.

        Raises:
            ConfigError: If the field holds something else.
        """
        if isinstance(logical, Categories):
            try:
                dates = np.array(logical.values, dtype="datetime64[us]").view(np.int64)
            except ValueError as error:
                raise ConfigError(
                    f"{owner}: `time` must hold dates or integers, but {name!r} holds strings "
                    f"that are not dates ({error}). Convert it"
                ) from error
            return cls(name, dates[values], Timestamp("us"))
        if isinstance(logical, Timestamp):
            return cls(name, values.astype(np.int64), logical)
        if logical is None and values.dtype.kind in "iu":
            return cls(name, values.astype(np.int64), None)
        if logical is None and values.dtype.kind == "f" and (values == np.floor(values)).all():
            return cls(name, values.astype(np.int64), None)
        raise ConfigError(
            must_be(
                f"{owner}: `time` {name!r}", "dates or integers", str(logical or values.dtype),
                "Convert it",
            )
        )  # fmt: skip

    def encode(self, times: NDArray[np.int64]) -> Any:
        """Return integers as the values of a field: dates again, if they were dates."""
        return times if self.logical is None else EncodedValues(times, self.logical)

    def show(self, time: int) -> str:
        """Return a time as text: a date with as much of its time of day as it has, or a number."""
        if self.logical is None:
            return str(time)
        return str(np.datetime_as_string(self.logical.decode(np.array(time)), unit="auto"))


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The place of each row of a table on the grid of its series.

    Attributes:
        rows: int64 (rows,), index on the grids, one series after the other.
        starts: int64 (series,), first index of each series.
        lengths: int64 (series,), number of timesteps of each series, padding included.
        times: int64 (timesteps,), the time of each timestep.
        padding: Number of timesteps before each series.
        missing: Number of timesteps within series that have no row.
        column: The times of the rows.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    times: NDArray[np.int64]
    padding: int
    missing: int
    column: TimeColumn

    @property
    def size(self) -> int:
        """Number of timesteps of all series."""
        return len(self.times)

    @property
    def is_complete(self) -> bool:
        """Whether each timestep has a row."""
        return self.size == len(self.rows)

    @property
    def is_padding(self) -> NDArray[np.bool_]:
        """Whether each timestep is before its series, bool (timesteps,)."""
        offsets = np.arange(self.size) - np.repeat(self.starts, self.lengths)
        return np.asarray(offsets < self.padding)

    def count_padding(self) -> int:
        """Return the number of timesteps before series."""
        return self.padding * len(self.starts)

    def find_series(self, index: int) -> int:
        """Return the series of a timestep."""
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def show_time(self, index: int) -> str:
        """Return the time of a timestep as a string, for messages; see ``TimeColumn.show``."""
        return self.column.show(int(self.times[index]))


def make_grid(
    times: TimeColumn,
    lengths: NDArray[np.int64],
    step: Step,
    gaps: str,
    ids: list[str],
    padding: int = 0,
    scope: str = "",
) -> Grid:
    """Return the grid of series whose rows are in order of time.

    Args:
        times: Times of the rows.
        lengths: Rows of each series.
        step: Distance from one time to the next.
        gaps: Treatment of missing times: ``error`` raises, ``grid`` adds timesteps.
        ids: Ids of the series.
        padding: Number of timesteps before each series.
        scope: Text after a count in messages, if more series follow; else empty.

    Raises:
        DataError: If times do not increase or are not on the grid, a time is missing with
            ``gaps="error"``, or the grid is much longer than the table.
    """
    starts = np.cumsum(lengths) - lengths
    is_inner = _find_inner(lengths, len(times.values))
    _check_increasing(times, is_inner, starts, ids, scope)
    counts = step.count(times)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    first = counts[np.minimum(starts, max(0, len(counts) - 1))]
    offsets = step.find_offsets(times, starts, owners)
    if offsets.any():
        at = int(np.flatnonzero(offsets)[0])
        raise DataError(
            f"forecast: times must be {step} apart, but {times.show(int(times.values[at]))} of "
            f"{ids[owners[at]]!r} is not a whole number of steps after the first time, "
            f"{times.show(int(times.values[starts[owners[at]]]))}. Pass the `freq` of the data, or "
            "resample it"
        )
    positions = counts - first[owners]
    jumps = np.flatnonzero((np.diff(positions) > 1) & is_inner)
    missing = int((np.diff(positions) - 1)[jumps].sum())
    if missing and gaps == "error":
        at = int(jumps[0])
        raise DataError(
            f"forecast: times must be {step} apart, but in {ids[owners[at]]!r} "
            f"{times.show(int(times.values[at + 1]))} follows {times.show(int(times.values[at]))} "
            f"({missing} timesteps are missing{scope}). Pass gaps='grid', or the `freq` of the "
            "data"
        )
    return _place_rows(times, lengths, positions, step, padding, missing, starts)


def _place_rows(
    times: TimeColumn, lengths: NDArray[np.int64], positions: NDArray[np.int64], step: Step,
    padding: int, missing: int, starts: NDArray[np.int64],
) -> Grid:  # fmt: skip
    stops = np.cumsum(lengths)
    has_rows = lengths > 0
    sizes = np.zeros_like(lengths)
    sizes[has_rows] = positions[stops[has_rows] - 1] + 1 + padding
    total = int(sizes.sum())
    if total > _MAX_FACTOR * max(1, len(times.values)) + padding * len(lengths):
        raise DataError(
            f"forecast: a grid of {step} must have at most {_MAX_FACTOR} timesteps per row of the "
            f"table, but has {total:,} for {len(times.values):,} rows. Pass "
            "the `freq` of the data, or leave out times that are far from the others"
        )
    grid_starts = np.cumsum(sizes) - sizes
    owners = np.repeat(np.arange(len(lengths)), lengths)
    rows = grid_starts[owners] + padding + positions
    if total == len(times.values):
        grid_times = times.values
    else:
        steps = np.arange(total) - np.repeat(grid_starts, sizes) - padding
        base = times.values[np.minimum(starts, max(0, len(times.values) - 1))]
        grid_times = step.add(np.repeat(base, sizes), steps, times.logical)
        grid_times[rows] = times.values
    return Grid(rows, grid_starts, sizes, grid_times, padding, missing, times)


def _check_increasing(
    times: TimeColumn,
    is_inner: NDArray[np.bool_],
    starts: NDArray[np.int64],
    ids: list[str],
    scope: str,
) -> None:
    bad = np.flatnonzero((np.diff(times.values) <= 0) & is_inner)
    if len(bad):
        at = int(bad[0])
        number = int(np.searchsorted(starts, at, side="right")) - 1
        is_same = times.values[at + 1] == times.values[at]
        remedy = "Remove rows of the same time, or add up their values"
        raise DataError(
            f"forecast: times of a series must increase, but in {ids[number]!r} "
            f"{times.show(int(times.values[at + 1]))} follows {times.show(int(times.values[at]))} "
            f"({len(bad)} rows of all series{scope}). "
            f"{remedy if is_same else 'Sort the timesteps of each sequence by the time'}"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a grid.

    Attributes:
        size: Number of calendar months, or of units of the times.
        is_months: Whether the step is in calendar months.
        logical: Logical type of the times; None: they are integers.
        text: Text in messages, such as ``15min``.
    """

    size: int
    is_months: bool
    logical: Timestamp | None
    text: str

    def __str__(self) -> str:
        return self.text

    def count(self, times: TimeColumn) -> NDArray[np.int64]:
        """Return the number of whole steps from 1970, or from the integer 0, int64 (rows,)."""
        local = _to_local(times.values, times.logical) if self._is_local else times.values
        if self.is_months:
            return np.asarray(
                _to_dates(local, times.logical).astype("M8[M]").view(np.int64) // self.size
            )
        return np.asarray(local // self.size)

    def find_offsets(
        self, times: TimeColumn, starts: NDArray[np.int64], owners: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return values that are 0 where a time is on the grid of its series, int64 (rows,)."""
        local = _to_local(times.values, times.logical) if self._is_local else times.values
        if self.is_months:
            dates = _to_dates(local, times.logical)
            months = dates.astype("M8[M]")
            days = (dates.astype("M8[D]") - months.astype("M8[D]")).astype(np.int64)
            last = ((months + 1).astype("M8[D]") - months.astype("M8[D]")).astype(np.int64) - 1
            is_end = days == last
            offsets = np.where(is_end & is_end[starts[owners]], 0, days - days[starts[owners]])
            remainders = months.view(np.int64) % self.size
            return np.asarray(offsets | (remainders - remainders[starts[owners]]))
        remainders = local % self.size
        return np.asarray(remainders - remainders[starts[owners]])

    def add(
        self, base: NDArray[np.int64], steps: NDArray[np.int64], logical: Timestamp | None
    ) -> NDArray[np.int64]:
        """Return the times that are so many steps after others, int64 (n,)."""
        if not self.is_months or logical is None:
            return base + steps * self.size
        dates = _to_dates(base, logical)
        months = dates.astype("M8[M]")
        begins: Any = (months + steps * self.size).astype(dates.dtype)
        moved = begins + (dates - months.astype(dates.dtype))
        return np.asarray(moved.astype(f"M8[{logical.unit}]").view(np.int64))

    @property
    def _is_local(self) -> bool:
        """Whether steps follow the local time of a time zone: months, and multiples of a day."""
        if self.logical is None or self.logical.timezone is None:
            return False
        return self.is_months or self.size % (_DAY * _count_unit(self.logical)) == 0


def parse_freq(freq: str | int, logical: Timestamp | None) -> Step:
    """Return the step that a frequency names.

    Args:
        freq: Step such as ``"15min"``, ``"MS"``; an integer for times that are integers.
        logical: Logical type of the times.

    Raises:
        ConfigError: If ``freq`` is not a frequency, or does not fit the times.
    """
    if isinstance(freq, int) and not isinstance(freq, bool):
        if freq < 1 or logical is not None:
            needed = "a frequency such as 'h', for dates" if logical else "at least 1"
            raise ConfigError(must_be("forecast: `freq`", needed, repr(freq)))
        return Step(freq, is_months=False, logical=None, text=str(freq))
    found = _FREQ.fullmatch(freq.strip()) if isinstance(freq, str) else None
    count = int(found[1] or 1) if found else 0
    if logical is None or not found or not count:
        needed = (
            "an integer, since times are integers"
            if logical is None
            else "a frequency such as '15min', 'h', 'D', 'W' or 'MS'"
        )
        raise ConfigError(must_be("forecast: `freq`", needed, repr(freq)))
    if found[2] in _MONTHS:
        return Step(count * _MONTHS[found[2]], is_months=True, logical=logical, text=str(freq))
    if found[2] not in _SECONDS:
        known = ", ".join((*_SECONDS, *_MONTHS))
        raise ConfigError(must_be("forecast: `freq`", f"a number and one of {known}", repr(freq)))
    seconds = count * _SECONDS[found[2]]
    if logical.unit == "D":
        if seconds % _DAY:
            needed = "a whole number of days such as 'D' or 'W', since times are days"
            raise ConfigError(must_be("forecast: `freq`", needed, repr(freq)))
        return Step(seconds // _DAY, is_months=False, logical=logical, text=str(freq))
    size = seconds * _PER_SECOND[logical.unit]
    return Step(size, is_months=False, logical=logical, text=str(freq))


class StepCounts:
    """Counts of the steps of times, from which the most frequent one is found.

    Times are added series by series, all at once or in parts.
    """

    def __init__(self) -> None:
        self._logical: Timestamp | None = None
        self._counts: Counter[int] = Counter()
        self._months: NDArray[np.int64] | None = np.zeros(0, np.int64)  # None: not only months

    def add(self, times: TimeColumn, lengths: NDArray[np.int64]) -> None:
        """Add the times of series, one after the other."""
        self._logical = times.logical
        steps = np.diff(times.values)[_find_inner(lengths, len(times.values))]
        distinct, counts = np.unique(steps, return_counts=True)
        self._counts.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        if self._months is None or times.logical is None:
            return
        if len(distinct) and int(distinct[0]) < 27 * _count_day(times.logical):
            self._months = None
            return
        dates = _to_dates(_to_local(times.values, times.logical), times.logical)
        months = dates.astype("M8[M]")
        if (dates == months.astype(dates.dtype)).all():
            self._months = np.union1d(self._months, months.view(np.int64))
        else:
            self._months = None

    def find(self) -> Step:
        """Return the most frequent step, or months if all times begin a month; 1 without steps."""
        logical = self._logical
        if not self._counts:
            return Step(1, is_months=False, logical=logical, text="1")
        most = max(self._counts.values())
        size = min(step for step, count in self._counts.items() if count == most)
        if logical is None:
            return Step(size, is_months=False, logical=None, text=str(size))
        is_long = len(self._counts) > 1 and size >= 28 * _count_day(logical)
        if is_long and self._months is not None:
            found = np.diff(self._months)
            count = int(np.gcd.reduce(found)) if len(found) else 1
            text = f"{'' if count == 1 else count}MS"
            return Step(count, is_months=True, logical=logical, text=text)
        return Step(size, is_months=False, logical=logical, text=_format_step(size, logical))


def _find_inner(lengths: NDArray[np.int64], rows: int) -> NDArray[np.bool_]:
    """Return whether each step between two rows is within a series, bool (rows-1,)."""
    is_inner = np.ones(rows, dtype=bool)
    is_inner[(np.cumsum(lengths) - lengths)[lengths > 0]] = False
    return is_inner[1:]


def _count_day(logical: Timestamp) -> int:
    return 1 if logical.unit == "D" else _DAY * _count_unit(logical)


def _format_step(size: int, logical: Timestamp) -> str:
    """Return a step as a frequency, in the largest unit that divides it."""
    for unit, seconds in (("W", 604_800), ("D", _DAY), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(
            size * (_DAY if logical.unit == "D" else 1), seconds * _count_unit(logical)
        )
        if not rest:
            return f"{count}{unit}"
    return f"{size} {logical.unit}"


def _count_unit(logical: Timestamp) -> int:
    return _PER_SECOND.get(logical.unit, 1)


def _to_dates(values: NDArray[np.int64], logical: Timestamp | None) -> NDArray[np.datetime64]:
    if logical is None:
        raise ConfigError("forecast: a calendar needs dates, but times are integers")
    return values.view(f"M8[{logical.unit}]")


def _to_local(values: NDArray[np.int64], logical: Timestamp | None) -> NDArray[np.int64]:
    """Return dates in the local time of their time zone, as integers of the same unit."""
    if logical is None or logical.timezone in (None, "UTC") or logical.unit == "D":
        return values
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = pa.array(values).cast(pa.timestamp(logical.unit, logical.timezone))
    local = pc.local_timestamp(stamps)
    return np.asarray(local.cast(pa.int64()).to_numpy(zero_copy_only=False))


def make_calendar(
    name: str, times: NDArray[np.int64], logical: Timestamp | None
) -> NDArray[np.float32]:
    """Return a field of the calendar, float32 in [-0.5, 0.5], in the time zone of the dates.

    Args:
        name: One of ``CALENDAR``.
        times: int64 (timesteps,).
        logical: Logical type of the times.

    Raises:
        ConfigError: If times are not dates.
    """
    if logical is None:
        raise ConfigError(
            "forecast: `calendar` needs dates as `time`, but times are integers. Leave it out"
        )
    dates = _to_dates(_to_local(times, logical), logical)
    days = dates.astype("M8[D]")
    numbers = days.view(np.int64)
    seconds = (dates.astype("M8[s]") - days.astype("M8[s]")).astype(np.int64)
    months = days.astype("M8[M]")
    if name == "minute":
        found, most = seconds // 60 % 60, 59
    elif name == "hour":
        found, most = seconds // 3600, 23
    elif name == "dayofweek":
        found, most = (numbers + 3) % 7, 6  # Monday is 0
    elif name == "day":
        found, most = numbers - months.astype("M8[D]").view(np.int64), 30
    elif name == "dayofyear":
        found, most = numbers - days.astype("M8[Y]").astype("M8[D]").view(np.int64), 365
    elif name == "month":
        found, most = months.view(np.int64) % 12, 11
    else:
        found, most = _find_weeks(numbers) - 1, 52
    return np.asarray((found / most - 0.5).astype(np.float32))


def _find_weeks(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ISO weeks of days since 1970, from 1."""
    thursdays = days - (days + 3) % 7 + 3
    years = thursdays.view("M8[D]").astype("M8[Y]").astype("M8[D]").view(np.int64)
    return (thursdays - years) // 7 + 1

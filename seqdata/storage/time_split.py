"""A split in time: each sequence is cut at dates of a field, or at timesteps, into parts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys, get_linked_axes
from seqdata.errors import ConfigError, DataError, must_be
from seqdata.linked_axes import are_linked
from seqdata.logical_types import LogicalType, Timestamp
from seqdata.protocols import Store
from seqdata.storage.fields import list_axes, make_unknown_name_error
from seqdata.storage.row_chunks import RowChunks, flatten_column
from seqdata.storage.span_store import SpanStore, find_longest_context
from seqdata.storage.views import get_measured_transform, locate_sequence

Bound = int | float | np.datetime64
TimeUnit = Literal["s", "ms", "us", "ns"]

_CHUNK_ROWS = 1 << 20
_MOST_TIMESTEPS = 1 << 62  # what is farther away is beyond every sequence
_SECONDS_PER_DAY = 86_400
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_PER_SECOND = {**_UNITS, "ps": 10**12, "fs": 10**15, "as": 10**18}
_EARLIEST, _LATEST = 315_532_800, 4_102_444_800  # 1980 and 2100, in seconds
_INTEGER, _FRACTION = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?\d*\.\d+")
_DATE = re.compile(r"\d{4}-\d\d[-0-9T:. ]*")
_EXAMPLE = "Write e.g. {'train': '..2024-01-01', 'val': '2024-01-01..2024-07-01'}"


@dataclass(frozen=True, slots=True)
class _Range:
    """The bounds of a part: from ``start`` up to, without, ``stop``; None: open."""

    name: str
    start: Bound | None
    stop: Bound | None

    @property
    def bounds(self) -> list[Bound]:
        return [bound for bound in (self.start, self.stop) if bound is not None]


def split_along(
    store: Store,
    parts: Mapping[str, Any],
    along: str,
    *,
    context: int = 0,
    unit: TimeUnit | None = None,
) -> dict[str, SpanStore]:
    """Cut every sequence into parts along time; see ``seqdata.split``.

    Raises:
        ConfigError: If bounds are invalid or overlap, the field does not fit, or a part is empty.
        DataError: If timestamps of a sequence fall, or one is NaN.
    """
    ranges = _parse_parts(parts)
    axis, field = _find_axis(store, along, ranges)
    if not isinstance(context, int) or isinstance(context, bool) or context < 0:
        needed = "an integer of at least 0, in timesteps"
        raise ConfigError(must_be("split: `context`", needed, repr(context)))
    lengths = np.asarray(store.lengths_of[axis]).astype(np.int64)
    bounds = list(dict.fromkeys(bound for part in ranges for bound in part.bounds))
    are_shares = not any(isinstance(part, str) for part in parts.values())
    positions: dict[Bound, NDArray[np.int64]] = {}
    if field is not None:  # timestamps must not fall, however they are cut
        positions = _locate_values(store, field, axis, [] if are_shares else bounds, unit)
    if field is None or are_shares:
        positions = {bound: _locate_timestep(bound, lengths) for bound in bounds}
    spans = {
        part.name: (
            np.zeros_like(lengths) if part.start is None else positions[part.start],
            lengths if part.stop is None else positions[part.stop],
        )
        for part in ranges
    }
    _check_disjoint(spans)
    return {
        name: _cut(store, axis, name, start, stop, context) for name, (start, stop) in spans.items()
    }


def _cut(
    store: Store,
    axis: str,
    name: str,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    context: int,
) -> SpanStore:
    sequences = np.flatnonzero(stops > starts)
    if not len(sequences):
        raise ConfigError(
            f"split: part {name!r} must have at least one timestep, but has none in any of "
            f"{len(store)} sequences. Look at its bounds, and at the timestamps of the data"
        )
    starts, stops = starts[sequences], stops[sequences]
    contexts = np.minimum(starts, min(context, _MOST_TIMESTEPS))
    return SpanStore(store, axis, sequences, starts - contexts, stops, contexts)


def _parse_parts(parts: Any) -> list[_Range]:
    """Return the bounds of each part.

    Raises:
        ConfigError: If they are neither ranges of one kind nor fractions that add up to 1.
    """
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigError(
            must_be(
                "split: `parts`", "a mapping of names to ranges or fractions", f"{parts!r:.80}",
                _EXAMPLE,
            )
        )  # fmt: skip
    if all(
        isinstance(bound, int | float) and not isinstance(bound, bool) for bound in parts.values()
    ):
        ends = list(itertools.accumulate(parts.values()))
        if min(parts.values()) <= 0 or abs(ends[-1] - 1) > 1e-6:
            needed = "fractions above 0 that add up to 1"
            raise ConfigError(must_be("split: `parts`", needed, repr(dict(parts)), _EXAMPLE))
        starts = [None, *(float(end) for end in ends[:-1])]
        stops = [*starts[1:], None]
        return [_Range(*bounds) for bounds in zip(map(str, parts), starts, stops, strict=True)]
    ranges = [
        _Range(str(name), *_parse_range(f"part {str(name)!r}", "split: ", value, _EXAMPLE))
        for name, value in parts.items()
    ]
    kinds = {type(bound) for range_ in ranges for bound in range_.bounds}
    if len(kinds) > 1:
        needed = "ranges of one kind: dates, timesteps or fractions"
        raise ConfigError(must_be("split: `parts`", needed, repr(dict(parts)), _EXAMPLE))
    return ranges


def _parse_range(
    subject: str, caller: str, value: Any, remedy: str = ""
) -> tuple[Bound | None, Bound | None]:
    """Return the bounds of a range ``"start..stop"``; None where it is open.

    Args:
        subject: The range, for messages.
        caller: Beginning of messages.
        value: The range as given by the user.
        remedy: Remedy, for messages.

    Raises:
        ConfigError: If it is not a range, or a bound is invalid.
    """
    bounds = value.split("..") if isinstance(value, str) else ()
    if len(bounds) != 2 or not any(map(str.strip, bounds)):
        needed = "a range 'start..stop'"
        raise ConfigError(must_be(f"{caller}{subject}", needed, repr(value), remedy))
    start, stop = (_parse_bound(f"{caller}a bound of {subject}", each.strip()) for each in bounds)
    return start, stop


def _parse_bound(subject: str, text: str) -> Bound | None:
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    needed = "a date such as 2024-01-31, a timestep or a fraction"
    if not _DATE.fullmatch(text):
        raise ConfigError(must_be(subject, needed, repr(text)))
    try:
        return np.datetime64(text)
    except ValueError as error:
        found = f"{text!r} ({error})"
        raise ConfigError(must_be(subject, needed, found)) from error


def make_bounds(caller: str, name: str, text: str, logical: LogicalType | None) -> tuple[Any, Any]:
    """Return the bounds of a range ``"start..stop"`` as numbers of a field; None where it is open.

    Args:
        caller: Name of the caller and of its argument, for messages.
        name: Name of the field, for messages.
        text: The range.
        logical: Logical type of the field; None: it holds numbers.

    Raises:
        ConfigError: If it is not a range, or has dates and the field has none.
    """
    subject = f"the range of {name!r}"
    found: list[Any] = []
    for bound in _parse_range(subject, f"{caller}: ", text):
        if isinstance(bound, np.datetime64) and not isinstance(logical, Timestamp):
            holds = "numbers" if logical is None else str(logical)
            needed = f"a number, since the field holds {holds}"
            raise ConfigError(must_be(f"{caller}: a bound of {subject}", needed, repr(str(bound))))
        if bound is None:
            found.append(None)
        elif logical is not None:
            found.append(_to_logical(name, bound, logical, None))
        else:
            found.append(_to_number(bound, None))
    return found[0], found[1]


def _find_axis(store: Store, along: Any, ranges: list[_Range]) -> tuple[str, str | None]:
    """Return the axis that is cut, and the field whose values are compared; None: timesteps."""
    if get_measured_transform(store) is not None:
        raise ConfigError(
            "split: a store that is split along time must not have a measured transform, but has "
            "one. Split first, then call `measure_lengths` on each part"
        )
    if find_longest_context(store):
        raise ConfigError(
            "split: the store must not be a part that was split with `context`, but is one. Pass "
            "all parts to one call of `split`"
        )
    fields = store.fields
    has_dates = any(
        isinstance(bound, np.datetime64) for range_ in ranges for bound in range_.bounds
    )
    field = None
    if along in store.lengths_of and not has_dates:
        axis = along
    elif along not in fields:
        raise make_unknown_name_error(
            "split: `along`", "field" if has_dates else "field or axis", along,
            fields if has_dates else {**fields, **store.lengths_of},
        )  # fmt: skip
    else:
        field, compared = along, fields[along]
        is_number = np.dtype(compared.dtype).kind in "iuf"
        if compared.axis is None or compared.shape or not is_number:
            raise ConfigError(
                must_be(
                    "split: `along`",
                    "a field with one number per timestep",
                    f"{along!r}, {compared.dtype}{list(compared.shape)} along {compared.axis}",
                    "Store timestamps as integers, e.g. seconds since 1970",
                )
            )
        axis = str(compared.axis)
    linked = get_linked_axes(store)
    others = [name for name in list_axes(fields) if not are_linked(linked, axis, name)]
    if others:
        raise ConfigError(
            f"split: fields must all run along {axis!r} to be cut there, but some run along "
            f"{others[0]!r}. Leave them out with `select`, or link both axes: pass their sampling "
            "rates, `rates`, to open_store"
        )
    return axis, field


def _locate_timestep(bound: Bound, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of a timestep, or of a fraction, in each sequence, int64 (n,)."""
    if isinstance(bound, float):
        if not 0 <= bound <= 1:
            raise ConfigError(must_be("split: a fraction", "in [0, 1]", repr(bound)))
        return np.asarray(np.floor(lengths * bound + 1e-9).astype(np.int64))
    timestep = min(max(int(bound), -_MOST_TIMESTEPS), _MOST_TIMESTEPS)
    return np.asarray(np.clip(timestep if timestep >= 0 else lengths + timestep, 0, lengths))


def _locate_values(
    store: Store, field: str, axis: str, bounds: list[Bound], unit: TimeUnit | None
) -> dict[Bound, NDArray[np.int64]]:
    """Return, for each bound, the number of timesteps of each sequence before it, int64 (n,)."""
    counts = np.zeros((len(bounds), len(store)), dtype=np.int64)
    last_number, last_value = -1, 0
    has_dates = any(isinstance(bound, np.datetime64) for bound in bounds)
    logical = store.fields[field].logical
    if logical is not None:
        exact_limits = [_to_logical(field, bound, logical, unit) for bound in bounds]
    else:
        if unit is None and has_dates:
            unit = _guess_unit(store, field, axis)
        exact_limits = [_to_number(bound, unit) for bound in bounds]
    limits = [make_limit(limit, np.dtype(store.fields[field].dtype)) for limit in exact_limits]
    for spans in RowChunks.along(store, axis, _CHUNK_ROWS):
        values = flatten_column(store.read(spans, [field], axis=axis)[field])
        numbers = np.repeat(spans[:, 0], spans[:, 2] - spans[:, 1])
        falls = np.zeros(len(values), dtype=bool)
        falls[1:] = (values[1:] < values[:-1]) & (numbers[1:] == numbers[:-1])
        falls[0] = numbers[0] == last_number and values[0] < last_value
        if values.dtype.kind == "f":
            falls |= np.isnan(values)
        if falls.any():
            at = int(np.flatnonzero(falls)[0])
            raise _make_order_error(store, field, int(numbers[at]), values[at])
        last_number, last_value = int(numbers[-1]), values[-1]
        starts = np.cumsum(spans[:, 2] - spans[:, 1]) - (spans[:, 2] - spans[:, 1])
        for at, limit in enumerate(limits):
            before = np.add.reduceat(values < limit, starts, dtype=np.int64)
            np.add.at(counts[at], spans[:, 0], before)
    return dict(zip(bounds, counts, strict=True))


def _make_order_error(store: Store, field: str, number: int, value: Any) -> DataError:
    """Return the error about a timestamp, ``value``, that is NaN or before an earlier one."""
    base = int(store.base_numbers(np.array([number]))[0])
    details = {**locate_sequence(store, base).details, "field": field}
    details.pop("remedy", None)
    key = get_base_keys(store, np.array([base]))[0]
    is_nan = np.isnan(value)
    verb, remedy = ("hold NaN", "Fill it") if is_nan else ("fall", "Sort its timesteps")
    return DataError.at(
        f"split: timestamps must not {verb}, but those of sequence {key!r} in field {field!r} do. "
        f"{remedy}, or leave the sequence out with `where`",
        **details,
    )


def _guess_unit(store: Store, field: str, axis: str) -> TimeUnit:
    """Return the unit in which the first timestamp is a date between 1980 and 2100.

    It is so in at most one unit.

    Raises:
        ConfigError: If it is so in none.
    """
    lengths = np.asarray(store.lengths_of[axis]).astype(np.int64)
    numbers = np.flatnonzero(lengths > 0)[:1]
    spans = np.stack([numbers, 0 * numbers, 0 * numbers + 1], axis=1)
    values = flatten_column(store.read(spans, [field], axis=axis)[field]).tolist()
    for unit, per_second in _UNITS.items():
        if values and _EARLIEST * per_second <= values[0] < _LATEST * per_second:
            return unit  # type: ignore[return-value]
    raise ConfigError(
        f"split: the unit of timestamps must be known to compare {field!r} with dates, but its "
        f"first value, {values[0] if values else None}, is a date between 1980 and 2100 in no "
        "unit. Pass unit='s', 'ms', 'us' or 'ns'"
    )


def _to_logical(field: str, bound: Bound, logical: LogicalType, unit: TimeUnit | None) -> Fraction:
    """Return a bound as the integers of a field with a logical type count, exactly.

    Raises:
        ConfigError: If the field holds no dates, or another unit is passed.
    """
    if not isinstance(bound, np.datetime64):
        return Fraction(bound)
    if not isinstance(logical, Timestamp):
        needed = "a field of dates, since bounds are dates"
        raise ConfigError(must_be("split: `along`", needed, f"{field!r}, {logical}"))
    if unit not in (None, logical.unit):
        found = f"{unit!r} and dates of {field!r} are in {logical.unit!r}"
        raise ConfigError(must_be("split: `unit`", "left out", found))
    seconds = _to_number(bound, "s")
    if logical.timezone is not None:
        seconds -= _find_offset(bound, logical.timezone)
    return seconds / _SECONDS_PER_DAY if logical.unit == "D" else seconds * _UNITS[logical.unit]


def _find_offset(bound: np.datetime64, timezone: str) -> int:
    """Return the seconds that the clocks of a zone are ahead of UTC at a date of that zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    local = pa.array([bound.astype("datetime64[s]")])
    in_zone = pc.assume_timezone(local, timezone, ambiguous="earliest", nonexistent="latest")
    return int(local.view("int64")[0].as_py()) - int(in_zone.view("int64")[0].as_py())


def _to_number(bound: Bound, unit: TimeUnit | None) -> Fraction:
    """Return a bound in the unit of the data, exactly: a date may lie between two of its values."""
    if not isinstance(bound, np.datetime64):
        return Fraction(bound)
    if unit not in _UNITS:
        raise ConfigError(must_be("split: `unit`", "'s', 'ms', 'us' or 'ns'", repr(unit)))
    date: Any = bound
    written_unit = np.datetime_data(bound.dtype)[0]
    if written_unit not in _PER_SECOND:  # days, and what is longer than seconds
        date, written_unit = bound.astype("datetime64[s]"), "s"
    return Fraction(int(date.astype(np.int64)) * _UNITS[unit], _PER_SECOND[written_unit])


def make_limit(limit: Fraction, dtype: np.dtype[Any]) -> int | np.float64:
    """Return the least number that values of a dtype are below if they are below a limit."""
    if dtype.kind in "iu":
        return math.ceil(limit)
    nearest = float(limit)
    return np.float64(nearest if nearest >= limit else np.nextafter(nearest, np.inf))


def _check_disjoint(spans: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
    for (first_name, first), (second_name, second) in itertools.combinations(spans.items(), 2):
        shared = np.minimum(first[1], second[1]) - np.maximum(first[0], second[0])
        if (shared > 0).any():
            raise ConfigError(
                f"split: parts must not share timesteps, but {first_name!r} and {second_name!r} "
                f"share {int(np.maximum(shared, 0).sum())}. Change their bounds"
            )

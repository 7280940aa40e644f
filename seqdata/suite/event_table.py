"""Preparation of the events of a table: the most recent ones, with the time between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, must_be
from seqdata.logical_types import Categories, Timestamp
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.logical_values import EncodedValues
from seqdata.storage.time_split import make_bounds, make_limit
from seqdata.storage.views import SequenceStore
from seqdata.suite.table_columns import (
    check_labels,
    check_static_numbers,
    describe_float_labels,
    is_float,
    list_groups,
    make_infinite_error,
    read_columns,
    take_static,
)
from seqdata.suite.time_grid import TimeColumn
from seqdata.suite.write_once import Summary, prepare_store

_REMEDY = "A value that changes from event to event belongs in `categorical` or `numeric`"
TIME_DELTA = "time_delta"
"""Field of log(1 + time since the previous event): float32, in seconds or the unit of integers."""
TimeDelta = Literal["log1p"] | None
_Used = tuple[Any, NDArray[np.int64], NDArray[np.int64]]
_SINCE_1970 = {
    10**17: ("ns", "nanoseconds"), 10**14: ("us", "microseconds"), 10**11: ("ms", "milliseconds"),
}  # fmt: skip
"""Least integer of a date after 1973 -> its unit and the unit's name, in descending order."""
_PER_SECOND = {"D": 1 / 86_400, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class EventTable:
    """Prepares events; a ``prepare`` of ``SequenceDataModule``.

    Args:
        time: Field of times; None: rows are in the order of the events.
        categorical: Fields of strings or integers, a token per event.
        numeric: Fields of numbers, a value per event.
        static: Fields with one value per sequence, such as the label.
        last: Number of last events that are kept; None: all.
        time_delta: ``log1p``: the field ``time_delta`` is the logarithm of 1 plus the seconds
            since the previous event, or plus the difference of integer times; it is 0 for the first
            event of the table's sequence. None: the field is not made.
        cutoff: Date, or integer for integer times; events at this time or later are dropped. None:
            all are kept.
        label: Field of ``static`` that must have a finite value in every sequence; None: there is
            no label.

    Raises:
        ConfigError: If an argument is invalid.
    """

    time: str | None
    categorical: tuple[str, ...]
    numeric: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    last: int | None = None
    time_delta: TimeDelta = "log1p"
    cutoff: str | int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.time_delta not in ("log1p", None):
            found = repr(self.time_delta)
            raise ConfigError(must_be("events: `time_delta`", "'log1p' or None", found))

    def __call__(self, store: SequenceStore) -> tuple[SequenceStore, list[str]]:
        """Return the prepared store and notes on its preparation; a large store is cached.

        Raises:
            ConfigError: If a field does not exist, its type is not supported, or ``cutoff`` does
                not fit the times.
            CacheError: If the cache cannot be written.
            DataError: If a static field changes within a sequence, a label is missing, a number is
                infinite, or no event is left.
        """
        names = (*self.categorical, *self.numeric, *self.static)
        names = names if self.time is None else (self.time, *names)
        for name in names:
            if name not in store.fields:
                raise make_unknown_name_error("events", "column", name, store.fields)
        if self.time is not None and store.fields[self.time].axis is None:
            raise ConfigError(
                f"events: `time` must be a column with a value per event, but {self.time!r} has "
                "one per sequence. Name the column of the time, or convert its strings to dates"
            )
        preparation = _Preparation(self, names, _find_vocabularies(store, self.categorical))
        return prepare_store(store, names, repr(self), lambda _: preparation)


class _Preparation:
    """Prepares events, all at once or part by part.

    Implements ``Preparation``.

    Args:
        table: The rules.
        names: The fields that are read.
        vocabularies: Field with one string per sequence -> the distinct strings of all sequences.
    """

    def __init__(
        self, table: EventTable, names: Sequence[str], vocabularies: Mapping[str, Categories]
    ) -> None:
        self._table, self._names, self._vocabularies = table, names, vocabularies
        self._counted: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        self._has_float_labels = False
        self._first_integer: int | None = None  # of times without a unit

    def iter_rows(self, store: SequenceStore, *, is_part: bool) -> Iterator[dict[str, Any]]:
        """Yield prepared sequences; see ``Preparation``."""
        del is_part  # fields are alike in all parts
        table = self._table
        lengths = np.asarray(store.lengths).astype(np.int64)
        columns = read_columns(store, self._names, lengths, next(iter(store.lengths_of)))
        ids, times = list(store.ids), None
        if table.time is not None:
            logical = store.fields[table.time].logical
            times = TimeColumn.from_column(table.time, columns[table.time], logical, "events")
        starts, stops = self._choose(times, lengths)
        kept = np.flatnonzero(stops > starts)
        self._counted.update(sequences=len(ids), kept=len(kept))
        ragged = {
            name: self._make_ragged(store, name, columns[name], lengths)
            for name in table.categorical
        }
        ragged |= {name: _make_numbers(store, name, columns[name]) for name in table.numeric}
        used = {name: (ragged[name], starts, stops) for name in table.numeric}
        _check_finite(used, ids)
        if times is not None:
            ragged[times.name] = times.encode(times.values)
            if table.time_delta is not None:
                ragged[TIME_DELTA] = _make_deltas(times, lengths)
                if times.logical is None and len(times.values):
                    least = int(times.values.min())
                    known = least if self._first_integer is None else self._first_integer
                    self._first_integer = min(least, known)
        statics = {
            name: take_static(store, name, columns[name], lengths, "events", _REMEDY)
            for name in table.static
        }
        used |= {name: (statics[name], kept, kept + 1) for name in table.static}
        if table.label is not None:
            labels = used.pop(table.label)[0]
            check_labels("events", table.label, labels, ids, kept)
            self._has_float_labels = is_float(labels)
        check_static_numbers("events", statics, ids, kept)
        self._missing.update(_count_missing(used))
        statics |= _read_groups(store, {*table.categorical, *statics})
        yield from _iter_rows(kept, ids, starts, stops, ragged, statics)

    def finish(self) -> Summary:
        """Return notes, and the warning about times without a unit; see ``Preparation``."""
        table, counted, notes = self._table, self._counted, list[str]()
        if not counted["kept"]:
            found = (
                "all sequences are empty. Check the source"
                if table.cutoff is None
                else "`cutoff` leaves none. Pass a later one"
            )
            raise DataError(f"events: at least one event must be left, but {found}")
        if table.cutoff is not None:
            notes.append(f"cutoff: {counted['cutoff']} events from {table.cutoff} on are dropped")
        if table.last is not None:
            notes.append(f"last: {counted['last']} earlier events are dropped")
        dropped = counted["sequences"] - counted["kept"]
        if dropped:
            notes.append(
                f"{dropped} of {counted['sequences']} sequences have no event and are dropped"
            )
        notes += [
            f"{count} missing values of {name!r} are filled with the mean of train"
            for name, count in self._missing.items()
            if count
        ]
        suspects: list[str] = []
        if self._first_integer is not None:
            notes.append(
                f"{table.time!r} holds integers: {TIME_DELTA} is log(1 + difference), in their unit"
            )
            suspects = _describe_dates(str(table.time), self._first_integer)
            notes += suspects
        if self._has_float_labels:
            notes.append(describe_float_labels(str(table.label)))
        return Summary(notes, suspects)

    def _choose(
        self, times: TimeColumn | None, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each sequence, and the row after its last one."""
        table, ends = self._table, np.cumsum(lengths)
        starts, stops = ends - lengths, ends
        if table.cutoff is not None:
            if times is None:
                raise ConfigError(
                    "events: `cutoff` needs `time`, which is None. Name the column of the time"
                )
            _, stop = make_bounds(times.name, f"..{table.cutoff}", times.logical)
            is_before = times.values < make_limit(stop, np.dtype(np.int64))
            counts = np.concatenate([[0], np.cumsum(is_before)])
            stops = starts + counts[ends] - counts[starts]  # rows are in order of time
            self._counted["cutoff"] += int(len(is_before) - is_before.sum())
        if table.last is not None:
            found = np.maximum(starts, stops - table.last)
            self._counted["last"] += int((found - starts).sum())
            starts = found
        return starts, stops

    def _make_ragged(
        self, store: SequenceStore, name: str, values: Any, lengths: NDArray[np.int64]
    ) -> Any:
        """Return the tokens of a field, one per event."""
        field = store.fields[name]
        if field.axis is None:  # strings that change in no sequence: one for each
            if name not in self._vocabularies:
                return np.repeat(np.asarray(values), lengths)
            categories = self._vocabularies[name]
            codes = np.array([categories.codes[value] for value in values], dtype=np.int32)
            return EncodedValues(np.repeat(codes, lengths), categories)
        if isinstance(field.logical, Categories):
            return EncodedValues(values, field.logical)
        if field.logical is not None or field.shape or values.dtype.kind not in "iub":
            raise ConfigError(
                must_be(
                    f"events: `categorical` column {name!r}", "a string or an integer per event",
                    f"{field.logical or field.dtype}", "Name it in `numeric`, or convert it",
                )
            )  # fmt: skip
        return values


def _make_numbers(store: SequenceStore, name: str, values: Any) -> NDArray[Any]:
    field = store.fields[name]
    is_number = field.logical is None and field.axis is not None and not field.shape
    if not is_number or values.dtype.kind not in "fiub":
        raise ConfigError(
            must_be(
                f"events: `numeric` column {name!r}", "a number per event",
                f"{field.logical or field.dtype}{list(field.shape) or ''} per "
                f"{'sequence' if field.axis is None else 'event'}",
                "Name it in `categorical` or `static`",
            )
        )  # fmt: skip
    return np.asarray(values if values.dtype.kind == "f" else values.astype(np.float64))


def _find_vocabularies(store: SequenceStore, names: Sequence[str]) -> dict[str, Categories]:
    """Return field -> its distinct strings, sorted, of the fields with one string per sequence."""
    found: dict[str, Categories] = {}
    for name in names:
        if store.fields[name].axis is None:
            values = _read_statics(store, (name,))[name]
            distinct = np.unique(np.array(values, dtype=object))
            if all(isinstance(value, str) for value in distinct):
                found[name] = Categories(tuple(distinct.tolist()))
    return found


def _read_groups(store: SequenceStore, used: set[str]) -> dict[str, Any]:
    """Return the other fields with one string or integer per sequence, such as the group."""
    names = [name for name in list_groups(store) if name not in used]
    return _read_statics(store, names) if names else {}


def _read_statics(store: SequenceStore, names: Sequence[str]) -> dict[str, Any]:
    return read_columns(store, names, np.zeros(len(store), np.int64), next(iter(store.lengths_of)))


def _check_finite(numbers: Mapping[str, _Used], ids: list[str]) -> None:
    """Raise if a number of an event that is used is infinite.

    Args:
        numbers: Column -> its values, the first used index of each sequence, and the index after
            the last used one.
        ids: Ids of the sequences.

    Raises:
        DataError: If a number is infinite; names the column and the sequence.
    """
    for name, (values, starts, stops) in numbers.items():
        bad = np.flatnonzero(np.isinf(values))
        owners = np.minimum(np.searchsorted(stops, bad, side="right"), len(stops) - 1)
        is_used = (starts[owners] <= bad) & (bad < stops[owners])
        if is_used.any():
            at, owner = int(bad[is_used][0]), ids[int(owners[is_used][0])]
            raise make_infinite_error("events", name, values[at], owner)


def _count_missing(used: Mapping[str, _Used]) -> dict[str, int]:
    """Return column -> number of NaN values in the used ranges, of columns of floats.

    Args:
        used: Column -> its values, the first index of each range, and the index after its last one.
    """
    counts: dict[str, int] = {}
    for name, (values, starts, stops) in used.items():
        if not is_float(values):
            continue
        before = np.concatenate([[0], np.cumsum(np.isnan(values))])
        counts[name] = int((before[stops] - before[starts]).sum())
    return counts


def _describe_dates(name: str, first: int) -> list[str]:
    """Return one warning if integers seem to be dates in a unit below a second, or none.

    Args:
        name: Name of the field.
        first: The least integer.
    """
    for least, (unit, unit_name) in _SINCE_1970.items():
        if first >= least:
            return [
                f"events: integers of {name!r} look like {unit_name} since 1970, so that "
                f"{TIME_DELTA} is log(1 + {unit_name}). For seconds, pass dates: "
                f"pandas.to_datetime(table[{name!r}], unit={unit!r})"
            ]
    return []


def _make_deltas(times: TimeColumn, lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the logarithm of 1 plus the time since the previous event, float32 (events,)."""
    deltas = np.diff(times.values, prepend=times.values[:1]).astype(np.float64)
    starts = np.cumsum(lengths) - lengths
    deltas[starts[lengths > 0]] = 0
    unit = _PER_SECOND[times.logical.unit] if isinstance(times.logical, Timestamp) else 1
    return np.log1p(deltas / unit).astype(np.float32)


def _iter_rows(
    kept: NDArray[np.int64],
    ids: list[str],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ragged: Mapping[str, Any],
    statics: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    for number in kept.tolist():
        first, stop = int(starts[number]), int(stops[number])
        row: dict[str, Any] = {"id": ids[number]}
        row.update({name: values[first:stop] for name, values in ragged.items()})
        row.update({name: values[number] for name, values in statics.items()})
        yield row

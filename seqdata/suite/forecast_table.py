"""Preparation of the series of a table: a regular grid, missing values, and calendar fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, must_be
from seqdata.logical_types import Categories
from seqdata.protocols import Field
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.logical_values import EncodedValues
from seqdata.storage.views import SequenceStore
from seqdata.suite.table_columns import (
    check_static_numbers,
    list_groups,
    make_infinite_error,
    read_columns,
    take_static,
)
from seqdata.suite.time_grid import (
    CALENDAR,
    Grid,
    Step,
    StepCounts,
    TimeColumn,
    make_calendar,
    make_grid,
    parse_freq,
)
from seqdata.suite.write_once import Summary, prepare_store

OBSERVED = "observed"
"""Suffix of the mask of a target, which is True where the target has a value."""

_REMEDY = "Name it in `known` or `observed`"

Gaps = Literal["grid", "error"]
MissingTargets = Literal["mask", "impute", "error"]


@dataclass(frozen=True, slots=True)
class ForecastTable:
    """Prepares series for forecasting; a ``prepare`` of ``SequenceDataModule``.

    Each series is put on a regular grid of its times, with NaN where a time is missing. Missing
    values are marked, filled or refused. Integers become float64, a static column becomes one value
    per series, and calendar fields are computed from the times. Series that are too short are
    dropped.

    Args:
        time: Field of times: dates, or integers.
        target: Fields that are forecast.
        known: Fields that are known in advance.
        observed: Fields that are known up to the present.
        static: Fields with one value per series.
        freq: Step of the grid: seconds to weeks such as ``"15min"``, ``"h"``, ``"D"``, ``"W"``;
            calendar months as ``"MS"``, ``"QS"``, ``"YS"``; an integer for integer times. None: the
            most frequent step of the data.
        gaps: Treatment of times that are missing within a series: ``grid`` adds timesteps without
            values; ``error`` raises DataError.
        missing: Treatment of missing numbers. ``mask``: they are NaN, and for a target
            ``<target>_observed`` is False. ``impute``: they are the previous value of the series,
            or NaN if there is none. ``error`` raises DataError.
        calendar: Names of ``CALENDAR``, added as float32 in [-0.5, 0.5].
        padding: Timesteps without values before each series.
        zeros: Whether the store has 0 in place of the remaining NaN, because no estimator imputes
            them.
        min_length: Minimum number of timesteps of a series; shorter ones are dropped.

    Raises:
        ConfigError: If an argument is invalid.
    """

    time: str
    target: tuple[str, ...]
    known: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    freq: str | int | None = None
    gaps: Gaps = "grid"
    missing: MissingTargets = "mask"
    calendar: tuple[str, ...] = ()
    padding: int = 0
    zeros: bool = False
    min_length: int = 1

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("gaps", self.gaps, ("grid", "error")),
            ("missing", self.missing, ("mask", "impute", "error")),
        ):
            if value not in choices:
                needed = " or ".join(map(repr, choices))
                raise ConfigError(must_be(f"forecast: `{name}`", needed, repr(value)))
        for name in self.calendar:
            if name not in CALENDAR:
                needed = f"one of {', '.join(CALENDAR)}"
                raise ConfigError(must_be("forecast: `calendar`", needed, repr(name)))
        if not self.target:
            raise ConfigError(must_be("forecast: `target`", "a field, or several", "empty"))
        named = (
            self.time, *self.target, *self.known, *self.observed, *self.static, *self.calendar
        )  # fmt: skip
        for name in named:
            if named.count(name) > 1:
                raise ConfigError(
                    f"forecast: {name!r} must be named once in `time`, `target`, `known`, "
                    f"`observed`, `static` and `calendar`, but is named {named.count(name)} times. "
                    "Rename a column that has the name of a field of the calendar"
                )

    def __call__(self, store: SequenceStore) -> tuple[SequenceStore, list[str]]:
        """Return the prepared store and notes on its preparation; a large store is cached.

        Raises:
            ConfigError: If a field does not exist, its type is not supported, or ``freq`` or
                ``calendar`` do not fit the times.
            CacheError: If the cache cannot be written.
            DataError: If times do not increase or are not on the grid, a static field changes
                within a series, a number is infinite, a value is missing with ``"error"``, or all
                series are too short.
        """
        for name in (self.time, *self.ragged_names, *self.static):
            if name not in store.fields:
                raise make_unknown_name_error("forecast", "column", name, store.fields)
        _check_fields(self, store)
        names = (self.time, *self.ragged_names, *self.static)
        return prepare_store(store, names, repr(self), lambda parts: _Preparation(self, parts))

    @property
    def ragged_names(self) -> tuple[str, ...]:
        """Fields with a value per timestep, without the time."""
        return (*self.target, *self.known, *self.observed)


class _Preparation:
    """Prepares series, all at once or part by part.

    Implements ``Preparation``.

    Args:
        table: The rules.
        parts: Stores of all series; their times determine the step.
    """

    def __init__(self, table: ForecastTable, parts: Sequence[SequenceStore]) -> None:
        self._table = table
        self._counted: Counter[str] = Counter()
        self._missing: dict[str, int] = dict.fromkeys(table.ragged_names, 0)
        self._needed: set[str] = set()
        self._longest = 0
        self._step = self._find_step(parts)

    def _find_step(self, parts: Sequence[SequenceStore]) -> Step:
        if self._table.freq is not None:
            none = self._read_times(parts[0], np.zeros(len(parts[0]), np.int64))
            return parse_freq(self._table.freq, none.logical)
        counts = StepCounts()
        for part in parts:
            lengths = np.asarray(part.lengths).astype(np.int64)
            counts.add(self._read_times(part, lengths), lengths)
        return counts.find()

    def iter_rows(self, store: SequenceStore, *, is_part: bool) -> Iterator[dict[str, Any]]:
        """Yield prepared series; see ``Preparation``."""
        table = self._table
        lengths = np.asarray(store.lengths).astype(np.int64)
        groups = list_groups(store)
        names = (*table.ragged_names, *table.static, *groups)
        columns = read_columns(store, names, lengths, str(store.fields[table.time].axis))
        times, ids = self._read_times(store, lengths), list(store.ids)
        scope = " so far" if is_part else ""
        grid = make_grid(times, lengths, self._step, table.gaps, ids, table.padding, scope)
        statics = {
            name: take_static(store, name, columns[name], lengths, "forecast", _REMEDY)
            for name in (*(each for each in groups if each not in table.static), *table.static)
        }
        arrays: dict[str, Any] = {}
        for name in table.ragged_names:
            arrays[name] = self._place(store, name, columns[name], grid, is_part=is_part)
        masks = self._treat_missing(arrays, grid, ids, scope)
        arrays |= {name: mask for name, mask in masks.items() if is_part or name in self._needed}
        for name in table.calendar:
            arrays[name] = make_calendar(name, grid.times, times.logical)
        kept = np.flatnonzero(grid.lengths >= table.min_length + table.padding)
        check_static_numbers("forecast", statics, ids, kept)
        self._counted.update(series=len(ids), kept=len(kept), gaps=grid.missing)
        self._longest = max(self._longest, int(grid.lengths.max(initial=0)) - table.padding)
        yield from _iter_rows(kept, ids, grid, times, arrays, statics)

    def finish(self) -> Summary:
        """Return notes, and masks that no series needs; see ``Preparation``."""
        table, counted = self._table, self._counted
        if not counted["kept"]:
            raise DataError(
                f"forecast: at least one series must have {table.min_length} timesteps, but the "
                f"longest of {counted['series']} has {self._longest}. "
                "Pass a smaller `context`, `horizon` or `min_history`"
            )
        found = " (found)" if table.freq is None else ""
        notes = [f"the frequency of {table.time!r} is {str(self._step)!r}{found}"]
        if counted["gaps"]:
            notes.append(f"gaps: {counted['gaps']} timesteps without a row are added")
        notes += [
            f"{count} missing values of {name!r} {self._describe_filled(name)}"
            for name, count in self._missing.items()
            if count
        ]
        dropped = counted["series"] - counted["kept"]
        if dropped:
            notes.append(
                f"{dropped} of {counted['series']} series are shorter than {table.min_length} "
                "timesteps and dropped"
            )
        masks = [f"{name}_{OBSERVED}" for name in table.target]
        return Summary(notes, hidden=[name for name in masks if name not in self._needed])

    def _describe_filled(self, name: str) -> str:
        """Return a description of the values that replace missing ones of a field."""
        table = self._table
        zero = "0" if table.zeros else "0 in the scale of the model"
        if table.missing == "impute":
            return f"are the value before, or {zero} where there is none"
        is_target = name in table.target
        return f"are {zero}, and masked by '{name}_{OBSERVED}'" if is_target else f"are {zero}"

    def _read_times(self, store: SequenceStore, lengths: NDArray[np.int64]) -> TimeColumn:
        name = self._table.time
        axis = str(store.fields[name].axis)
        values = read_columns(store, (name,), lengths, axis)[name]
        return TimeColumn.from_column(name, values, store.fields[name].logical)

    def _place(
        self, store: SequenceStore, name: str, values: Any, grid: Grid, *, is_part: bool
    ) -> Any:
        """Return the values of a field on the grid."""
        logical = store.fields[name].logical
        if isinstance(logical, Categories):
            if name in self._table.target:
                raise ConfigError(
                    f"forecast: `target` must hold numbers, but {name!r} holds strings. Convert it"
                )
            if grid.is_complete and not is_part:  # another part may not be
                return EncodedValues(values, logical)
            found = np.full(grid.size, len(logical.values), dtype=np.int32)
            found[grid.rows] = values
            return EncodedValues(found, Categories((*logical.values, "")))
        if logical is not None or np.dtype(values.dtype).kind not in "fiub":
            raise ConfigError(
                f"forecast: column {name!r} must hold numbers or strings, but holds "
                f"{logical or values.dtype}. Convert it, or leave it out"
            )
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        if grid.is_complete:
            return values
        placed = np.full(grid.size, np.nan, dtype=values.dtype)
        placed[grid.rows] = values
        return placed

    def _treat_missing(
        self, arrays: dict[str, Any], grid: Grid, ids: list[str], scope: str
    ) -> dict[str, NDArray[np.bool_]]:
        """Treat missing values of ``arrays`` in place, and return the masks of the targets.

        Raises:
            DataError: If a number is infinite, or missing with ``missing="error"``.
        """
        table, masks = self._table, dict[str, NDArray[np.bool_]]()
        for name in table.ragged_names:
            values = arrays[name]
            if isinstance(values, EncodedValues):
                continue
            _check_finite(name, values, grid, ids)
            missing = np.isnan(values)
            count = int(missing.sum()) - (0 if not table.padding else grid.count_padding())
            if count and table.missing == "error":
                inside = missing & ~grid.is_padding
                at = int(np.flatnonzero(inside)[0])
                raise DataError(
                    f"forecast: {name!r} must have all values, but {ids[grid.find_series(at)]!r} "
                    f"has none at {grid.show_time(at)} ({count} are missing{scope}). Pass "
                    "missing='mask' or missing='impute'"
                )
            if table.missing == "impute" and count:
                values = _fill_forward(values, missing, grid.starts, grid.lengths)
            self._missing[name] += count
            still = np.isnan(values) if missing.any() else missing
            has_mask = name in table.target and (table.missing == "mask" or bool(table.padding))
            if has_mask:
                masks[f"{name}_{OBSERVED}"] = ~missing
                self._needed |= {f"{name}_{OBSERVED}"} if missing.any() else set()
            if table.zeros and still.any():
                values = np.where(still, 0.0, values)
            arrays[name] = values
        return masks


def _check_finite(name: str, values: NDArray[Any], grid: Grid, ids: list[str]) -> None:
    """Raise if a value on the grid is infinite.

    Raises:
        DataError: If a value is infinite; names the series and the time.
    """
    bad = np.isinf(values)
    if bad.any():
        at = int(np.argmax(bad))
        owner = ids[grid.find_series(at)]
        raise make_infinite_error("forecast", name, values[at], owner, f" at {grid.show_time(at)}")


def _check_fields(table: ForecastTable, store: SequenceStore) -> None:
    """Raise if ``time``, a target or a covariate does not have one value per timestep.

    Raises:
        ConfigError: If a field has one value per series, or several per timestep.
    """
    if store.fields[table.time].axis is None:
        raise ConfigError(
            f"forecast: `time` must be a column with a value per timestep, but {table.time!r} "
            "has one per series. Name the column of the time"
        )
    for name in table.ragged_names:
        found: Field = store.fields[name]
        needed = f"forecast: column {name!r} must have one number or string per timestep"
        if found.axis is None:
            remedy = "Name another column" if name in table.target else "Name it in `static`"
            raise ConfigError(f"{needed}, but has one value per series. {remedy}")
        if found.shape:
            raise ConfigError(
                f"{needed}, but has {found.dtype} of shape {found.shape} there. Make a column of "
                "each number"
            )


def _iter_rows(
    kept: NDArray[np.int64],
    ids: list[str],
    grid: Grid,
    times: TimeColumn,
    arrays: Mapping[str, Any],
    statics: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    for number in kept.tolist():
        first, stop = int(grid.starts[number]), int(grid.starts[number] + grid.lengths[number])
        row: dict[str, Any] = {"id": ids[number]}
        row[times.name] = times.encode(grid.times[first:stop])
        row.update({name: values[first:stop] for name, values in arrays.items()})
        row.update({name: values[number] for name, values in statics.items()})
        yield row


def _fill_forward(
    values: NDArray[Any],
    missing: NDArray[np.bool_],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[Any]:
    """Return values with each missing one replaced by the last present one before it in its series.

    A missing value without such a one stays.
    """
    sources = np.where(missing, -1, np.arange(len(values), dtype=np.int64))
    np.maximum.accumulate(sources, out=sources)
    is_own = sources >= np.repeat(starts, lengths)
    return np.where(missing & is_own, values[np.maximum(sources, 0)], values)

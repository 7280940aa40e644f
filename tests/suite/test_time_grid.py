"""Grids of times: the step of the data, the place of each row, and the calendar."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError, DataError
from seqdata.logical_types import Categories, Duration, Timestamp
from seqdata.suite.time_grid import (
    CALENDAR,
    StepCounts,
    TimeColumn,
    make_calendar,
    make_grid,
    parse_freq,
)
from tests.properties.counts import examples

US = Timestamp("us")


def make_times(*series, unit="us", zone=None):
    """Return the column of times of series, and the number of rows of each."""
    values = [
        pd.DatetimeIndex(each, tz=zone).as_unit(unit if unit != "D" else "s") for each in series
    ]
    found = np.concatenate([each.asi8 for each in values])
    if unit == "D":
        found = found // 86_400
    return TimeColumn("t", found, Timestamp(unit, zone)), np.array([len(each) for each in series])


def make_integers(*series):
    column = TimeColumn("t", np.concatenate(series).astype(np.int64), None)
    return column, np.array([len(each) for each in series])


def place(times, lengths, freq=None, gaps="grid", **options):
    counts = StepCounts()
    counts.add(times, lengths)
    step = counts.find() if freq is None else parse_freq(freq, times.logical)
    ids = [f"s{number}" for number in range(len(lengths))]
    return make_grid(times, lengths, step, gaps, ids, **options)


def refuses(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}")


# Columns


@pytest.mark.parametrize(
    ("values", "logical", "due"),
    [
        (np.array([3, 5], np.int64), Timestamp("s", "UTC"), ([3, 5], Timestamp("s", "UTC"))),
        (np.array([1, 0]), Categories(("2024-01-01", "1970-01-02T00:00:01")),
         ([86_401_000_000, 1_704_067_200_000_000], US)),
        (np.array([3, 5], np.uint8), None, ([3, 5], None)),
        (np.array([3.0, -5.0]), None, ([3, -5], None)),
    ],
)  # fmt: skip
def test_times_are_dates_strings_of_dates_or_integers(values, logical, due):
    found = TimeColumn.from_column("t", values, logical)
    assert (found.values.tolist(), found.logical) == due
    assert found.values.dtype == np.int64
    encoded = found.encode(found.values)
    assert getattr(encoded, "logical", None) == due[1]


@pytest.mark.parametrize(
    ("values", "logical", "message"),
    [
        (np.array([0]), Categories(("noon",)), "forecast: `time` must hold dates or integers, but "
         "'t' holds strings that are not dates (Error parsing"),
        (np.array([0.5]), None, "forecast: `time` 't' must be dates or integers, but is float"),
        (np.array([np.nan]), None, "forecast: `time` 't' must be dates or integers, but is float"),
        (np.array([1]), Duration("s"), "forecast: `time` 't' must be dates or integers, but is du"),
        (np.array([True]), None, "forecast: `time` 't' must be dates or integers, but is bool"),
    ],
)  # fmt: skip
def test_what_are_no_times_is_refused(values, logical, message):
    with refuses(ConfigError, message):
        TimeColumn.from_column("t", values, logical)


def test_a_time_is_shown_as_a_date_or_a_number():
    assert TimeColumn("t", np.zeros(1, np.int64), None).show(7) == "7"
    assert TimeColumn("t", np.zeros(1, np.int64), Timestamp("s")).show(60) == "1970-01-01T00:01"


# Steps


@pytest.mark.parametrize(
    ("freq", "unit", "size", "is_months"),
    [
        ("h", "s", 3600, False), ("15min", "us", 900 * 10**6, False), ("2 D", "D", 2, False),
        (" W ", "ms", 604_800_000, False), ("24h", "D", 1, False), ("MS", "ns", 1, True),
        ("2QE", "s", 6, True), ("Y", "D", 12, True),
    ],
)  # fmt: skip
def test_a_frequency_is_a_number_of_the_units_of_times_or_of_months(freq, unit, size, is_months):
    step = parse_freq(freq, Timestamp(unit))
    assert (step.size, step.is_months, str(step)) == (size, is_months, freq)


def test_a_frequency_of_integers_is_an_integer():
    step = parse_freq(3, None)
    assert (step.size, str(step)) == (3, "3")


@pytest.mark.parametrize(
    ("freq", "logical", "message"),
    [
        (0, None, "at least 1, but is 0"),
        (3, US, "a frequency such as 'h', for dates, but is 3"),
        ("h", None, "an integer, since times are integers, but is 'h'"),
        (True, None, "an integer, since times are integers, but is True"),
        ("", US, "a frequency such as '15min', 'h', 'D', 'W' or 'MS', but is ''"),
        ("0h", US, "a frequency such as '15min', 'h', 'D', 'W' or 'MS', but is '0h'"),
        ("1.5h", US, "a frequency such as '15min', 'h', 'D', 'W' or 'MS', but is '1.5h'"),
        ("ms", US, "a number and one of s, S, sec, min, T, h, H, d, D, w, W, MS, ME, M, QS, QE, Q"),
        (
            "12h",
            Timestamp("D"),
            "a whole number of days such as 'D' or 'W', since times are days, but is ",
        ),
    ],
)
def test_what_is_no_frequency_is_refused(freq, logical, message):
    with refuses(ConfigError, f"forecast: `freq` must be {message}"):
        parse_freq(freq, logical)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "D"])
@pytest.mark.parametrize("freq", ["15min", "1h", "36h", "1D", "2W", "MS", "3MS", "12MS"])
def test_the_step_of_the_data_is_found(freq, unit):
    if unit == "D" and freq in ("15min", "1h", "36h"):
        return
    series = [pd.date_range(f"20{n:02}-01-01", periods=9, freq=freq) for n in (1, 4)]
    counts = StepCounts()
    for each in series:  # as from parts
        counts.add(*make_times(each, unit=unit))
    found = counts.find()
    assert str(found) == freq
    assert found.is_months == ("MS" in freq)


def test_the_most_frequent_step_is_taken_and_the_smaller_one_of_two():
    for numbers, size in (([0, 5, 10, 11], 5), ([0, 3, 5, 8, 10], 2), ([4], 1), ([], 1)):
        counts = StepCounts()
        counts.add(*make_integers(numbers))
        assert counts.find().size == size
    counts = StepCounts()
    counts.add(*make_integers([0, 9], [1, 10], [2, 5]))  # steps between series are none
    assert counts.find().size == 9


def test_months_are_those_of_all_parts():
    counts = StepCounts()
    for months in (["2023-01-01", "2023-03-01"], ["2023-04-01", "2023-06-01"]):
        counts.add(*make_times(pd.to_datetime(months)))
    assert str(counts.find()) == "MS"  # a grid of every second month would not have both


def test_days_that_are_30_apart_are_no_months():
    counts = StepCounts()
    counts.add(*make_times(pd.date_range("2024-01-01", periods=5, freq="30D")))
    assert str(counts.find()) == "30D"


# Places


@examples(0.5, here=25)
@given(
    st.sampled_from(["15min", "h", "36h", "D", "W", "MS", "QS"]), st.sampled_from(["s", "ns"]),
    st.sampled_from([None, "UTC", "Europe/Berlin"]), st.integers(0, 3), st.data(),
)  # fmt: skip
def test_each_row_is_at_its_time_of_the_grid_of_pandas(freq, unit, zone, padding, data):
    full, kept = [], []
    for number in range(data.draw(st.integers(1, 3))):
        start = pd.Timestamp("2024-03-25", tz=zone) + pd.Timedelta(days=number)
        start = start.replace(day=1) if freq in ("MS", "QS") else start
        dates = pd.date_range(start, periods=data.draw(st.integers(1, 12)), freq=freq)
        chosen = data.draw(st.sets(st.integers(1, max(1, len(dates) - 2))))
        full.append(dates)
        kept.append([at for at in range(len(dates)) if at not in chosen or at == len(dates) - 1])
    times, lengths = make_times(
        *(dates[at].tz_localize(None) if zone is None else dates[at]
          for dates, at in zip(full, kept, strict=True)), unit=unit, zone=zone,
    )  # fmt: skip
    grid = place(times, lengths, freq, padding=padding)
    assert grid.lengths.tolist() == [len(dates) + padding for dates in full]
    assert grid.missing == sum(map(len, full)) - sum(map(len, kept))
    assert grid.is_complete == (not grid.missing and not padding)
    assert grid.count_padding() == int(grid.is_padding.sum()) == padding * len(full)
    assert grid.times[grid.rows].tolist() == times.values.tolist()
    if zone is None or freq in ("15min", "h"):  # clocks of a zone move a grid of days
        own = np.concatenate([dates.as_unit(unit).asi8 for dates in full])
        assert grid.times[~grid.is_padding].tolist() == own.tolist()
    for number, start in enumerate(grid.starts.tolist()):
        assert grid.find_series(start) == number
        assert grid.find_series(start + int(grid.lengths[number]) - 1) == number


def test_months_may_be_their_ends_and_days_of_a_zone_have_23_hours():
    ends = pd.to_datetime(["2024-01-31", "2024-02-29", "2024-04-30"])
    grid = place(*make_times(ends), "ME")
    assert (grid.rows.tolist(), grid.missing) == ([0, 1, 3], 1)
    days = pd.date_range("2024-03-30", periods=4, freq="D", tz="Europe/Berlin")
    assert place(*make_times(days, zone="Europe/Berlin"), "D").is_complete


def test_months_without_a_row_begin_at_the_first_of_a_month():
    grid = place(*make_times(pd.to_datetime(["2024-01-01", "2024-04-01"])), "MS", padding=1)
    due = pd.date_range("2023-12-01", "2024-04-01", freq="MS")
    assert grid.times.tolist() == due.as_unit("us").asi8.tolist()


def test_padding_is_before_each_series_in_the_steps_of_the_grid():
    grid = place(*make_integers([10, 12], [7]), 2, padding=2)
    assert grid.times.tolist() == [6, 8, 10, 12, 3, 5, 7]
    assert grid.is_padding.tolist() == [True, True, False, False, True, True, False]
    assert grid.rows.tolist() == [2, 3, 6]


def test_series_without_rows_have_no_timesteps():
    grid = place(*make_integers([], [1, 2], []), 1, padding=1)
    assert grid.lengths.tolist() == [0, 3, 0]


@pytest.mark.parametrize(
    ("series", "options", "message"),
    [
        (
            ([1, 2], [5, 5, 4]), {},
            "forecast: times of a series must increase, but in 's1' 5 follows 5 (2 rows of all "
            "series so far). Remove rows of the same time, or add up their values",
        ),
        (
            ([1, 3], [2, 4, 5]), {"freq": 2},
            "forecast: times must be 2 apart, but 5 of 's1' is not a whole number of "
            "steps after the first time, 2. Pass the `freq` of the data, or resample it",
        ),
        (
            ([1, 2], [2, 3, 6, 8]), {"freq": 1, "gaps": "error"},
            "forecast: times must be 1 apart, but in 's1' 6 follows 3 (3 timesteps are missing so "
            "far). Pass gaps='grid', or the `freq` of the data",
        ),
        (
            ([1, 2, 1_000],), {"freq": 1},
            "forecast: a grid of 1 must have at most 64 timesteps per row of the table, but has "
            "1,000 for 3 rows. Pass the `freq` of the data, or leave out times that are far from "
            "the others",
        ),
    ],
)  # fmt: skip
def test_times_that_are_on_no_grid_are_refused(series, options, message):
    with refuses(DataError, message):
        place(*make_integers(*series), **{"freq": 1, **options}, scope=" so far")


# Calendar


@examples(0.5, here=25)
@given(
    st.lists(st.integers(0, 2 * 10**9), min_size=1, max_size=9),
    st.sampled_from([None, "UTC", "Asia/Kolkata", "America/New_York"]),
    st.sampled_from(["s", "us"]),
)
def test_the_calendar_is_that_of_pandas_on_the_clocks_of_the_zone(seconds, zone, unit):
    dates = pd.to_datetime(seconds, unit="s", utc=True).tz_convert(zone).as_unit(unit)
    due = {
        "minute": dates.minute / 59, "hour": dates.hour / 23, "dayofweek": dates.day_of_week / 6,
        "day": (dates.day - 1) / 30, "dayofyear": (dates.day_of_year - 1) / 365,
        "week": (dates.isocalendar().week.to_numpy(float) - 1) / 52,
        "month": (dates.month - 1) / 11,
    }  # fmt: skip
    assert set(due) == set(CALENDAR)
    for name in CALENDAR:
        found = make_calendar(name, dates.asi8, Timestamp(unit, zone))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.asarray(due[name]) - 0.5, atol=1e-6)


def test_a_calendar_needs_dates():
    message = "forecast: `calendar` needs dates as `time`, but times are integers. Leave it out"
    with refuses(ConfigError, message):
        make_calendar("hour", np.zeros(1, np.int64), None)

"""Prepared series: complete on their grid, their missing values by rule, with a calendar."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError, DataError, open_store
from seqdata.errors import UnknownNameError
from seqdata.suite.forecast_table import ForecastTable
from tests.properties.counts import examples

NAN = float("nan")
TABLE = pd.DataFrame(
    {
        "site": list("aaabb"),
        "time": pd.to_datetime("2024-01-01")
        + pd.to_timedelta([0, 1, 3, 5, 6], unit="h"),
        "load": [1.0, NAN, 3.0, 4.0, 5.0],
        "price": [10, 20, 30, 40, 50],
        "sky": ["sun", "rain", "sun", "rain", "sun"],
        "area": [7.0] * 3 + [8.0] * 2,
    }
)  # fmt: skip


def prepare(table=TABLE, **options):
    chosen = {"time": "time", "target": ("load",)}
    store = open_store(table, group="site", order="time", missing="nan")
    found, notes = ForecastTable(**{**chosen, **options})(store)
    return {row["id"]: row for row in found}, notes


def refuses(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}")


VALUE = st.one_of(st.just(NAN), st.floats(-9, 9))


@examples(0.5, here=25)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 8), VALUE, min_size=1, max_size=6), min_size=1, max_size=3
    ),
    st.sampled_from(["mask", "impute"]), st.booleans(), st.integers(0, 2),
)  # fmt: skip
def test_each_time_of_a_series_has_its_value_or_is_marked_or_filled(series, rule, zeros, padding):
    rows = [
        {"id": str(number), "time": np.array(sorted(each)),
         "load": np.array([each[time] for time in sorted(each)])}
        for number, each in enumerate(series)
    ]  # fmt: skip
    table = ForecastTable("time", ("load",), freq=1, missing=rule, zeros=zeros, padding=padding)
    store, _ = table(open_store(rows))
    found = {row["id"]: row for row in store}
    for number, each in enumerate(series):
        times = list(range(min(each) - padding, max(each) + 1))
        values = np.array([each.get(time, NAN) for time in times])
        observed = ~np.isnan(values)
        if rule == "impute":
            values = pd.Series(values).ffill().to_numpy()
        row = found[str(number)]
        assert row["time"].tolist() == times
        np.testing.assert_array_equal(row["load"], np.where(np.isnan(values) & zeros, 0, values))
        if "load_observed" in row:
            assert row["load_observed"].tolist() == observed.tolist()
        else:
            assert observed.all() or (rule == "impute" and not padding)


def test_gaps_are_timesteps_of_every_column():
    found, notes = prepare(
        known=("price",), observed=("sky",), static=("area",), calendar=("hour",)
    )
    row = found["a"]
    np.testing.assert_array_equal(row["load"], [1.0, NAN, NAN, 3.0])
    np.testing.assert_array_equal(row["price"], [10.0, 20.0, NAN, 30.0])
    assert row["sky"].tolist() == ["sun", "rain", "", "sun"]
    assert (row["area"], row["site"]) == (7.0, "a")
    assert row["load_observed"].tolist() == [True, False, False, True]
    np.testing.assert_allclose(row["hour"], np.arange(4) / 23 - 0.5, rtol=1e-6)
    assert row["time"].tolist() == pd.date_range("2024-01-01", periods=4, freq="h").tolist()
    assert "price_observed" not in row  # it is no target
    assert notes == [
        "the frequency of 'time' is '1h' (found)",
        "gaps: 1 timesteps without a row are added",
        "2 missing values of 'load' are 0 in the scale of the model, and masked by 'load_observed'",
        "1 missing values of 'price' are 0 in the scale of the model",
    ]


def test_complete_series_have_no_mask():
    table = TABLE.iloc[3:]
    found, notes = prepare(table, freq="h")
    assert "load_observed" not in found["b"]
    assert notes == ["the frequency of 'time' is 'h'"]


@pytest.mark.parametrize(
    ("options", "filled"),
    [
        ({}, "0 in the scale of the model, and masked by 'load_observed'"),
        ({"zeros": True}, "0, and masked by 'load_observed'"),
        (
            {"missing": "impute"},
            "the value before, or 0 in the scale of the model where there is n",
        ),
        ({"missing": "impute", "zeros": True}, "the value before, or 0 where there is none"),
    ],
)
def test_what_replaces_missing_values_is_noted(options, filled):
    _, notes = prepare(**options)
    assert any(note.startswith(f"2 missing values of 'load' are {filled}") for note in notes)


def test_padding_is_not_counted_as_missing():
    _, notes = prepare(TABLE.iloc[3:], padding=3)
    assert not any("missing" in note for note in notes)
    prepare(TABLE.iloc[3:], padding=3, missing="error")
    with pytest.raises(DataError, match="'a' has none at 2024-01-01T01:00 \\(2 are missing"):
        prepare(padding=3, missing="error")


def test_short_series_are_dropped_and_one_must_be_left():
    found, notes = prepare(min_length=4, padding=2)
    assert list(found) == ["a"]
    assert notes[-1] == "1 of 2 series are shorter than 4 timesteps and dropped"
    message = (
        "forecast: at least one series must have 5 timesteps, but the longest of 2 has 4. Pass a "
        "smaller `context`, `horizon` or `min_history`"
    )
    with refuses(DataError, message):
        prepare(min_length=5, padding=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"missing": "error"}, DataError,
            "forecast: 'load' must have all values, but 'a' has none at 2024-01-01T01:00 (2 are "
            "missing). Pass missing='mask' or missing='impute'",
        ),
        (
            {"gaps": "error"}, DataError,
            "forecast: times must be 1h apart, but in 'a' 2024-01-01T03:00 follows "
            "2024-01-01T01:00 (1 timesteps are missing). Pass gaps='grid', or the `freq` of the "
            "data",
        ),
        (
            {"target": ("sky",)}, ConfigError,
            "forecast: `target` must hold numbers, but 'sky' holds strings. Convert it",
        ),
        (
            {"known": ("site",)}, ConfigError,
            "forecast: column 'site' must have one number or string per timestep, but has "
            "one value per series. Name it in `static`",
        ),
        (
            {"time": "site"}, ConfigError,
            "forecast: `time` must be a column with a value per timestep, but 'site' has one per "
            "series. Name the column of the time",
        ),
        ({"known": ("prize",)}, UnknownNameError, "forecast: no column 'prize'; did you mean 'p"),
        ({"static": ("price",)}, DataError, "forecast: static column 'price' must have one value"),
        ({"gaps": "fill"}, ConfigError, "forecast: `gaps` must be 'grid' or 'error', but is 'f"),
        ({"missing": 0}, ConfigError, "forecast: `missing` must be 'mask' or 'impute' or 'error'"),
        ({"calendar": ("moon",)}, ConfigError, "forecast: `calendar` must be one of minute, hour"),
        ({"target": ()}, ConfigError, "forecast: `target` must be a field, or several, but is em"),
        (
            {"known": ("load",)}, ConfigError,
            "forecast: 'load' must be named once in `time`, `target`, `known`, `observed`, "
            "`static` and `calendar`, but is named 2 times. Rename a column that has the name of a "
            "field of the calendar",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, error, message):
    with refuses(error, message):
        prepare(**options)


def test_dates_as_values_are_refused():
    table = TABLE.assign(day=TABLE["time"])
    message = (
        "forecast: column 'day' must hold numbers or strings, but holds timestamp[us]. Convert it, "
        "or leave it out"
    )
    with refuses(ConfigError, message):
        prepare(table.astype({"day": "datetime64[us]"}), known=("day",))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "load",
            "forecast: values of 'load' must be finite, but 'b' has inf at 2024-01-01T05:00. R",
        ),
        (
            "area",
            "forecast: values of 'area' must be finite, but 'b' has inf. Repair it, or make i",
        ),
    ],
)
def test_an_infinite_number_is_an_error_with_its_place(name, message):
    table = TABLE.assign(**{name: TABLE[name].where(TABLE["site"] == "a", np.inf)})
    with refuses(DataError, message):
        prepare(table, static=("area",))

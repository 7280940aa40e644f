"""Prepared events: which are kept, the time between them, and what their columns may hold."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError, DataError, open_store
from seqdata.errors import SeqDataWarning, UnknownNameError
from seqdata.suite.event_table import TIME_DELTA, EventTable
from tests.properties.counts import examples

TABLE = pd.DataFrame(
    {
        "user": list("aaabbc"),
        "time": pd.to_datetime("2024-01-01") + pd.to_timedelta([0, 10, 70, 5, 6, 90], unit="s"),
        "page": ["home", "buy", "home", "buy", "buy", "find"],
        "amount": [1.0, np.nan, 3.0, 4.0, 5.0, 6.0],
        "age": [30.0] * 3 + [np.nan] * 2 + [50.0],
        "label": [0, 0, 0, 1, 1, 0],
    }
)


def prepare(table=TABLE, **options):
    chosen = {"time": "time", "categorical": ("page",)}
    store = open_store(table, group="user", order="time", missing="nan")
    found, notes = EventTable(**{**chosen, **options})(store)
    return {row["id"]: row for row in found}, notes


def refuses(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}")


@examples(0.5, here=20)
@given(
    st.lists(st.lists(st.integers(0, 50), max_size=6, unique=True).map(sorted), min_size=1,
             max_size=4).filter(any),
    st.none() | st.integers(1, 4), st.none() | st.integers(0, 60),
)  # fmt: skip
def test_the_last_events_before_the_cutoff_are_kept_with_the_time_since_the_one_before(
    users, last, cutoff
):
    rows = [
        {
            "id": str(number),
            "time": np.array(times, dtype=np.int64),
            "page": np.array(times, np.int64),
        }
        for number, times in enumerate(users)
    ]
    table = EventTable("time", ("page",), last=last, cutoff=cutoff)
    due, dropped = {}, 0
    for number, times in enumerate(users):
        early = [time for time in times if cutoff is None or time < cutoff]
        dropped += len(times) - len(early)
        kept = early[-last:] if last else early
        if kept:
            due[str(number)] = (kept, np.log1p(np.diff([times[0], *times]))[-len(times) :])
    if not due:
        with refuses(DataError, "events: at least one event must be left, but `cutoff` leaves non"):
            table(open_store(rows))
        return
    store, notes = table(open_store(rows))
    found = {row["id"]: row for row in store}
    assert found.keys() == due.keys()
    for name, (kept, deltas) in due.items():
        assert found[name]["time"].tolist() == found[name]["page"].tolist() == kept
        places = [users[int(name)].index(time) for time in kept]
        np.testing.assert_allclose(found[name][TIME_DELTA], deltas[places], rtol=1e-6)
    assert (f"cutoff: {dropped} events from {cutoff} on are dropped" in notes) == (
        cutoff is not None
    )
    gone = f"{len(users) - len(due)} of {len(users)} sequences have no event and are dropped"
    assert (gone in notes) == (len(due) < len(users))


def test_times_between_are_in_seconds_whatever_the_unit():
    for unit in ("s", "ms", "us", "ns"):
        table = TABLE.assign(time=TABLE["time"].dt.as_unit(unit))
        found, _ = prepare(table)
        np.testing.assert_allclose(found["a"][TIME_DELTA], np.log1p([0, 10, 60]), rtol=1e-6)
        assert found["a"]["time"].tolist() == table["time"][:3].to_numpy().tolist()


def test_without_a_time_or_its_delta_there_is_none():
    found, _ = prepare(time_delta=None)
    assert TIME_DELTA not in found["a"]
    found, _ = prepare(time=None, last=1)
    assert TIME_DELTA not in found["a"]
    assert "time" not in found["a"]
    assert found["a"]["page"].tolist() == ["home"]


def test_a_string_that_no_sequence_changes_is_a_token_of_each_event():
    found, _ = prepare(TABLE.assign(page=TABLE["user"].map({"a": "x", "b": "y", "c": "x"})))
    assert {name: row["page"].tolist() for name, row in found.items()} == {
        "a": ["x"] * 3, "b": ["y"] * 2, "c": ["x"],
    }  # fmt: skip


def test_columns_are_numbers_tokens_and_one_value_per_sequence():
    found, notes = prepare(numeric=("amount",), static=("age", "label"), label="label", last=2)
    np.testing.assert_array_equal(found["a"]["amount"], [np.nan, 3.0])
    assert [found[name]["label"] for name in "abc"] == [0, 1, 0]
    assert found["a"]["user"] == "a"  # the group stays
    assert notes == [
        "last: 1 earlier events are dropped",
        "1 missing values of 'amount' are filled with the mean of train",
        "1 missing values of 'age' are filled with the mean of train",
    ]
    integers, _ = prepare(numeric=("label",))
    assert integers["b"]["label"].dtype == np.float64


def test_a_missing_value_of_an_event_that_is_dropped_is_not_counted():
    _, notes = prepare(numeric=("amount",), last=1)
    assert not any("missing" in note for note in notes)


def test_a_missing_label_and_floats_as_labels_are_told():
    message = "events: label 'age' must have a value for each sequence, but 'b' has none."
    with refuses(DataError, message):
        prepare(static=("age",), label="age")
    _, notes = prepare(TABLE.assign(age=1.0), static=("age",), label="age")
    assert notes == [
        "label 'age' holds floats: numbers to predict, as they are. Convert them to integers for "
        "classes"
    ]


def test_an_infinite_number_counts_only_in_events_that_are_used():
    table = TABLE.assign(amount=[np.inf, 1, 2, 3, -np.inf, 5])
    message = (
        "events: values of 'amount' must be finite, but 'b' has -inf. Repair it, or make it a "
        "missing value (NaN)"
    )
    with refuses(DataError, message):
        prepare(table, numeric=("amount",), last=2)
    late = TABLE.assign(amount=[1, 1, 1, 1, 1, np.inf])
    prepare(late, numeric=("amount",), cutoff="2024-01-01T00:01:10")
    with refuses(DataError, "events: values of 'age' must be finite, but 'a' has inf."):
        prepare(TABLE.assign(age=[np.inf] * 3 + [1.0] * 3), static=("age",))


@pytest.mark.parametrize(
    ("first", "unit"),
    [(10**11 - 1, ""), (10**11, "milliseconds"), (10**14, "microseconds"), (10**17, "nanoseconds")],
)
def test_integers_have_no_unit_and_those_that_look_like_dates_are_warned_of(first, unit):
    table = TABLE.assign(time=first + np.arange(6))
    note = "'time' holds integers: time_delta is log(1 + difference), in their unit"
    if not unit:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert prepare(table)[1] == [note]
        return
    message = (
        f"events: integers of 'time' look like {unit} since 1970, so that time_delta is log(1 + "
        f"{unit}). For seconds, pass dates: pandas.to_datetime(table['time'], unit="
    )
    with pytest.warns(SeqDataWarning, match=re.escape(message)):
        notes = prepare(table)[1]
    assert notes[0] == note
    assert notes[1].startswith(message)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"time_delta": "sqrt"}, ConfigError, "events: `time_delta` must be 'log1p' or None, but"),
        ({"numeric": ("prize",)}, UnknownNameError, "events: no column 'prize'"),
        ({"time": None, "cutoff": 3}, ConfigError, "events: `cutoff` needs `time`, which is"),
        ({"static": ("page",)}, DataError, "events: static column 'page' must have one value per"),
        (
            {"categorical": ("amount",)}, ConfigError,
            "events: `categorical` column 'amount' must be a string or an integer per event, but "
            "is float64. Name it in `numeric`, or convert it",
        ),
        (
            {"numeric": ("page",)}, ConfigError,
            "events: `numeric` column 'page' must be a number per event, but is categories[3] "
            "per event. Name it in `categorical` or `static`",
        ),
        ({"numeric": ("user",)}, ConfigError, "events: `numeric` column 'user' must be a number p"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, error, message):
    with refuses(error, message):
        prepare(**options)

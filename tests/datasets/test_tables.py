"""Generated tables: series with a season, and events of users, few of them fraudulent."""

import re
import sys

import numpy as np
import pytest

from seqdata import ConfigError
from seqdata.datasets import make_events, make_series


def test_series_are_hourly_and_have_a_season():
    table = make_series(2, days=28)
    one = table[table["site"] == "site-0"]
    assert (np.diff(one["time"].to_numpy()) == np.timedelta64(1, "h")).all()
    by_hour = one.groupby(one["time"].dt.hour)["load"].mean()
    assert by_hour.max() > 1.5 * by_hour.min()
    assert table.groupby("site")["region"].nunique().tolist() == [1, 1]


@pytest.mark.parametrize(("rare", "count"), [(0.0, 0), (0.05, 2), (1.0, 40)])
def test_as_many_users_are_fraudulent_as_are_asked_for(rare, count):
    labels = make_events(40, rare=rare).groupby("user")["label"].first()
    assert (labels == "fraud").sum() == count


def test_tables_say_that_pandas_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="make_events: pandas must be installed, but is not"):
        make_events(2)


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (make_series, {"days": 0}, "`days` must be an integer of at least 1, but is 0"),
        (make_events, {"rare": True}, "`rare` must be a number in [0, 1], but is True"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=re.escape(f"{make.__name__}: {message}")):
        make(**wrong)


def test_events_are_sorted_in_time_and_only_payments_have_an_amount():
    table = make_events(30, rare=0.5)
    assert table.groupby("user")["time"].is_monotonic_increasing.all()
    assert table.groupby("user").size().min() >= 2
    is_paid = table["action"].isin(["payment", "transfer"])
    assert (table["amount"] > 0).tolist() == is_paid.tolist()


def test_fraud_has_larger_amounts_in_quicker_succession():
    table = make_events(200, rare=0.5)
    paid = table[table["amount"] > 0].groupby("label")["amount"].median()
    assert paid["fraud"] > paid["ok"]
    gaps = table.assign(gap=table.groupby("user")["time"].diff()).groupby("label")["gap"].median()
    assert gaps["fraud"] < gaps["ok"] / 4

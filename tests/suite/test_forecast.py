"""Windows for forecasting are right: their values, their scale, their parts of the time."""

import re
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from seqdata_models import LSTMForecaster

from seqdata import ConfigError, DataError, ForecastDataModule, open_store, write_store
from tests.lightning.harness import QUIET
from tests.suite.samples import hours, passengers

CONTEXT, HORIZON = 24, 6
SPLIT = {"train": "..2024-01-08", "val": "2024-01-08.."}


def data_of(table=None, **options):
    chosen = {
        "id": "site", "time": "time", "target": "load", "context": CONTEXT, "horizon": HORIZON,
        "split": SPLIT, "seed": 1,
    }  # fmt: skip
    return ForecastDataModule(hours() if table is None else table, **{**chosen, **options})


def windows_of(loader):
    """Id and first time of the horizon -> the window's arrays, of a whole epoch."""
    found = {}
    for batch in loader:
        times = batch.future["time"]
        for row in range(len(batch)):
            if batch.weight[row]:
                key = (batch["site"][row], int(times[row, 0]))
                assert key not in found
                found[key] = {name: batch[name][row].numpy() for name in ("load", "price", "time")}
    return found


def series_of(table):
    return {site: part.sort_values("time") for site, part in table.groupby("site")}


@pytest.mark.parametrize("train_windows", ["all", "random"])
def test_windows_are_those_of_a_plain_computation(train_windows):
    table = hours()
    data = data_of(table, known="price", train_windows=train_windows, stride=1)
    data.setup("fit")
    found = windows_of(data.train_dataloader())
    expected = {}
    for site, part in series_of(table).items():
        train = part[part["time"] < "2024-01-08"]
        mean, std = train["load"].mean(), train["load"].std(ddof=0)
        prices = table[table["time"] < "2024-01-08"]["price"]
        load = (train["load"].to_numpy() - mean) / std
        price = (train["price"].to_numpy() - prices.mean()) / prices.std(ddof=0)
        times = train["time"].to_numpy()
        for start in range(len(train) - CONTEXT - HORIZON + 1):
            stop = start + CONTEXT + HORIZON
            key = (site, int(times[start + CONTEXT].astype(np.int64)))
            expected[key] = {"load": load[start:stop], "price": price[start:stop]}
    assert found.keys() == expected.keys()
    for key, window in found.items():
        for name in ("load", "price"):
            np.testing.assert_allclose(window[name], expected[key][name], rtol=1e-5, atol=1e-5)


def test_what_is_after_the_training_part_changes_nothing_of_it():
    table = hours()
    changed = table.copy()
    later = changed["time"] >= "2024-01-08"
    changed.loc[later, ["load", "price"]] = 1e6
    batches, digests = [], []
    for each in (table, changed):
        data = data_of(each, known="price", scale_by=None)
        data.setup("fit")
        batches.append([batch["load"] for batch in data.train_dataloader()])
        digests.append(data.statistics.digest)
    assert digests[0] == digests[1]
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))


def test_horizons_stay_in_their_part_and_contexts_reach_back_only_into_earlier_ones():
    data = data_of(
        split={"train": "..2024-01-06", "val": "2024-01-06..2024-01-08", "test": "2024-01-08.."}
    )
    bounds = {
        "fit": (None, "2024-01-06"), "validate": ("2024-01-06", "2024-01-08"),
        "test": ("2024-01-08", None),
    }  # fmt: skip
    for stage, (first, stop) in bounds.items():
        data.setup(stage)
        loader = {
            "fit": data.train_dataloader,
            "validate": data.val_dataloader,
            "test": data.test_dataloader,
        }
        batches = list(loader[stage]())
        future = np.concatenate([batch.future["time"].numpy() for batch in batches]).view("M8[us]")
        past = np.concatenate([batch.context["time"].numpy() for batch in batches]).view("M8[us]")
        assert len(future)
        if first is not None:
            assert future.min() == np.datetime64(first)  # not a timestep is lost
            assert past.min() == np.datetime64(first) - np.timedelta64(CONTEXT, "h")
        if stop is not None:
            assert future.max() < np.datetime64(stop)
            assert past.max() < np.datetime64(stop)


def test_evaluation_ends_with_the_last_timestep():
    data = data_of(hours(1, 250), stride=7)
    data.setup("validate")
    (batch,) = data.val_dataloader()
    last = batch.future["time"].numpy()[:, -1].view("M8[us]")
    assert last.max() == np.datetime64("2024-01-01") + np.timedelta64(249, "h")
    assert set(np.diff(np.sort(last)) / np.timedelta64(1, "h")) == {7.0}


def forecast_times(data, table):
    """Return the number of timesteps of the part ``val`` that have no forecast."""
    due = {(site, time) for site, time in zip(table["site"], table["time"], strict=True)}
    data.setup("validate")
    for batch in data.val_dataloader():
        times = batch.future["time"].numpy().view("M8[us]")
        for row, site in enumerate(batch["site"]):
            due -= {(site, pd.Timestamp(time)) for time in times[row]}
    return len(due)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "7 apart, count from the end of each series. Pass stride=1, .* or anchor='start'"),
        ({"anchor": "start"}, "7 apart, count from the start of each series. .* multiple of 7$"),
        ({"stride": 10}, "10 apart, count from the end"),
        ({"stride": 2}, "2 apart"),
        ({"stride": 1}, ""),
        ({"horizon": 4}, ""),
        ({"min_history": 3}, "7 apart"),
        ({"split": {"train": 0.7, "val": 0.3}}, "7 apart"),
    ],
)
def test_timesteps_without_a_forecast_are_counted(options, why):
    table = hours(3, 24 * 7 + 52)
    data = data_of(table, **{"horizon": 7} | options)
    split = options.get("split", SPLIT)
    part = table[table["time"] >= ("2024-01-08" if split == SPLIT else "2024-01-07 10:00")]
    count, described = forecast_times(data, part), data.describe()
    assert bool(count) == bool(why)
    found = f"val: {count} of {len(part)} timesteps have no forecast, since windows of 7, {why}"
    assert re.search(found, described) if why else "no forecast" not in described
    assert "train: " not in described.partition("no forecast")[2]


@pytest.mark.parametrize("options", [{}, {"min_history": 10}])
def test_timesteps_without_history_are_counted(options):
    table = hours(3, 24 * 7 + 52)
    early = table["time"] < "2024-01-08"
    table = table[~early | (table["site"] != "site-2")]
    data = data_of(table, horizon=1, **options)
    count = forecast_times(data, table[table["time"] >= "2024-01-08"])
    history = options.get("min_history", CONTEXT)
    assert count == history
    assert (
        f"val: {count} of 156 timesteps have no forecast, since a series must have {history} before"
    ) in data.describe()
    data = data_of(
        table, horizon=1, split={"by": "site", "train": 0.5, "val": 0.5, "exact": True}, **options
    )
    data.setup("validate")
    val = table[table["site"].isin(data._sources.get_store("val").ids)]
    count = forecast_times(data, val)
    assert f"val: {count} of {len(val)} timesteps have no forecast" in data.describe()


@pytest.mark.parametrize(
    ("name", "place"),
    [("load", " at 2024-01-09T03:00"), ("price", " at 2024-01-09T03:00"), ("area", "")],
)
def test_an_infinite_number_of_any_part_is_an_error(name, place):
    table = hours().assign(area=lambda table: table["load"].groupby(table["site"]).transform("max"))
    here = (table["site"] == "site-1") & ((table["time"] == "2024-01-09 03:00") | (not place))
    table.loc[here, name] = np.inf
    message = f"values of '{name}' must be finite, but 'site-1' has inf{place}. Repair it"
    with pytest.raises(DataError, match=message):
        data_of(table, known="price", static="area").setup("validate")


@pytest.mark.parametrize(
    ("options", "load", "price"),
    [
        (
            {}, "are 0 in the scale of the model, and masked by 'load_observed'",
            "are 0 in the scale of the model",
        ),
        ({"scale": None}, "are 0, and masked by 'load_observed'", "are 0"),
        (
            {"missing": "impute"}, "are the value before, or 0 in the scale of the model where",
            "are the value before, or 0 in the scale of the model where there is none",
        ),
    ],
)  # fmt: skip
def test_what_missing_values_become_is_said(options, load, price):
    table = hours().sort_values(["site", "time"])
    table.iloc[:2, table.columns.get_indexer(["load", "price"])] = np.nan
    data = data_of(table, known="price", train_windows="all", **options)
    described = data.describe()
    assert f"2 missing values of 'load' {load}" in described
    assert f"2 missing values of 'price' {price}\n" in described
    seen = 0
    for batch in data.train_dataloader():
        for row, site in enumerate(batch["site"]):
            if site == "site-0" and int(batch.start[row]) == 0:
                found = [batch[name][row][:2].tolist() for name in ("load", "price")]
                assert found == [[0.0, 0.0], [0.0, 0.0]]
                seen += 1
    assert seen == 1


def test_fractions_are_of_each_series_and_by_its_id_of_whole_series():
    data = data_of(split={"train": 0.5, "val": 0.5})
    data.setup("fit")
    times = np.concatenate([b.future["time"].numpy() for b in data.val_dataloader()]).view("M8[us]")
    assert times.min() == np.datetime64("2024-01-01") + np.timedelta64(120, "h")
    data = data_of(hours(20), split={"train": 0.5, "val": 0.5, "by": "site", "exact": True})
    data.setup("fit")
    train = {site for batch in data.train_dataloader() for site in batch["site"]}
    val = {site for batch in data.val_dataloader() for site in batch["site"]}
    assert len(train) == len(val) == 10
    assert not train & val


def test_gaps_become_timesteps_that_are_masked():
    table = hours(2)
    is_gap = (table["site"] == "site-1") & table["time"].between(
        "2024-01-03 05:00", "2024-01-03 08:00"
    )
    data = data_of(table[~is_gap], train_windows="all", calendar="hour")
    data.setup("fit")
    assert "gaps: 4 timesteps without a row are added" in data.describe()
    assert data.masks == ("load_observed",)
    masked = set()
    for batch in data.train_dataloader():
        times = batch["time"].numpy().view("M8[us]")
        assert (np.diff(times, axis=1) == np.timedelta64(1, "h")).all()
        observed = batch["load_observed"]
        assert not batch["load"][~observed].any()
        rows = np.nonzero(~observed.numpy())
        masked |= {(batch["site"][row], str(times[row, at])) for row, at in zip(*rows, strict=True)}
        expected = (pd.DatetimeIndex(times.ravel()).hour / 23 - 0.5).to_numpy()
        np.testing.assert_allclose(batch["hour"].numpy().ravel(), expected, atol=1e-6)
    assert masked == {("site-1", f"2024-01-03T0{hour}:00:00.000000") for hour in (5, 6, 7, 8)}


def test_missing_values_are_imputed_by_the_value_before():
    table = hours(1)
    ordered = table.sort_values("time").index
    table.loc[ordered[50:53], "load"] = np.nan
    data = data_of(table, missing="impute", scale=None, train_windows="all")
    data.setup("fit")
    values = table.loc[ordered[49], "load"]
    batch = next(iter(data.train_dataloader()))
    start = np.datetime64("2024-01-01") + np.timedelta64(50, "h")
    at = batch["time"].numpy().view("M8[us]") == start
    assert at.any()
    assert np.allclose(batch["load"].numpy()[at], values, rtol=1e-6)
    assert data.masks == ()


def drop_hours(table):
    return table[table["time"] != pd.Timestamp("2024-01-02 03:00")]


def with_nan(table):
    return table.assign(load=table["load"].where(table["time"] != pd.Timestamp("2024-01-02 03:00")))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (drop_hours, {"gaps": "error"}, r"times must be 1h apart, but in 'site-.' 2024-01-02T04.* follows 2024-01-02T02.*gaps='grid'"),  # noqa: E501
        (with_nan, {"missing": "error"}, r"'load' must have all values, but 'site-.' has none at 2024-01-02T03"),  # noqa: E501
        (lambda t: pd.concat([t, t[:1]]), {}, "must increase, but in .* Remove rows of the same time"),  # noqa: E501
        (None, {"freq": "2h"}, "times must be 2h apart, but 2024-01-01T01"),
        (None, {"freq": "fortnight"}, "`freq` must be a number and one of"),
        (None, {"freq": 3}, "`freq` must be a frequency such as 'h', for dates, but is 3"),
        (None, {"static": "price"}, "'price' must have one value per sequence, but that of 'site-.' changes"),  # noqa: E501
        (None, {"known": "region"}, "'region' must have one number or string per timestep.*Name it in `static`"),  # noqa: E501
        (None, {"known": "prices"}, "no column 'prices'.*did you mean 'price'"),
        (None, {"context": 400}, "at least one series must have 406 timesteps, but the longest of 3 has 240"),  # noqa: E501
        (None, {"scale": "log1p"}, "values of Log1p must be above -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_forecast_is_refused(change, options, message):
    table = hours()
    data = data_of(table if change is None else change(table), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ConfigError, DataError), match=message):
            data.setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "`context` must be an integer of at least 1, but is 0"),
        ({"min_history": 25}, "`min_history` must be at most `context`, 24, but is 25"),
        ({"train_windows": "some"}, "`train_windows` must be 'random' or 'all', but is 'some'"),
        ({"scale": "minmax"}, "`scale` must be 'standard', 'robust', 'log1p' or None"),
        ({"calendar": "moon"}, "`calendar` must be one of minute, hour.*but is 'moon'"),
        (
            {"time": "month", "calendar": "month"},
            "'month' must be named once in .*Rename a",
        ),
        ({"known": "load"}, "'load' must be named once .*, but is named 2 times"),
        ({"gaps": "fill"}, "`gaps` must be 'grid' or 'error', but is 'fill'"),
        (
            {"split": {"val": 0.5}},
            "`split` must be a mapping with a part 'train', .*'train': 0.8, 'val'",
        ),
        (
            {"split": {"val": "2024-02-01.."}},
            r"a part 'train', .*'train': '..2024-01-15'",
        ),
        ({"split": {"train": 0.5, "valid": 0.5}}, "but 'valid' is neither"),
        ({"target": 3}, "`target` must be a string or a list of strings, but is 3"),
        ({"target": {"a", "b"}}, r"a list of strings, but is \{'.*Pass e\.g\. \['a', 'b'\]"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        data_of(**options)


@pytest.mark.parametrize(
    ("scale", "by", "expected"),
    [
        ("robust", "id", lambda own, every: (own - own.median()) / (own.quantile(0.75) - own.quantile(0.25))),  # noqa: E501
        ("robust", None, lambda own, every: (own - every.median()) / (every.quantile(0.75) - every.quantile(0.25))),  # noqa: E501
        ("log1p", "id", lambda own, every: np.log1p(own)),
        (None, "id", lambda own, every: own),
    ],
)  # fmt: skip
def test_scales_of_the_training_part_on_real_series(scale, by, expected):
    table = passengers()
    split = {"train": "..1957-01-01", "val": "1957-01-01.."}
    data = data_of(
        table.sample(frac=1, random_state=0), id="series", time="month", target="value", split=split,  # noqa: E501
        known="year", static="unit", scale=scale, scale_by=by, train_windows="all", calendar="week",
    )  # fmt: skip
    data.setup("fit")
    train = table[table["month"] < "1957-01-01"]
    seen = 0
    for batch in data.train_dataloader():
        for row, name in enumerate(batch["series"]):
            own = train[train["series"] == name].set_index("month")["value"]
            scaled = expected(own, train["value"]).to_numpy()
            start = int(batch.start[row])
            due = scaled[start : start + CONTEXT + HORIZON]
            np.testing.assert_allclose(batch["value"][row], due, rtol=1e-5, atol=1e-6)
            seen += 1
    assert seen == 2 * (96 - CONTEXT - HORIZON + 1)
    assert "the frequency of 'month' is 'MS' (found)" in data.describe()


def test_predictions_join_the_table():
    table = hours()
    data = data_of(table, known="price", static="region")
    model = LSTMForecaster.for_data(data, hidden=4)
    trainer = pl.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, data)
    found = data.predict(trainer, model).to_pandas()
    joined = found.merge(table, on=["site", "time"], how="left", validate="one_to_one")
    assert len(joined) == 3 * 72
    assert not joined["load"].isna().any()

    class Truth(pl.LightningModule):
        def predict_step(self, batch):
            return {"load": batch.future["load"]}

    found = data.predict(trainer, Truth()).to_pandas()
    joined = found.merge(table, on=["site", "time"], how="left", validate="one_to_one")
    np.testing.assert_allclose(joined["load_pred"], joined["load"], rtol=1e-4, atol=1e-3)


def test_shorter_contexts_are_filled_up_with_masked_timesteps():
    table = hours(2)
    short = table[(table["site"] == "site-0") | (table["time"] < "2024-01-01 16:00")]
    data = data_of(short, split={"train": 1.0}, min_history=8, train_windows="all")
    data.setup("fit")
    rows = [
        (batch["site"][row], batch["load_observed"][row].tolist())
        for batch in data.train_dataloader()
        for row in range(len(batch))
    ]
    of_short = [observed for site, observed in rows if site == "site-1"]
    assert sorted(map(sum, of_short)) == [14, 15, 16]  # 16 timesteps: 8, 9, 10 before 6
    assert all(observed[-HORIZON:] == [True] * HORIZON for observed in of_short)
    data = data_of(short, split={"train": 1.0})
    data.setup("fit")
    assert "1 of 2 series are shorter than 30 timesteps and dropped" in data.describe()


def test_a_store_of_series_does_as_well_as_the_table(tmp_path):
    table = hours()
    write_store(tmp_path / "store", table, group="site", order="time")
    given = (table, tmp_path / "store", open_store(tmp_path / "store"))
    batches = []
    for source in given:
        data = data_of(source)
        data.setup("fit")
        batches.append([batch["load"] for batch in data.val_dataloader()])
    assert all(
        torch.equal(a, b) for other in batches[1:] for a, b in zip(batches[0], other, strict=True)
    )


def test_the_remedy_tells_times_that_decrease_from_times_that_repeat():
    store = open_store([{"time": np.arange(40)[::-1].copy(), "load": np.arange(40.0)}])
    with pytest.raises(DataError, match=r"38 follows 39 .* Sort the timesteps of each sequence by"):
        data_of(store, split={"train": 1.0}).setup("fit")


def test_a_target_has_one_number_per_timestep():
    store = open_store([{"time": np.arange(40), "load": np.ones((40, 2)), "site": "a"}])
    message = r"'load' must have one .* has float64 of shape \(2,\) there. Make a column"
    with pytest.raises(ConfigError, match=message):
        data_of(store, split={"train": 1.0}).setup("fit")
    with pytest.raises(ConfigError, match=r"'site' must have one .* Name another column"):
        data_of(store, target="site", split={"train": 1.0}).setup("fit")

"""Event sequences: ids of the training part, time between events, what is cut and what is drawn."""

import numpy as np
import pandas as pd
import pytest
import torch

from seqdata import ConfigError, DataError, EventDataModule, open_store
from seqdata.errors import SeqDataError, SeqDataWarning
from tests.suite.samples import library_tokens


def visits(seed=0):
    """Return visits of 40 users, in a random order of rows."""
    random = np.random.default_rng(seed)
    rows = []
    for user in range(40):
        count = int(random.integers(1, 12))
        times = np.sort(random.choice(10_000, count, replace=False))
        for time in times:
            rows.append(
                {
                    "user": f"u{user}",
                    "time": pd.Timestamp("2024-01-01") + pd.Timedelta(minutes=int(time)),
                    "page": random.choice(["home", "search", "buy"]),
                    "amount": float(random.normal()),
                    "country": ("DE", "FR", "US")[user % 3],
                    "churned": user % 4 == 0,
                }
            )
    return pd.DataFrame(rows).sample(frac=1, random_state=seed).reset_index(drop=True)


def data_of(table=None, **options):
    chosen = {
        "id": "user", "time": "time", "categorical": "page", "split": {"train": 0.75, "val": 0.25},
        "seed": 1, "max_tokens": 64,
    }  # fmt: skip
    return EventDataModule(visits() if table is None else table, **{**chosen, **options})


def rows_of(loader, *names):
    """User -> its rows of the fields, without padding."""
    found = {}
    for batch in loader:
        for row, user in enumerate(batch["user"]):
            if batch.weight[row]:
                assert user not in found
                length = int(batch.lengths[row])
                found[user] = [batch[name][row][:length].tolist() for name in names]
    return found


def test_events_are_those_of_a_plain_computation():
    table = visits()
    data = data_of(table, numeric="amount")
    data.setup("fit")
    found = rows_of(data.train_dataloader(), "page", "amount", "time_delta")
    train = table[table["user"].isin(found)]
    counts = train["page"].value_counts()
    order = sorted(counts.index, key=lambda page: (-counts[page], page))
    ids = {page: number + 2 for number, page in enumerate(order)}
    mean, std = train["amount"].mean(), train["amount"].std(ddof=0)
    assert 20 < len(found) < 40
    for user, (pages, amounts, deltas) in found.items():
        own = table[table["user"] == user].sort_values("time")
        assert pages == [ids[page] for page in own["page"]]
        np.testing.assert_allclose(amounts, (own["amount"] - mean) / std, rtol=1e-5, atol=1e-6)
        seconds = own["time"].diff().dt.total_seconds().fillna(0)
        np.testing.assert_allclose(deltas, np.log1p(seconds), rtol=1e-6)
    assert data.sizes["vocabulary"] == {"page": 5}


def test_a_token_of_the_validation_part_only_is_unknown():
    table = visits()
    data = data_of(table)
    data.setup("fit")
    val = set(rows_of(data.val_dataloader(), "page"))
    table["page"] = table["page"].where(~table["user"].isin(val), "never seen")
    data = data_of(table)
    data.setup("fit")
    assert data.statistics["page"].tokens == ["buy", "home", "search"] or set(
        data.statistics["page"].tokens
    ) == {"buy", "home", "search"}
    pages = rows_of(data.val_dataloader(), "page")
    assert {page for (row,) in pages.values() for page in row} == {1}


def test_the_last_events_before_a_cutoff_are_kept():
    table = visits()
    data = data_of(table, split={"train": 1.0}, last=3, cutoff="2024-01-05")
    data.setup("fit")
    found = rows_of(data.train_dataloader(), "time")
    expected = {}
    for user, own in table[table["time"] < "2024-01-05"].groupby("user"):
        times = own["time"].sort_values().astype("datetime64[us]")[-3:]
        expected[user] = [times.astype("int64").tolist()]
    assert found == expected
    text = data.describe()
    assert "events from 2024-01-05 on are dropped" in text
    assert "earlier events are dropped" in text


def test_missing_numbers_are_filled_and_counted():
    table = visits()
    table["income"] = table["user"].map(lambda user: np.nan if user == "u3" else 1.0 + len(user))
    table.loc[table.index % 3 == 0, "amount"] = np.nan
    data = data_of(table, numeric="amount", static="income", last=2)
    data.setup("fit")
    last = table.sort_values(["user", "time"]).groupby("user").tail(2)
    count = int(last["amount"].isna().sum())
    described = data.describe()
    assert f"{count} missing values of 'amount' are filled with the mean of train" in described
    assert "1 missing values of 'income' are filled" in described
    values = [batch["amount"][batch.mask] for batch in data.train_dataloader()]
    assert all(bool(each.isfinite().all()) for each in values)
    assert any(bool((each == 0).any()) for each in values)  # the mean
    assert "missing" not in data_of(visits(), numeric="amount").describe()


def test_the_next_event_is_the_target():
    data = data_of(split={"train": 1.0}, next_event="page")
    data.setup("fit")
    for batch in data.train_dataloader():
        for row in range(len(batch)):
            length = int(batch.lengths[row])
            assert (
                batch["targets"][row][: length - 1].tolist()
                == batch["page"][row][1:length].tolist()
            )


def test_labels_are_classes_and_are_drawn_equally_often():
    data = data_of(label="churned", static="country", balance="churned", split={"train": 1.0})
    data.setup("fit")
    drawn = np.concatenate(
        [np.array(batch["churned"].tolist()) for batch in data.train_dataloader()]
    )
    assert abs(drawn.mean() - 0.5) < 0.06  # 0.25 of the users
    assert data.sizes["classes"] == {"churned": 2, "country": 3}


@pytest.mark.parametrize(("value", "found"), [(np.nan, "none"), (np.inf, "inf")])
def test_a_missing_label_is_an_error_that_names_the_sequence(value, found):
    table = visits()
    table["churned"] = table["churned"].astype(float).where(table["user"] != "u3", value)
    message = f"label 'churned' must have a value for each sequence, but 'u3' has {found}"
    with pytest.raises(DataError, match=message):
        data_of(table, label="churned").setup("fit")
    data_of(table[table["user"] != "u3"], label="churned").setup("fit")
    early = table[(table["user"] != "u3") | (table["time"] >= "2024-01-05")]
    data_of(early, label="churned", cutoff="2024-01-05").setup("fit")  # a sequence without events


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string", "object"])
def test_a_missing_label_of_another_type_is_an_error_too(dtype):
    table = visits()
    table["churned"] = table["churned"].astype(int).astype(dtype).where(table["user"] != "u3", None)
    with pytest.raises(SeqDataError, match=r"'churned'.* must not hold missing values"):
        data_of(table, label="churned").setup("fit")


def test_floats_as_labels_are_numbers_to_predict():
    table = visits()
    table["churned"] = table["churned"].astype(float)
    data = data_of(table, label="churned", numeric="amount")
    assert data.sizes["features"] == {"amount": 1, "time_delta": 1}
    assert data.sizes["classes"] == {}
    batch = next(iter(data.train_dataloader()))
    assert batch["churned"].dtype == torch.float32
    assert set(batch["churned"].tolist()) == {0.0, 1.0}
    assert "label 'churned' holds floats: numbers to predict, as they are" in data.describe()
    assert "holds floats" not in data_of(label="churned").describe()


@pytest.mark.parametrize("argument", ["categorical", "numeric", "static"])
def test_a_label_that_is_an_input_is_refused(argument):
    with pytest.raises(ConfigError, match=f"`label` must not be an input, .* is in `{argument}`"):
        data_of(label="churned", **{argument: "churned"})


@pytest.mark.parametrize("name", ["amount", "income"])
def test_an_infinite_number_of_any_part_is_an_error(name):
    table = visits()
    table["income"] = table["user"].map(lambda user: 1.0 + len(user))
    columns = {"numeric": "amount", "static": "income"}
    data = data_of(table, **columns)
    val = {user for batch in data.val_dataloader() for user in batch["user"]}
    times = table[table["user"].isin(val)].groupby("user")["time"].agg(["min", "max"])
    user = times[(times["min"] < "2024-01-03") & (times["max"] >= "2024-01-04")].index[-1]
    table.loc[table["user"] == user, name] = -np.inf
    message = f"events: values of '{name}' must be finite, but '{user}' has -inf. Repair it"
    with pytest.raises(DataError, match=message):
        data_of(table, **columns).setup("fit")
    with pytest.raises(DataError, match=message):  # some sequences have no event then
        data_of(table, **columns, cutoff="2024-01-03").setup("fit")
    before = table["time"] < "2024-01-04"
    table["amount"] = np.where(before, 0.0, np.inf)
    if name == "amount":  # events that are dropped
        data_of(table, **columns, cutoff="2024-01-04").setup("fit")


@pytest.mark.parametrize(
    ("per_second", "unit"), [(10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanos")]
)
def test_integers_that_look_like_times_since_1970_have_no_unit_and_warn(per_second, unit):
    table = visits()
    seconds = table["time"].astype("datetime64[s]").astype("int64")
    table["time"] = seconds * per_second
    with pytest.warns(SeqDataWarning, match=f"integers of 'time' look like {unit}.* since 1970"):
        described = data_of(table).describe()
    assert "'time' holds integers: time_delta is log(1 + difference), in their unit" in described
    assert f"look like {unit}" in described
    table["time"] = seconds
    described = data_of(table).describe()
    assert "'time' holds integers" in described
    assert "look like" not in described
    table["time"] *= per_second
    assert "holds integers" not in data_of(table, time_delta=None).describe()
    assert "holds integers" not in data_of().describe()


def test_a_column_keeps_its_values_together_and_time_cuts_sequences():
    data = data_of(split_by="country", split={"train": 0.6, "val": 0.4, "exact": True})
    data.setup("fit")
    countries = [
        {country for batch in loader for country in batch["country"]}
        for loader in (data.train_dataloader(), data.val_dataloader())
    ]
    assert countries[0]
    assert countries[1]
    assert not countries[0] & countries[1]
    data = data_of(split={"train": "..2024-01-05", "val": "2024-01-05.."})
    data.setup("fit")
    bound = int(np.datetime64("2024-01-05", "us").astype("int64"))
    train = rows_of(data.train_dataloader(), "time")
    val = rows_of(data.val_dataloader(), "time")
    assert max(max(times) for (times,) in train.values()) < bound
    assert min(min(times) for (times,) in val.values()) >= bound


def test_tokens_of_a_real_library():
    table = library_tokens()
    data = EventDataModule(
        table.sample(frac=1, random_state=0), id="module", time="order", categorical="kind",
        numeric="length", label="is_private", split={"train": 0.7, "val": 0.3}, min_count=5,
        max_tokens=2000,
    )  # fmt: skip
    data.setup("fit")
    kinds = data.statistics["kind"]
    counts = table[table["module"].isin({m for b in data.train_dataloader() for m in b["module"]})]
    frequent = counts["kind"].value_counts()
    assert set(kinds.tokens) == set(frequent.index[frequent >= 5])
    for batch in data.train_dataloader():
        assert batch["kind"].numel() <= 2000
        row = batch["kind"][0][: int(batch.lengths[0])].tolist()
        own = table[table["module"] == batch["module"][0]].sort_values("order")["kind"]
        ids = {token: number + 2 for number, token in enumerate(kinds.tokens)}
        assert row == [ids.get(kind, 1) for kind in own]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categorical": ()}, "`categorical` must be a column, or several, but is empty"),
        ({"next_event": "amount"}, "`next_event` must be one of page"),
        ({"last": 0}, "`last` must be an integer of at least 1, but is 0"),
        ({"time_delta": "sqrt"}, "`time_delta` must be 'log1p' or None, but is 'sqrt'"),
        ({"time": None, "split": {"train": "..2024-01-05"}}, "ranges of `split` need `time`"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        data_of(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static": "page"}, "column 'page' must have one value per sequence, but that of 'u"),
        ({"numeric": "country"}, "`numeric` column 'country' must be a number per event"),
        ({"categorical": "amount"}, "`categorical` column 'amount' must be a string or an integer"),
        ({"numeric": "prize"}, "no column 'prize'"),
        ({"cutoff": "2000-01-01"}, "at least one event must be left, but `cutoff` leaves none"),
    ],
)
def test_columns_that_do_not_fit_are_refused(options, message):
    data = data_of(**({"categorical": "country"} | options if "static" in options else options))
    with pytest.raises(SeqDataError, match=message):
        data.setup("fit")


def test_times_that_are_not_dates_are_told_of_events():
    table = visits().drop_duplicates("user")
    with pytest.raises(
        ConfigError, match=r"events: `time` 'time' must be dates or integers, but is float"
    ):
        data_of(table.assign(time=0.5)).setup("fit")
    with pytest.raises(ConfigError, match="events: `time` must be a column with a value per event"):
        data_of(table.assign(time="2024-01-01")).setup("fit")


def test_empty_sequences_leave_no_event():
    store = open_store([{"page": np.zeros(0, np.int64), "time": np.zeros(0, np.int64)}])
    with pytest.raises(DataError, match="must be left, but all sequences are empty"):
        data_of(store).setup("fit")

"""The rows of a group become a sequence in an order that is sure: ``seqdata.readers.groups``."""

import datetime
import itertools
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from seqdata import MissingShardError, Remote, open_store, write_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata.readers.groups import find_groups

HOURS = [datetime.datetime(2024, 1, 31, hour) for hour in range(24)]
SHUFFLED = {
    "site": ["b", "a", "b", "a", "b"],
    "when": [HOURS[3], HOURS[9], HOURS[1], HOURS[10], HOURS[2]],
    "load": [3.5, 9.5, 1.5, 10.5, 2.5],
}
SORTED_LOADS = {"b": [1.5, 2.5, 3.5], "a": [9.5, 10.5]}
PANEL = {
    "site": ["u", "v", "u", "v"],
    "when": [HOURS[0], HOURS[0], HOURS[1], HOURS[1]],
    "load": [0.5, 1.5, 2.5, 3.5],
}


def save_csv(columns, path):
    pyarrow.csv.write_csv(pa.table(columns), path)
    return path


def save_jsonl(columns, path):
    pl.DataFrame(columns).with_columns(pl.col("when").dt.to_string("iso:strict")).write_ndjson(path)
    return path


def save_parquet(columns, path):
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def save_feather(columns, path):
    pyarrow.feather.write_feather(pa.table(columns), path)
    return path


def save_stream(columns, path):
    table = pa.table(columns)
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    return path


def save_parts(columns, path):
    path.mkdir()
    for number in range(len(columns["site"])):
        part = {name: values[number : number + 1] for name, values in columns.items()}
        save_parquet(part, path / f"part-{number}.parquet")
    return path


FORMS = {
    "pandas": lambda columns, _: pd.DataFrame(columns),
    "pandas_index": lambda columns, _: pd.DataFrame(columns).set_index(["site", "when"]),
    "polars": lambda columns, _: pl.DataFrame(columns),
    "arrow": lambda columns, _: pa.table(columns),
    "csv": lambda columns, folder: save_csv(columns, folder / "t.csv"),
    "jsonl": lambda columns, folder: save_jsonl(columns, folder / "t.jsonl"),
    "parquet": lambda columns, folder: save_parquet(columns, folder / "t.parquet"),
    "pq": lambda columns, folder: save_parquet(columns, folder / "t.pq"),
    "feather": lambda columns, folder: save_feather(columns, folder / "t.feather"),
    "stream": lambda columns, folder: save_stream(columns, folder / "t.arrow"),
    "parts": lambda columns, folder: save_parts(columns, folder / "t"),
}
FILES = [form for form in FORMS if form not in ("pandas", "pandas_index", "polars", "arrow")]
LEFT_OUT = "ignore:table. column 'when' is dropped"
pytestmark = pytest.mark.filterwarnings(LEFT_OUT)


def loads(store):
    return {sequence["id"]: sequence["load"].tolist() for sequence in store}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_sorted_by_order_within_groups_by_appearance(tmp_path, form):
    data = FORMS[form](SHUFFLED, tmp_path)
    store = open_store(data, group="site", order="when")
    assert list(loads(store).items()) == list(SORTED_LOADS.items())
    written = write_store(tmp_path / "store", data, group="site", order="when")
    assert loads(written) == SORTED_LOADS
    assert store.keys([0, 1]) == written.keys([0, 1]) == ["b", "a"]


@pytest.mark.parametrize("form", FILES)
def test_the_command_sorts_rows_by_order(tmp_path, form):
    source, out = str(FORMS[form](SHUFFLED, tmp_path)), str(tmp_path / "store")
    command = ["write", source, out, "--group", "site"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "those of 'b' are row 0 and row 2, with rows of 'a' in between" in refused.stderr
    assert "Pass --order, the column of the time" in refused.stderr
    done = CliRunner().invoke(app, [*command, "--order", "when"])
    assert done.exit_code == 0, done.output
    assert loads(open_store(out)) == SORTED_LOADS


@pytest.mark.parametrize("columns", [SHUFFLED, PANEL], ids=["shuffled", "panel"])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_group_that_are_not_together_are_refused_without_order(tmp_path, form, columns):
    data = FORMS[form](columns, tmp_path)
    group, between = columns["site"][:2]
    reason = (
        rf"the rows of each value of column 'site' must be together, but those of '{group}' are "
        rf"row 0 and row 2, with rows of '{between}' in between \(2 of 2 groups .*Pass `order`"
    )
    with pytest.raises(DecodeError, match=reason):
        open_store(data, group="site")
    with pytest.raises(DecodeError, match=reason):
        write_store(tmp_path / "store", data, group="site")


@pytest.mark.parametrize("form", FORMS)
def test_dates_that_go_back_within_a_group_are_refused_without_order(tmp_path, form):
    columns = {
        "site": ["a", "a", "b", "b", "b"],
        "when": [HOURS[8], HOURS[9], HOURS[0], HOURS[2], HOURS[1]],
        "load": [8.5, 9.5, 0.5, 2.5, 1.5],
    }
    data = FORMS[form](columns, tmp_path)
    with pytest.raises(
        DecodeError,
        match=r"the rows of 'b' must be in order of time, but column 'when' is 2024-01-31.01:00:"
        r"00.* in row 4 after 2024-01-31.02:00:00.* in row 3 \(1 rows .* Pass `order='when'`",
    ):
        open_store(data, group="site")
    store = open_store(data, group="site", order="when")
    assert loads(store) == {"a": [8.5, 9.5], "b": [0.5, 1.5, 2.5]}


def test_every_column_of_dates_is_compared():
    """One that is in order, and one that is a mixture of dates and other strings, hide no other."""
    columns = {
        "site": ["a", "a"], "note": ["2024-01-31", "no date"], "made": [HOURS[1], HOURS[2]],
        "when": [HOURS[2], HOURS[1]], "load": [2.5, 1.5],
    }  # fmt: skip
    with pytest.raises(DecodeError, match="must be in order of time, but column 'when'"):
        open_store(pd.DataFrame(columns), group="site")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_dates_in_order_are_taken_as_they_are(make):
    """Dates that stay equal, such as a birthday, say nothing about the order of rows."""
    day = datetime.date(2024, 1, 31)
    columns = {
        "site": ["a", "a", "b"], "born": [day, day, datetime.date(1999, 1, 1)],
        "when": [HOURS[1], HOURS[2], HOURS[0]], "load": [1.5, 2.5, 0.5],
    }  # fmt: skip
    store = open_store(make(columns), group="site")
    assert loads(store) == {"a": [1.5, 2.5], "b": [0.5]}
    assert store[0]["born"].astype("datetime64[D]").tolist() == [day, day]


def test_the_dates_of_an_index_without_a_name_are_compared_too(tmp_path):
    frame = pd.DataFrame({"site": ["a", "a"], "load": [2.5, 1.5]}, index=[HOURS[2], HOURS[1]])
    with pytest.raises(DecodeError, match="must be in order of time"):
        open_store(frame, group="site")
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DecodeError, match="must be in order of time"):
        open_store(tmp_path / "t.parquet", group="site")
    with pytest.warns(SeqDataWarning, match="it is an index of pandas without a name"):
        store = open_store(frame.sort_index(), group="site")
    assert loads(store) == {"a": [1.5, 2.5]}


KEYS = {
    "integers": [3, 1, 10, 2],
    "unsigned": pa.array([3, 1, 2**63 + 1, 2], pa.uint64()),
    "large": [2**53 + 2, 2**53, 2**53 + 3, 2**53 + 1],
    "floats": [3e-300, -1e300, float("inf"), 2e-300],
    "decimals": [Decimal("3.10"), Decimal("1.25"), Decimal("10.00"), Decimal("2.00")],
    "dates": [datetime.date(2024, month, 1) for month in (3, 1, 10, 2)],
    "times": [datetime.time(hour) for hour in (3, 1, 10, 2)],
    "durations": [datetime.timedelta(hours=hour) for hour in (3, 1, 10, 2)],
    "zones": pa.array([HOURS[3], HOURS[1], HOURS[10], HOURS[2]], pa.timestamp("ns", "Asia/Tokyo")),
    "codes": pa.array([3, 1, 10, 2]).dictionary_encode(),
    "strings": ["2024-01-03", "2024-01-01", "2024-01-10", "2024-01-02"],
    "views": pa.array(["2024-01-03", "2024-01-01", "2024-01-10", "2024-01-02"], pa.string_view()),
    "zoned_strings": [f"2024-01-31T10:0{n}:00{z}" for n, z in ((3, "Z"), (1, "Z"), (0, "-09:00"),
                                                              (2, "+00:00"))],
    "nanoseconds": [f"2024-01-31 10:00:00.00000000{n}" for n in (3, 1, 9, 2)],
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_order_may_be_any_numbers_or_dates(kind):
    table = pa.table({"g": ["a"] * 4, "t": KEYS[kind], "load": [3, 1, 10, 2]})
    assert find_groups(table, "g", "t").rows.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("keys", "error", "reason"),
    [
        ([1, None], DecodeError, "column 't': must not hold missing values"),
        ([1.0, float("nan")], DecodeError, "column 't': must not hold missing values"),
        ([HOURS[0], None], DecodeError, "column 't': must not hold missing values"),
        (
            ["10", "9"],
            DecodeError,
            r"'t' must hold numbers, dates, or strings .*holds other strings",
        ),
        (["31.01.2024", "01.02.2024"], DecodeError, "'t' must hold numbers, dates, or strings"),
        ([[1], [2]], ConfigError, "'t' must hold numbers, dates, .*but is of type list"),
        ([True, False], ConfigError, "'t' must hold numbers, dates, .*but is of type bool"),
        ([b"a", b"b"], ConfigError, "'t' must hold numbers, dates, .*but is of type binary"),
    ],
)
def test_an_order_that_is_doubtful_is_refused(keys, error, reason):
    table = pa.table({"g": ["a", "a"], "t": keys, "load": [1, 2]})
    with pytest.raises(error, match=reason):
        open_store(table, group="g", order="t")


def test_nan_names_no_group():
    table = pa.table({"g": [1.5, float("nan")], "load": [1, 2]})
    with pytest.raises(DecodeError, match="column 'g': must not hold missing values"):
        open_store(table, group="g")


def test_equal_values_of_order_stay_in_the_order_of_the_table_with_a_warning():
    table = pa.table({"g": ["a", "b", "a", "a"], "t": [2, 1, 1, 2], "load": [0, 1, 2, 3]})
    with pytest.warns(
        SeqDataWarning,
        match=r"'t' has equal values within a group, first 2 of 'a' \(1 rows .*stay in the order",
    ):
        store = open_store(table, group="g", order="t")
    assert loads(store) == {"a": [2, 0, 3], "b": [1]}


def test_equal_values_in_two_groups_are_no_reason_to_warn():
    table = pa.table({"g": ["a", "b"], "t": [1, 1], "load": [0, 1]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loads(open_store(table, group="g", order="t")) == {"a": [0], "b": [1]}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"order": "t"}, "`order` requires `group`, but is 't' without it"),
        ({"group": "g", "order": "g"}, "`order` must differ from `group`"),
        ({"group": "g", "order": "when"}, "no column 'when'"),
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_an_order_that_does_not_go_with_the_table_is_refused(tmp_path, options, reason, as_file):
    data = pa.table({"g": ["a"], "t": [1]})
    if as_file:
        data = save_parquet({"g": ["a"], "t": [1], "site": ["a"]}, tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=reason):
        open_store(data, **options)
    with pytest.raises(ConfigError, match=reason):
        write_store(tmp_path / "store", data, **options)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), min_size=1, max_size=40))
def test_sorted_rows_are_those_of_a_stable_sort_of_each_group(rows):
    groups, keys = map(list, zip(*rows, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        found = find_groups(pa.table({"g": groups, "t": keys}), "g", "t")
    assert found.names == list(dict.fromkeys(groups))
    for number, name in enumerate(found.names):
        own = [row for row, group in enumerate(groups) if group == name]
        due = sorted(own, key=keys.__getitem__)
        assert found.rows[slice(*found.offsets[number : number + 2])].tolist() == due


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_without_order_rows_are_taken_as_they_are_or_refused(rows):
    groups, hours = map(list, zip(*rows, strict=True))
    runs = [group for at, group in enumerate(groups) if at == 0 or groups[at - 1] != group]
    is_right = len(set(runs)) == len(runs) and all(
        first[0] != second[0] or first[1] <= second[1] for first, second in itertools.pairwise(rows)
    )
    table = pa.table({"g": groups, "when": [HOURS[hour] for hour in hours]})
    try:
        assert find_groups(table, "g").rows.tolist() == list(range(len(rows)))
    except DecodeError:
        assert not is_right
    else:
        assert is_right


def test_a_value_per_group_and_values_per_row_go_the_same_way(tmp_path):
    columns = {"site": ["b", "a", "b"], "t": [2, 1, 1], "load": [2.5, 1.5, 0.5], "kind": [3, 4, 3]}
    path = save_csv(columns, tmp_path / "t.csv")
    for data in (path, [path], pa.table(columns)):
        store = open_store(data, group="site", order="t", axes={"kind": None})
        assert [sequence["kind"].item() for sequence in store] == [3, 4]
        assert np.asarray(store[0]["load"]).tolist() == [0.5, 2.5]
    command = ["write", str(path), str(tmp_path / "s"), "--group", "site", "--order", "t"]
    assert CliRunner().invoke(app, [*command, "--axes", "kind=none"]).exit_code == 0
    assert open_store(tmp_path / "s").fields["kind"].axis is None


def test_files_that_are_no_table_are_refused_with_what_is_there(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match=r"must be tables of one kind .* \(1 \.txt\)"):
        open_store(tmp_path, group="site")
    with pytest.raises(MissingShardError, match=r"memory://nothing/t\.parquet: is not there"):
        open_store("memory://nothing/t.parquet", group="site", remote=Remote(cache_dir=tmp_path))
    (tmp_path / "b.csv").write_text("site,load\na,1.5\n")
    with pytest.raises(ConfigError, match="`remote` must be left out for a local path"):
        open_store(tmp_path / "b.csv", group="site", remote="cache")
    with pytest.raises(ConfigError, match="`verify` opens a store, but `group` reads a table"):
        open_store(tmp_path, group="site", verify="off")
    with pytest.raises(ConfigError, match="`verify` opens a store, but `missing` reads a table"):
        open_store(tmp_path, missing="drop", verify="off")

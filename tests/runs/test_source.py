"""The source of a DataModule: opened as arguments say, selected by values, split, and noted."""

import inspect
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError, Remote, SequenceDataModule, open_store, split, write_store
from seqdata.errors import SeqDataWarning
from seqdata.runs.options import DataOptions
from seqdata.runs.source import (
    describe_shares,
    holds_url,
    open_source,
    select_where,
    split_source,
)
from tests.properties.counts import examples

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(SequenceDataModule.__init__).parameters.items()
    if parameter.default is not parameter.empty
}
TABLE = pd.DataFrame({"site": list("babab"), "hour": [1, 1, 0, 0, 2], "load": [1.0, 2, 3, 4, 5]})


def make_rows(count=40):
    return [
        {
            "id": f"r{number}",
            "x": np.arange(2.0 + number * 7 % 5),
            "kind": "abc"[number % 3],
            "year": 2000 + number % 5,
            "share": number / 8,
        }
        for number in range(count)
    ]


def make_options(**options):
    return DataOptions(**{**DEFAULTS, "train": TABLE, **options})


def read(location=TABLE, **options):
    return open_source(make_options(**options), location, None)


def select(where, rows=None):
    rows = make_rows() if rows is None else rows
    return list(select_where(open_store(rows), where).ids)


# Opening


def test_a_table_is_grouped_ordered_and_renamed_with_a_note():
    found = read(group="site", order="hour", rename={"load": "x"})
    assert {each["site"]: each["x"].tolist() for each in found.store} == {
        "a": [4.0, 2.0], "b": [3.0, 1.0, 5.0],
    }  # fmt: skip
    assert found.notes == ("rows of each 'site' are in the order of 'hour'",)


def test_warnings_of_the_opening_are_notes_and_are_still_shown():
    table = TABLE.assign(load=[1.0, None, 3, 4, 5])
    with pytest.warns(SeqDataWarning, match="'load' lacks 1 of 5 values") as caught:
        found = read(table, group="site", order="hour")
    assert found.notes[1:] == tuple(str(each.message) for each in caught)
    assert caught[0].filename == __file__  # the line of the user


def test_rates_and_axes_are_passed_on():
    rows = [{"a": np.zeros(4), "b": np.zeros(8)}]
    found = read(rows, axes={"b": "other"}, rates={"a": 2, "b": 4})
    assert list(found.store.linked_axes) == ["time", "other"]


def test_selected_sequences_are_counted_and_at_least_one_is_left():
    found = read(make_rows(), where={"kind": "a"})
    assert found.notes == ("where: 14 of 40 sequences are selected",)
    assert len(found.store) == 14
    message = (
        "datamodule: `where` must select at least one sequence, but selects none of 40. Change its "
        "conditions"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        read(make_rows(), where={"kind": "z"})


def test_fields_are_renamed_before_the_selection_and_prepared_after_it():
    seen = []

    def prepare(store, notes=None):
        seen.append(list(store.ids))
        return store.take([0]) if notes is None else (store.take([0]), notes)

    options = {"rename": {"kind": "sort"}, "where": {"sort": "b", "year": 2001}}
    assert list(read(make_rows(), prepare=prepare, **options).store.ids) == ["r1"]
    assert seen == [["r1", "r16", "r31"]]
    found = read(make_rows(), prepare=partial(prepare, notes=["prepared"]), **options)
    assert found.notes == ("where: 3 of 40 sequences are selected", "prepared")


def test_a_path_is_opened_without_access_to_urls_if_another_location_has_it(tmp_path):
    write_store(tmp_path / "store", make_rows(2))
    remote = Remote(cache_dir=tmp_path)
    path = tmp_path / "store"
    assert len(read(path, train=path, val="s3://bucket/val", remote=remote).store) == 2
    with pytest.raises(ConfigError, match="`remote`"):  # it is for nothing
        read(path, train=path, remote=remote)


@pytest.mark.parametrize(
    ("data", "is_url"),
    [
        ("s3://bucket/a", True), ("https://host/a.tar", True), ("/local/a", False),
        ({"a": "local", "b": "s3://bucket/b"}, True), ({"a": "local"}, False),
        (["local", "s3://bucket/b"], True), (["local", "other"], False),
        ("s3://bucket/{a,b}", True), (None, False), (make_rows(2), False),
        (TABLE, False),
    ],
)  # fmt: skip
def test_urls_are_found_in_all_forms_of_locations(data, is_url):
    assert holds_url(data) is is_url


# Selecting


@pytest.mark.parametrize(
    ("where", "due"),
    [
        ({"kind": "a"}, lambda row: row["kind"] == "a"),
        ({"kind": ["a", "c"], "year": 2003}, lambda row: row["kind"] != "b" and row["year"] == 2003),  # noqa: E501
        ({"kind": {"a"}}, lambda row: row["kind"] == "a"),
        ({"year": (2001, 2003)}, lambda row: row["year"] in (2001, 2003)),
        ({"year": "2001..2003"}, lambda row: row["year"] in (2001, 2002)),
        ({"year": "..2001.5"}, lambda row: row["year"] <= 2001),
        ({"share": "2.5.."}, lambda row: row["share"] >= 2.5),
        ({"length": "..4"}, lambda row: len(row["x"]) < 4),
        ({"length": [2, 5]}, lambda row: len(row["x"]) in (2, 5)),
        ({"id": ["r3", "r7", "r99"]}, lambda row: row["id"] in ("r3", "r7")),
        (lambda row: len(row["x"]) == 3, lambda row: len(row["x"]) == 3),
        ({}, lambda row: True),
    ],
)  # fmt: skip
def test_sequences_are_selected_by_values(where, due):
    assert select(where) == [row["id"] for row in make_rows() if due(row)]


@examples(0.5, here=20)
@given(st.integers(-2, 42) | st.none(), st.integers(-2, 42) | st.none(), st.integers(1, 50))
def test_a_range_has_its_start_and_not_its_stop_whatever_is_read_at_once(start, stop, chunk):
    rows = [{"id": str(number), "x": [1.0], "n": number} for number in range(40)]
    text = f"{'' if start is None else start}..{'' if stop is None else stop}"
    due = [
        str(n) for n in range(40) if (start is None or start <= n) and (stop is None or n < stop)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqdata.runs.source._CHUNK", chunk)
        if start is None and stop is None:
            with pytest.raises(ConfigError):
                select({"n": text}, rows)
        elif None not in (start, stop) and start >= stop:
            return  # an empty range: see `make_bounds`
        else:
            assert select({"n": text}, rows) == due


def test_sequences_are_selected_by_dates():
    days = np.datetime64("2024-01-01") + np.arange(10)
    rows = [{"id": str(number), "x": [1.0], "day": day} for number, day in enumerate(days)]
    assert select({"day": "2024-01-03..2024-01-06"}, rows) == ["2", "3", "4"]


def test_fields_that_are_called_length_and_id_come_first():
    rows = [{"id": "r", "x": [1.0], "length": 7}, {"id": "s", "x": [1.0, 2.0], "length": 8}]
    assert select({"length": 7}, rows) == ["r"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"kinds": "a"}, "datamodule: `where`: no field 'kinds'; did you mean 'kind'"),
        (
            {"x": 1},
            "datamodule: field 'x' of `where` must be one with a value per sequence, but is "
            "float64[] along time. Pass a function of a sequence instead",
        ),
        (
            {"year": ["x", 3]},
            "datamodule: `where` of 'year' must be a number, a list of numbers, or a range "
            "'start..stop', but is ['x', 3]. The field holds int64",
        ),
        ({"year": "2024-01-01.."}, "a bound of 'year' must be a number, as its values are, but"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(where, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        select(where)


# Splitting


def test_parts_are_those_of_split_by_kind():
    store = open_store(make_rows())
    parts = {"train": 0.7, "val": 0.3}
    found = split_source(make_options(split={**parts, "seed": 4, "by": "kind"}), store)
    due = split(store, parts, seed=4, by="kind")
    assert list(found) == ["train", "val"]
    assert {kind: list(part.ids) for kind, part in found.items()} == {
        kind: list(part.ids) for kind, part in due.items()
    }


FEW = [{"x": np.ones(3), "kind": "ab"[number % 2]} for number in range(6)]


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({}, True),
        ({"seed": 1}, True),
        ({"exact": True}, False),
        ({"stratify": "kind"}, False),
        ({"along": "time"}, False),
        ({"train": "..2", "val": "2..", "along": "time"}, False),
        ({"train": 0.99, "val": 0.01}, False),  # exactly, a part would be empty
        ({"train": 0.34, "val": 0.66}, False),  # near enough
        ({"train": 0.4, "val": 0.6}, False),  # exact ones are no nearer
    ],
)
def test_parts_that_are_farther_from_their_fractions_than_needed_are_noted(options, is_said):
    store = open_store(FEW)
    made = make_options(train=FEW, split={"train": 0.7, "val": 0.3, **options})
    parts = {"train": store.take([0, 1]), "val": store.take([2, 3, 4, 5])}
    due = [
        "parts are train 2, val 4 of 6 sequences, farther from {'train': 0.7, 'val': 0.3} than "
        "they need to be: each is chosen by a hash. Write 'exact': True in `split` for exact "
        "fractions"
    ]
    assert describe_shares(made, store, parts) == (due if is_said else [])

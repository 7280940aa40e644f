"""Ids that are the values of a field: `open_store(id=)`, `write_store(id=)`, a field named `id`."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata import Fixed, Loader, concat, open_store, split, write_store
from seqdata.errors import ConfigError, DecodeError, SeqDataWarning, UnknownNameError

ROWS = [
    {"utt": "b", "n": 7, "x": [1, 2]},
    {"utt": "a", "n": 5, "x": [3]},
    {"utt": "c", "n": 6, "x": [4, 5, 6]},
]


def save_parquet(folder):
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), folder / "t.parquet")
    return folder / "t.parquet"


def save_store(folder):
    write_store(folder / "rows", ROWS)
    return folder / "rows"


SOURCES = {
    "rows": lambda _: ROWS,
    "pandas": lambda _: pd.DataFrame(ROWS),
    "arrow": lambda _: pa.Table.from_pylist(ROWS),
    "parquet": save_parquet,
    "store": save_store,
    "opened": lambda folder: open_store(save_store(folder)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["utt", "n"])
def test_a_field_names_the_sequences_of_whatever_is_opened(tmp_path, source, name):
    data = SOURCES[source](tmp_path)
    store = open_store(data, id=name)
    ids = [str(row[name]) for row in ROWS]
    assert list(store.ids) == ids
    assert [each["id"] for each in store] == ids
    assert [each[name] for each in store] == [row[name] for row in ROWS]  # and stays a field
    assert list(pickle.loads(pickle.dumps(store)).ids) == ids
    assert store.find(ids[::-1]).tolist() == [2, 1, 0]
    view = store.take([2, 0]).select("x")
    assert list(view.ids) == [ids[2], ids[0]]
    (batch,) = Loader(view, Fixed(2, shuffle=False))
    assert view.keys(batch) == [ids[2], ids[0]]
    assert store.fingerprint not in (open_store(data).fingerprint, view.fingerprint)
    written = write_store(tmp_path / "written", data, id=name)
    assert list(written.ids) == ids
    assert list(written.fields) == ["id", "utt", "n", "x"]


def test_a_split_by_id_goes_by_the_field():
    named = open_store([{"id": row["utt"], **row} for row in ROWS])
    chosen = open_store(ROWS, id="utt")
    parts = [split(store, {"a": 0.6, "b": 0.4}, seed=3, exact=True) for store in (named, chosen)]
    assert list(parts[0]["a"].ids) == list(parts[1]["a"].ids)


def test_a_field_that_is_renamed_to_id_names_the_sequences(tmp_path):
    renamed = open_store(ROWS).rename({"utt": "id"})
    assert renamed.keys([0, 1]) == list(renamed.ids)[:2] == ["b", "a"]
    assert renamed.select("x").take([1]).ids[0] == "a"
    assert list(concat([renamed, open_store([{"id": "z", "n": 1, "x": [1]}])]).ids) == [*"bacz"]
    assert list(concat([renamed.take([0]), renamed.take([2])]).ids) == ["b", "c"]
    assert list(write_store(tmp_path / "store", renamed).ids) == ["b", "a", "c"]


def test_another_field_id_is_left_out_with_a_warning():
    rows = [{"id": f"{at}", **row} for at, row in enumerate(ROWS)]
    with pytest.warns(SeqDataWarning, match="field 'id' is dropped: sequences are named by 'utt'"):
        store = open_store(rows, id="utt")
    assert store[0] == {"id": "b", "utt": "b", "n": 7, "x": pytest.approx([1, 2])}


@pytest.mark.parametrize(
    ("rows", "name", "error", "message"),
    [
        (ROWS, "x", ConfigError, r"field 'x' must be of one string or integer .* along 'time'"),
        (ROWS, "ut", UnknownNameError, "id: no field 'ut'; did you mean 'utt'"),
        (
            [*ROWS, ROWS[0]], "utt", DecodeError,
            "sequence 3: the id must be unique, but 'b' is also the id of sequence 0. .* as `id`",
        ),
        (
            [{**row, "day": np.datetime64("2024-01-01")} for row in ROWS], "day", ConfigError,
            r"field 'day' must be of one string or integer .* but is of timestamp\[D\]",
        ),
    ],
)  # fmt: skip
def test_a_field_that_cannot_name_sequences_is_refused(rows, name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        open_store(rows, id=name)
    with pytest.raises(error, match=message):
        write_store(tmp_path / "store", rows, id=name)
    if name in rows[0]:
        with pytest.raises(error, match=message):
            open_store(rows).rename({name: "id"})


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (iter(ROWS), {}, r"`id` \('utt'\) is for a store, .* but the data is a list_iterator"),
        (ROWS, {"key": "n"}, r"`id` \('utt'\) and `key` \('n'\) cannot be combined"),
        (pd.DataFrame(ROWS), {"group": "n"}, r"and `group` \('n'\) cannot be combined"),
    ],
)
def test_what_id_does_not_go_with_is_refused(tmp_path, rows, options, message):
    with pytest.raises(ConfigError, match=message):
        write_store(tmp_path / "store", rows, id="utt", **options)


def test_id_and_group_cannot_be_combined():
    with pytest.raises(ConfigError, match="`id` and `group` cannot be combined, but are 'a' and"):
        open_store(pd.DataFrame({"a": [1], "g": [1]}), group="g", id="a")

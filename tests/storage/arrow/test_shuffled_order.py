"""Sequences by number, whatever they come in, and their random order: one for each seed."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata.storage.arrow.shuffled import draw_order, find_random_access, shuffle_rows
from seqdata.storage.dataset_items import DatasetItems
from seqdata.storage.inputs import normalize_sequences
from seqdata.storage.memory import MemoryStore
from seqdata.storage.store_rows import StoreSequences

COUNT = 2500  # more than are taken from a table at once
LISTS = [[number] * (number % 4) for number in range(COUNT)]
ROWS = [{"x": np.array(LISTS[n], np.int64), "y": n, "s": f"s{n}"} for n in range(COUNT)]
TABLE = pa.table({"x": LISTS, "y": range(COUNT), "s": [f"s{n}" for n in range(COUNT)]})
BATCHES = pa.concat_tables([TABLE.slice(0, 700), TABLE.slice(700, 1), TABLE.slice(701)])


class Items:
    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        return ROWS[number]


def shuffled(sequences, seed=3, key="id", axes=None):
    return shuffle_rows(find_random_access(sequences, axes), seed=seed, key=key)


# ---- the order


def test_the_order_is_the_same_on_every_machine():
    assert draw_order(7, 12).tolist() == [7, 3, 6, 9, 5, 10, 2, 1, 11, 8, 4, 0]
    assert draw_order((1 << 64) - 1, 6).tolist() == [4, 3, 2, 0, 1, 5]


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 5000])
def test_the_order_is_a_permutation(count):
    order = draw_order(0, count)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == [*range(count)]


def test_another_seed_is_another_order():
    orders = {tuple(draw_order(seed, 50).tolist()) for seed in range(200)}
    assert len(orders) == 200
    assert tuple(range(50)) not in orders


def test_every_place_is_as_likely_as_another():
    """Of 3000 orders of 10 numbers, each is about 300 times at each place."""
    orders = np.array([draw_order(seed, 10) for seed in range(3000)])
    counts = np.array([np.bincount(places, minlength=10) for places in orders.T])
    assert abs(counts - 300).max() < 6 * 300**0.5


# ---- what has random access


@pytest.mark.parametrize(
    "sequences",
    [
        ROWS,
        tuple(ROWS),
        TABLE,
        BATCHES,
        TABLE.combine_chunks().to_batches()[0],
        [TABLE.slice(0, 2000), TABLE.slice(2000)],
        TABLE.set_column(2, "s", TABLE["s"].dictionary_encode()),
        pd.DataFrame({"x": LISTS, "y": range(COUNT), "s": TABLE["s"].to_pylist()}),
        pl.DataFrame(TABLE),
        StoreSequences(MemoryStore.from_sequences(ROWS), "id"),
        DatasetItems(Items()),
    ],
    ids=lambda sequences: type(sequences).__name__,
)
def test_sequences_are_read_in_the_order_with_their_numbers_as_ids(sequences):
    found = shuffled(sequences)
    assert [int(row["id"]) for row in [found.first]] == [0]
    rows = list(found.rows)
    order = draw_order(3, COUNT)
    assert [row["id"] for row in rows] == [*map(str, order.tolist())]
    assert [int(row["y"]) for row in rows] == order.tolist()
    assert [row["s"] for row in rows] == [f"s{number}" for number in order]
    assert all(list(row["x"]) == LISTS[n] for row, n in zip(rows, order, strict=True))


def test_arrays_become_a_field_and_vectors_of_tables_keep_their_axis():
    rows = list(shuffled(np.arange(12).reshape(6, 2)).rows)
    assert [row["x"].tolist() for row in rows] == [[2 * n, 2 * n + 1] for n in draw_order(3, 6)]
    vectors = pa.array([[n, n] for n in range(4)], pa.list_(pa.int64(), 2))
    found = shuffled(pa.table({"x": [[1]] * 4, "v": vectors}), axes={"x": "frames"})
    assert found.axes == {"v": None, "x": "frames"}
    assert [row["v"].tolist() for row in found.rows] == [[n, n] for n in draw_order(3, 4)]


def test_few_rows_of_a_table_are_taken_at_once_where_they_are_large(monkeypatch):
    monkeypatch.setattr("seqdata.storage.arrow.shuffled._CHUNK_BYTES", 200)
    taken = []
    monkeypatch.setattr(
        "seqdata.storage.arrow.shuffled.normalize_sequences",
        lambda rows, axes: (
            taken.append(getattr(rows, "num_rows", 0)) or normalize_sequences(rows, axes)
        ),
    )
    rows = list(shuffled(pa.table({"x": [[n] * 10 for n in range(30)]})).rows)
    assert [int(row["id"]) for row in rows] == draw_order(3, 30).tolist()
    assert max(taken) == 2  # of 84 bytes each


@pytest.mark.parametrize(
    "sequences",
    [
        iter(ROWS),
        (row for row in ROWS),
        {"x": [1]},
        {"a": 1}.values(),
        "text",
        b"bytes",
        np.array(3),
        None,
        [],
        (),
        np.empty((0, 3)),
        TABLE.slice(0, 0),
        pd.DataFrame({"x": []}),
        [TABLE, 3],
        [TABLE, TABLE.select(["x"])],
        StoreSequences(MemoryStore.from_sequences(ROWS[:2]).take([]), "id"),
    ],
)
def test_what_has_no_random_access_or_no_sequence_is_told(sequences):
    assert find_random_access(sequences, None) is None


def test_an_index_of_a_frame_is_told_of_once():
    frame = pd.DataFrame({"x": [[1], [2], [3]]}, index=["a", "b", "c"])
    with pytest.warns(SeqDataWarning, match="the index is dropped") as warned:
        rows = list(shuffled(frame).rows)
    assert len(warned) == 1
    assert [row["x"] for row in rows] == [[n + 1] for n in draw_order(3, 3)]
    named = list(shuffled(frame.rename_axis("id")).rows)
    assert [row["id"] for row in named] == ["abc"[n] for n in draw_order(3, 3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        many = pa.table({"x": LISTS, "__index_level_0__": range(COUNT)})
        assert list(next(shuffled(many).rows)) == ["id", "x"]
    assert len(caught) == 1


# ---- ids


def test_ids_stay_with_their_sequences():
    rows = [{"id": f"utt-{number}", "x": [number]} for number in range(9)]
    found = list(shuffled(rows).rows)
    assert found == [rows[number] for number in draw_order(3, 9)]
    named = list(shuffled(rows, key="name").rows)
    assert [row["name"] for row in named] == [*map(str, draw_order(3, 9))]
    assert [row["id"] for row in named] == [row["id"] for row in found]


def test_sequences_may_be_numbered_as_they_are_written():
    found = shuffled(ROWS, key="")
    assert list(found.first) == ["x", "y", "s"]
    assert [row["y"] for row in found.rows] == draw_order(3, COUNT).tolist()


def test_ids_may_have_another_form():
    found = shuffle_rows(find_random_access(ROWS, None), seed=3, key="id", make_id="{:05d}".format)
    assert found.first["id"] == "00000"
    assert next(found.rows)["id"] == f"{draw_order(3, COUNT)[0]:05d}"


def test_ids_of_a_store_and_of_a_view_are_those_that_are_written_without_an_order():
    named = (
        MemoryStore.from_sequences([{"id": f"n{n}", "x": [n]} for n in range(6)])
        .select("x")
        .take([5, 0, 2])
    )
    found = list(shuffled(StoreSequences(named, "id")).rows)
    assert {row["id"]: row["x"].tolist() for row in found} == {"n5": [5], "n0": [0], "n2": [2]}
    numbered = MemoryStore.from_sequences([[n] for n in range(6)]).take([5, 0, 5])
    found = list(shuffled(StoreSequences(numbered, "id")).rows)
    assert {row["id"]: row["x"].tolist() for row in found} == {"0": [5], "1": [0], "2": [5]}


def test_the_first_sequence_of_the_input_determines_the_fields():
    rows = [{"x": [1.5]}, *({"x": []} for _ in range(20))]
    assert draw_order(3, 21)[0] != 0
    assert shuffled(rows).first["x"] == [1.5]


@pytest.mark.parametrize("value", [7, b"7", np.arange(2)])
def test_a_field_of_ids_that_holds_something_else_is_refused(value):
    with pytest.raises(
        ConfigError,
        match=f"`shuffle`: field 'id' must hold strings, .*, but holds a {type(value).__name__}. "
        ".* by `key` .* pass `key=''`$",
    ):
        shuffled([{"id": value, "x": [1]}])


@pytest.mark.parametrize(
    ("wrong", "key", "text"),
    [
        (7, "id", "sequence 2: must be a dict of fields like sequence 0, but is a int. Pass"),
        (7, "name", "sequence 2: must be a dict of fields like sequence 0, but is a int. Pass"),
        ({"id": "a", "x": [1], "name": "b"}, "name",
         "sequence 2: must have the fields of sequence 0, but has 'name' in addition. Give every"),
    ],
)  # fmt: skip
def test_a_sequence_unlike_the_first_is_named_by_its_number_in_the_input(wrong, key, text):
    rows = [{"id": f"n{number}", "x": [number]} for number in range(9)]
    rows[2] = wrong
    with pytest.raises(DecodeError, match=text) as caught:
        list(shuffled(rows, key=key).rows)
    assert caught.value.details == {"sequence": 2}


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pa.table, lambda rows: pa.table(rows).to_batches(1)]
)
def test_a_missing_value_is_named_by_its_row_in_the_input_before_the_order(make):
    table = make({"x": [[1], [2], [3]], "y": pd.array([1, 2, None], "Int64")})
    if isinstance(table, list):
        table = pa.Table.from_batches(table)
    with pytest.raises(DecodeError, match=r"'y': .* missing values, .* in row 2\."):
        find_random_access(table, None)

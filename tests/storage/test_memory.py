"""Sequences in memory, behind the same interface."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DecodeError
from seqdata.protocols import Column, Field, Store
from seqdata.resolve import resolve_store
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.memory import MemoryStore
from seqdata_testing.stores import check_store


def test_plain_arrays_are_a_store_with_the_field_x():
    store = MemoryStore.from_sequences([np.arange(3), np.arange(2)])
    assert isinstance(store, Store)
    assert store.fields == {"x": Field("int64", (), "time")}
    assert store.lengths.tolist() == [3, 2]
    assert store.shards == ("memory",)
    assert store.title == "MemoryStore(2 sequences)"
    column = store.read(np.array([[1, 0, 2], [0, 2, 3]]), ["x"])["x"]
    assert isinstance(column, Column)
    assert [column[0].tolist(), column[1].tolist()] == [[0, 1], [2]]
    assert (len(column), column.dtype, column.shape) == (2, np.int64, ())


def test_the_earlier_name_of_the_constructor_works():
    assert MemoryStore.of([[1], [2, 3]]).lengths.tolist() == [1, 2]


def test_dicts_have_ids_axes_and_fields_per_sequence():
    rows = [
        {"id": "a", "mel": np.ones((2, 3)), "text": b"xyz", "y": 1, "note": "p"},
        {"id": "b", "mel": np.ones((4, 3)), "text": b"", "y": 2, "note": ""},
    ]
    store = MemoryStore.from_sequences(rows, axes={"mel": "audio", "text": "text"})
    assert store.keys([1, 0]) == ["b", "a"]
    assert store.lengths.tolist() == [2, 4]  # no `time`: the first axis
    columns = store.read(np.array([[1, 1, 3], [0, 0, 0]]), store.fields, axis="audio")
    assert columns["mel"].lengths.tolist() == [2, 0]
    assert columns["text"].lengths.tolist() == [0, 3]
    assert columns["text"][1].tobytes() == b"xyz"
    assert columns["y"][0].tolist() == [2]
    assert columns["note"] == ["", "p"]


def test_given_arrays_are_copied():
    given = np.zeros(3)
    store = MemoryStore.from_sequences([given])
    given[:] = 1
    assert store.read(np.array([[0, 0, 3]]), ["x"])["x"][0].tolist() == [0, 0, 0]


def test_an_arrow_table_is_a_store():
    store = MemoryStore.from_sequences(pa.table({"id": ["a", "b"], "x": [[1], [2, 3]]}))
    assert store.lengths.tolist() == [1, 2]
    assert store.keys([0]) == ["a"]


def test_a_pickled_store_carries_its_data():
    store = MemoryStore.from_sequences([{"id": "a", "x": [1, 2], "ok": True}])
    again = pickle.loads(pickle.dumps(store))
    assert again.fingerprint == store.fingerprint
    assert again.keys([0]) == ["a"]
    assert again.read(np.array([[0, 1, 2]]), ["x"])["x"][0].tolist() == [2]


@pytest.mark.parametrize(
    "other",
    [
        [{"id": "b", "x": [1, 2]}],
        [{"id": "a", "x": [1, 3]}],
        [{"id": "a", "x": [1]}],
        [{"name": "a", "x": [1, 2]}],
        [{"id": "a", "x": [1.0, 2.0]}],
    ],
)
def test_the_fingerprint_is_of_ids_schema_and_content(other):
    first = [{"id": "a", "x": [1, 2]}]
    assert (
        MemoryStore.from_sequences(first).fingerprint
        == MemoryStore.from_sequences(first).fingerprint
    )
    assert (
        MemoryStore.from_sequences(other).fingerprint
        != MemoryStore.from_sequences(first).fingerprint
    )
    assert len(MemoryStore.from_sequences(first).fingerprint) == 32


def test_an_empty_list_is_an_error():
    with pytest.raises(
        ConfigError, match=r"`sequences` must hold at least one sequence, .* but is empty"
    ):
        MemoryStore.from_sequences([])


def test_a_sequence_unlike_the_first_is_an_error_that_names_it():
    with pytest.raises(
        DecodeError, match=r"sequence 1, field 'x': must have dtype int64 .*, but has float64"
    ):
        MemoryStore.from_sequences([[1], [1.5]])


def test_an_id_that_two_sequences_have_is_an_error_that_names_both():
    with pytest.raises(DecodeError, match="sequence 2: the id must be unique, but 'a' is also"):
        MemoryStore.from_sequences([{"id": name, "x": [1]} for name in "aba"])


def test_a_span_that_is_not_there_is_an_error():
    column = MemoryStore.from_sequences([[1], [1, 2]]).read(np.array([[1, 0, 3]]), ["x"])["x"]
    text = "memory: sequence 1, field 'x': timesteps must be in 0..2, but 0..3 were requested"
    with pytest.raises(ConfigError, match=text):
        column[0]


def test_sequences_without_a_timestep_are_kept():
    store = MemoryStore.from_sequences([np.empty(0), np.empty(0)])
    assert store.lengths.tolist() == [0, 0]
    assert store.fingerprint
    assert store.read(np.array([[1, 0, 0]]), ["x"])["x"][0].shape == (0,)


def frame_rows():
    return [
        {"id": "a", "x": np.array([1.5, np.nan]), "m": np.ones((2, 3), np.float32), "y": 1},
        {"id": "b", "x": np.empty(0), "m": np.zeros((0, 3), np.float32), "y": 2},
        {"id": "c", "x": np.array([2.5]), "m": np.full((1, 3), 7, np.float32), "y": 3},
    ]


def test_a_pandas_frame_is_a_store():
    rows = frame_rows()
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in rows[0]})
    frame["kind"] = pd.Categorical(["u", "v", "u"])
    frame["small"] = np.array([1, 2, 3], dtype="int8")
    store = resolve_store(frame)
    due = [
        row | {"kind": kind, "small": np.int8(i + 1)}
        for i, (row, kind) in enumerate(zip(rows, "uvu", strict=True))
    ]
    assert store.fields["small"].dtype == "int8"
    check_store(store, due)


def test_a_frame_of_arrow_lists_is_a_store():
    lists = pd.array([[1, 2], [3]], dtype=pd.ArrowDtype(pa.list_(pa.int32())))
    store = resolve_store(pd.DataFrame({"x": lists}))
    assert store.fields == {"x": Field("int32", (), "time")}
    assert store.lengths.tolist() == [2, 1]


def test_a_polars_frame_is_a_store():
    rows = frame_rows()
    frame = pl.DataFrame(
        {
            "id": [row["id"] for row in rows],
            "x": [row["x"].tolist() for row in rows],
            "m": pl.Series(
                [row["m"].tolist() for row in rows], dtype=pl.List(pl.Array(pl.Float32, 3))
            ),
            "y": [1, 2, 3],
            "v": pl.Series([[1.0, 2.0]] * 3, dtype=pl.Array(pl.Float64, 2)),
            "kind": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
        }
    )
    store = resolve_store(frame)
    assert store.fields["v"] == Field("float64", (2,), None)
    due = [
        row | {"v": np.array([1.0, 2.0]), "kind": kind}
        for row, kind in zip(rows, "uvu", strict=True)
    ]
    check_store(store, due)
    series = MemoryStore.from_sequences(
        frame.select("v"), axes={"v": "time"}
    )  # unless `axes` says otherwise
    assert series.lengths.tolist() == [2, 2, 2]


def test_a_missing_value_of_a_frame_is_an_error_that_names_the_column():
    frame = pd.DataFrame({"x": [[1], [2]], "y": pd.array([1, None], "Int64")})
    with pytest.raises(
        DecodeError, match="table: column 'y': must not hold missing values, but holds one in"
    ):
        resolve_store(frame)
    frame = pd.DataFrame({"x": [[1], None]})
    with pytest.raises(DecodeError, match="sequence 1, field 'x': is None, which cannot be stored"):
        resolve_store(frame)
    with pytest.raises(
        DecodeError, match="'x': must not hold missing values, but holds one in row 0 inside its"
    ):
        resolve_store(pl.DataFrame({"x": [[1, None]]}))


def test_a_frame_without_rows_or_with_a_name_twice_is_an_error():
    frames = (pd.DataFrame({"x": []}), pl.DataFrame({"x": []}), pd.DataFrame(index=range(3)))
    for frame in frames:
        with pytest.raises(ConfigError, match="must have at least one row and column, but is a"):
            resolve_store(frame)
    twice = pd.DataFrame([[1, 2]], columns=["x", "x"])
    with pytest.raises(ConfigError, match="must have columns of different names, but has"):
        resolve_store(twice)


def test_a_frame_is_written_as_it_is_taken_into_memory(tmp_path):
    vectors = pl.Series([[1.0, 2.0]] * 2, dtype=pl.Array(pl.Float64, 2))
    frame = pl.DataFrame({"id": ["a", "b"], "x": [[1], [2, 3]], "v": vectors})
    due = [
        {"id": "a", "x": np.array([1]), "v": np.array([1.0, 2.0])},
        {"id": "b", "x": np.array([2, 3]), "v": np.array([1.0, 2.0])},
    ]
    given = [frame, frame.to_pandas(), frame.to_arrow().to_batches(), frame.to_arrow()]
    for number, sequences in enumerate(given):
        axes = {"v": None} if number == 1 else None  # cells of objects tell no fixed size
        check_store(write_arrow(tmp_path / str(number), sequences, axes=axes), due)

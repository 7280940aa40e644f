"""Which arrays of a file are fields, and what a sequence is: found, or said by options."""

import h5py
import numpy as np
import pytest
from arrays_samples import recordings, write, write_hdf5
from seqdata_arrays import HDF5

from seqdata import open_store
from seqdata.errors import ConfigError, DataError, DecodeError

GZIP = {"chunks": 16, "compression": "gzip", "shuffle": True}


@pytest.mark.parametrize("options", [{}, GZIP])
def test_a_group_is_a_sequence_in_natural_order(tmp_path, options):
    rows = recordings(12)
    store = open_store(write_hdf5(tmp_path / "x.h5", rows, **options), backend=HDF5())
    assert store.keys(range(12)) == [f"rec{number}" for number in range(12)]
    assert list(store.fields) == ["frames", "labels", "age", "subject"]


def test_arrays_of_one_group_are_the_fields_of_the_file(tmp_path):
    write(tmp_path / "x.h5", {"a/x": np.zeros((4, 2)), "a/y": np.arange(4)})
    store = open_store(tmp_path / "x.h5", backend=HDF5())
    assert store.keys([0]) == ["a"]
    assert set(store.fields) == {"x", "y"}


def test_groups_may_hold_groups(tmp_path):
    arrays = {f"{group}/{name}": np.arange(n) for group, n in (("p1", 3), ("p2", 5))
              for name in ("labels", "imu/acc", "imu/gyro")}  # fmt: skip
    store = open_store(write(tmp_path / "x.h5", arrays), backend=HDF5())
    assert (store.keys([0, 1]), store.lengths.tolist()) == (["p1", "p2"], [3, 5])
    assert set(store.fields) == {"labels", "imu/acc", "imu/gyro"}
    chosen = open_store(tmp_path / "x.h5", backend=HDF5(fields={"acc": "imu/acc"}))
    assert list(chosen.fields) == ["acc"]
    assert chosen.keys([1]) == ["p2"]


def test_arrays_that_are_sequences_or_fields_are_refused_until_it_is_said(tmp_path):
    write(tmp_path / "x.h5", {f"utt{number}": np.zeros((number, 4)) for number in (3, 20, 100)})
    with pytest.raises(DecodeError, match=r"3 arrays of one kind and several lengths.*per='array'"):
        open_store(tmp_path / "x.h5", backend=HDF5())
    store = open_store(tmp_path / "x.h5", backend=HDF5(per="array", fields=["mel"]))
    assert store.keys(range(3)) == ["utt3", "utt20", "utt100"]
    assert (list(store.fields), store.lengths.tolist()) == (["mel"], [3, 20, 100])
    store = open_store(tmp_path / "x.h5", backend=HDF5(per="file"))
    assert (len(store), len(store.lengths_of)) == (1, 3)


@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_long_arrays_are_cut_by_lengths_or_offsets(tmp_path, options):
    lengths = np.array([3, 0, 5, 2])
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, **options)
        file["n"], file["at"] = lengths, np.concatenate([[0], np.cumsum(lengths)])
        file["y"], file["who"] = np.arange(4) * 10, [b"a", b"b", b"c", b"d"]
        file["name"] = ["one", "two", "three", "four"]
    for index in ({"lengths": "n", "fields": ["x", "y", "name"]},
                  {"offsets": "at", "fields": ["x", "y", "name"]}):  # fmt: skip
        store = open_store(tmp_path / "x.h5", backend=HDF5(ids="who", **index))
        assert store.lengths.tolist() == lengths.tolist()
        assert store.keys(range(4)) == ["a", "b", "c", "d"]
        assert store[2]["x"].tolist() == values[3:8].tolist()
        assert (store[2]["y"], store[2]["name"]) == (20, "three")
    assert open_store(tmp_path / "x.h5", backend=HDF5(lengths="n", fields=["x"])).keys([3]) == ["3"]


def test_several_rates_are_several_axes(tmp_path):
    arrays = {f"r{n}/{name}": np.zeros(n * rate)
              for n in (3, 5) for name, rate in (("acc", 2), ("ecg", 10), ("gyro", 2))}  # fmt: skip
    store = open_store(write(tmp_path / "x.h5", arrays), backend=HDF5())
    assert {name: field.axis for name, field in store.fields.items()} == {
        "acc": "time", "ecg": "ecg", "gyro": "time",
    }  # fmt: skip
    assert store.lengths_of["ecg"].tolist() == [30, 50]
    named = open_store(tmp_path / "x.h5", backend=HDF5(axes={"acc": "slow", "gyro": "slow"}))
    assert named.lengths_of["slow"].tolist() == [6, 10]
    static = {f"r{n}/{name}": np.arange(n if name == "x" else 3) for n in (3, 5) for name in "xc"}
    store = open_store(write(tmp_path / "y.h5", static), backend=HDF5(axes={"c": None}))
    assert store[1]["c"].tolist() == [0, 1, 2]
    assert store.fields["c"].shape == (3,)


def test_attributes_and_single_values_are_fields_of_a_sequence(tmp_path):
    arrays = {f"r{n}/{name}": value for n in (1, 2)
              for name, value in (
                  ("x", np.arange(n)), ("rate", 500.5 * n), ("note", f"n{n}"))}  # fmt: skip
    attributes = [(f"r{n}", key, value) for n in (1, 2) for key, value in (
        ("site", f"é{n}"), ("gain", np.float32(0.1)), ("_hidden", 1), ("long", "x" * 300),
        ("vector", np.arange(3)))]  # fmt: skip
    write(tmp_path / "x.h5", arrays, [*attributes, ("r1", "only_here", 1)])
    store = open_store(tmp_path / "x.h5", backend=HDF5())
    assert set(store.fields) == {"x", "rate", "note", "site", "gain"}
    second = store[1]
    assert (second["rate"], second["note"], second["site"]) == (1001.0, "n2", "é2")
    assert second["gain"].dtype == np.float32
    named = HDF5(fields=["x"], attributes=["vector"])
    assert open_store(tmp_path / "x.h5", backend=named)[0]["vector"].tolist() == [0, 1, 2]
    none = open_store(tmp_path / "x.h5", backend=HDF5(fields=["x"], attributes=[]))
    assert list(none.fields) == ["x"]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({}, {}, "must hold at least one array, but holds none"),
        ({"x": np.float64(3)}, {}, "must hold an array of numbers with a dimension for time"),
        ({"x": [b"a", b"b"]}, {}, r"array 'x' must hold real numb.* holds strings \[2\].*`field"),
        ({"x": np.zeros(3, "c8")}, {}, "array 'x' must hold real numb.* holds complex64"),
        ({"x": np.zeros((3, 0))}, {}, r"'x' must hold real numbers in .*float64 \[3, 0\]"),
        ({"a/x": [1], "b/y": [1]}, {}, r"that hold arrays of the same names, but holds a: 'x'"),
        ({"a/x": [1], "b/x": [1.5]}, {}, r"int64 \[\] per timestep as in 'a/x', but 'b/x' is"),
        ({"a/x": [1], "b/y": [1]}, {"fields": ["x", "y"]}, "array 'y' of field 'y' in group 'a'"),
        ({"x": [1]}, {"fields": ["z"]}, "must have the array 'z' of field 'z'.*but has 'x'"),
        ({"x": [1]}, {"axes": {"z": "time"}}, "`axes` names 'z', but the fields are 'x'"),
        ({"x": [1], "y": [1, 2]}, {"axes": {"x": "t", "y": "t"}, "per": "file"},
         "field 'y' must have 1 timesteps, like the other fields along axis 't', but has 2"),
        ({"x": [1]}, {"attributes": ["age"]}, "'age' must be in every recording, but the file"),
        ({"x": [1], "n": [2]}, {"lengths": "m"}, "must have the array 'm' of `lengths`, but has"),
        ({"x": [1], "n": [.5]}, {"lengths": "n"}, "'n' of `lengths` must hold integers of one dim"),
        ({"x": [1], "n": [2, -1]}, {"lengths": "n"}, "in array 'n' must be at least 0, but do"),
        ({"x": [1], "n": [1, 2]}, {"offsets": "n"}, "must begin at 0 and not decrease"),
        ({"x": [1, 2, 3], "n": [2]}, {"lengths": "n"}, r"2 rows .* \(timesteps\), or 1 rows"),
        ({"x": [1], "n": [1], "i": [.5]}, {"lengths": "n", "ids": "i"}, "must hold 1 strings"),
        ({"x": [1], "y": [1]}, {"per": "array", "fields": ["x", "y"]}, "requires one name"),
        ({"x": 1.0}, {"per": "array"}, "needs a dimension for time, but 'x' is one number"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_in_one_way_only_is_refused(tmp_path, arrays, options, message):
    path = write(tmp_path / "x.h5", arrays)
    with pytest.raises(DataError, match=message) as caught:
        open_store(path, backend=HDF5(**options))
    assert caught.value.details["file"] == "x.h5"


def test_attributes_that_cannot_be_fields_are_refused_if_named(tmp_path):
    attributes = [("r1", "t", "x" * 300), ("r2", "t", "y"), ("r1", "k", 1), ("r2", "k", "z"),
                  ("r1", "x", 1), ("r2", "x", 1), ("r1", "only", 1)]  # fmt: skip
    write(tmp_path / "x.h5", {"r1/x": [1], "r2/x": [2]}, attributes)
    for name, message in (("t", "at most 256 bytes, but has 300"), ("k", "one dtype and shape"),
                          ("x", "has the name of a field"),
                          ("only", "but 'r2' has none")):  # fmt: skip
        with pytest.raises(DecodeError, match=message):
            open_store(tmp_path / "x.h5", backend=HDF5(attributes=[name]))


def test_a_text_of_any_size_needs_chunks(tmp_path):
    write(tmp_path / "x.h5", {"r1/x": [1], "r1/t": "x" * 300})
    with pytest.raises(DecodeError, match="string 't' must have at most 256 bytes, but has 300"):
        open_store(tmp_path / "x.h5", backend=HDF5())


def test_values_that_are_too_large_for_an_index_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("seqdata_arrays.layout.MOST_VALUE_BYTES", 100)
    write(tmp_path / "x.h5", {"r1/x": [1], "r1/c": np.zeros(100)})
    with pytest.raises(DecodeError, match=r"field 'c' must have at most 100 bytes.*but has 800"):
        open_store(tmp_path / "x.h5", backend=HDF5(axes={"c": None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "x"}, "`fields` must be a list of names, but is 'x'"),
        ({"attributes": "x"}, "`attributes` must be a list of names"),
        ({"per": "row"}, "`per` must be one of group, array, file, or None, but is 'row'"),
        ({"lengths": "n", "offsets": "o"}, "one of `lengths` and `offsets` must be given"),
        ({"lengths": "n", "per": "file"}, "`per` must be left out with `lengths`"),
        ({"ids": "i"}, "`ids` requires `lengths` or `offsets`"),
        ({"cache_bytes": -1}, "`cache_bytes` must be an integer of at least 0, but is -1"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        HDF5(**options)

"""The contract of a backend passes for the stores of the core, and finds stores that break it."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.memory import MemoryStore
from seqdata_testing import ConformanceError
from seqdata_testing.contract import StoreContract, sample_sequences
from seqdata_testing.stores import (
    check_description,
    check_looks,
    check_pickling,
    check_processes,
    check_raw_texts,
    check_reads,
    check_refusals,
    check_store,
)

ROWS = [{"x": np.arange(3)}, {"x": np.arange(2)}]


class TestMemoryStore(StoreContract):
    def make(self, folder, sequences):
        return MemoryStore.from_sequences(sequences)


class TestArrowStore(StoreContract):
    def make(self, folder, sequences):
        return write_arrow(folder / "data", sequences)


class TestArrowStoreOfManyShards(StoreContract):
    sequences = sample_sequences(40)

    def make(self, folder, sequences):
        store = write_arrow(folder / "data", sequences, shard_bytes=2_000)
        assert len(store.shards) > 3
        return store


class TestArrowStoreOfTwoAxes(StoreContract):
    sequences = tuple(
        {"mel": np.ones((length, 2), np.float16), "text": np.arange(length // 3), "raw": b"\0\xff"}
        for length in (7, 0, 30, 2)
    )
    methods = ()

    def make(self, folder, sequences):
        axes = {"mel": "time", "text": "text"}
        return write_arrow(folder / "data", sequences, axes=axes)


SEQUENCES = [
    {"x": np.arange(4), "name": "a"},
    {"x": np.arange(1), "name": "b"},
    {"x": np.arange(0), "name": "c"},
]
STORE = MemoryStore.from_sequences(SEQUENCES)


def untouched(columns):
    return columns


@dataclass
class Wrong:
    """A store that says or reads the wrong thing in one place."""

    told: dict[str, Any] = field(default_factory=dict)
    columns: Any = untouched

    def __len__(self):
        return self.told.get("len", len(STORE))

    @property
    def fields(self):
        return self.told.get("fields", STORE.fields)

    @property
    def lengths(self):
        return self.told.get("lengths", STORE.lengths)

    @property
    def lengths_of(self):
        return self.told.get("lengths_of", STORE.lengths_of)

    @property
    def shards(self):
        return STORE.shards

    @property
    def fingerprint(self):
        return self.told.get("fingerprint", STORE.fingerprint)

    def keys(self, numbers):
        return self.told.get("keys", STORE.keys(numbers))

    def base_numbers(self, numbers):
        return numbers

    def read(self, spans, fields, *, axis="time"):
        return self.columns(STORE.read(spans, fields, axis=axis))


def test_a_store_that_keeps_its_promises_passes():
    check_store(Wrong(), SEQUENCES, methods=())
    check_store(STORE, SEQUENCES, methods=("fork",))


def test_ids_are_compared_where_they_are_given():
    given = [{"id": key, **row} for key, row in zip(STORE.keys([0, 1, 2]), SEQUENCES, strict=True)]
    check_store(STORE, given)
    given[1]["id"], given[2]["id"] = given[2]["id"], given[1]["id"]
    with pytest.raises(ConformanceError, match="sequence 1, but must return its `id`, '2'"):
        check_store(STORE, given)
    del given[1]["id"], given[2]["id"]  # one sequence may say nothing
    check_store(STORE, given)


def test_a_field_may_be_named_id():
    sequences = [{"id": np.int64(7 - n), **row} for n, row in enumerate(SEQUENCES)]
    renamed = [{"number": row["id"], "x": row["x"], "name": row["name"]} for row in sequences]
    store = MemoryStore.from_sequences(renamed).rename({"number": "id"})
    assert "id" in store.fields
    check_description(store, sequences)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"len": 2}, "has 2 sequences, but must have 3"),
        ({"fields": {}}, r"has fields \[\], but must have \['name', 'x'\]"),
        (
            {"lengths_of": {"time": np.array([4, 1, 1])}},
            r"lengths along 'time' are \[4, 1, 1\] \(int64\), but must be those of field 'x', "
            r"integers",
        ),
        (
            {"lengths_of": {"time": np.array([4.0, 1.0, 0.0])}},
            r"are \[4.0, 1.0, 0.0\] \(float64\), but must be those of field 'x', integers",
        ),
        ({"lengths": np.array([1])}, r"`lengths` must be `lengths_of\['time'\]`, but differ"),
        ({"keys": ["a", "b"]}, "`keys` returns a list of 2, but must return a list of 3"),
        ({"keys": ("a", "b", "c")}, "`keys` returns a tuple of 3, but must return a list of 3"),
        (
            {"keys": ["a", "a", "b"]},
            r"`keys` returns \['a', 'a', 'b'\], but must return distinct strings",
        ),
        ({"keys": [1, 2, 3]}, r"`keys` returns \[1, 2, 3\], but must return distinct"),
        ({"fingerprint": "x"}, "`fingerprint` must be 32 hex digits, but is 'x'"),
    ],
)
def test_wrong_descriptions_are_found(told, message):
    with pytest.raises(ConformanceError, match=message):
        check_description(Wrong(told), SEQUENCES)


class Piece:
    """A column that is wrong in one place."""

    def __init__(self, column, **told):
        self.column, self.told = column, told
        self.dtype = told.get("dtype", column.dtype)
        self.shape, self.lengths = column.shape, column.lengths

    def __len__(self):
        return len(self.column)

    def __getitem__(self, number):
        return self.column[number] + self.told.get("piece", 0)

    def fill(self, out, bounds, padding):
        self.column.fill(out, bounds, None if "fill" in self.told else padding)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            lambda c: c | {"name": ["?"] * len(c["name"])},
            r"field 'name' must read .'a', .* but reads .'.'",
        ),
        (lambda c: c | {"x": list(c["x"])}, "field 'x' must read a Column, but reads a list"),
        (
            lambda c: c | {"x": Piece(c["x"], dtype=np.dtype("float32"))},
            r"reads a column of \(pieces, dtype, shape, lengths\) \(3, dtype\('float32'\).*must be",
        ),
        (
            lambda c: c | {"x": Piece(c["x"], piece=1)},
            "field 'x': piece 0 differs from what was written",
        ),
        (
            lambda c: c | {"x": Piece(c["x"], fill=0)},
            "field 'x': `fill` with padding .* must write each piece, then padding, but differs",
        ),
    ],
)
def test_wrong_reads_are_found(columns, message):
    with pytest.raises(ConformanceError, match=message):
        check_reads(Wrong(columns=columns), SEQUENCES)


class Padding:
    """A column that invents what is not there."""

    lengths = np.array([1])
    dtype = np.dtype("int64")
    shape = ()

    def __len__(self):
        return 1

    def __getitem__(self, number):
        return np.zeros(1)

    def fill(self, out, bounds, padding):
        out[:] = 0


class WrongTexts(Wrong):
    """A store whose raw texts are others in one place."""

    def raw_texts(self, name, numbers):
        values, offsets = STORE.raw_texts(name, numbers)
        return self.told.get(name, values), self.told.get("offsets", offsets)


def test_wrong_raw_texts_are_found():
    check_raw_texts(WrongTexts())
    check_raw_texts(Wrong())  # has none
    with pytest.raises(ConformanceError, match="raw texts of the ids differ from those that"):
        check_raw_texts(WrongTexts({None: np.zeros(3, np.uint8)}))
    for told in ({"name": np.zeros(3, np.uint8)}, {"offsets": np.array([0, 1, 2, 4])}):
        with pytest.raises(ConformanceError, match=r"raw texts of .* differ from those that"):
            check_raw_texts(WrongTexts(told))
    check_store(WrongTexts(), SEQUENCES)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("__getitem__", lambda self, number: ROWS[0], r"store: store\[1\]\['x'\] is array"),
        ("__getitem__", lambda self, number: ROWS[number % 2], r"store\[2\] must raise an IndexE"),
        (
            "__iter__",
            lambda self: iter(ROWS[:1]),
            "iterates over 1 sequences, but must iterate over 2",
        ),
        ("take", lambda self, numbers: self, r"store: store\[1\]\['x'\] is array"),
    ],
)
def test_a_store_that_shows_other_sequences_is_found(monkeypatch, name, wrong, message):
    store = MemoryStore.from_sequences(ROWS)
    check_looks(store, ROWS)
    monkeypatch.setattr(MemoryStore, name, wrong, raising=False)
    with pytest.raises(ConformanceError, match=message):
        check_looks(store, ROWS)


def test_a_store_that_reads_what_is_not_there_is_found():
    class Inventing(Wrong):
        def read(self, spans, fields, *, axis="time"):
            return {name: Padding() for name in fields}

    with pytest.raises(
        ConformanceError, match="reads an unknown field, but must raise an error of"
    ):
        check_refusals(Inventing())


def test_a_store_that_fills_past_an_end_is_found():
    class Careless(Wrong):
        def read(self, spans, fields, *, axis="time"):
            spans = np.clip(spans, 0, [len(STORE) - 1, 4, 4])
            return STORE.read(spans, fields, axis=axis)

    with pytest.raises(
        ConformanceError, match="reads sequence -1, but must raise an error of seqdata"
    ):
        check_refusals(Careless())


def test_a_store_that_writes_to_its_spans_is_found():
    class Writing(Wrong):
        def read(self, spans, fields, *, axis="time"):
            columns = STORE.read(spans.copy(), fields, axis=axis)
            spans[:, 2] = spans[:, 1]
            return columns

    with pytest.raises(ConformanceError, match="`read` writes to its spans, but must leave them"):
        check_reads(Writing(), SEQUENCES)


def test_a_store_that_leaves_out_what_comes_after_a_field_is_found():
    class Stopping(Wrong):
        def read(self, spans, fields, *, axis="time"):
            names = list(fields)
            return STORE.read(spans, names[: names.index("name") + 1], axis=axis)

    with pytest.raises(ConformanceError, match="the fields name, x, in any order, but returns nam"):
        check_reads(Stopping(), SEQUENCES)


def test_a_store_without_ragged_fields_is_found():
    with pytest.raises(ConformanceError, match="has no field with an axis, but must have one"):
        check_refusals(Wrong({"fields": {}}))


class Forgetful(Wrong):
    def __reduce__(self):
        return Wrong, ({"fingerprint": "0" * 32},)


def test_a_store_that_pickles_as_another_one_is_found():
    pickle.loads(pickle.dumps(Wrong()))
    with pytest.raises(
        ConformanceError, match=r"has fingerprint 0{32} after pickling, but must have"
    ):
        check_pickling(Forgetful(), SEQUENCES)


class Unstable(Wrong):
    """Reads once, then nothing more: what a handle that does not survive a fork does."""

    def read(self, spans, fields, *, axis="time"):
        if self.told.get("read"):
            raise SystemExit(3)
        self.told["read"] = True
        return STORE.read(spans, fields, axis=axis)


def test_a_child_that_dies_is_found():
    message = "child process started by fork must read [0-9a-f]{32}, but reads nothing: it died"
    with pytest.raises(ConformanceError, match=message):
        check_processes(Unstable(), ("fork",))

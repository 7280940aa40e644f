"""Ids by position and positions by id: every store and view counts by itself."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.api import concat, folds, open_store, split, write_store
from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, UnknownNameError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.zip import Zip
from seqdata.storage import ids as ids_module
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.ids import count_common_ends
from seqdata.storage.memory import MemoryStore
from seqdata.storage.text_bytes import concat_texts
from seqdata.storage.views import View
from tests.storage.somebodys import Somebodys

ROWS = [
    {"id": f"rec-{number:04d}", "x": np.full(1 + number % 3, number), "site": number % 4}
    for number in range(40)
]


def make_store():
    return MemoryStore.from_sequences(ROWS)


def of_dataset():
    return DatasetStore.from_dataset(ROWS, [len(row["x"]) for row in ROWS])


STORES = {
    "memory": make_store,
    "dataset": of_dataset,
    "somebody's": lambda: View(Somebodys(make_store())),
    "numbers": lambda: MemoryStore.from_sequences([{"x": row["x"]} for row in ROWS]),
    "take": lambda: make_store().take([7, 3, 39, 0]),
    "copies": lambda: make_store().take([7, 3, 7]),
    "slice": lambda: make_store()[30:4:-3],
    "view of a view": lambda: make_store().take([7, 3, 9])[::-1],
    "where": lambda: make_store().where(lambda row: row["site"] == 2),
    "fields": lambda: make_store().select("x").rename({"x": "y"}),
    "a part": lambda: split(make_store(), {"train": 0.5, "val": 0.5})["val"],
    "a fold": lambda: folds(make_store(), 3)[1][1],
    "in time": lambda: split(make_store().select("x"), {"a": "..1", "b": "1.."}, along="time")["b"],
    "a part of it": lambda: split(make_store().select("x"), {"a": "..1", "b": "1.."}, along="time")[
        "b"
    ].take([5, 2]),
    "joined": lambda: concat([make_store().take([4, 1]), of_dataset()]).take([2, 0, 1]),
    "joined parts": lambda: concat([make_store().take([9, 1]), make_store().take([2])]),
    "pickled": lambda: pickle.loads(pickle.dumps(make_store().take([8, 6]))),
}
each_store = pytest.mark.parametrize("make", STORES.values(), ids=STORES)


@each_store
def test_ids_count_as_the_store_does(make):
    store = make()
    due = [store[number]["id"] for number in range(len(store))]
    assert list(store.ids) == due
    assert store.ids[:] == due
    assert store.ids[-1] == due[-1]
    assert store.ids[[0, -1 % len(due)]] == [due[0], due[-1]]
    assert store.ids[np.arange(len(due))[::-1]] == due[::-1]
    assert np.asarray(store.ids).tolist() == due
    assert len(store.ids) == len(store.lengths)


@each_store
def test_an_id_finds_its_sequence(make):
    store = make()
    due = list(store.ids)
    positions = store.find(due[::-1])
    assert store.take(positions).ids[:] == due[::-1]
    if len(set(due)) == len(due):
        assert positions.tolist() == list(range(len(due)))[::-1]
    for number in (0, len(due) - 1):
        found, right = store[due[number]], store[number]
        assert found["id"] == right["id"]
        for name in store.fields:
            assert np.array_equal(found[name], right[name])
    assert due[0] in store.ids
    assert "rec-9999" not in store.ids
    assert 0 not in store.ids


@each_store
def test_a_batch_is_named_by_the_store_that_it_is_of(make):
    store = make()
    named = []
    for batch in Loader(store, Fixed(3), seed=4):
        keys = store.keys(batch)
        assert keys == store.ids[batch.positions]
        named += keys
    assert sorted(named) == sorted(store.ids)


@each_store
def test_numbers_given_to_a_view_that_selects_are_an_error(make):
    store = make()
    numbers = np.arange(len(store))
    if isinstance(store, View) and not store.has_all_sequences:
        for given_numbers in (numbers, numbers.tolist(), range(2), torch.arange(2), []):
            with pytest.raises(ConfigError, match=r"`view.ids\[numbers\]`.*`view.keys\(batch\)`"):
                store.keys(given_numbers)
        base = store.base.keys(store.base_numbers(numbers))
        assert base == get_base_keys(store, store.base_numbers(numbers)) == list(store.ids)
    else:
        assert store.keys(numbers) == list(store.ids)


def test_packed_rows_and_idle_lanes_are_named():
    store = make_store().take([4, 8, 15, 16, 23])
    for policy in (Packed(row_length=6, rows=2), TBPTT(chunk=2, lanes=3)):
        for batch in Loader(store, policy):
            due = ["" if number < 0 else ROWS[number]["id"] for number in batch.ids.tolist()]
            assert store.keys(batch) == due


@pytest.mark.parametrize("rows", [False, True])
def test_a_mixture_names_each_row_in_its_part(rows):
    store = make_store()
    others = [{"id": f"other-{n}", "x": np.ones(2, int), "site": 0} for n in range(4)]
    parts = {"a": store.take([9, 5, 7]), "b": open_store(others)}
    policy = Mix(dict.fromkeys(parts, 1), Fixed(2), rows=rows, **({} if rows else {"batches": 8}))
    loader = Loader(parts, policy)
    met = set()
    for batch in loader:
        keys = loader.store.keys(batch)
        names = [batch.part] * len(keys) if isinstance(batch.part, str) else batch.part
        for key, part, position in zip(keys, names, batch.positions.tolist(), strict=True):
            assert key.startswith("rec" if part == "a" else "other")
            assert key in parts[part].ids
            assert loader.store.ids[position] == key
        met |= set(keys)
        if rows:
            with pytest.raises(ConfigError, match=r"rows of several parts of a mixture\. Pass"):
                parts["a"].keys(batch)
        else:
            assert parts[batch.part].keys(batch) == keys
    assert met == {*parts["a"].ids, *parts["b"].ids}
    with pytest.raises(ConfigError, match=r"must be one of its batches, .* but is \[0\]"):
        loader.store.keys([0])
    plain = next(iter(Loader(store, Fixed(2))))
    with pytest.raises(
        ConfigError, match=r"must be one of its batches, .* but is one without `part`"
    ):
        loader.store.keys(plain)
    plain.part = "c"
    with pytest.raises(UnknownNameError, match="keys: no part 'c'"):
        loader.store.keys(plain)


def test_each_batch_of_a_step_is_named_in_its_part():
    parts = {"a": make_store().take([9, 5, 7]), "b": make_store().take([1, 0])}
    loader = Loader(parts, Zip({"a": Fixed(1), "b": Fixed(1)}))
    for step in loader:
        for name in parts:
            assert loader.store.keys(step[name])[0] in parts[name].ids


def test_a_missing_id_names_the_nearest_and_how_many_there_are():
    store = make_store()
    with pytest.raises(
        KeyError,
        match=r"one of 40 sequences, but there is no 'rec-0105'\. The nearest are 'rec-0005'",
    ):
        store["rec-0105"]
    with pytest.raises(UnknownNameError, match=r"no 'rex' \(and 1 more of 3\)"):
        store.find(["rex", "rec-0001", "rey"])
    with pytest.raises(UnknownNameError, match=r"no 'x'.*; for a field use `select`"):
        store["x"]
    with pytest.raises(UnknownNameError, match=r"one of 0 sequences.* There is no sequence"):
        store.take([]).find(["a"])
    for wrong in ("rec-0001", [1], [None]):
        with pytest.raises(ConfigError, match=r"find: `ids` must be a list of strings"):
            store.find(wrong)
    assert store.find([]).tolist() == []


def test_an_id_of_two_sequences_names_both_places(tmp_path):
    first = write_store(tmp_path / "one", ROWS[:3])
    second = write_store(tmp_path / "two", ROWS[2:5])
    joined = concat([first, second])
    assert joined.find(["rec-0001", "rec-0004"]).tolist() == [1, 5]
    with pytest.raises(
        ConfigError,
        match=r"id 'rec-0002' must belong to one sequence, but belongs to sequence 2 \(.*one.*\) "
        r"and sequence 3 \(.*two.*\)",
    ):
        joined["rec-0002"]


@pytest.mark.parametrize("position", [4, -5, [4], [-1], [0, 4]])
def test_a_position_that_is_not_there_is_an_index_error(position):
    with pytest.raises(IndexError, match=r"ids: .* must be in"):
        make_store()[:4].ids[position]


@pytest.mark.parametrize("position", [1.5, "a", [True], [[0]], None])
def test_what_is_no_position_is_refused(position):
    with pytest.raises(ConfigError, match=r"ids: `numbers` must be integers in one dimension"):
        make_store().ids[position]


def test_nothing_is_read_before_it_is_asked_for_and_the_index_is_made_once(monkeypatch):
    store = make_store()
    asked = []
    read = type(store).raw_texts
    monkeypatch.setattr(
        type(store), "raw_texts", lambda *given: asked.append(len(given[2])) or read(*given)
    )
    view = store[::-1]
    assert repr(view.ids) == "Ids(40: 'rec-0039', 'rec-0038', 'rec-0037', …)"
    assert not asked
    view.find(["rec-0001"])
    assert sum(asked) == 40
    view.find(["rec-0003"])
    assert view["rec-0004"]["id"] == "rec-0004"
    assert sum(asked) == 40
    assert "_ids" not in pickle.loads(pickle.dumps(view)).__dict__


def test_ids_of_equal_hashes_are_told_apart(monkeypatch):
    monkeypatch.setattr(
        ids_module,
        "hash_texts",
        lambda values, offsets, seed: np.zeros(len(offsets) - 1, np.uint64),
    )
    store = make_store()
    assert store.find(["rec-0031", "rec-0002"]).tolist() == [31, 2]
    with pytest.raises(UnknownNameError):
        store.find(["rec-0040"])


@settings(max_examples=60)
@given(st.text("ab", max_size=6), st.lists(st.text("ab", max_size=6), max_size=8))
def test_common_ends_are_those_of_a_simple_count(wanted, texts):
    def count_head(one, other):
        pairs = zip(one, other, strict=False)
        return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

    def count(text):
        ends = count_head(wanted, text) + count_head(wanted[::-1], text[::-1])
        return min(ends, len(text))

    found = count_common_ends(wanted.encode(), concat_texts(texts))
    assert found.tolist() == [count(text) for text in texts]

"""Views select, compose, split and fold; nothing is copied but numbers."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError
from seqdata.protocols import Store
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import folds, split, take, where
from seqdata.storage.writer import write_arrow


def made(count, speakers=5):
    rows = [
        {
            "id": f"u{i}",
            "x": np.full(i, i),
            "text": b"t" * (i + 1),
            "speaker": f"s{i % speakers}",
            "y": i % 3,
        }
        for i in range(count)
    ]
    return MemoryStore.of(rows, axes={"text": "text"})


def numbers(view):
    return view.numbers.tolist()


def test_a_view_is_a_store():
    store = made(6)
    view = store.take([5, 2, 2])
    assert isinstance(view, Store)
    assert len(view) == 3
    assert view.lengths.tolist() == [5, 2, 2]
    assert view.lengths.dtype == store.lengths.dtype
    assert view.lengths_of["text"].tolist() == [6, 3, 3]
    assert list(view.lengths_of) == ["time", "text"]
    assert len(view.lengths_of) == 2
    assert view.fields == store.fields
    assert view.shards == store.shards
    assert repr(view) == f"View(3 of {store!r})"


def test_a_view_reads_and_names_sequences_of_its_base():
    view = made(6).take([5, 2, 2])
    spans = np.array([[2, 0, 2], [0, 1, 5]])
    columns = view.read(spans, ["x", "id", "text", "y"])
    assert [columns["x"][i].tolist() for i in range(2)] == [[2, 2], [5, 5, 5, 5]]
    assert columns["id"] == ["u2", "u5"]
    assert columns["text"].lengths.tolist() == [3, 6]
    assert spans.tolist() == [[2, 0, 2], [0, 1, 5]]  # not changed
    assert view.keys(view.base_numbers(np.array([0, 1]))) == ["u5", "u2"]


def test_views_of_views_are_one_array_of_numbers_over_the_base():
    store = made(10)
    view = store.take([9, 7, 5, 3, 1]).where([True, False, True, True, False]).take([2, 0])
    assert view.base is store
    assert numbers(view) == [3, 9]
    assert view.lengths.tolist() == [3, 9]


@given(st.data())
def test_chains_of_views_select_what_numpy_selects(data):
    store = made(8)
    view, expected = store, np.arange(8)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()) and len(expected):
            chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9))
            view, expected = take(view, chosen), expected[np.array(chosen, dtype=int)]
        else:
            bits = st.integers(0, 1 << len(expected))
            mask = (data.draw(bits) >> np.arange(len(expected))) % 2 == 1
            view, expected = where(view, mask), expected[mask]
    assert numbers(view) == expected.tolist()
    assert view.lengths.tolist() == store.lengths[expected].tolist()


def test_a_mask_over_lengths_selects():
    store = made(6)
    assert numbers(store.where(store.lengths < 3)) == [0, 1, 2]


def test_an_empty_view_has_length_zero():
    assert len(made(3).take([])) == 0
    assert len(made(3).where(np.zeros(3, dtype=bool))) == 0


def test_a_pickled_view_is_the_same():
    view = made(6).take([4, 1])
    again = pickle.loads(pickle.dumps(view))
    assert numbers(again) == [4, 1]
    assert again.fingerprint == view.fingerprint


def test_the_fingerprint_is_of_base_and_numbers():
    store = made(4)
    prints = {
        store.fingerprint,
        store.take([0, 1]).fingerprint,
        store.take([1, 0]).fingerprint,
        made(5).take([0, 1]).fingerprint,
    }
    assert len(prints) == 4
    assert store.take([0, 1]).fingerprint == store.where([True, True, False, False]).fingerprint


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([0, 3], r"take: no sequence 3, must be in \[0, 3\); choose others"),
        ([-1], r"take: no sequence -1, must be in \[0, 3\)"),
        (
            [0.5],
            "take: `numbers` are float64 of 1 dimensions, must be integers in one dimension; for",
        ),
        ([True, False, True], "take: `numbers` are bool of 1 dimensions, must be integers"),
        ([[0]], "take: `numbers` are int64 of 2 dimensions, must be integers in one dimension"),
    ],
)
def test_numbers_that_cannot_be_taken_are_an_error(wanted, text):
    with pytest.raises(ConfigError, match=text):
        made(3).take(wanted)


@pytest.mark.parametrize("mask", [[True], [1, 0, 1], [[True] * 3]])
def test_a_mask_that_does_not_fit_is_an_error(mask):
    with pytest.raises(
        ConfigError, match=r"where: `mask` is .* of shape .*, must be bool of \(3,\)"
    ):
        made(3).where(mask)


@pytest.mark.parametrize("number", [2, -1, 1 << 40])
def test_a_span_of_a_sequence_outside_of_the_view_is_an_error(number):
    view = made(3).take([0, 1])
    with pytest.raises(ConfigError, match=rf"view: no sequence {number}, must be in \[0, 2\); was"):
        view.read(np.array([[number, 0, 0]]), ["x"])


# ---- split


def test_a_split_is_a_partition_in_the_stores_order():
    parts = split(made(200), {"train": 0.8, "val": 0.1, "test": 0.1})
    assert list(parts) == ["train", "val", "test"]
    everything = [numbers(part) for part in parts.values()]
    assert all(one == sorted(one) for one in everything)
    assert sorted(itertools.chain(*everything)) == list(range(200))
    assert 140 < len(everything[0]) < 180


def test_a_split_is_pinned_for_ever():
    """The hash is part of what users rely on: a validation set must never move."""
    parts = split(made(20), {"train": 0.7, "val": 0.3}, seed=3)
    assert numbers(parts["val"]) == PINNED


PINNED = [6, 11]


def test_a_split_stays_when_data_is_appended_or_reordered():
    parts = {"train": 0.7, "val": 0.3}
    short, long = split(made(50), parts), split(made(80), parts)
    assert numbers(short["val"]) == [i for i in numbers(long["val"]) if i < 50]
    turned = split(made(50).take(np.arange(50)[::-1]), parts)
    assert numbers(turned["val"]) == numbers(short["val"])[::-1]


def test_a_split_is_the_same_on_disk_and_in_memory(tmp_path):
    rows = [{"id": f"u{i}", "x": [i]} for i in range(40)]
    stored, held = write_arrow(tmp_path, rows, shard_bytes=99), MemoryStore.of(rows)
    parts = {"a": 0.5, "b": 0.5}
    assert numbers(split(stored, parts)["a"]) == numbers(split(held, parts)["a"])


def test_another_seed_gives_another_split():
    parts = {"a": 0.5, "b": 0.5}
    store = made(50)
    assert numbers(split(store, parts)["a"]) != numbers(split(store, parts, seed=1)["a"])


@pytest.mark.parametrize("by", ["speaker", "y"])
def test_a_split_by_a_field_keeps_its_values_together(by):
    store = made(60, speakers=20)
    parts = split(store, {"a": 0.5, "b": 0.5}, by=by, seed=1)
    key = (lambda i: i % 20) if by == "speaker" else (lambda i: i % 3)
    values = [{key(i) for i in numbers(part)} for part in parts.values()]
    assert not values[0] & values[1]


def test_a_split_of_more_sequences_than_are_hashed_together(tmp_path):
    store = MemoryStore.of([[0]] * 70_000)
    parts = split(store, {"a": 0.5, "b": 0.5})
    assert abs(len(parts["a"]) - 35_000) < 1_000


@pytest.mark.parametrize(
    "parts", [{}, {"a": 0.5}, {"a": 0.9, "b": 0.2}, {"a": 1.0, "b": 0.0}, {"a": 2.0, "b": -1.0}]
)
def test_fractions_that_do_not_add_up_are_an_error(parts):
    with pytest.raises(
        ConfigError, match=r"split: `parts` are .*, must be fractions above 0 that add"
    ):
        split(made(3), parts)


def test_an_empty_part_is_an_error():
    text = "split: part 'val' of 2 sequences is empty, must have one at least; make its fraction"
    with pytest.raises(ConfigError, match=text):
        split(made(2), {"train": 0.999, "val": 0.001})


def test_a_field_that_cannot_split_is_an_error():
    parts = {"a": 0.5, "b": 0.5}
    with pytest.raises(ConfigError, match=r"split: no field 'speeker', .*; did you mean 'speaker'"):
        split(made(9), parts, by="speeker")
    with pytest.raises(
        ConfigError, match="split: `by` is 'x', a field of many numbers, must have one"
    ):
        split(made(9), parts, by="x")


# ---- folds


def test_folds_are_a_partition_into_validation_views():
    pairs = folds(made(23), 5)
    assert sorted(itertools.chain(*(numbers(val) for _, val in pairs))) == list(range(23))
    assert {len(val) for _, val in pairs} == {4, 5}
    for train, val in pairs:
        assert sorted(numbers(train) + numbers(val)) == list(range(23))


def test_folds_by_a_field_keep_its_values_together():
    for train, val in folds(made(30, speakers=6), 3, by="speaker", seed=2):
        assert len({i % 6 for i in numbers(val)}) == 2
        assert not {i % 6 for i in numbers(val)} & {i % 6 for i in numbers(train)}


def test_another_seed_gives_other_folds():
    first, second = folds(made(30), 3), folds(made(30), 3, seed=1)
    assert numbers(first[0][1]) != numbers(second[0][1])


def test_too_many_or_too_few_folds_are_an_error():
    with pytest.raises(
        ConfigError, match=r"folds: `count` is 4, must be in \[2, 3\], as many sequen"
    ):
        folds(made(3), 4)
    with pytest.raises(
        ConfigError, match=r"`count` is 3, must be in \[2, 2\], as many values of 'spe"
    ):
        folds(made(9, speakers=2), 3, by="speaker")
    with pytest.raises(ConfigError, match="`count` is 1, must be in"):
        folds(made(3), 1)

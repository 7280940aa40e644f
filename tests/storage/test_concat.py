"""Several stores as one: numbered through, read in any order, the same everywhere a store goes."""

import pickle

import numpy as np
import pytest

from seqdata.errors import ConfigError, DataError
from seqdata.loading.loader import Loader
from seqdata.loading.measure_lengths import measure_lengths
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.concat import ConcatStore, concat_stores
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.memory import MemoryStore
from seqdata.storage.splitting import folds, split
from seqdata.storage.views import View, as_sequence_store, locate_sequence
from seqdata_testing.stores import check_store
from tests.storage.somebodys import Somebodys


def rows(first, count, ids=True):
    for i in range(first, first + count):
        row = {"x": np.arange(3.0 * (i % 5)).reshape(i % 5, 3), "y": i, "note": f"n{i % 3}"}
        yield ({"id": f"u{i}"} if ids else {}) | row


def first_words(sequence, rng):
    return {"x": sequence["x"][:2]}


def kinds(folder):
    held = MemoryStore.from_sequences(rows(0, 4))
    return [
        held,
        write_arrow(folder / "a", rows(4, 5), shard_bytes=200),
        DatasetStore.from_dataset(list(rows(9, 3)), [i % 5 for i in range(9, 12)]),
        Somebodys(MemoryStore.from_sequences(rows(12, 4))),
        MemoryStore.from_sequences(rows(10, 9)).take([6, 7]),
    ]


def test_stores_of_all_kinds_are_one_store(tmp_path):
    store = concat_stores(kinds(tmp_path))
    due = list(rows(0, 18))
    check_store(store, due, methods=("fork",))
    assert [one["id"] for one in store] == [f"u{i}" for i in range(18)]
    assert store[17]["y"] == 17
    assert len(store.shards) > 4
    view = store.take([17, 0, 5, 5, 13])
    check_store(store.where(store.lengths > 0).take([3, 1]), [due[4], due[2]], methods=())
    assert [one["id"] for one in view] == ["u17", "u0", "u5", "u5", "u13"]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_over_parts_are_those_of_one_store(tmp_path, workers):
    store = concat_stores(kinds(tmp_path))
    one = MemoryStore.from_sequences(rows(0, 18))
    joined = list(Loader(store, Bucketed(5), seed=3, num_workers=workers))
    for found, due in zip(joined, Loader(one, Bucketed(5), seed=3), strict=True):
        assert found["x"].equal(due["x"])
        assert found["y"].equal(due["y"])
        assert found["note"] == due["note"]
        assert store.keys(found) == one.keys(due)


def test_a_loader_over_parts_goes_on_where_it_was(tmp_path):
    store = concat_stores(kinds(tmp_path))
    loader = Loader(store, Fixed(4), seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = Loader(pickle.loads(pickle.dumps(store)), Fixed(4), seed=1)
    again.load_state_dict(state)
    assert [b.ids.tolist() for b in again] == [b.ids.tolist() for b in batches]


def test_parts_keep_their_ids_or_are_numbered_through():
    bare = concat_stores(
        [
            MemoryStore.from_sequences(rows(0, 2, ids=False)),
            MemoryStore.from_sequences(rows(0, 3, False)),
        ]
    )
    assert bare.keys(np.arange(5)) == ["0", "1", "2", "3", "4"]
    mixed = concat_stores(
        [
            MemoryStore.from_sequences(rows(0, 2)).select("x", "y"),
            MemoryStore.from_sequences(rows(0, 2, False)).select("x", "y"),
        ]
    )
    assert mixed.keys([3, 0, 2]) == ["3", "u0", "2"]
    values, offsets = mixed.raw_texts(None, np.array([3, 0, 2]))
    assert values.tobytes() == b"3u02"
    assert offsets.tolist() == [0, 1, 3, 4]


def test_splits_of_parts_are_those_of_one_store(tmp_path):
    def ids(view):
        return list(view.ids)

    store, one = concat_stores(kinds(tmp_path)), MemoryStore.from_sequences(rows(0, 18))
    for by in (None, "note", "y"):
        for found, due in zip(folds(store, 3, by=by), folds(one, 3, by=by), strict=True):
            assert [ids(view) for view in found] == [ids(view) for view in due]
    parts = split(store.rename({"note": "group"}), {"a": 0.5, "b": 0.5}, by="id")
    for name, due in split(one, {"a": 0.5, "b": 0.5}).items():
        assert ids(parts[name]) == ids(due)


def test_views_of_one_store_are_one_view_of_it():
    store = MemoryStore.from_sequences(rows(0, 6))
    view = concat_stores([store.take([1, 2]), store.take([2, 0])])
    assert isinstance(view, View)
    assert view.base is store
    assert view.numbers.tolist() == [1, 2, 2, 0]
    twice = concat_stores([store, store])
    assert twice.numbers.tolist() == [*range(6), *range(6)]
    named = concat_stores([store.rename({"x": "z"}), store.rename({"x": "z"}).take([3])])
    assert named.base is store
    assert named.numbers.tolist() == [*range(6), 3]
    assert "z" in named.fields
    assert concat_stores([store]) is store


def test_parts_may_have_other_names_and_another_order_of_fields():
    a = MemoryStore.from_sequences([{"x": [1, 2], "y": 1}])
    b = MemoryStore.from_sequences([{"label": 2, "load": [3]}]).rename({"load": "x", "label": "y"})
    store = concat_stores([a, b])
    check_store(store, [{"x": [1, 2], "y": 1}, {"x": [3], "y": 2}], methods=())
    check_store(
        concat_stores([b, a]).take([1, 0]), [{"x": [1, 2], "y": 1}, {"x": [3], "y": 2}], methods=()
    )


def test_an_axis_that_one_part_has_no_field_of_is_left_out():
    a = MemoryStore.from_sequences([{"x": [1, 2], "t": [1]}], axes={"t": "text"})
    store = concat_stores([a.select("x"), MemoryStore.from_sequences([{"x": [3]}])])
    assert dict(store.lengths_of).keys() == {"time"}
    assert store.lengths.tolist() == [2, 1]


def test_a_fingerprint_is_of_the_parts_and_their_order():
    a, b = MemoryStore.from_sequences([[1]]), MemoryStore.from_sequences([[2]])
    prints = {
        concat_stores(list(one)).fingerprint for one in [(a, b), (b, a), (a, a), (a, b, a), (a,)]
    }
    assert len(prints) == 5
    store = concat_stores([a, b])
    assert pickle.loads(pickle.dumps(store)).fingerprint == store.fingerprint


def test_other_fields_are_refused_and_both_are_shown():
    a = MemoryStore.from_sequences([{"x": np.zeros((2, 3), np.float32), "y": 1}])
    b = MemoryStore.from_sequences([{"x": np.zeros((2, 3)), "label": 1}])
    with pytest.raises(ConfigError) as caught:
        concat_stores([a, a, b])
    assert str(caught.value).splitlines() == [
        "concat: stores must have the same fields, but store 2 differs from store 0 in 'x', 'y', "
        "'label':",
        "  0: MemoryStore(1 sequences): x float32 (time, 3), y int64 per sequence",
        "  2: MemoryStore(1 sequences): x float64 (time, 3), label int64 per sequence",
        "Use `select` and `rename` to make them equal, or write one of them again",
    ]
    with pytest.raises(ConfigError, match="at least one store must be given"):
        concat_stores([])


def test_transforms_that_are_the_same_are_carried_on():
    a, b = (MemoryStore.from_sequences(rows(first, 6)) for first in (0, 6))
    views = [measure_lengths(one, first_words) for one in (a, b)]
    both = concat_stores(views)
    assert both.lengths.tolist() == [min(2, i % 5) for i in range(12)]
    (batch,) = Loader(both, Fixed(12, shuffle=False, empty="drop"))
    assert batch["x"].shape[1] == 2
    with pytest.raises(ConfigError, match="must carry the same transform, or none"):
        concat_stores([views[0], b])
    measured = measure_lengths(concat_stores([a, b]), first_words)
    assert measured.lengths.tolist() == both.lengths.tolist()


def test_errors_name_the_part_and_its_own_sequence(tmp_path):
    a, b = MemoryStore.from_sequences(rows(0, 3)), write_arrow(tmp_path / "b", rows(3, 3))
    store = concat_stores([a, b])
    place = locate_sequence(store, 4)
    assert (place.dataset, place.sequence, place.key) == (str(tmp_path / "b"), 1, "u4")
    assert locate_sequence(store, 99).sequence is None
    with pytest.raises(
        ConfigError, match=r"concat\(6 sequences of .* must be in \[0, 6\), but is 6"
    ):
        store.read(np.array([[6, 0, 1]]), ["x"])
    items = list(rows(0, 3))
    items[1] = {**items[1], "x": items[1]["x"][:0]}
    broken = concat_stores([a, DatasetStore.from_dataset(items, [0, 1, 2])])
    with pytest.raises(DataError, match="item 1, field 'x'"):
        list(broken)
    loader = Loader(broken, Fixed(6, empty="drop"), on_error="mask", prefetch=0)
    (batch,) = loader
    assert len(loader.errors) == 1
    assert int((batch.weight == 0).sum()) == 1


def test_many_titles_are_cut():
    parts = [MemoryStore.from_sequences([[i]]) for i in range(5)]
    assert isinstance(concat_stores(parts), ConcatStore)
    assert concat_stores(parts).title.endswith("MemoryStore(1 sequences) and 2 more)")
    assert as_sequence_store(concat_stores(parts)).stores == tuple(parts)

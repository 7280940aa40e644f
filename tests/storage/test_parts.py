"""Named stores as the parts of one: numbers, ids and places stay those of each part."""

import pickle

import numpy as np
import pytest

from seqdata import (
    ConfigError,
    DataError,
    Fixed,
    Loader,
    Mix,
    measure_lengths,
    open_store,
    write_store,
)
from seqdata.index import SequenceIndex
from seqdata.protocols import SupportsParts
from seqdata.resolve import resolve_parts
from seqdata.storage.parts import PartsStore, drop_transform, join_parts

MIX = Mix({"a": 1, "b": 1}, Fixed(2))


def stores():
    """Two stores, the second a view whose base has other numbers."""
    first = open_store([{"id": f"a{n}", "x": [n] * (n + 1)} for n in range(3)])
    second = open_store([{"id": f"b{n}", "x": [10 + n] * 2} for n in range(5)])
    return {"a": first, "b": second.take([4, 0])}


def test_sequences_are_numbered_through():
    store = join_parts(stores())
    assert len(store) == 5
    assert store.lengths.tolist() == [1, 2, 3, 2, 2]
    spans = np.array([[3, 0, 2], [2, 1, 3], [4, 0, 1]])
    column = store.read(spans, ["x"])["x"]
    assert [column[number].tolist() for number in range(3)] == [[14, 14], [2, 2], [10]]
    assert store.ids[[0, 3, 4]] == ["a0", "b4", "b0"]


def test_own_numbers_are_those_of_each_parts_base():
    store = join_parts(stores())
    assert store.own_numbers(np.array([4, 0, 3, 2])).tolist() == [0, 0, 4, 2]
    assert store.parts["b"].base.keys([4]) == ["b4"]


def test_it_has_parts_after_pickling_and_with_an_observer():
    store = join_parts(stores())
    copy = pickle.loads(pickle.dumps(store))
    watched = store.observe(lambda number: None)
    for one in (store, copy, watched):
        assert isinstance(one, SupportsParts)
        assert list(one.parts) == ["a", "b"]
        assert one.fingerprint == store.fingerprint
    assert not isinstance(stores()["a"], SupportsParts)


def test_its_fingerprint_knows_names_and_their_order():
    made = stores()
    renamed = {"a": made["a"], "c": made["b"]}
    turned = {"b": made["b"], "a": made["a"]}
    prints = {join_parts(parts).fingerprint for parts in (made, renamed, turned)}
    assert len(prints) == 3


def test_its_index_has_the_parts_and_concatenates_no_lengths():
    index = SequenceIndex.from_store(join_parts(stores()))
    assert list(index.parts) == ["a", "b"]
    assert [part.lengths.tolist() for part in index.parts.values()] == [[1, 2, 3], [2, 2]]
    assert len(index) == 5
    assert index.parts["b"].keys([0]) == ["b4"]
    assert index.names([3]) == "'b4'"


def test_its_title_names_the_parts():
    assert join_parts(stores()).title.startswith("parts(5 sequences of 'a': MemoryStore(3 seq")


def test_a_place_is_that_of_the_parts_store(tmp_path):
    write_store(tmp_path / "one", [{"x": [1, 2]}])
    store = join_parts({"a": open_store([[7]]), "b": open_store(tmp_path / "one")})
    assert store.locate(1).dataset == str(tmp_path / "one")


def test_paths_and_rows_may_be_parts(tmp_path):
    write_store(tmp_path / "one", [{"x": [1, 2]}])
    store = resolve_parts({"a": tmp_path / "one", "b": [{"x": [3]}]}, MIX)
    assert isinstance(store, PartsStore)
    assert [sequence["x"].tolist() for sequence in store] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"x": [1.5]}, r"field 'x' is float64 \(time,\) in 'b' and int64 \(time,\) in 'a'"),
        ({"y": [1]}, r"field 'x' is missing in 'b' and int64 \(time,\) in 'a'"),
        ({"x": [1], "y": 2}, r"field 'y' is int64 per sequence in 'b' and missing in 'a'"),
    ],
)
def test_parts_of_other_fields_are_refused(second, said):
    with pytest.raises(ConfigError, match=said):
        resolve_parts({"a": [{"x": [1]}], "b": [second]}, MIX)


def test_an_empty_part_is_refused():
    with pytest.raises(ConfigError, match=r"parts: 'b' must have at least one sequence"):
        join_parts({"a": open_store([[1]]), "b": open_store([[1]]).take([])})
    with pytest.raises(ConfigError, match="at least one store must be named"):
        resolve_parts({}, MIX)


def test_a_part_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data: part 'b': .*nothing"):
        resolve_parts({"a": [[1]], "b": tmp_path / "nothing"}, MIX)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "seqdata-manifest.json").write_text("{")
    with pytest.raises((ConfigError, DataError), match="data: part 'b'"):
        resolve_parts({"a": [[1]], "b": tmp_path / "broken"}, MIX)


def double(sequence, rng):
    return {"x": np.repeat(sequence["x"], 2)}


def measured(rows, transform=double):
    return measure_lengths(open_store(rows), transform, cache=False)


@pytest.mark.parametrize("copied", [False, True])
def test_parts_with_the_same_transform_are_planned_by_its_lengths(copied):
    parts = {"a": measured([[1, 2], [3]]).take([1, 0]), "b": measured([[7, 8, 9]])}
    store = join_parts(parts)
    store = pickle.loads(pickle.dumps(store)) if copied else store
    assert store.lengths.tolist() == [2, 4, 6]
    assert store.measured_transform.lengths.tolist() == [2, 4, 6]
    assert drop_transform(store).lengths.tolist() == [1, 2, 3]
    assert drop_transform(store).measured_transform is None
    loader = Loader(store.parts, Mix({"a": 1, "b": 1}, Fixed(1), batches=6, keep="batch"))
    found = {(batch.part, *batch["x"][0].tolist()) for batch in loader}
    assert found == {("a", 1, 1, 2, 2), ("a", 3, 3), ("b", 7, 7, 8, 8, 9, 9)}
    assert [batch.ids.tolist() for batch in loader if batch.part == "a"].count([1]) > 0


@pytest.mark.parametrize("other", [None, lambda sequence, rng: sequence])
def test_parts_of_other_transforms_are_refused(other):
    second = open_store([[1]]) if other is None else measured([[1]], other)
    with pytest.raises(
        ConfigError,
        match=r"parts: all must carry the same transform, or none, since rows .*, but carry "
        r"'a' double along 'time', 'b' (none|.*<lambda> along 'time')\. Pass one function",
    ):
        join_parts({"a": measured([[1, 2]]), "b": second})


def test_names_are_texts():
    with pytest.raises(ConfigError, match="parts: a name must be a string, but is 1"):
        resolve_parts({1: [[1]]}, MIX)


def test_named_stores_need_a_policy_that_draws_from_them():
    with pytest.raises(
        ConfigError, match=r"2 named stores need a policy that draws from them, but"
    ):
        resolve_parts(stores(), Fixed(2))

"""What every store has beyond the contract: to look at it, and to select fields and sequences."""

import pickle
import re

import numpy as np
import pytest
from matplotlib import pyplot

from seqdata.errors import ConfigError, SeqDataWarning, UnknownNameError
from seqdata.protocols import Store
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.foreign.store import open_foreign
from seqdata.storage.memory import MemoryStore
from seqdata.storage.splitting import split
from seqdata.storage.store_rows import StoreSequences
from seqdata.storage.views import SequenceStore, View, as_sequence_store
from seqdata_testing.stores import check_store
from tests.storage.rows import AXES, ROWS
from tests.storage.somebodys import Somebodys


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("kinds")
    held = MemoryStore.from_sequences(ROWS, axes=AXES)
    rows = [{"id": row["id"], "x": row["x"].tolist(), "y": row["y"]} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")
    return {
        "memory": held,
        "arrow": write_arrow(folder / "store", ROWS, axes=AXES),
        "view": held.take(np.arange(7)[::-1]).take(np.arange(7)[::-1]),
        "dataset": DatasetStore.from_dataset(
            [{k: r[k] for k in ("id", "x", "y")} for r in ROWS], range(7)
        ),
        "foreign": open_foreign(folder / "t.parquet"),
        "somebody's": as_sequence_store(Somebodys(held)),
        "selected": held.rename({"y": "label"}).rename({"label": "y"}),
    }


KINDS = ("memory", "arrow", "view", "dataset", "foreign", "somebody's", "selected")


@pytest.mark.parametrize("kind", KINDS)
def test_every_store_shows_a_sequence_by_number(stores, kind):
    store = stores[kind]
    assert isinstance(store, SequenceStore)
    assert isinstance(store, Store)
    for number, due in [(0, 0), (6, 6), (-1, 6), (-7, 0), (np.int64(3), 3)]:
        found = store[number]
        assert isinstance(found, dict)
        assert next(iter(found)) == "id"
        assert found["id"] == f"u{due}"
        assert found["y"] == due % 3
        assert np.array_equal(found["x"], ROWS[due]["x"]), (kind, number)
        found["x"][...] = 5  # a copy: nothing stored is changed
    assert np.array_equal(store[6]["x"], ROWS[6]["x"])
    for number in (7, -8, 1 << 40):
        with pytest.raises(IndexError, match=rf"must be in \[-7, 7\), but is {number}"):
            store[number]
    assert [one["id"] for one in store] == [f"u{i}" for i in range(7)]
    assert [one["id"] for one in reversed(store)] == [f"u{i}" for i in range(7)][::-1]
    assert [one["id"] for one in store[1::2]] == ["u1", "u3", "u5"]


def test_what_is_no_number_is_told_what_to_use():
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    for wrong in (1.5, True, [0, 1], np.array([1])):
        with pytest.raises(ConfigError, match=r"by its index or id, but is .*`take`"):
            store[wrong]


def test_sequences_without_ids_are_named_by_their_numbers():
    store = MemoryStore.from_sequences([[1, 2], [3], [4, 5]]).take([2, 0])
    assert [one["id"] for one in store] == ["2", "0"]


def test_iterating_reads_many_at_once_and_holds_few():
    reads = []

    class Counted(Somebodys):
        def read(self, spans, fields, *, axis="time"):
            reads.append(len(spans))
            return super().read(spans, fields, axis=axis)

    rows = [np.arange(3)] * 200
    assert len(list(as_sequence_store(Counted(MemoryStore.from_sequences(rows))))) == 200
    assert reads == [64, 64, 64, 8]


def test_where_takes_a_function_and_reads_only_what_it_asks_for():
    reads = []

    class Told(Somebodys):
        def read(self, spans, fields, *, axis="time"):
            fields = list(fields)
            reads.extend(fields)
            return super().read(spans, fields, axis=axis)

    store = as_sequence_store(Told(MemoryStore.from_sequences(ROWS, axes=AXES)))
    assert store.where(lambda sequence: sequence["y"] == 1).numbers.tolist() == [1, 4]
    assert reads == ["y"]
    assert store.where(lambda sequence: sequence["id"] in ("u2", "u5")).numbers.tolist() == [2, 5]
    chosen = store.where(lambda sequence: len(sequence["x"]) > 4 and bool(sequence["x"].any()))
    assert chosen.numbers.tolist() == [5, 6]
    assert chosen.where(lambda sequence: sequence["note"] == "n0").numbers.tolist() == [6]
    assert len(store.where(lambda sequence: False)) == 0
    seen = []
    store.where(lambda sequence: seen.append(dict(sequence)) or True)
    assert [list(one) for one in seen] == [["id", "x", "text", "y", "note"]] * 7
    assert seen[3]["text"].tobytes() == b"tttt"


def test_the_mapping_that_a_function_is_given_is_one_of_fields():
    def look(sequence):
        assert "y" in sequence
        assert "id" in sequence
        assert "z" not in sequence
        assert sequence.get("z") is None
        assert len(sequence) == 5
        assert repr(sequence).startswith("sequence ")
        with pytest.raises(UnknownNameError, match=r"no field 'nte'; did you mean 'note'"):
            sequence["nte"]
        with pytest.raises(KeyError):
            sequence["nte"]
        return True

    assert len(MemoryStore.from_sequences(ROWS, axes=AXES).where(look)) == 7


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            None,
            r"must return True or False, but returned None for sequence 0.*for an array, use \.any",
        ),
        (1, "but returned 1 for"),
        (np.array([True, False]), r"an array of shape \(2,\) for sequence 0\..* use .any\(\)"),
    ],
)
def test_an_answer_that_is_no_bool_is_refused(answer, text):
    with pytest.raises(ConfigError, match=text):
        MemoryStore.from_sequences([[1], [2]]).where(lambda sequence: answer)


def test_an_error_in_the_function_says_at_which_sequence():
    with pytest.raises(ZeroDivisionError) as caught:
        MemoryStore.from_sequences([[1], [0]]).where(
            lambda sequence: 1 // int(sequence["x"][0]) > 0
        )
    assert "sequence 1" in caught.value.__notes__[0]


def test_fields_are_selected_and_renamed():
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    view = store.select("y", "x").rename({"x": "mel"}).take([5, 2])
    assert list(view.fields) == ["y", "mel"]
    assert view.base is store
    assert view.names == {"y": "y", "mel": "x"}
    assert list(view.lengths_of) == ["time"]  # no field along `text` is left
    assert list(view[0]) == ["id", "y", "mel"]
    assert view[0]["id"] == "u5"
    assert view.title == "View(2 of MemoryStore(7 sequences))"
    check_store(view, [{"y": ROWS[i]["y"], "mel": ROWS[i]["x"]} for i in (5, 2)], methods=())
    with pytest.raises(ConfigError, match=r"no field 'x'. Choose one of mel, y"):
        view.read(np.array([[0, 0, 1]]), ["x"])
    assert store.select("text").lengths.tolist() == list(range(1, 8))  # the only axis that is left
    assert store.select("y").lengths.tolist() == list(range(7))
    assert list(view.where(lambda sequence: sequence["mel"].size > 4).numbers) == [5]


def test_exchanged_names_read_each_other():
    store = MemoryStore.from_sequences([{"a": [1, 2], "b": [3, 4]}]).rename({"a": "b", "b": "a"})
    assert store[0]["a"].tolist() == [3, 4]
    assert store[0]["b"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda store: store.select("x", "lable"), "select: no field 'lable'. Choose one of"),
        (lambda store: store.select("nte"), "did you mean 'note'"),
        (
            lambda store: store.select(["x"]),
            r"must be named by a string, but is \['x'\]. Write select",
        ),
        (lambda store: store.select(), "at least one field must be named"),
        (lambda store: store.rename({"nte": "a"}), "rename: no field 'nte'; did you mean 'note'"),
        (lambda store: store.rename({"x": "y"}), "but two would be 'y'. Choose another name, or"),
        (
            lambda store: store.rename({"x": 3}),
            "the new name of 'x' must be a non-empty string, but is 3",
        ),
        (lambda store: store.rename("x"), "names must be {'old': 'new'}, but are 'x'"),
    ],
)
def test_names_that_do_not_fit_are_refused(change, text):
    with pytest.raises(ConfigError, match=text):
        change(MemoryStore.from_sequences(ROWS, axes=AXES))


def test_a_view_with_a_transform_keeps_its_fields():
    from seqdata.loading.measure_lengths import measure_lengths

    store = MemoryStore.from_sequences([[1, 1, 2], [3]])
    view = measure_lengths(store.rename({"x": "t"}), lambda sequence, rng: {"t": sequence["t"][:1]})
    assert view.lengths.tolist() == [1, 1]
    assert view.names == {"t": "x"}
    assert view[0]["t"].tolist() == [1, 1, 2]  # what is stored
    assert len(view.where(lambda sequence: len(sequence["t"]) == 3)) == 1
    assert view.where([True, False]).measured_transform is not None
    for change in (lambda: view.select("t"), lambda: view.rename({"t": "s"})):
        with pytest.raises(ConfigError, match=r"Call `.*` before `measure_lengths`"):
            change()


def test_a_fingerprint_is_of_what_is_selected_and_how_it_is_named():
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    prints = [
        store.fingerprint,
        store.select("x").fingerprint,
        store.select("x", "y").fingerprint,
        store.select("y", "x").fingerprint,
        store.rename({"x": "z"}).fingerprint,
        store.rename({"x": "z"}).take([0]).fingerprint,
        store.take([0]).fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert store.take([0]).select("x").fingerprint == store.select("x").take([0]).fingerprint
    assert as_sequence_store(Somebodys(store)).fingerprint == store.fingerprint
    for view in (store.select("x"), store.rename({"x": "z"}).take([1, 0])):
        again = pickle.loads(pickle.dumps(view))
        assert again.fingerprint == view.fingerprint
        assert again[0].keys() == view[0].keys()


def test_parts_are_split_by_renamed_fields():
    store = MemoryStore.from_sequences([{"x": [i], "note": f"n{i % 20}"} for i in range(99)])
    for base in (store, Somebodys(store)):
        due = split(store, {"a": 0.5, "b": 0.5}, by="note")
        found = split(
            as_sequence_store(base).rename({"note": "speaker"}), {"a": 0.5, "b": 0.5}, by="speaker"
        )
        assert [found[name].numbers.tolist() for name in "ab"] == [
            due[name].numbers.tolist() for name in "ab"
        ]


def test_a_store_is_a_table_in_a_notebook():
    page = MemoryStore.from_sequences([{"<x>": [1, 2]}, {"<x>": [1]}])._repr_html_()
    assert "<td>&lt;x&gt;</td><td>int64</td><td>(time,)</td>" in page
    assert page.count("<rect") == 2
    assert not re.search("<x>", page)


def test_a_store_that_is_iterated_can_be_written_again(tmp_path):
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    again = write_arrow(tmp_path / "s", list(store), axes=AXES)
    assert again.fields == store.fields
    assert [dict(one).keys() for one in StoreSequences(store, "id")] == [row.keys() for row in ROWS]


def test_what_is_not_a_sequence_store_is_wrapped_once():
    theirs = Somebodys(MemoryStore.from_sequences([[1], [2, 3]]))
    view = as_sequence_store(theirs)
    assert isinstance(view, View)
    assert view.base is theirs
    assert view.is_identity
    assert view.has_all_sequences
    assert as_sequence_store(view) is view
    assert view.title == "Somebodys(2 sequences)"
    assert view.numbers.tolist() == [0, 1]


def test_ids_that_a_field_of_numbers_hides_are_left_out_with_a_warning(tmp_path):
    rows = [{"id": 7, "name": "a", "x": [1]}, {"id": 8, "name": "b", "x": [2]}]
    store = MemoryStore.from_sequences(rows, key="name")
    with pytest.warns(SeqDataWarning, match="field 'id' does not hold strings; rename it with"):
        assert [row["id"] for row in StoreSequences(store, "id")] == [7, 8]
    for number, key in ("number", "id"), ("id", "name"):  # what the warning says
        renamed = store.rename({"id": number})
        again = write_arrow(tmp_path / number, StoreSequences(renamed, key), key=key)
        assert again.keys([0, 1]) == ["a", "b"]
        assert [row[number] for row in again] == [7, 8]


def test_ids_are_a_field_where_sequences_are_to_be_numbered():
    store = View(MemoryStore.from_sequences(ROWS, axes=AXES)).select("x")
    assert "id" not in store.fields
    assert [row["id"] for row in StoreSequences(store, "")] == [row["id"] for row in ROWS]
    assert [*next(iter(StoreSequences(MemoryStore.from_sequences([[1], [2]]), "")))] == ["x"]


def test_a_sequence_does_not_list_every_number():
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    values[3] = np.nan
    row = {"id": "a", "x": values, "short": [1, 2], "t": "<" * 99, "nan": np.full(20, np.nan)}
    rows = [{**row, "short": np.array([1, 2]).repeat(10)[:20]}]
    sequence = MemoryStore.from_sequences(rows)[0]
    assert isinstance(sequence, dict)
    text = repr(sequence)
    assert "'x': <float32 (20, 2), 0 to 39>" in text
    assert "'nan': <float64 (20,)>" in text
    assert f"'t': <str of 99: {'<' * 80!r}...>" in text
    assert sequence["t"] == "<" * 99


def test_a_short_sequence_is_shown_as_a_dict():
    sequence = MemoryStore.from_sequences([{"id": "a", "x": np.arange(3), "b": b"12"}])[0]
    assert repr(sequence) == repr(dict(sequence))


def test_a_histogram_of_an_axis_that_there_is_not_is_an_error():
    with pytest.raises(UnknownNameError, match="store: no axis 'tme'; did you mean 'time'"):
        MemoryStore.from_sequences([{"x": np.arange(3)}]).plot(axis="tme")


def test_each_axis_has_a_histogram():
    store = MemoryStore.from_sequences([{"x": np.arange(3), "y": np.arange(9)}], axes={"y": "text"})
    figure = store.plot()
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "length along 'time', timesteps",
        "length along 'text', timesteps",
    ]
    assert store.plot(axis="text").get_title() == "1 sequences, 9 to 9 timesteps, mean 9.0"
    assert store._repr_html_().count("<svg") == 2
    pyplot.close("all")

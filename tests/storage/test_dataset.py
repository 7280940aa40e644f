"""A map-style Dataset is a store, its lengths given."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from seqdata.api import open_store
from seqdata.errors import ConfigError, DecodeError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.protocols import Field, Store
from seqdata.resolve import resolve_store
from seqdata.storage.dataset import DatasetStore
from seqdata_testing.loaders import check_content, check_resumes, check_worlds
from seqdata_testing.stores import check_store
from tests.storage import rows

LENGTHS = (3, 1, 5, 2, 4, 2, 7)


def sequences():
    random = np.random.default_rng(1)
    return [
        {
            "id": f"u{number}",
            "x": random.normal(size=(length, 2)).astype(np.float32),
            "on": np.arange(length) % 2 == 0,
            "y": number,
            "v": random.normal(size=6),
        }
        for number, length in enumerate(LENGTHS)
    ]


class Dicts(Dataset):
    """Items are dicts of tensors, made anew each time."""

    def __init__(self):
        self.rows = sequences()
        self.reads = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        self.reads += 1
        row = self.rows[number]
        return row | {name: torch.tensor(row[name]) for name in ("x", "on", "y", "v")}


class Items(Dataset):
    """Whatever items a test wants."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


@pytest.mark.parametrize(
    "methods", [("fork",), pytest.param(("fork", "spawn"), marks=pytest.mark.nightly)]
)
@pytest.mark.slow
def test_a_dataset_of_dicts_is_a_store(methods):
    store = resolve_store(Dicts(), lengths=LENGTHS)
    assert isinstance(store, Store)
    check_store(store, sequences(), methods=methods)
    assert store.fields["v"] == Field("float64", (6,), None)
    assert store.keys([6, 0]) == ["u6", "u0"]
    assert list(store.shards) == ["dataset"]
    assert store.title == "DatasetStore(Dicts, 7 items)"
    assert len(store.take([1, 1])) == 2
    assert len(store.where(store.lengths > 2)) == 4


@pytest.mark.slow
def test_a_process_that_is_started_reads_a_dataset():
    lengths = [len(row["x"]) for row in rows.ROWS]
    check_store(DatasetStore.from_dataset(rows.Items(), lengths), rows.ITEMS, methods=("spawn",))


def test_loaders_over_a_dataset_keep_their_promises():
    data = Dicts()

    def loader(world=None):
        return Loader(data, Bucketed(2), world=world, lengths=LENGTHS, seed=3)

    check_content(loader, resolve_store(data, lengths=LENGTHS), size=2)
    check_worlds(loader, [2, 3], epochs=2)
    check_resumes(loader, 2, [1])


def test_an_item_is_read_once_for_all_its_spans_of_a_batch():
    data = Dicts()
    store = resolve_store(data, lengths=LENGTHS)
    data.reads = 0
    columns = store.read(np.array([[2, 0, 2], [2, 2, 5], [0, 0, 1]]), ["x", "y"])
    assert data.reads == 2
    assert [len(columns["x"][i]) for i in range(3)] == [2, 3, 1]
    assert columns["y"][1].tolist() == [2]


def test_lengths_may_be_a_function_that_is_run_once_over_all_items():
    data = Dicts()
    seen = []

    def length_of(item):
        seen.append(item["id"])
        return len(item["x"])

    loader = Loader(data, Bucketed(2), lengths=length_of)
    list(loader)
    list(loader)
    assert seen == [f"u{number}" for number in range(7)]
    assert loader.store.lengths.tolist() == list(LENGTHS)


def test_a_function_of_lengths_that_raises_stop_iteration_is_named():
    def count(item):
        return next(iter(()))

    with pytest.raises(
        ConfigError, match=r"dataset: `lengths` \(.*count\) must return a value, but raised StopI"
    ):
        Loader(Dicts(), Fixed(1), lengths=count)


def test_counting_lengths_shows_a_bar(capfd):
    DatasetStore.from_dataset(Dicts(), lambda item: len(item["x"]), progress=True)
    assert "counting lengths" in capfd.readouterr().err
    DatasetStore.from_dataset(Dicts(), lambda item: len(item["x"]), progress=False)
    assert not capfd.readouterr().err


def test_items_that_are_arrays_have_the_field_x():
    store = resolve_store(Items(torch.arange(3), torch.arange(2)), lengths=[3, 2])
    check_store(store, [{"x": np.arange(3)}, {"x": np.arange(2)}])
    assert store.keys([1]) == ["1"]


def test_parts_of_a_tuple_are_named_by_their_place():
    parts = (np.arange(2), 5, 1.5, b"raw")
    store = resolve_store(Items(parts), lengths=[2])
    assert list(store.fields) == ["x", "y", "z", "field3"]
    check_store(store, [dict(zip(("x", "y", "z", "field3"), parts, strict=True))])


def test_parts_of_a_tuple_are_named_by_fields_where_there_are_as_many():
    data = TensorDataset(torch.arange(12).view(4, 3), torch.arange(4))
    lengths = np.full(4, 3)
    (batch,) = Loader(data, Fixed(4), lengths=lengths, fields=("tokens", "label"), prefetch=0)
    assert batch["tokens"].shape == (4, 3)
    assert sorted(batch["label"].tolist()) == [0, 1, 2, 3]
    (batch,) = Loader(data, Fixed(4), lengths=lengths, fields=("x",))  # one of two: chooses
    assert list(batch.data) == ["x"]


def test_a_subset_is_a_dataset_too():
    store = resolve_store(Subset(Dicts(), [2, 0]), lengths=[5, 3])
    check_store(store, [sequences()[2], sequences()[0]])


def test_a_field_may_be_named_as_none_per_item():
    data = Items({"x": np.zeros(2), "v": np.zeros(2)}, {"x": np.zeros(3), "v": np.ones(2)})
    store = DatasetStore.from_dataset(data, [2, 3], axes={"v": None})
    assert store.fields["v"] == Field("float64", (2,), None)
    check_store(store, list(data.items))


def test_axes_of_a_dataset_are_passed_on_and_compared():
    data = Items({"x": np.zeros(2), "v": np.zeros(2)}, {"x": np.zeros(3), "v": np.ones(2)})
    store = open_store(data, lengths=[2, 3], axes={"v": None, "x": "time"})
    check_store(store, list(data.items))
    with pytest.raises(DecodeError, match=r"item 1, field 'v': .* pass `axes=\{'v': None\}`"):
        open_store(data, lengths=[2, 3])[1]
    for axes, message in (
        ({"nope": None}, "no field 'nope'"),
        ({"x": [3]}, "axes"),
        ({"x": "text"}, "`axes` of 'x' must be None or 'time'"),
        ("x", "`axes`"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_store(data, lengths=[2, 3], axes=axes)
    with pytest.raises(ConfigError, match=r"field 'v': must have 3 timesteps, as `axes`"):
        open_store(Items({"x": np.zeros(3), "v": np.ones(2)}), lengths=[3], axes={"v": "time"})


def test_a_field_that_only_seemed_ragged_is_an_error_that_names_the_item():
    data = Items({"x": np.zeros(2), "v": np.zeros(2)}, {"x": np.zeros(3), "v": np.ones(2)})
    text = r"item 1, field 'v': must have 3 timesteps, as `lengths` says, but has 2\. Pass"
    with pytest.raises(DecodeError, match=text):
        list(Loader(data, Fixed(2), lengths=[2, 3]))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"x": np.zeros(3), "y": 1, "t": "b"},
            "'x': must have 2 timesteps, as `lengths` says, but has 3",
        ),
        ({"x": np.zeros(2, int), "y": 1, "t": "b"}, "'x': must have dtype float64, but has int64"),
        (
            {"x": np.zeros(2), "y": [1], "t": "b"},
            r"'y': must have shape \(\), but has \(1,\) \(for one",
        ),
        ({"x": np.zeros(2), "y": None, "t": "b"}, "'y': is None, which cannot be stored"),
        ({"x": np.zeros(2), "y": 1, "t": 2}, "'t': must be str, but is a int; item 0"),
    ],
)
def test_an_item_unlike_the_first_is_an_error_that_names_it(second, message):
    data = Items({"x": np.zeros(2), "y": 1, "t": "a"}, second)
    store = resolve_store(data, lengths=[2, 2])
    with pytest.raises(DecodeError, match=f"dataset: item 1, field {message}") as caught:
        store.read(np.array([[1, 0, 2]]), ["x", "y", "t"])
    assert caught.value.details["sequence"] == 1


def test_an_item_with_other_fields_is_an_error_that_names_it():
    store = resolve_store(Items({"x": np.zeros(2)}, {"z": np.zeros(2)}), lengths=[2, 2])
    with pytest.raises(
        DecodeError, match=r"item 1 must have x like item 0, but has z. Give all items"
    ):
        store.read(np.array([[1, 0, 2]]), ["x"])


def test_an_item_with_another_number_of_parts_is_an_error():
    with pytest.raises(
        ConfigError, match="an item must have one part for each of a, but has 2 parts"
    ):
        DatasetStore.from_dataset(Items((np.zeros(2), 1)), [2], names=["a"])


def test_what_a_dataset_raises_says_which_item_it_was():
    class Failing(Items):
        def __getitem__(self, number):
            if number:
                raise OSError("no such recording")
            return self.items[0]

    store = resolve_store(Failing(np.zeros(2), None), lengths=[2, 2])
    with pytest.raises(OSError, match="no such recording") as caught:
        store.read(np.array([[1, 0, 2]]), ["x"])
    assert caught.value.__notes__ == ["in item 1 of the dataset"]


class Stopping(Dataset):
    """Its item raises StopIteration, which would end a loop of the caller."""

    def __init__(self, at):
        self.at = at

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return {"x": np.zeros(2)} if number != self.at else next(iter(()))


@pytest.mark.parametrize(("at", "lengths"), [(0, [2, 2]), (1, lambda item: len(item["x"]))])
def test_an_item_that_raises_stop_iteration_is_named_where_the_store_is_made(at, lengths):
    with pytest.raises(
        ConfigError,
        match=r"dataset: `__getitem__` \(Stopping\) must return a value, but raised StopIteration",
    ) as caught:
        resolve_store(Stopping(at), lengths=lengths)
    assert caught.value.__notes__ == [f"in item {at} of the dataset"]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (None, "a Items has no lengths to plan with; pass `lengths`"),
        (
            [2],
            r"`lengths` must be integers of shape \(2,\), one per item, but are int64 of shape",
        ),
        ([2.0, 2.0], "`lengths` must be integers of .* are float64 of shape"),
        ([2, -1], "`lengths` must not be negative, but has -1 for item 1"),
        (
            [3, 2],
            r"item 0 must have an array with first dimension 3, .* but has x \(2,\)",
        ),
        (lambda item: 2.0, "`lengths` must return an integer, but returned 2.0 for item 0"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, message):
    with pytest.raises(ConfigError, match=f"dataset: {message}"):
        resolve_store(Items(np.zeros(2), np.zeros(2)), lengths=lengths)


@pytest.mark.parametrize("data", [[np.zeros(2)], resolve_store([[1, 2]]), "somewhere", {"x": [1]}])
def test_lengths_of_what_knows_its_own_are_refused(data):
    with pytest.raises(ConfigError, match=r"`lengths` are for a Dataset only, but the data is a"):
        resolve_store(data, lengths=[2])


def test_a_first_item_that_cannot_be_read_is_refused():
    with pytest.raises(DecodeError, match="item 0, field 'x': is None, which cannot be stored"):
        resolve_store(Items(None), lengths=[1])
    with pytest.raises(
        DecodeError, match=r"item 0, field 'x': must hold at least one .*, but has shape \(2, 0\)"
    ):
        resolve_store(Items(np.zeros((2, 0))), lengths=[2])
    with pytest.raises(ConfigError, match=r"no field 'z'. Choose one of x"):
        DatasetStore.from_dataset(Items(np.zeros(2)), [2], axes={"z": None})


def test_an_empty_dataset_is_refused():
    with pytest.raises(ConfigError, match="dataset: must have at least one item, but has none"):
        resolve_store(Items(), lengths=[])


def test_a_field_or_axis_that_is_not_there_is_an_error():
    store = resolve_store(Items(np.zeros(2)), lengths=[2])
    with pytest.raises(ConfigError, match=r"dataset: no field 'y'. Choose one of x"):
        store.read(np.array([[0, 0, 2]]), ["y"])
    with pytest.raises(ConfigError, match=r"dataset: no axis 'text'. Choose one of time"):
        store.read(np.array([[0, 0, 2]]), ["x"], axis="text")


def test_the_fingerprint_is_of_lengths_and_schema():
    first = resolve_store(Items(np.zeros(2)), lengths=[2])
    assert resolve_store(Items(np.ones(2)), lengths=[2]).fingerprint == first.fingerprint
    assert resolve_store(Items(np.ones(3)), lengths=[3]).fingerprint != first.fingerprint
    assert resolve_store(Items(np.ones(2, int)), lengths=[2]).fingerprint != first.fingerprint

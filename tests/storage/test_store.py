"""The one store class: what it says of itself, whatever reads its shards."""

import pickle

import numpy as np
import pytest

from seqdata import TokenBudget, World, concat, open_store, write_store
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.loading.prefetch import make_prefetch_hint
from seqdata.protocols import SupportsBase, SupportsLocality, SupportsStores
from seqdata.sharing import share
from seqdata.storage.memory import MemoryStore
from seqdata.storage.store import ShardStore

ROWS = [{"id": f"s{n}", "x": np.arange(n + 1, dtype=np.int32), "y": n} for n in range(7)]


@pytest.fixture(params=["arrow", "webdataset", "memory"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore.from_sequences(ROWS)
    return write_store(tmp_path / "store", ROWS, format=request.param)


def test_every_format_is_one_class(store):
    assert isinstance(store, ShardStore)
    assert type(store) in (ShardStore, MemoryStore)
    assert store.title.startswith(("ArrowStore(", "IndexedStore(", "MemoryStore("))


def test_ids_places_and_raw_texts_are_of_the_same_sequences(store):
    numbers = np.array([6, 0, 3])
    assert store.keys(numbers) == ["s6", "s0", "s3"]
    values, offsets = store.raw_texts(None, numbers)
    assert (values.tobytes(), offsets.tolist()) == (b"s6s0s3", [0, 2, 4, 6])
    assert [store.locate(n).key for n in (6, 0, 3)] == ["s6", "s0", "s3"]
    assert store.locate(-1).sequence is store.locate(7).sequence is None


def test_a_sequence_or_a_field_that_is_not_there_is_refused(store):
    with pytest.raises(ConfigError, match=r"must be in \[0, 7\), but is 7"):
        store.keys(np.array([0, 7]))
    with pytest.raises(ConfigError, match="no field of strings 'x'"):
        store.raw_texts("x", np.array([0]))
    with pytest.raises(ConfigError, match="no field 'z'"):
        store.populate(0, 1, ["z"])
    store.populate(0, 7)


def test_numbers_name_sequences_where_there_are_no_ids():
    store = MemoryStore.from_sequences([[1], [2, 3]])
    assert store.keys([1, 0]) == ["1", "0"]
    assert store.raw_texts(None, np.array([1, 0]))[0].tobytes() == b"10"
    with pytest.raises(ConfigError, match=r"must be in \[0, 2\), but is 2"):
        store.raw_texts(None, np.array([2]))


def test_a_pickle_is_the_same_store(store):
    again = pickle.loads(pickle.dumps(store))
    assert (again.title, again.fingerprint) == (store.title, store.fingerprint)
    assert again.is_copied_to_workers is store.is_copied_to_workers is (store.location is None)
    assert [row["x"].tolist() for row in again] == [row["x"].tolist() for row in store]


def test_local_data_is_not_fetched_ahead(store):
    steps = share(
        TokenBudget(16).plan(SequenceIndex.from_store(store), seed=0, epoch=0), World(0, 1)
    )
    assert store.is_local
    assert store.prefetch(np.arange(7)) is True
    assert make_prefetch_hint(store, steps) is None
    assert make_prefetch_hint(store.take([1, 2]), steps) is None


def test_what_loading_asks_of_a_store_is_a_capability(tmp_path):
    store = write_store(tmp_path / "store", ROWS)
    assert isinstance(store, SupportsLocality)
    assert store.folder == tmp_path / "store"
    assert MemoryStore.from_sequences(ROWS).folder is None
    assert isinstance(store.take([1]), SupportsBase)
    assert not isinstance(store, SupportsBase)
    joined = concat([store, open_store(ROWS)])
    assert isinstance(joined, SupportsStores)
    assert not isinstance(store, SupportsStores)

"""Very many files: one catalog in place of an index for each, and no file stays open or mapped."""

import pickle

import numpy as np
import pytest

from seqdata.backends import FormatBackend
from seqdata.errors import CorruptSampleError, CorruptShardError, MissingShardError
from seqdata.storage.indexed import catalogs
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store, digest_of
from tests.storage.indexed.records import Records, sequences, write_files

ROWS = sequences(30)


@pytest.fixture(autouse=True)
def many(monkeypatch):
    monkeypatch.setattr(catalogs, "MANY", 4)


def opened(location, **options):
    return FormatBackend(Records())(location, progress=False, **options)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", ROWS, per_file=2, digits=2)


class TestManyFiles(StoreContract):
    sequences = tuple(ROWS)
    methods = ("fork",)

    def make(self, folder, sequences):
        write_files(folder / "data", sequences, per_file=2, digits=2)
        return opened(folder / "data")


def names(folder):
    return [path.name.split("-")[0] for path in (folder / "seqdata-index").glob("*.idx")]


@pytest.mark.parametrize("verify", ["off", "first_read", "always"])
def test_a_catalog_has_the_indexes_of_all_files(folder, verify, monkeypatch):
    store = opened(folder, verify=verify)
    assert names(folder) == ["catalog"]
    check_store(store, ROWS)
    monkeypatch.setattr(Records, "index", None)  # it is not asked again
    check_store(opened(folder, verify=verify), ROWS)
    check_store(pickle.loads(pickle.dumps(store)), ROWS)


def test_it_is_the_store_that_fewer_files_are(folder, monkeypatch):
    store = opened(folder)
    monkeypatch.setattr(catalogs, "MANY", 1 << 20)
    other = opened(folder)
    assert store.fingerprint == other.fingerprint
    assert digest_of(store) == digest_of(other)


def test_files_that_are_added_are_indexed_alone(folder):
    opened(folder)
    write_files(folder / "later", sequences(4, seed=1), per_file=2, digits=2)
    store = opened(folder)
    assert len(store) == 34
    assert names(folder) == ["catalog", "catalog"]
    FormatBackend(Records()).build_index(folder, rebuild=True, progress=False)
    assert names(folder) == ["catalog"]
    assert opened(folder).fingerprint == store.fingerprint


def test_a_flipped_bit_is_named_where_it_lies_in_its_file(folder):
    store = opened(folder)
    shard = int(np.searchsorted(store._reader.layout.shard_offsets, 5, side="right")) - 1
    at = 5 - store._reader.layout.shard_offsets[shard]
    begin = int(store.manifest[shard].members["frames"].begins[at])
    path = folder / store.shards[shard]
    raw = bytearray(path.read_bytes())
    raw[begin] ^= 1
    path.write_bytes(raw)
    length = int(store.lengths[5])
    text = rf'"{store.shards[shard]}"\), sequence 5 \(.*field "frames", bytes {begin}\.\.'
    with pytest.raises(CorruptSampleError, match=text):
        store.read(np.array([[5, 0, length]]), ["frames"])["frames"][0]
    _, reports = FormatBackend(Records()).audit(
        str(folder), shard=None, repair=False, told=lambda _: None
    )
    assert [one.damages for one in reports].count(1) == 1


def test_a_file_of_another_size_or_none_is_an_error_when_it_is_read(folder):
    store = opened(folder)
    (folder / store.shards[0]).unlink()
    spans = np.array([[0, 0, 1]])
    with pytest.raises(MissingShardError, match=r'shard 0 \("part-00.recs"\)'):
        store.read(spans, ["frames"])
    path = folder / store.shards[1]
    path.write_bytes(path.read_bytes() + b"x")
    spans[0, 0] = store._reader.layout.shard_offsets[1]
    with pytest.raises(CorruptShardError, match="bytes as when it was indexed, but has"):
        store.read(spans, ["frames"])

"""Very many files: one catalog in place of an index for each, and no file stays open or mapped."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from seqdata.backends import FormatBackend
from seqdata.errors import (
    CorruptSampleError,
    CorruptShardError,
    FingerprintMismatch,
    MissingShardError,
)
from seqdata.storage.indexed import catalogs
from seqdata.storage.indexed.shard_index import dump_index
from seqdata.storage.indexed.shards import put_file
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store, digest_of
from tests.storage.indexed.records import (
    Documents,
    Records,
    sequences,
    write_documents,
    write_files,
)
from tests.storage.indexed.samples import make_index

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
    assert names(folder) == ["catalog2"]
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
    assert names(folder) == ["catalog2", "catalog2"]
    FormatBackend(Records()).build_index(folder, rebuild=True, progress=False)
    assert names(folder) == ["catalog2"]
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
        str(folder), shard=None, repair=False, on_progress=lambda _: None
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


def lengths_of(folder):
    return FormatBackend(Documents())(folder, progress=False).lengths.tolist()


@pytest.fixture
def documents(tmp_path):
    """Six files with one next to each: a folder, and the lengths of its documents."""
    for number in range(6):
        write_documents(tmp_path / "data" / f"{number}.tok", 10 * number + 10, 100)
    due = [length for number in range(6) for length in (10 * number + 10, 90 - 10 * number)]
    return tmp_path / "data", due


def test_a_sibling_belongs_to_the_index_in_a_catalog(documents, monkeypatch):
    folder, due = documents
    assert lengths_of(folder) == due
    write_documents(folder / "2.tok", 1, 100)
    due[4:6] = 1, 99
    assert lengths_of(folder) == due
    (folder / "3.ends").unlink()
    with pytest.raises(FingerprintMismatch, match=r'"3\.ends"\): was there when \'3\.tok\' was'):
        lengths_of(folder)
    FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
    due[6:8] = [100]
    assert lengths_of(folder) == due
    write_documents(folder / "3.tok", 7, 100)
    due[6:7] = 7, 93
    assert lengths_of(folder) == due
    monkeypatch.setattr(Documents, "index", None)  # it is not asked again
    assert lengths_of(folder) == due


def test_an_audit_compares_the_siblings_of_a_catalog(documents):
    folder, _ = documents
    lengths_of(folder)
    write_documents(folder / "2.tok", 1, 100)

    def audited(repair):
        _, reports = FormatBackend(Documents()).audit(
            str(folder), shard=None, repair=repair, on_progress=lambda _: None
        )
        return [report.damages for report in reports]

    assert audited(False) == [0, 0, 1, 0, 0, 0]
    assert audited(True) == audited(False) == [0] * 6


def test_a_rebuilt_catalog_stays_and_the_newest_counts(documents, monkeypatch):
    folder, due = documents
    lengths_of(folder)
    for _ in range(3):
        facts = FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
        assert facts["sequences"] == len(due)
        assert names(folder) == ["catalog2"]
    for first in (1, 2):
        write_documents(folder / "0.tok", first, 100)
        assert lengths_of(folder) == [first, 100 - first, *due[2:]]
    monkeypatch.setattr(Documents, "index", None)  # it is not asked again
    assert lengths_of(folder) == [2, 98, *due[2:]]


def lengths_with_cached_index(folder, monkeypatch):
    """Open files next to which nothing can be written."""

    def refuse(path, content):
        if path.is_relative_to(folder):
            raise PermissionError
        return put_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(catalogs, "put_file", refuse)
        return lengths_of(folder)


def test_a_catalog_next_to_the_files_may_be_newer_than_one_in_the_cache(documents, monkeypatch):
    folder, due = documents
    assert lengths_with_cached_index(folder, monkeypatch) == due
    write_documents(folder / "0.tok", 3, 100)
    assert lengths_of(folder) == [3, 97, *due[2:]]


def test_a_catalog_in_the_cache_misses_no_file(documents, monkeypatch):
    """Other data may have been at its path once."""
    folder, due = documents
    assert lengths_with_cached_index(folder, monkeypatch) == due
    (folder / "2.tok").unlink()
    assert lengths_of(folder) == due[:4] + due[6:]


def test_a_catalog_of_an_older_version_is_replaced(documents):
    """It has no siblings: what they say would be believed for ever."""
    folder, due = documents
    lengths_of(folder)
    (path,) = (folder / "seqdata-index").iterdir()
    path.rename(path.with_name(path.name.replace("catalog2-", "catalog-")))
    write_documents(folder / "2.tok", 1, 100)
    due[4:6] = 1, 99
    assert lengths_of(folder) == due
    assert names(folder) == ["catalog2"]


def test_a_damaged_catalog_is_rebuilt_as_the_error_says(documents):
    folder, due = documents
    lengths_of(folder)
    (path,) = (folder / "seqdata-index").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    text = r'indexes \("seqdata-index/catalog2-.*but is damaged.* `seqdata index --rebuild`, or rem'
    for read in (lengths_of, FormatBackend(Documents()).build_index):
        with pytest.raises(CorruptShardError, match=text):
            read(folder)
    FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
    assert lengths_of(folder) == due
    (path,) = (folder / "seqdata-index").iterdir()
    path.unlink()
    assert lengths_of(folder) == due


@pytest.mark.parametrize("gone", [["2.tok"], ["2.tok", "3.tok", "5.tok"]])  # then few are left
def test_a_file_of_a_catalog_that_is_gone_is_named(documents, gone):
    folder, due = documents
    lengths_of(folder)
    for name in gone:
        (folder / name).unlink()
    (path,) = (folder / "seqdata-index").glob("catalog2-*")
    text = rf'\("2.tok"\): is not there, but its index seqdata-index/{path.name} is. Restore the fi'
    with pytest.raises(MissingShardError, match=text):
        lengths_of(folder)
    path.unlink()
    assert len(lengths_of(folder)) == len(due) - 2 * len(gone)
    assert len(lengths_of(f"{folder}/*.tok")) == len(due) - 2 * len(gone)


def test_a_file_of_a_catalog_that_is_not_listed_is_not_gone(documents):
    """A glob may have named it, although it is hidden; or it came after the folder was listed."""
    folder, due = documents
    (folder / ".more").mkdir()
    write_documents(folder / ".more" / "x.tok", 4, 100)
    assert len(lengths_of([f"{folder}/*.tok", f"{folder}/.m*/*.tok"])) == len(due) + 2
    assert lengths_of(folder) == due


def test_names_of_a_table_that_cannot_be_true_are_left_to_who_reads_it(tmp_path):
    path = tmp_path / "seqdata-index" / "catalog2-000000-0.idx"
    catalog = catalogs.make_catalog([make_index()])
    put_file(path, dump_index(catalog))
    assert catalogs.read_names(tmp_path) == {"a.recs": path.name}
    for table in (None, {"names": catalog.table["names"]}):
        put_file(path, dump_index(replace(catalog, table=table)))
        assert catalogs.read_names(tmp_path) == {}


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"[1, 2]", b'[{"a": 1}, {}]', b'[{"a": ["x", "y"]}, {}]', b"\xff"]
)
def test_siblings_that_cannot_be_true_are_refused(tmp_path, text):
    catalog = catalogs.make_catalog([make_index(), make_index(shard="b.recs", siblings={})])
    known = [index.siblings for index in catalogs.split_catalog(catalog)]
    assert known == [{"a.ends": (3, "2" * 64)}, {}]
    table = {**catalog.table, "siblings": np.frombuffer(text, np.uint8)}
    path = tmp_path / "seqdata-index" / "catalog2-000000-0.idx"
    put_file(path, dump_index(replace(catalog, table=table)))
    identity = FormatIdentity(catalog.format_identity)
    with pytest.raises(CorruptShardError, match=r"catalog of indexes .* but is invalid \("):
        catalogs.read_catalogs(tmp_path, identity)


class FormatIdentity:
    name = "records"

    def __init__(self, identity):
        self.identity = identity

    def check(self, index):
        pass

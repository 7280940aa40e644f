"""The index of a dataset: one file for all files, next to them or in the user's cache."""

import hashlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from seqdata.backends import FormatBackend
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    FingerprintMismatch,
    MissingShardError,
    SeqDataWarning,
    UnsafeContentError,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed import index_file, index_folder, shards
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.index_file import dump_list
from seqdata.storage.indexed.index_folder import FolderIndex, LocalFiles
from seqdata.storage.indexed.shards import LocalShard
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.local_files import write_atomically
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store, digest_of
from tests.index_files import index_path, list_index_files, load_indexes
from tests.storage.indexed.records import (
    Documents,
    Records,
    sequences,
    write_documents,
    write_files,
)
from tests.storage.indexed.samples import make_index

ROWS = sequences(30)
IDENTITY = make_index().format_identity


@pytest.fixture(params=[4, 1 << 20], autouse=True, ids=["very many", "few"])
def many(request, monkeypatch):
    """Whether files are so many that they are not all mapped; their index is the same."""
    monkeypatch.setattr(shards, "MANY", request.param)
    return request.param == 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    return [path.name for path in list_index_files(folder)]


@pytest.mark.parametrize("verify", ["off", "first_read", "always"])
def test_one_file_has_the_indexes_of_all_files(folder, verify, monkeypatch):
    store = opened(folder, verify=verify)
    assert names(folder) == ["index.idx"]
    check_store(store, ROWS)
    monkeypatch.setattr(Records, "index", None)  # it is not asked again
    check_store(opened(folder, verify=verify), ROWS)
    check_store(pickle.loads(pickle.dumps(store)), ROWS)


def test_files_are_one_store_whether_few_or_very_many(folder, monkeypatch):
    store = opened(folder)
    monkeypatch.setattr(shards, "MANY", 1 << 20)
    other = opened(folder)
    assert store.fingerprint == other.fingerprint
    assert digest_of(store) == digest_of(other)


def test_files_that_are_added_are_indexed_alone(folder):
    opened(folder)
    write_files(folder / "later", sequences(4, seed=1), per_file=2, digits=2)
    store = opened(folder)
    assert len(store) == 34
    assert names(folder) == ["index.idx", "index-1.idx"]
    FormatBackend(Records()).build_index(folder, rebuild=True, progress=False)
    assert names(folder) == ["index.idx"]
    assert opened(folder).fingerprint == store.fingerprint


def lengths_of(folder):
    return FormatBackend(Documents())(folder, progress=False).lengths.tolist()


@pytest.fixture
def documents(tmp_path):
    """Six files with one next to each: a folder, and the lengths of its documents."""
    for number in range(6):
        write_documents(tmp_path / "data" / f"{number}.tok", 10 * number + 10, 100)
    due = [length for number in range(6) for length in (10 * number + 10, 90 - 10 * number)]
    return tmp_path / "data", due


def test_a_sibling_belongs_to_the_index(documents, monkeypatch):
    folder, due = documents
    assert lengths_of(folder) == due
    write_documents(folder / "2.tok", 1, 100)
    due[4:6] = 1, 99
    assert lengths_of(folder) == due
    (folder / "3.ends").unlink()
    with pytest.raises(FingerprintMismatch, match=r'"3\.ends"\): existed when \'3\.tok\' was'):
        lengths_of(folder)
    FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
    due[6:8] = [100]
    assert lengths_of(folder) == due
    write_documents(folder / "3.tok", 7, 100)
    due[6:7] = 7, 93
    assert lengths_of(folder) == due
    monkeypatch.setattr(Documents, "index", None)  # it is not asked again
    assert lengths_of(folder) == due


def test_an_audit_compares_siblings(documents):
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


def test_a_rebuilt_index_stays_and_the_newest_counts(documents, monkeypatch):
    folder, due = documents
    lengths_of(folder)
    for _ in range(3):
        facts = FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
        assert facts["sequences"] == len(due)
        assert names(folder) == ["index.idx"]
    for first in (1, 2):
        write_documents(folder / "0.tok", first, 100)
        assert lengths_of(folder) == [first, 100 - first, *due[2:]]
    monkeypatch.setattr(Documents, "index", None)  # it is not asked again
    assert lengths_of(folder) == [2, 98, *due[2:]]


@pytest.fixture
def refuse(monkeypatch):
    """Make a folder of data one that cannot be written to, for a call; root always can."""

    def call(folder, function, *arguments):
        def write(path, content):
            if path.is_relative_to(folder):
                raise PermissionError
            write_atomically(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(index_folder, "write_atomically", write)
            return function(*arguments)

    return call


def test_an_index_next_to_the_files_may_be_newer_than_one_in_the_cache(documents, refuse):
    folder, due = documents
    assert refuse(folder, lengths_of, folder) == due
    write_documents(folder / "0.tok", 3, 100)
    assert lengths_of(folder) == [3, 97, *due[2:]]


def test_an_index_in_the_cache_misses_no_file(documents, refuse):
    """Other data may have been at its path once."""
    folder, due = documents
    assert refuse(folder, lengths_of, folder) == due
    (folder / "2.tok").unlink()
    assert lengths_of(folder) == due[:4] + due[6:]


@pytest.mark.parametrize("damage", [b"nonsense", None])
def test_a_damaged_index_is_rebuilt_with_a_warning(documents, damage):
    folder, due = documents
    lengths_of(folder)
    path = index_path(folder)
    path.write_bytes(damage or path.read_bytes()[:-1])
    text = (
        r'index \("seqdata-index/index.idx"\): must be a valid index, but is damaged or not an ind'
    )
    with pytest.warns(SeqDataWarning, match=text):
        assert lengths_of(folder) == due
    assert lengths_of(folder) == due
    path.write_bytes(b"nonsense")
    FormatBackend(Documents()).build_index(folder, rebuild=True, progress=False)
    assert lengths_of(folder) == due
    path.unlink()
    assert lengths_of(folder) == due


@pytest.mark.parametrize("gone", [["2.tok"], ["2.tok", "3.tok", "5.tok"]])
def test_a_file_that_is_gone_is_named(documents, gone):
    folder, due = documents
    lengths_of(folder)
    for name in gone:
        (folder / name).unlink()
    text = r'\("2.tok"\): is not there, but its index in seqdata-index/index.idx is. Restore'
    with pytest.raises(MissingShardError, match=text):
        lengths_of(folder)
    assert len(lengths_of(f"{folder}/*.tok")) == len(due) - 2 * len(gone)
    FormatBackend(Documents()).build_index(folder, progress=False)  # as the message says
    assert len(lengths_of(folder)) == len(due) - 2 * len(gone)


def test_a_file_that_is_not_listed_is_not_gone(documents):
    """A glob may have named it, although it is hidden; or it came after the folder was listed."""
    folder, due = documents
    (folder / ".more").mkdir()
    write_documents(folder / ".more" / "x.tok", 4, 100)
    assert len(lengths_of([f"{folder}/*.tok", f"{folder}/.m*/*.tok"])) == len(due) + 2
    assert lengths_of(folder) == due


class AnyFormat:
    name = "records"

    def __init__(self, identity):
        self.identity = identity

    def check(self, index):
        pass


@pytest.fixture
def shard(tmp_path):
    (tmp_path / "data" / "more").mkdir(parents=True)
    (tmp_path / "data" / "more" / "a.recs").write_bytes(b"12 bytes now")
    return LocalShard(tmp_path / "data", "more/a.recs")


def index_in(shard, identity=IDENTITY):
    return FolderIndex(shard, AnyFormat(identity))


def make(shard="more/a.recs", **changes):
    return make_index(shard=shard, declared={}, **changes)


def test_an_index_is_saved_next_to_the_data_for_its_format(shard):
    assert index_in(shard).get(shard) is None
    index = index_in(shard)
    assert index.save([make()]) == str(shard.root / "seqdata-index")
    assert index.get(shard).shard == index_in(shard).get(shard).shard == "more/a.recs"
    assert index_in(shard, "another").get(shard) is None
    index_in(shard, "another").save([make(format_identity="another")])
    assert index_in(shard, "another").get(shard).format_identity == "another"
    assert index_in(shard).get(shard) is not None
    assert index_in(shard, "").get(shard) is None


def test_it_is_saved_in_the_cache_where_the_folder_cannot_be_written(shard, cache):
    (shard.root / "seqdata-index").touch()  # a file where the folder has to be
    for name in ("more/a.recs", "more/b.recs"):
        folder = index_in(shard).save([make(name)])
    assert folder == str(shard.cached)
    assert shard.cached.is_relative_to(cache)
    assert [path.name for path in shard.cached.iterdir()] == ["index.idx"]
    assert index_in(shard).get(shard).shard == "more/a.recs"
    cache_again = shutil.move(cache, cache.with_name("elsewhere"))
    assert cache_again
    cache.touch()
    text = "its index must be written to .*seqdata-index or .*, but neither is writable"
    with pytest.raises(ConfigError, match=text):
        index_in(shard).save([make()])


def test_a_cache_that_cannot_be_looked_into_has_no_index(documents, monkeypatch):
    folder, due = documents
    monkeypatch.setenv("SEQDATA_CACHE", "/" + "x" * 300)  # an error as of another user's folder
    assert lengths_of(folder) == due
    assert lengths_of(folder) == due


def test_an_index_folder_that_cannot_be_looked_into_is_named(shard):
    files = LocalFiles(shard.root / ("x" * 300))
    with pytest.raises(DataError, match=r"index\.idx.*cannot be opened \(File name too long\)"):
        files.read("index.idx", DataLocation(dataset="d", file="index.idx"))


@pytest.mark.parametrize("hours_ahead", [-1, 0, 1])
def test_the_index_that_was_written_last_counts_whatever_clocks_say(shard, refuse, hours_ahead):
    near = shard.root / "seqdata-index"
    for number, is_refused in enumerate((False, True, False, True)):
        changed = make(sha256=str(number) * 64)
        index = index_in(shard)
        folder = refuse(shard.root if is_refused else "/nothing", index.save, [changed])
        assert folder == str(shard.cached if is_refused else near)
        assert index_in(shard).get(shard).sha256 == changed.sha256
        for path in (shard.cached if is_refused else near).iterdir():
            now = path.stat().st_mtime_ns + hours_ahead * 3600 * 10**9  # of another clock
            if not (is_refused and hours_ahead < 0):
                os.utime(path, ns=(now, now))


def test_of_two_indexes_the_newest_that_fits_its_file_counts(shard, refuse):
    """A newer one may be of a file that was replaced by an older one, with its index."""
    first, second = "1" * 64, "2" * 64

    def save_both(near, cached):
        shutil.rmtree(shard.root / "seqdata-index", ignore_errors=True)
        shutil.rmtree(shard.cached, ignore_errors=True)
        index_in(shard).save([near])
        refuse(shard.root, index_in(shard).save, [cached])

    save_both(make(sha256=first), make(sha256=second))
    assert index_in(shard).get(shard).sha256 == second
    shard.path.write_bytes(b"13 bytes now.")
    assert index_in(shard).get(shard).sha256 == second  # none does: what is wrong is told
    save_both(make(bytes=13, sha256=first), make(sha256=second))
    assert index_in(shard).get(shard).sha256 == first


DECLARED = {"y": ("y", "int8", (), None)}


def write_list(shard, *names):
    path = shard.root / "seqdata-index" / "shards.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(dump_list([(name, "0" * 64) for name in names], DECLARED))


def test_an_index_says_what_the_list_of_the_folder_says(shard):
    write_list(shard, "more/a.recs", "b.recs")
    index = index_in(shard)
    assert list(index.listed) == ["more/a.recs", "b.recs"]
    assert index.get(shard) is None
    index.save([make()], rebuild=True)
    assert list(index_in(shard).listed) == ["more/a.recs", "b.recs"]
    assert index_in(shard).get(shard).declared == DECLARED


def test_an_index_of_many_bytes_is_in_several_files(shard, monkeypatch):
    monkeypatch.setattr(index_file, "PIECE_BYTES", 300)
    monkeypatch.setattr(index_folder, "PIECE_BYTES", 300)
    indexes = [make(name) for name in ("b", "c", "d", "e", "more/a.recs")]
    index_in(shard).save(indexes)
    assert names(shard.root) == ["index.idx", "index-1.idx", "index-2.idx"]
    assert sorted(load_indexes(shard.root)) == [index.shard for index in indexes]
    index_in(shard).save(indexes[:1], rebuild=True)
    assert sorted(load_indexes(shard.root)) == [index.shard for index in indexes]


def test_few_index_files_stay_however_often_files_are_added(shard):
    indexes = [make(f"{number:02}.recs") for number in range(20)]
    for index in indexes:
        index_in(shard).save([index])
    assert len(names(shard.root)) <= index_folder.MAX_FILES
    assert sorted(load_indexes(shard.root)) == [index.shard for index in indexes]


def test_builders_at_the_same_time_keep_what_each_has_built(shard):
    both = [index_in(shard), index_in(shard)]
    both[0].save([make("a")])
    both[1].save([make("b")])
    assert sorted(load_indexes(shard.root)) == ["a", "b"]


def test_files_that_are_gone_are_told_where_their_index_cannot_be_changed(folder, refuse):
    opened(folder)
    (folder / "part-00.recs").unlink()
    build = FormatBackend(Records()).build_index
    with pytest.raises(MissingShardError, match=r'"part-00.recs"\): is not there, but its index'):
        refuse(folder, build, folder)
    assert build(folder)["indexed"] == 0
    assert len(opened(folder)) == 28


def test_a_rebuilt_index_leaves_out_what_other_options_said_of_an_older_file(shard):
    index_in(shard, "another").save([make(format_identity="another")])
    index_in(shard).save([make(sha256="7" * 64)], rebuild=True)
    assert index_in(shard, "another").get(shard) is None


def test_a_file_is_created_once_and_replaced_as_a_whole(tmp_path, monkeypatch):
    def refuse_links(*_):
        raise OSError

    files = LocalFiles(tmp_path / "a")
    for name in ("x", "y"):
        assert files.create(name, b"first")
        assert not files.create(name, b"second")
        assert files.read(name, None) == b"first"
        monkeypatch.setattr(os, "link", refuse_links)  # a file system without links
    files.replace("x", b"third")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["x", "y"]
    assert files.read("x", None) == b"third"
    files.remove("x")
    files.remove("x")
    assert files.read("x", None) is None


def write_old(shard, content):
    """Write the index of a file as earlier releases have."""
    path = shard.root / "seqdata-index" / f"{shard.name}.idx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


OLD = Path(__file__).parents[2] / "compat" / "saved" / "tar" / "seqdata-index"


def as_of_anybody(content):
    """Return an index of an earlier release as of files that its writer has not written."""
    begin = content.index(b"\n") + 66
    text, _, arrays = content[begin:].partition(b"\n")
    info = json.dumps({**json.loads(text), "told": {}}).encode()
    body = info + b" " * (len(text) - len(info)) + b"\n" + arrays
    digest = hashlib.sha256(body).hexdigest().encode()
    return content[: begin - 65] + digest + b"\n" + body


def test_an_index_of_an_earlier_release_is_not_read_and_that_is_said(folder):
    content = (OLD / "shard-000000.tar.idx").read_bytes()
    for path in folder.rglob("*.recs"):
        shard = LocalShard(folder, path.relative_to(folder).as_posix())
        write_old(shard, as_of_anybody(content))
    with pytest.warns(SeqDataWarning, match="those of an earlier one were found: they are built"):
        store = opened(folder)
    assert len(store) == 30
    assert names(folder) == ["index.idx"]
    assert len(opened(folder)) == 30  # it is said once


def test_indexes_of_another_version_of_a_format_are_built_again_and_that_is_said(folder):
    opened(folder)
    with pytest.MonkeyPatch.context() as later:
        later.setattr(Records, "version", 7, raising=False)
        message = "version of the format, but those of 15 of 15 files are of another: they are bu"
        with pytest.warns(SeqDataWarning, match=message):
            assert len(opened(folder)) == 30
        assert len(opened(folder)) == 30  # it is said once
    assert len(opened(folder)) == 30  # the earlier index is kept


def test_an_index_of_an_earlier_writer_says_that_its_list_is_missing(shard):
    content = (OLD / "shard-000000.tar.idx").read_bytes()
    write_old(shard, content)
    assert index_in(shard, "").get(shard).declared
    write_old(shard, content[:-1])
    assert index_in(shard, "").get(shard) is None


def test_indexes_of_an_earlier_release_are_read_by_their_list(shard):
    lost = LocalShard(shard.root, "shard-000001.tar")
    first = replace(lost, name="shard-000000.tar")
    shutil.copytree(OLD, shard.root / "seqdata-index")
    (shard.root / "seqdata-index" / f"{lost.name}.idx").unlink()
    index = index_in(shard, "")
    assert list(index.listed) == [f"shard-{number:06}.tar" for number in range(5)]
    assert index.get(lost) is None
    due = index.get(first)
    assert due.declared == index.listed[first.name].declared
    index.save([make(lost.name, format_identity="")])  # an index is repaired
    again = index_in(shard, "")
    assert names(shard.root) == ["index.idx"]
    assert again.get(lost).declared == due.declared
    assert again.get(first).sha256 == due.sha256
    index_path(shard.root).unlink()
    write_old(first, b"nonsense")
    with pytest.raises(CorruptShardError, match=r"shard-000000.tar.idx.*damaged"):
        index_in(shard, "").get(first)


def test_a_remote_list_makes_no_file_outside_of_the_cache(tmp_path, cache, monkeypatch):
    """The index of a shard of a location that cannot be written to is kept on this machine."""

    def refuse(url, remote):
        raise ConfigError("it cannot be written to")

    monkeypatch.setattr(index_folder, "make_writable_files", refuse)
    system = fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}"
    for name in (f"{tmp_path}/x.recs", "../../../x.recs"):
        content = dump_list([(name, "1" * 64)], {})
        system.pipe_file(f"/{tmp_path.name}/seqdata-index/shards.json", content)
        with pytest.raises(UnsafeContentError):
            find_shards(url, UserFormat(Records()))
    system.rm(f"/{tmp_path.name}/seqdata-index/shards.json")
    system.pipe_file(f"/{tmp_path.name}/x.recs", b"")
    shard = find_shards(url, UserFormat(Records())).shards[0]
    assert index_in(shard).save([make("../../../x.recs")]) == str(shard.cached)
    assert [path.parent for path in tmp_path.rglob("*.idx")] == [shard.cached]
    system.rm(f"/{tmp_path.name}", recursive=True)

"""A store that is opened again, in a worker or by pickle, is the one that was opened, or an error.

Also after ``chdir``, and where other data was written to its place.
"""

import os
import pickle
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata import Fixed, Loader, open_store, write_store
from seqdata.errors import ConfigError, FingerprintMismatch
from seqdata.storage.local_files import local_path
from tests.storage.elsewhere import Elsewhere


def rows(first, lengths=(3, 1, 2)):
    return [{"x": np.arange(first, first + n), "y": first} for n in lengths]


def write_arrow(path, first, **options):
    write_store(path, rows(first, **options), overwrite=True)


def write_parquet(path, first, **options):
    given = rows(first, **options)
    columns = {"x": [row["x"].tolist() for row in given], "y": [row["y"] for row in given]}
    pa.parquet.write_table(pa.table(columns), path)


def write_feather(path, first, **options):
    given = rows(first, **options)
    table = pa.table({"x": [row["x"].tolist() for row in given]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


FORMS = {"store": write_arrow, "a.parquet": write_parquet, "a.arrow": write_feather}
forms = pytest.mark.parametrize("name", FORMS)


def all_of(store):
    spans = np.array([[n, 0, length] for n, length in enumerate(store.lengths.tolist())])
    return np.concatenate(list(store.read(spans, ["x"])["x"])).tolist()


def played(store, workers):
    loader = Loader(store, Fixed(1, shuffle=False), fields=("x",), num_workers=workers)
    try:
        return [value for batch in loader for value in batch["x"][0].tolist()]
    finally:
        loader.shutdown()


def expected(first):
    return np.concatenate([row["x"] for row in rows(first)]).tolist()


@forms
def test_a_relative_path_means_the_same_after_chdir(tmp_path, monkeypatch, name):
    for folder, first in (("here", 0), ("there", 100)):
        (tmp_path / folder).mkdir()
        FORMS[name](tmp_path / folder / name, first)
    monkeypatch.chdir(tmp_path / "here")
    store = open_store(name)
    sent = pickle.dumps(store)
    monkeypatch.chdir(tmp_path / "there")
    assert all_of(store) == all_of(pickle.loads(sent)) == expected(0)
    assert store.location == str(tmp_path / "here" / name)
    assert all_of(open_store(name)) == expected(100)


@pytest.mark.parametrize("name", ["store", "a.parquet"])
def test_workers_read_what_was_opened_after_chdir(tmp_path, monkeypatch, name):
    for folder, first in (("here", 0), ("there", 100)):
        (tmp_path / folder).mkdir()
        FORMS[name](tmp_path / folder / name, first)
    monkeypatch.chdir(tmp_path / "here")
    store = open_store(name)
    monkeypatch.chdir(tmp_path / "there")
    assert played(store, 1) == expected(0)


def later(path, since):
    """Return a file written since another time of its last change: clocks of files are coarse."""
    newer = since + 1_000_000
    os.utime(path, ns=(newer, newer))


def replaced(path, name, first, **options):
    """Write other data to a place; of a file, the time of the last change is another."""
    since = path.stat().st_mtime_ns
    FORMS[name](path, first, **options)
    if path.is_file():
        later(path, since)


@forms
@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 3, 1), (9, 9, 9)])
def test_an_old_store_is_never_unpickled_as_a_new_one(tmp_path, name, lengths):
    path = tmp_path / name
    FORMS[name](path, 0)
    sent = pickle.dumps(open_store(path))
    assert all_of(pickle.loads(sent)) == expected(0)
    replaced(path, name, 100, lengths=lengths)
    with pytest.raises(FingerprintMismatch, match="must be the data that was opened") as told:
        pickle.loads(sent)
    assert told.value.details["dataset"] == str(path)
    assert told.value.details["expected"] != told.value.details["found"]


@pytest.mark.parametrize("name", ["store", "a.parquet"])
def test_workers_refuse_other_data_under_the_old_path(tmp_path, name):
    path = tmp_path / name
    FORMS[name](path, 0)
    store = open_store(path)
    replaced(path, name, 100, lengths=(9, 9, 9))
    with pytest.raises(ConfigError, match=r"cannot open the data \(FingerprintMismatch: .* must"):
        played(store.take([1, 0]), 1)
    if name == "store":
        assert played(store, 0) == expected(0)  # it is mapped: it stays what it was


@pytest.mark.parametrize("rename", [True, False])
def test_a_parquet_file_that_was_replaced_is_an_error_without_workers_too(tmp_path, rename):
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_parquet(path, 0)
    store, status = open_store(path), path.stat()
    write_parquet(other, 100, lengths=(9, 9, 9))
    os.replace(other, path) if rename else shutil.copy(other, path)
    later(path, status.st_mtime_ns)
    with pytest.raises(FingerprintMismatch, match="must be the file that was opened") as told:
        all_of(store)
    assert told.value.details["file"] == "a.parquet"


def test_a_file_replaced_by_one_of_equal_size_and_time_is_noticed(tmp_path):
    """``cp -p`` and ``rsync -t`` keep the time; an uncompressed Arrow footer is the same."""
    path, other = tmp_path / "a.arrow", tmp_path / "b.arrow"
    for file, value in ((path, 1.0), (other, 2.0)):
        table = pa.table({"x": pa.array([[value] * 4] * 6)})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    store, status = open_store(path), path.stat()
    sent = pickle.dumps(store)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)
    assert path.stat().st_size == status.st_size
    with pytest.raises(FingerprintMismatch, match="must be the data that was opened"):
        pickle.loads(sent)
    with pytest.raises(ConfigError, match="cannot open the data"):
        played(store, 1)


def test_kept_lengths_are_of_this_version_of_a_file(tmp_path):
    """Two files of one size may have the same footer: the time of the last change counts."""
    path = tmp_path / "a.parquet"
    write_parquet(path, 0)
    assert open_store(path).lengths.tolist() == [3, 1, 2]
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    later(path, time.time_ns())
    open_store(path)
    assert len({*tmp_path.glob(".seqdata-lengths-*")} - {kept}) == 1


def test_workers_compare_the_data_of_any_backend(tmp_path):
    write_arrow(tmp_path / "store", 0)
    store = Elsewhere(str(tmp_path / "store"))
    write_arrow(tmp_path / "store", 100)
    with pytest.raises(ConfigError, match=r"cannot open the data \(FingerprintMismatch: .* must"):
        played(store, 1)


def test_a_path_is_absolute_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_path("a/b") == tmp_path / "a" / "b"
    assert local_path("file:///a/my%20b").as_posix() == "/a/my b"

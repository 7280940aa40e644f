"""Files that were changed in place after they were indexed: attributes, ids, values."""

import os
import shutil

import h5py
import numpy as np
import pytest
from arrays_samples import recordings, write_hdf5
from click.testing import CliRunner
from seqdata_arrays import HDF5
from seqdata_arrays.hdf5_file import HDF5Format

from seqdata import open_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, CorruptSampleError, FingerprintMismatch
from seqdata.storage.indexed import user_format
from seqdata.storage.indexed.index_folder import DataIndex

CHUNKS = {"chunks": 16, "compression": "gzip"}
CHANGED = r"x\.h5.*must have the ids, attributes and arrays that were indexed, but was changed in"


@pytest.fixture(params=[{}, CHUNKS], ids=["in place", "by chunks"])
def path(request, tmp_path):
    path = write_hdf5(tmp_path / "x.h5", recordings(5), **request.param)
    with h5py.File(path, "r+") as file:
        for number, name in enumerate(file):
            file[name].attrs["label"] = 100 + number
    assert labels_of(open_store(path, backend=HDF5())) == [100, 101, 102, 103, 104]
    return path


def labels_of(store):
    return [int(row["label"]) for row in store]


def touch(path):
    """Make a file one of another time."""
    found = path.stat().st_mtime_ns
    os.utime(path, ns=(found + 1, found + 1))


def edit(path, change):
    """Change a file in place, which keeps its size and both ends."""
    before, found = path.read_bytes(), path.stat().st_mtime_ns
    with h5py.File(path, "r+") as file:
        change(file[next(iter(file))])
    after = path.read_bytes()
    assert after != before
    assert len(after) == len(before)
    os.utime(path, ns=(found + 1, found + 1))


def relabel(group):
    group.attrs.modify("label", 7)


def remove_label(group):
    del group.attrs["label"]


def overwrite_values(group):
    def overwrite(name, item):
        if isinstance(item, h5py.Dataset) and item.size:
            item[...] = item[...] + 1

    group.file.visititems(overwrite)


@pytest.fixture
def indexed(monkeypatch):
    """The files whose structure is read, and those that are read for checksums."""
    read, summed = [], []
    index_file, sum_up = HDF5Format.index, user_format.make_shard_index

    def index(self, file):
        read.append(file.name)
        return index_file(self, file)

    def make_shard_index(name, *more, **extra):
        summed.append(name)
        return sum_up(name, *more, **extra)

    monkeypatch.setattr(HDF5Format, "index", index)
    monkeypatch.setattr(user_format, "make_shard_index", make_shard_index)
    return read, summed


@pytest.mark.parametrize("change", [relabel, remove_label])
def test_an_attribute_that_was_changed_in_place_is_noticed(path, change):
    edit(path, change)
    for _ in range(2):
        with pytest.raises(FingerprintMismatch, match=CHANGED):
            open_store(path, backend=HDF5())
    if change is relabel:
        done = CliRunner().invoke(app, ["index", str(path), "--rebuild"])
        assert done.exit_code == 0, done.output
        assert labels_of(open_store(path, backend=HDF5())) == [7, 101, 102, 103, 104]


def test_a_file_that_was_touched_is_compared_once_and_not_indexed_again(path, indexed):
    read, summed = indexed
    open_store(path, backend=HDF5())
    assert not read
    touch(path)
    for _ in range(2):
        assert labels_of(open_store(path, backend=HDF5()))[0] == 100
    assert set(read) == {"x.h5"}
    compared = len(read)
    open_store(path, backend=HDF5())
    assert (len(read), summed) == (compared, [])


def test_a_folder_that_was_copied_is_not_indexed_again(path, indexed, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir()
    shutil.copy(path, copied)
    shutil.copytree(path.parent / "seqdata-index", copied / "seqdata-index")
    touch(copied / "x.h5")
    store = open_store(copied, backend=HDF5())
    assert labels_of(store)[0] == 100
    assert store.fingerprint == open_store(path, backend=HDF5()).fingerprint
    assert indexed[1] == []


def test_a_file_is_compared_each_time_if_its_index_cannot_be_written(path, indexed, monkeypatch):
    def refuse(*more, **extra):
        raise ConfigError("it cannot be written")  # as root, everything can

    monkeypatch.setattr(DataIndex, "save", refuse)
    touch(path)
    for _ in range(2):
        indexed[0].clear()
        assert labels_of(open_store(path, backend=HDF5()))[0] == 100
        assert "x.h5" in indexed[0]
    edit(path, relabel)
    with pytest.raises(FingerprintMismatch, match=CHANGED):
        open_store(path, backend=HDF5())


def test_values_that_were_overwritten_have_other_checksums(tmp_path):
    rows = recordings(5)
    path = write_hdf5(tmp_path / "x.h5", rows)
    open_store(path, backend=HDF5())
    edit(path, overwrite_values)
    store = open_store(path, backend=HDF5())
    with pytest.raises(CorruptSampleError):
        list(store)


def test_an_index_that_was_repaired_is_compared_too(path):
    next((path.parent / "seqdata-index").iterdir()).write_bytes(b"damaged")
    done = CliRunner().invoke(app, ["verify", str(path), "--repair-index"])
    assert done.exit_code == 0, done.output
    assert labels_of(open_store(path, backend=HDF5()))[0] == 100
    edit(path, relabel)
    with pytest.raises(FingerprintMismatch, match=CHANGED):
        open_store(path, backend=HDF5())


def test_an_array_of_ids_that_was_changed_in_place_is_noticed(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["frames"] = np.arange(12, dtype=np.float32)
        file["offsets"] = np.array([0, 5, 12])
        file["name"] = np.array([1, 2])
        file["end"] = np.zeros(1000)
    backend = HDF5(fields=["frames"], offsets="offsets", ids="name")
    assert open_store(path, backend=backend).keys([0, 1]) == ["1", "2"]
    found = path.stat().st_mtime_ns
    with h5py.File(path, "r+") as file:
        file["name"][:] = [3, 4]
    os.utime(path, ns=(found + 1, found + 1))
    with pytest.raises(FingerprintMismatch, match=CHANGED):
        open_store(path, backend=backend)

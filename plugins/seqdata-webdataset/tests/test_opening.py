"""Locations, indexes, and what is said where one of both is not as it must be."""

import os
import pickle
import shutil
import tarfile

import numpy as np
import pytest
from seqdata_webdataset import WebDataset, index_shards, open_webdataset

from seqdata import open_store, split
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
    UnsafeContentError,
)
from seqdata.storage.indexed import build_index
from seqdata.storage.indexed.opening import _reopen
from tests.index_files import forget_index, index_path


@pytest.mark.parametrize(
    "location",
    ["x-{000..002}.tar", "x-000.tar::x-{001,002}.tar", "x-{000..001}.tar::x-002.tar", ""],
)
def test_a_location_is_a_file_a_folder_braces_or_several(folder, location, monkeypatch):
    monkeypatch.chdir(folder)
    store = open_webdataset(location or folder)
    assert store.shards == ["x-000.tar", "x-001.tar", "x-002.tar"]
    assert len(store) == 30


def test_a_list_of_paths_is_a_location(folder):
    store = open_webdataset([folder / "x-001.tar", str(folder / "x-000.tar")])
    assert store.keys([0, 10]) == ["dir/u10", "dir/u0"]
    assert pickle.loads(pickle.dumps(store)).keys([0]) == ["dir/u10"]


def test_a_choice_of_shards_uses_the_same_index(folder):
    store = open_store(folder / "x-001.tar")
    assert store.keys([0]) == ["dir/u10"]


@pytest.mark.parametrize(
    ("location", "error", "what"),
    [
        (
            "pipe:cat x.tar",
            UnsafeContentError,
            "must be a path, but 'pipe:cat x.tar' would run a program",
        ),
        ("cat x.tar |", UnsafeContentError, "would run a program"),
        ("x-{000..0", ConfigError, "location must have balanced braces"),
        ("x-{0..99999999}.tar", ConfigError, "location must name at most 1048576 files"),
        (
            "x-000.tar::x-000.tar",
            ConfigError,
            "must name each file once, but .* names x-000.tar twice",
        ),
        ("x.tar.gz", ConfigError, "must be a plain tar file, .*, but is compressed"),
        ("nothing-{0..1}.tar", MissingShardError, "is not there. Restore it"),
        (7, ConfigError, "location must be a path or a non-empty list of paths of files, but is 7"),
        (
            [],
            ConfigError,
            "location must be a path or a non-empty list of paths of files, but is \\[\\]",
        ),
    ],
)
def test_a_location_that_means_nothing_is_said(folder, location, error, what, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=what):
        open_webdataset(location)


def test_an_empty_folder_is_said(tmp_path):
    with pytest.raises(
        ConfigError, match=r"at least one file that ends with '.tar', but holds none"
    ):
        open_webdataset(tmp_path)


def test_a_folder_in_place_of_a_shard_is_said(folder):
    (folder / "x-000.tar").unlink()
    os.mkfifo(folder / "x-000.tar")
    with pytest.raises(DataError, match="must be an ordinary file, but is a pipe or device"):
        open_webdataset(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_shard_that_may_not_be_read_is_said(folder):
    (folder / "x-000.tar").chmod(0)
    with pytest.raises(DataError, match="cannot be opened"):
        open_webdataset(folder)


def test_a_writing_that_was_not_finished_is_said(folder):
    (folder / ".seqdata-tmp-x").mkdir()
    with pytest.raises(IncompleteDatasetError, match="was not finished writing"):
        open_webdataset(folder)


def test_without_an_index_opening_says_so_and_how(shards):
    text = "3 of 3 have none .* Build it once with `seqdata index .*index='build'"
    with pytest.raises(ConfigError, match=text):
        open_store(shards[0])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"index": "yes"}, "`index` must be 'build' or None, but is 'yes'"),
        ({"keys": "any"}, "`keys` must be one of unique, by_shard, but is 'any'"),
        ({"verify": "often"}, "`verify` must be one of .*, but is 'often'"),
    ],
)
def test_options_that_cannot_be_meant_are_said(folder, options, what):
    with pytest.raises(ConfigError, match=what):
        open_webdataset(folder, **options)


def test_an_index_is_made_beside_the_shards(folder):
    names = sorted(path.name for path in (folder / "seqdata-index").iterdir())
    assert names == ["index.idx"]


def test_where_nothing_can_be_written_an_index_is_in_the_cache(folder, cache, monkeypatch):
    kept = index_path(folder).read_bytes()
    shutil.rmtree(folder / "seqdata-index")
    (folder / "seqdata-index").touch()  # no folder can be there
    assert len(open_store(folder, index="build")) == 30
    (path,) = cache.rglob("*.idx")
    assert path.read_bytes() == kept


def test_an_index_that_can_be_kept_nowhere_is_said(folder, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(folder / "x-000.tar"))
    shutil.rmtree(folder / "seqdata-index")
    (folder / "seqdata-index").touch()
    with pytest.raises(
        ConfigError, match=r"its index must be written to .* or .*, but neither is writable"
    ):
        index_shards(folder, progress=False)


def test_only_shards_without_an_index_are_read_again(folder):
    forget_index(folder / "x-001.tar")
    told = []
    facts = index_shards(folder, progress=lambda *both: told.append(both))
    assert (facts["indexed"], facts["shards"], facts["sequences"]) == (1, 3, 30)
    assert told == [(10, (folder / "x-001.tar").stat().st_size)]
    assert index_shards(folder, rebuild=True, progress=False)["indexed"] == 3


def test_a_store_may_be_opened_by_options_of_its_backend(folder):
    forget_index(folder / "x-001.tar")
    schema = dict.fromkeys(("cls", "txt", "json", "mean.npy", "tok.npy"))
    store = open_store(folder, backend=WebDataset(index="build", schema=schema))
    assert list(store.fields) == ["mel.npy"]


def test_a_shard_that_is_missing_is_named(folder):
    (folder / "x-001.tar").unlink()
    with pytest.raises(
        MissingShardError, match=r'shard 1 \("x-001.tar"\).*: is not there'
    ) as caught:
        open_webdataset(str(folder / "x-{000..002}.tar"))
    assert caught.value.details["shard"] == 1


def test_a_shard_that_was_cut_off_is_found_when_it_is_opened(folder):
    path = folder / "x-001.tar"
    size = path.stat().st_size
    os.truncate(path, size - 10_240)
    with pytest.raises(
        CorruptShardError,
        match=f"must have {size} bytes as when it was indexed, but has {size - 10_240}",
    ):
        open_webdataset(folder)


def test_a_shard_in_place_of_another_is_found_when_it_is_opened(tar, npy):
    one = tar([("a.npy", npy(np.arange(3)))], name="a.tar")
    two = tar([("b.npy", npy(np.arange(3)))], name="b.tar")
    open_webdataset([one, two], index="build", progress=False)
    raw = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(raw)
    with pytest.raises(
        FingerprintMismatch, match=r"must have .* as when it was indexed, but has .*: it is anoth"
    ):
        open_webdataset([one, two])


def test_a_damaged_index_is_found(folder):
    path = index_path(folder)
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    text = r'index \("seqdata-index/index.idx"\): must be a valid index, but is damaged'
    with pytest.raises(CorruptShardError, match=text):
        open_webdataset(folder)


def test_keys_that_shards_share_are_said_and_may_be_told_apart(tar, npy):
    paths = [tar([("a.npy", npy(np.arange(n)))], name=f"{n}.tar") for n in (2, 3)]
    with pytest.raises(DecodeError, match=r"'a' is also the id of seq.* keys='by_shard'\)"):
        open_webdataset(paths, index="build", progress=False)
    store = open_webdataset(paths, keys="by_shard")
    assert store.keys([0, 1]) == ["2.tar/a", "3.tar/a"]
    assert pickle.loads(pickle.dumps(store)).keys([1]) == ["3.tar/a"]


def test_checksums_of_two_kinds_do_not_go_together(folder, monkeypatch):
    forget_index(folder / "x-001.tar")
    monkeypatch.setattr(build_index, "choose_algorithm", lambda: "crc32")
    with pytest.raises(
        CorruptShardError, match=r"must have an index with .*, but has crc32 of 65536"
    ):
        open_webdataset(folder, index="build", progress=False)


def test_the_fingerprint_follows_the_content_and_not_the_place(folder, shards, tmp_path):
    store = open_webdataset(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    assert open_webdataset(moved).fingerprint == store.fingerprint
    assert open_webdataset(moved / "x-000.tar").fingerprint != store.fingerprint


def test_views_and_splits_work(folder):
    store = open_webdataset(folder)
    parts = split(store, {"a": 0.5, "b": 0.5}, seed=1)
    assert len(parts["a"]) + len(parts["b"]) == 30
    assert len(split(store, {"a": 0.5, "b": 0.5}, by="txt")["a"])
    assert store.where(store.lengths > 3).lengths.min() > 3
    assert store.take([3, 3]).lengths.tolist() == [store.lengths[3]] * 2
    with pytest.raises(ConfigError, match=r"no field of strings 'cls'. Choose one of json, txt"):
        store.raw_texts("cls", np.array([0]))


def test_errors_name_the_place(folder):
    store = open_webdataset(folder)
    place = store.locate(12)
    assert str(place).endswith('shard 1 ("x-001.tar"), sequence 12 ("dir/u12")')
    assert place.remedy == f"seqdata verify {folder} --shard 1"
    assert str(store.locate(99)) == str(folder)


def test_an_old_store_is_reopened_in_another_process(folder):
    store = open_webdataset(folder)
    function, arguments = store.__reduce__()
    assert function is _reopen
    assert function(*arguments).fingerprint == store.fingerprint
    assert store.title == f"IndexedStore({str(folder)!r}, 30 sequences)"
    assert (store.verify, store.location) == ("first_read", str(folder))


def test_spans_of_another_shape_are_refused(folder):
    store = open_webdataset(folder)
    with pytest.raises(ConfigError, match=r"`spans` must have shape \(n, 3\), .* has shape \(2,\)"):
        store.read(np.array([0, 1]), ["cls"])


@pytest.mark.parametrize("members", [[], [".hidden", "no-extension"]])
def test_a_shard_without_samples_is_told(tmp_path, members):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as out:
        for name in members:
            out.addfile(tarfile.TarInfo(name))
    with pytest.raises(
        DataError, match=r'"x.tar"\): must hold at least one sample .*, but holds none'
    ):
        open_webdataset(path, index="build", progress=False)


def test_shards_below_a_folder_are_found_with_their_own_indexes(shards, tmp_path):
    """Each subfolder keeps its indexes, so that it can also be opened alone."""
    data = tmp_path / "nested"
    (data / "10").mkdir(parents=True)
    (data / "9").mkdir()
    source, _ = shards
    names = sorted(path.name for path in source.glob("*.tar"))
    for number, name in enumerate(names):
        shutil.copy(source / name, data / ("9" if number == 0 else "10") / name)
    store = open_webdataset(data, index="build")
    assert list(store.shards) == names
    assert len(open_webdataset(data / "9")) + len(open_webdataset(data / "10")) == len(store)
    assert list(open_webdataset(f"{data}/*/*.tar").shards) == names

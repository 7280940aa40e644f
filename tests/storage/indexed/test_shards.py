"""A file of this machine as a shard: its bytes, and where more is kept."""

import os
from pathlib import Path

import pytest

from seqdata.errors import MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import read_with_digest
from seqdata.storage.indexed.shards import (
    INDEX_FOLDER,
    LocalShard,
    cache_folder,
    save_with_digest,
)
from tests.storage.indexed.samples import make_index

PLACE = DataLocation(dataset="/d", shard=0, file="a.recs")


@pytest.fixture
def shard(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.recs").write_bytes(b"bytes of it")
    (tmp_path / "more" / "a.ends").write_bytes(b"near it")
    return LocalShard(tmp_path, "more/a.recs")


def test_its_bytes_and_those_next_to_it_are_mapped(shard):
    assert shard.content(PLACE).tobytes() == b"bytes of it"
    assert shard.read_sibling("more/a.ends", PLACE).tobytes() == b"near it"
    assert shard.size() == 11
    assert shard.is_local
    assert shard.drop_copy(make_index(), PLACE) is None  # it is not a copy
    shard.check_exists(PLACE)


def test_it_may_be_gone(shard):
    shard.path.unlink()
    assert shard.size() == 0
    with pytest.raises(MissingShardError, match="is not there"):
        shard.check_exists(PLACE)
    with pytest.raises(MissingShardError, match="is not there"):
        shard.content(PLACE)


@pytest.mark.parametrize("seconds", [-(2**40), 2**40])
def test_its_time_fits_an_index(shard, seconds):
    os.utime(shard.path, (seconds, seconds))
    time = shard.path.stat().st_mtime_ns  # some file systems keep another one
    assert shard.modified() == time if abs(time) < 2**63 else abs(shard.modified()) == 2**63 - 1


def test_a_path_is_a_shard_of_its_folder(shard):
    other = LocalShard.at(shard.path)
    assert (other.root, other.name) == (shard.root / "more", "a.recs")
    assert other.path == shard.path
    assert other.folder == str(shard.root / "more")


def test_the_cache_is_a_folder_of_the_user(shard, tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    assert shard.cached.parent == tmp_path / "cache" / "index"
    assert shard.cached != LocalShard.at(shard.path).cached  # of another folder of data
    monkeypatch.setenv("SEQDATA_CACHE", "")
    assert cache_folder() == Path.home() / ".cache" / "seqdata"


def test_more_is_kept_in_the_first_place_that_can_be_written(shard):
    near, cached = places = shard.list_side_files("lengths.npy")
    assert near == shard.root / INDEX_FOLDER / "more" / "lengths.npy"
    save_with_digest(places, b"first")
    assert read_with_digest(near) == b"first"
    assert not cached.exists()
    near.unlink()
    near.parent.rmdir()
    near.parent.touch()  # a file where the folder has to be
    save_with_digest(places, b"second")
    assert read_with_digest(cached) == b"second"
    cached.unlink()
    cached.parent.rmdir()
    cached.parent.touch()
    save_with_digest(places, b"third")  # nowhere: it is measured again
    assert not cached.exists()

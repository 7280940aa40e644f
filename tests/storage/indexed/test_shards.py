"""A file of this machine as a shard: its bytes, its index, and where more is kept."""

import os
from dataclasses import replace

import pytest

from seqdata.errors import CorruptShardError, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import read_with_digest
from seqdata.storage.indexed.shard_index import ListedShard, dump_index
from seqdata.storage.indexed.shards import (
    INDEX_FOLDER,
    LocalShard,
    index_files,
    put_file,
    save_with_digest,
    with_declared,
)
from tests.storage.indexed.samples import make_index

PLACE = DataLocation(dataset="/d", shard=0, file="a.recs")


class Records:
    name = "records"

    def __init__(self, identity="m:Records() version 1"):
        self.identity = identity

    def check(self, index):
        pass


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


def test_a_path_is_a_shard_of_its_folder(shard):
    other = LocalShard.at(shard.path)
    assert (other.root, other.name) == (shard.root / "more", "a.recs")
    assert other.path == shard.path
    assert other.folder == str(shard.root / "more")


def test_an_index_is_kept_for_kinds_of_its_identity(shard):
    assert not shard.has_index("/d", 0, Records())
    assert shard.index("/d", 0, Records()) is None
    folder = shard.save_index(make_index())
    assert folder == str(shard.root / INDEX_FOLDER / "more")
    assert shard.has_index("/d", 0, Records())
    assert shard.index("/d", 0, Records()).shard == "a.recs"
    assert not shard.has_index("/d", 0, Records("another"))
    assert shard.index("/d", 0, Records("another")) is None
    assert shard.has_index("/d", 0, Records(""))  # any: the suffix says the format


def put_both(shard, near, cached):
    """Write an index next to the file, then another one into the cache."""
    for path, index in zip(index_files(shard.path, shard.root), (near, cached), strict=True):
        put_file(path, dump_index(index))
    os.utime(path, ns=(1 << 62, 1 << 62))


def test_the_cache_may_have_the_index_of_other_options(shard):
    put_both(shard, make_index(), make_index(format_identity="another"))
    for identity in (Records().identity, "another"):
        assert shard.has_index("/d", 0, Records(identity))
        assert shard.index("/d", 0, Records(identity)).format_identity == identity
    assert shard.index("/d", 0, Records("a third")) is None


def test_of_two_indexes_the_newest_that_fits_its_file_counts(shard):
    """A newer one may be of a file that was replaced by an older one, with its index."""
    first, second = "1" * 64, "2" * 64
    shard.path.write_bytes(b"12 bytes now")
    put_both(shard, make_index(sha256=first), make_index(sha256=second))
    assert shard.index("/d", 0, Records()).sha256 == second
    assert replace(shard, listed=ListedShard(first, {})).index("/d", 0, Records()).sha256 == first
    shard.path.write_bytes(b"13 bytes now.")
    assert shard.index("/d", 0, Records()).sha256 == second  # none does: what is wrong is told
    put_both(shard, make_index(bytes=13, sha256=first), make_index(sha256=second))
    assert shard.index("/d", 0, Records()).sha256 == first


def test_a_damaged_index_is_an_error(shard):
    shard.save_index(make_index())
    path = shard.root / INDEX_FOLDER / "more" / "a.recs.idx"
    path.write_bytes(path.read_bytes()[:-1])
    for read in (shard.has_index, shard.index):
        with pytest.raises(CorruptShardError, match=r"/d index of shard 7 .*, but is damaged or"):
            read("/d", 7, Records())


def test_an_index_says_what_the_list_of_the_folder_says(shard):
    listed = ListedShard("0" * 64, {"y": ("y", "int8", (), None)})
    assert shard.read_shard_list() is None
    assert with_declared(make_index(), None).declared == make_index().declared
    listed_shard = replace(shard, listed=listed)
    assert listed_shard.listed is listed
    listed_shard.save_index(make_index())
    assert shard.index("/d", 0, Records()).declared == listed.declared


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

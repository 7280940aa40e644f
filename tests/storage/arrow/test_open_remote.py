"""A store behind a URL is opened by its manifest; what is missing or not a store is named."""

import pytest

from seqdata import Remote
from seqdata.errors import CorruptShardError, DataError, IncompleteDatasetError, MissingShardError
from seqdata.storage.arrow.open_remote import file_exists, open_remote, read_manifest
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.stores import check_reads
from tests.storage.rows import FEW_ROWS


@pytest.fixture
def remote(tmp_path):
    return Remote(cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("verify", [None, "off", "always"])
def test_it_is_the_store_that_was_written(there, remote, verify):
    store = open_remote(there[0], verify=verify, remote=remote)
    check_reads(store, FEW_ROWS, rounds=2)
    assert store.keys([4, 0]) == ["s4", "s0"]


def test_the_manifest_is_read_alone(there, remote):
    files = make_remote_files(there[0], remote)
    assert read_manifest(files).sequences == 5
    assert file_exists(files, "seqdata.json")
    assert not file_exists(files, "nothing")


def test_a_shard_of_another_size_or_none_is_named_at_opening(there, remote):
    location, path_of, system = there
    system.pipe_file(path_of("part-00001.arrow"), b"short")
    with pytest.raises(CorruptShardError, match=r'shard 1 \("part-00001.arrow"\)'):
        open_remote(location, remote=remote)
    system.rm_file(path_of("part-00001.arrow"))
    with pytest.raises(MissingShardError, match=r'shard 1 \("part-00001.arrow"\): is not there'):
        open_remote(location, remote=remote)


def test_lengths_are_compared_with_their_checksum(there, remote):
    location, path_of, system = there
    content = bytearray(system.cat_file(path_of("lengths-time.u32")))
    content[0] ^= 1
    system.pipe_file(path_of("lengths-time.u32"), bytes(content))
    with pytest.raises(DataError, match=r"lengths-time\.u32"):
        open_remote(location, remote=remote)


def test_without_a_manifest_the_files_say_what_is_wrong(there, remote):
    location, path_of, system = there
    system.rm_file(path_of("seqdata.json"))
    with pytest.raises(IncompleteDatasetError, match="manifest"):
        open_remote(location, remote=remote)
    for path in system.ls(path_of("").rstrip("/"), detail=False):
        system.rm_file(path)
    system.pipe_file(path_of("notes.txt"), b"x")
    with pytest.raises(DataError, match=r"notes\.txt"):
        open_remote(location, remote=remote)
    system.rm_file(path_of("notes.txt"))
    with pytest.raises(MissingShardError, match="is not there"):
        open_remote(location, remote=remote)

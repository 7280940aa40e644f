"""Stores written to a bucket: whole or not at all, gone on with, and what would lie here."""

import fsspec
import pytest

from seqdata import (
    ConfigError,
    IncompleteDatasetError,
    Remote,
    RemoteReadError,
    open_store,
    write_store,
)
from seqdata_testing.faults import network
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import read_all, sequences, write


@pytest.mark.slow
def test_what_is_written_to_s3_is_byte_for_byte_what_is_written_here(s3, bucket, remote, tmp_path):
    local = write(tmp_path / "store")
    store = write(f"s3://{bucket}/store", remote=remote())
    assert read_all(store) == read_all(local)
    for path in (tmp_path / "store").iterdir():
        assert s3.cat_file(f"{bucket}/store/{path.name}") == path.read_bytes()
    assert len(s3.ls(f"{bucket}/store")) == len(list((tmp_path / "store").iterdir()))
    assert not list((tmp_path / "cache" / "seqdata-writing").iterdir())


def test_a_store_that_is_there_is_not_overwritten_unless_it_is_asked_for(s3, bucket, remote):
    location = f"s3://{bucket}/store"
    write(location, remote=remote())
    with pytest.raises(ConfigError, match=r"already contains a store. Choose another location"):
        write(location, remote=remote())
    few = write_store(location, sequences(10), overwrite=True, remote=remote())
    assert len(few) == 10
    names = {one.rpartition("/")[2] for one in s3.ls(f"{bucket}/store", refresh=True)}
    assert names == {"seqdata.json", "lengths-time.u32", "part-00000.arrow", "part-00000.crc"}


@pytest.mark.slow
def test_a_writer_that_fails_while_it_sends_leaves_no_store_and_is_gone_on_with(
    s3, bucket, remote, faulty, tmp_path
):
    location = f"s3://{bucket}/store"
    how = remote(faulty.url, retry_seconds=patient(5), stall_seconds=patient(5))
    faulty.fault, faulty.hits = network.unavailable(), "part-00001.arrow"
    with pytest.raises(
        RemoteReadError, match=r'"part-00001.arrow".*could not be written \(.*tried'
    ):
        write(location, remote=how)
    with pytest.raises(IncompleteDatasetError, match=r"is not there, but \d+ files of a store are"):
        open_store(location, remote=remote())
    faulty.fault = None
    faulty.requests.clear()
    assert read_all(write(location, remote=how)) == read_all(write(tmp_path / "store"))
    sent = [path for method, path in faulty.requests if method == "PUT"]
    assert any("part-00001.arrow" in path for path in sent)
    assert not any("part-00000.arrow" in path for path in sent)


def test_a_writer_that_fails_while_it_packs_is_gone_on_with(bucket, remote, tmp_path):
    location, told = f"s3://{bucket}/store", []

    def breaking():
        for number, one in enumerate(sequences()):
            if number == 100:
                raise RuntimeError("broken")
            yield one

    with pytest.raises(RuntimeError, match="broken"):
        write_store(location, breaking(), shard_bytes=100_000, remote=remote())
    store = write(location, remote=remote(), progress=lambda count, _: told.append(count))
    assert told[0] > 1  # not from the first one on
    assert store.fingerprint == write(tmp_path / "store").fingerprint


def test_two_writers_cannot_write_to_one_location_at_once(bucket, remote):
    location = f"s3://{bucket}/store"

    def meeting():
        yield sequences(1)[0]
        with pytest.raises(
            ConfigError, match="one process at a time must write here, but another one"
        ):
            write(location, remote=remote())

    assert len(write_store(location, meeting(), remote=remote())) == 1


def test_a_manifest_that_somebody_else_made_meanwhile_is_not_replaced(bucket, remote, s3):
    location = f"s3://{bucket}/store"

    def meeting():
        yield sequences(1)[0]
        s3.pipe(f"{bucket}/store/seqdata.json", b"another")

    with pytest.raises(ConfigError, match="must not exist, but was created by another writer"):
        write_store(location, meeting(), remote=remote())
    assert s3.cat_file(f"{bucket}/store/seqdata.json") == b"another"


def test_a_store_is_written_to_memory_and_not_to_a_web_address(tmp_path):
    remote = Remote(cache_dir=tmp_path / "cache")
    store = write("memory://written", remote=remote)
    assert read_all(store) == read_all(write(tmp_path / "store"))
    fsspec.filesystem("memory").rm("/written", recursive=True)
    with pytest.raises(
        ConfigError, match="must be a location that can be written to, but is a web"
    ):
        write("https://host/store", remote=remote)


def test_what_is_said_of_urls_is_refused_for_paths(tmp_path):
    text = "`remote` must be left out for a local path, but is given"
    with pytest.raises(ConfigError, match=text):
        write(tmp_path / "store", remote=Remote())
    write(tmp_path / "store")
    with pytest.raises(ConfigError, match=text):
        open_store(tmp_path / "store", remote="ranges")
    with pytest.raises(ConfigError, match=text):
        open_store(tmp_path / "x.arrow", remote="cache")
    with pytest.raises(
        ConfigError, match="`remote` must be 'cache', 'ranges' or a Remote, but is a int"
    ):
        open_store("memory://nowhere", remote=3)

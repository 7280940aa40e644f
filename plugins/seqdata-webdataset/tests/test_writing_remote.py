"""Tar shards written to a bucket: what would lie here, whole or not at all, gone on with."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from seqdata_webdataset import open_webdataset, write_webdataset

from seqdata import Remote, open_store, write_store
from seqdata.errors import (
    ConfigError,
    DecodeError,
    IncompleteDatasetError,
    MissingShardError,
    RemoteReadError,
)
from seqdata_testing.faults import network
from seqdata_testing.faults.network import before, folder_of, served
from seqdata_testing.waiting import patient
from tests.few_shards import SHARD, files, rows


def there(system, folder):
    system.invalidate_cache()
    names = system.find(folder)
    return {name.partition(f"{folder.lstrip('/')}/")[2]: system.cat_file(name) for name in names}


@pytest.fixture
def bucket(s3):
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3[0].mkdir(name)
    return name


@pytest.fixture
def remote(s3, tmp_path):
    """Gives options: the test's own cache, and the server's address or another."""

    def made(endpoint=None, **options):
        told = s3[1] if endpoint is None else {**s3[1], "endpoint_url": endpoint}
        return Remote(cache_dir=tmp_path / "shard-cache", storage_options=told, **options)

    return made


def write(location, remote, sequences=None, **options):
    given = rows() if sequences is None else sequences
    return write_store(
        location, given, format="webdataset", shard_bytes=SHARD, remote=remote, **options
    )


@pytest.mark.slow
def test_what_is_written_to_a_bucket_is_byte_for_byte_what_is_written_here(
    s3, bucket, remote, whole, tmp_path
):
    with ThreadPoolExecutor(2) as executor:
        store = write(f"s3://{bucket}/data", remote(), executor=executor)
    assert there(s3[0], f"{bucket}/data") == whole
    assert store.fingerprint == open_webdataset(tmp_path / "whole").fingerprint
    assert set(store.fields) == {"x", "y"}
    assert not list((tmp_path / "shard-cache" / "seqdata-writing").iterdir())
    ranged = open_webdataset(f"s3://{bucket}/data", remote=remote(how="ranges"))
    assert ranged.read(np.array([[5, 3, 7]]), ["x"])["x"][0].tolist() == [3, 4, 5, 6]


@pytest.mark.slow
def test_what_lies_there_is_not_replaced_unless_it_is_asked_for(s3, bucket, remote, tmp_path):
    location = f"s3://{bucket}/data"
    write(location, remote())
    text = (
        "must be an empty folder, but holds 'shard-000000.tar'. Choose one, or pass "
        "`overwrite=True`"
    )
    with pytest.raises(ConfigError, match=text):
        write(location, remote())
    few = write(location, remote(), rows(9), overwrite=True)
    assert len(few) == 9
    write_webdataset(tmp_path / "few", rows(9), shard_bytes=SHARD)
    assert there(s3[0], f"{bucket}/data") == files(tmp_path / "few")


def test_what_is_not_ours_is_never_replaced(s3, bucket, remote):
    s3[0].pipe(f"{bucket}/tar/train-0.tar", b"somebody's")
    with pytest.raises(
        ConfigError, match=r"must be an empty folder, but holds 'train-0.tar'. Choose"
    ):
        write(f"s3://{bucket}/tar", remote(), overwrite=True)
    s3[0].pipe(f"{bucket}/arrow/seqdata.json", b"{}")
    with pytest.raises(ConfigError, match=r"already contains a store. Choose another location"):
        write(f"s3://{bucket}/arrow", remote(), overwrite=True)


@pytest.mark.slow
def test_an_unfinished_writing_is_no_data_and_is_gone_on_with(s3, bucket, remote, whole):
    location = f"s3://{bucket}/data"
    with served(before(*s3[1]["endpoint_url"].removeprefix("http://").split(":"))) as faulty:
        how = remote(faulty.url, retry_seconds=patient(3), stall_seconds=patient(5))
        faulty.fault, faulty.hits = network.unavailable(), "data/shard-000002.tar"
        with pytest.raises(RemoteReadError, match=r'"shard-000002.tar".*could not be written'):
            write(location, how)
        left = there(s3[0], f"{bucket}/data")
        assert "seqdata-index/shards.json" not in left
        assert "seqdata-index/index.idx" in left
        with pytest.raises(
            IncompleteDatasetError, match=r"records all of its shards .*not completed"
        ):
            open_webdataset(location, remote=remote())
        faulty.fault = None
        faulty.requests.clear()
        write(location, how)
        sent = [path for method, path in faulty.requests if method == "PUT"]
    assert there(s3[0], f"{bucket}/data") == whole
    assert any("shard-000002.tar" in path for path in sent)
    assert not any("shard-000000.tar" in path for path in sent)


@pytest.mark.slow
def test_a_writer_that_fails_while_it_packs_is_gone_on_with(s3, bucket, remote, whole):
    location, told = f"s3://{bucket}/data", []
    with pytest.raises(DecodeError, match="sequence 30"):
        write(location, remote(), rows(wrong=30))
    assert there(s3[0], f"{bucket}/data") == {}
    write(location, remote(), progress=lambda count, _: told.append(count))
    assert told[0] > 1  # not from the first one on
    assert there(s3[0], f"{bucket}/data") == whole


@pytest.mark.slow
def test_a_folder_in_a_bucket_is_opened_as_what_lies_in_it(s3, bucket, remote, tmp_path):
    write(f"s3://{bucket}/tar", remote())
    write_store(f"s3://{bucket}/arrow", rows(), remote=remote())
    assert open_store(f"s3://{bucket}/tar", remote=remote()).title.startswith("IndexedStore(")
    assert open_store(f"s3://{bucket}/arrow", remote=remote()).title.startswith("RemoteStore(")
    write_webdataset(tmp_path / "data", rows(), shard_bytes=SHARD)
    with (
        served(folder_of(tmp_path / "data")) as web,  # which lists nothing
        pytest.raises(MissingShardError, match=r"does not list files: name .* as 'x"),
    ):
        open_store(web.url, remote=Remote(cache_dir=tmp_path / "web"))


def test_shards_are_written_to_memory_and_not_to_a_web_address(tmp_path, whole):
    remote = Remote(cache_dir=tmp_path / "shard-cache")
    write("memory://sent", remote)
    system = fsspec.filesystem("memory")
    assert there(system, "/sent") == whole
    system.rm("/sent", recursive=True)
    with pytest.raises(ConfigError, match="must be a location that can be written to, but is"):
        write("https://host/data", remote)


def test_what_is_said_of_urls_is_refused_for_paths(tmp_path):
    text = "`remote` must be left out for a local path, but is given"
    with pytest.raises(ConfigError, match=text):
        write(tmp_path / "data", Remote())
    write_webdataset(tmp_path / "data", rows(), shard_bytes=SHARD)
    assert len(open_store(tmp_path / "data")) == 40

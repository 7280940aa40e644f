"""The index of shards in a bucket: made side by side, kept there or in the user's cache."""

import json
import uuid

import pytest
from click.testing import CliRunner
from seqdata_webdataset import index_shards, open_webdataset

from seqdata import Remote, open_store
from seqdata.cli.app import app
from seqdata.errors import RemoteReadError
from seqdata_testing.faults import network
from seqdata_testing.faults.network import before, served
from seqdata_testing.stores import check_store, digest_of
from seqdata_testing.waiting import patient


@pytest.fixture
def bucket(s3, shards):
    """A bucket with the three shards, without an index."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3[0].mkdir(name)
    for path in shards[0].glob("*.tar"):
        s3[0].pipe_file(f"{name}/{path.name}", path.read_bytes())
    return name


@pytest.fixture
def behind(s3):
    """The server of buckets behind one whose answers can be made to fail."""
    with served(before(*s3[1]["endpoint_url"].removeprefix("http://").split(":"))) as made:
        yield made


def options(s3, tmp_path, endpoint=None, **more):
    told = s3[1] if endpoint is None else {**s3[1], "endpoint_url": endpoint}
    return Remote(cache_dir=tmp_path / "shard-cache", storage_options=told, **more)


@pytest.mark.slow
def test_the_command_makes_it_in_processes_and_keeps_it_beside_the_shards(
    s3, bucket, tmp_path, monkeypatch, sequences
):
    type(s3[0]).clear_instance_cache()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3[1]["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3[1]["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3[1]["secret"])
    location = f"s3://{bucket}/x-{{000..002}}.tar"
    for made in (3, 0):
        done = CliRunner().invoke(app, ["index", location, "--workers", "2", "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["indexed"] == made
    s3[0].invalidate_cache()
    assert s3[0].ls(f"{bucket}/seqdata-index") == [f"{bucket}/seqdata-index/index.idx"]
    check_store(open_store(location), sequences)


def test_all_that_was_done_is_told(s3, bucket, tmp_path):
    told = []
    facts = index_shards(
        f"s3://{bucket}", remote=options(s3, tmp_path), progress=lambda *both: told.append(both)
    )
    assert [count for count, _ in told] == [10, 20, 30]
    assert told[-1][1] == facts["bytes"]
    assert (facts["indexed"], facts["shards"], facts["sequences"]) == (3, 3, 30)


@pytest.mark.slow
def test_where_nothing_may_be_written_it_is_kept_in_the_cache_until_it_may(
    s3, bucket, behind, tmp_path, cache, folder
):
    location = f"s3://{bucket}/x-{{000..002}}.tar"
    behind.fault, behind.hits = network.refused(), "seqdata-index"
    remote = options(s3, tmp_path, behind.url)
    store = open_webdataset(location, remote=remote, index="build", progress=False)
    assert [path.name for path in cache.rglob("*.idx")] == ["index.idx"]
    assert digest_of(store) == digest_of(open_webdataset(folder))
    assert open_webdataset(location, remote=remote).fingerprint == store.fingerprint
    index_shards(location, rebuild=True, remote=options(s3, tmp_path))
    assert not list(cache.rglob("*.idx"))
    assert open_webdataset(location, remote=options(s3, tmp_path)).fingerprint == store.fingerprint


def test_a_server_that_does_not_answer_is_no_missing_index(s3, bucket, behind, tmp_path):
    behind.fault, behind.hits = network.unavailable(), "seqdata-index"
    remote = options(s3, tmp_path, behind.url, retry_seconds=patient(0.5), stall_seconds=patient(2))
    with pytest.raises(RemoteReadError):
        open_webdataset(f"s3://{bucket}/x-000.tar", remote=remote, index="build")

"""Shards behind URLs: indexed once, fetched when they are needed, read as local ones."""

import functools
import json
import threading
import uuid
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from seqdata_webdataset import index_shards, open_webdataset

from seqdata import Bucketed, Loader, Remote, open_store, write_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, CorruptShardError, MissingShardError
from seqdata.protocols import Field
from seqdata_testing.stores import check_store, digest_of


@pytest.fixture
def url(shards):
    """The three shards in memory, at a URL."""
    system = fsspec.filesystem("memory")
    folder = f"/data-{uuid.uuid4().hex}"
    for path in shards[0].glob("*.tar"):
        system.pipe_file(f"{folder}/{path.name}", path.read_bytes())
    yield f"memory:/{folder}"
    system.rm(folder, recursive=True)


@pytest.fixture
def remote(tmp_path):
    return Remote(cache_dir=tmp_path / "shard-cache")


def test_a_folder_of_shards_is_indexed_and_read(url, remote, sequences):
    with pytest.raises(ConfigError, match="3 of 3 have none"):
        open_webdataset(url, remote=remote)
    store = open_webdataset(url, remote=remote, index="build", progress=False)
    check_store(store, sequences)
    names = fsspec.filesystem("memory").ls(f"{url.removeprefix('memory:/')}/seqdata-index")
    assert [info["name"].rpartition("/")[2] for info in names] == ["index.idx"]


@pytest.mark.parametrize("form", ["x-{000..002}.tar", "x-000.tar::{url}/x-{001,002}.tar"])
def test_braces_and_lists_of_urls_are_locations(url, remote, folder, form):
    location = f"{url}/{form}".replace("{url}", url)
    store = open_store(location, remote=remote, index="build")
    local = open_webdataset(folder)
    assert store.fingerprint == local.fingerprint
    assert digest_of(store) == digest_of(local)


def test_shards_are_fetched_when_they_are_needed(url, remote, tmp_path):
    index_shards_of(url, remote)
    for path in (tmp_path / "shard-cache").rglob("*"):
        if path.is_file():
            path.unlink()
    store = open_webdataset(url, remote=remote)
    assert store.keys([12]) == ["dir/u12"]
    assert cached(tmp_path) == 0
    store.read(np.array([[12, 0, 0]]), ["txt"])
    assert cached(tmp_path) == 1
    store.raw_texts("txt", np.array([25, 3]))
    assert cached(tmp_path) == 3


def index_shards_of(url, remote):
    open_webdataset(url, remote=remote, index="build", progress=False)


def cached(tmp_path):
    files = [one for one in (tmp_path / "shard-cache").rglob("*") if one.is_file()]
    return len([one for one in files if one.stat().st_size > 10_000])


def test_batches_are_those_of_local_shards(url, remote, folder):
    store = open_webdataset(url, remote=remote, index="build", progress=False)
    loaders = [Loader(one, Bucketed(4), seed=2) for one in (store, open_webdataset(folder))]
    for ours, due in zip(*loaders, strict=True):
        assert ours.ids.tolist() == due.ids.tolist()
        for name in ("mel.npy", "tok.npy", "cls", "mean.npy"):
            assert ours[name].equal(due[name])


def test_lengths_that_must_be_decoded_are_counted_over_all_shards(url, remote, folder):
    schema = {"json": {"a": Field("int64", (), "a")}}
    store = open_webdataset(url, remote=remote, index="build", schema=schema, progress=False)
    assert store.lengths_of["a"].tolist() == [2] * 30
    local = open_webdataset(folder, schema=schema)
    assert digest_of(store) == digest_of(local)


def test_another_shard_in_its_place_is_refused(url, remote):
    index_shards_of(url, remote)
    system = fsspec.filesystem("memory")
    folder = url.removeprefix("memory:/")
    system.pipe_file(f"{folder}/x-001.tar", system.cat_file(f"{folder}/x-002.tar"))
    store = open_webdataset(url, remote=Remote(cache_dir=remote.folder.parent / "other"))
    with pytest.raises(CorruptShardError) as caught:
        store.read(np.array([[12, 0, 0]]), ["txt"])
    assert caught.value.details["file"] == "x-001.tar"


def test_locations_without_shards_are_said(url, remote):
    fsspec.filesystem("memory").pipe_file(f"{url.removeprefix('memory:/')}/empty/readme", b"x")
    with pytest.raises(
        ConfigError, match=r"at least one file that ends with '.tar', but holds none"
    ):
        open_webdataset(f"{url}/empty", remote=remote)
    with pytest.raises(MissingShardError):
        open_webdataset("memory://nowhere", remote=remote)


def test_the_command_takes_urls(url, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    location = f"{url}/x-{{000..002}}.tar"
    done = CliRunner().invoke(app, ["index", location, "--workers", "0", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert (facts["indexed"], facts["folders"]) == (3, [f"{url}/seqdata-index"])
    done = CliRunner().invoke(app, ["verify", location])
    assert "every byte is as written" in done.output
    assert index_shards(url)["sequences"] == 30


@pytest.mark.nightly  # at every change: by ranges, test_ranges.py
def test_a_bucket_is_read_by_worker_processes(s3, shards, folder, tmp_path):
    system, options = s3
    system.mkdir("shards")
    for path in shards[0].glob("*.tar"):
        system.pipe_file(f"shards/{path.name}", path.read_bytes())
    remote = Remote(cache_dir=tmp_path / "cache", storage_options=options)
    store = open_webdataset("s3://shards/x-{000..002}.tar", remote=remote, index="build")
    assert "s3://shards/x-{000..002}.tar" in repr(store)
    loader = Loader(store, Bucketed(4), seed=2, num_workers=1, start_method="spawn")
    try:
        for ours, due in zip(loader, Loader(str(folder), Bucketed(4), seed=2), strict=True):
            assert ours["mel.npy"].equal(due["mel.npy"])
    finally:
        loader.shutdown()


class Unlisted(SimpleHTTPRequestHandler):
    """Serves files, and no lists of folders."""

    def list_directory(self, path):
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_a_folder_that_is_not_listed_needs_the_list_of_its_shards(tmp_path):
    write_store(tmp_path / "tar", [{"x": [1, 2]}, {"x": [3]}], format="webdataset")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Unlisted, directory=tmp_path / "tar")
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        remote = Remote(cache_dir=tmp_path / "cache")
        assert open_store(url, backend="webdataset", remote=remote).lengths.tolist() == [2, 1]
        (tmp_path / "tar" / "seqdata-index" / "shards.json").unlink()
        message = (
            "shards.json.*: must exist, since the server does not list the folder, but does not"
        )
        with pytest.raises(MissingShardError, match=message) as caught:
            open_store(url, backend="webdataset", remote=remote)
        assert caught.value.details["file"] == "seqdata-index/shards.json"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)

"""Tar shards read by ranges: only what a batch needs comes, and all of it is looked at."""

import json
from dataclasses import replace

import numpy as np
import pytest
from seqdata_webdataset import open_webdataset

from seqdata import Bucketed, Fixed, Loader, Remote, open_store
from seqdata.errors import (
    CorruptSampleError,
    CorruptShardError,
    FingerprintMismatch,
    MissingShardError,
    RemoteReadError,
)
from seqdata.protocols import Field
from seqdata_testing.faults import network
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.stores import check_store, digest_of
from seqdata_testing.waiting import patient
from tests.index_files import index_of as load_index_of

BLOCK = 64 << 10
LONG = 7  # the number of a sequence of 40,000 timesteps of 12 bytes


class Web:
    """A server of a folder that counts the bytes of bodies, and may tell no tags."""

    def __init__(self, folder):
        self._answer = folder_of(folder)
        self.bytes = 0
        self.tags = True

    def __call__(self, asked):
        answer = self._answer(asked)
        self.bytes += len(answer.body)
        if not self.tags:
            kept = [one for one in answer.headers if one[0] not in ("ETag", "Last-Modified")]
            answer = replace(answer, headers=tuple(kept))
        return answer


@pytest.fixture
def web(folder):
    """The three shards and their indexes behind a web server: (server, source)."""
    source = Web(folder)
    with served(source) as made:
        yield made, source


@pytest.fixture
def ranges(tmp_path):
    """Gives options for reading by ranges."""

    def made(**options):
        return Remote(how="ranges", cache_dir=tmp_path / "shard-cache", **options)

    return made


def location_of(server):
    return f"{server.url}/x-{{000..002}}.tar"


def index_of(folder, shard):
    return load_index_of(folder / f"x-{shard:03d}.tar")


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def read(store, number, start, stop, name="mel.npy"):
    return store.read(np.array([[number, start, stop]]), [name])[name][0]


@pytest.mark.parametrize("verify", [None, "always", "off"])
def test_all_that_is_promised_of_a_store_holds_by_ranges(web, ranges, sequences, verify):
    store = open_store(location_of(web[0]), remote=ranges(), verify=verify)
    check_store(store, sequences)


def test_nothing_is_kept_on_this_machine(web, ranges, folder, tmp_path):
    schema = {"json": {"a": Field("int64", (), "a")}, "txt": str}
    store = open_webdataset(location_of(web[0]), remote=ranges(), schema=schema)
    local = open_webdataset(folder, schema=schema)
    assert store.lengths_of["a"].tolist() == local.lengths_of["a"].tolist()
    assert digest_of(store) == digest_of(local)
    assert not (tmp_path / "shard-cache").exists()


def test_a_slice_of_a_long_member_is_one_request_of_the_blocks_it_lies_in(web, ranges, folder):
    server, source = web
    store = open_store(location_of(server), remote=ranges())
    must = open_webdataset(folder)
    read(store, LONG, 0, 1)
    server.requests.clear()
    source.bytes = 0
    found = read(store, LONG, 20_000, 20_010)
    assert np.array_equal(found, read(must, LONG, 20_000, 20_010))
    assert server.requests == [("GET", "/x-000.tar"), ("HEAD", "/x-000.tar")]
    assert source.bytes == BLOCK
    source.bytes = 0
    unverified = open_store(location_of(server), remote=ranges(), verify="off")
    read(unverified, LONG, 0, 1)
    source.bytes = 0
    read(unverified, LONG, 20_000, 20_010)
    assert source.bytes == 10 * 12


def test_neighbours_are_one_request_and_fields_that_were_not_asked_for_stay(web, ranges):
    server, source = web
    store = open_store(location_of(server), remote=ranges())
    spans = np.array([[n, 0, int(store.lengths[n])] for n in (11, 12, 13)])
    read(store, 12, 0, 0)  # the shard is known
    server.requests.clear()
    store.read(spans, ["mel.npy"])["mel.npy"][2]
    assert [method for method, _ in server.requests] == ["GET", "HEAD"]
    apart = open_store(location_of(server), remote=ranges(gap=0))
    read(apart, 12, 0, 0)
    server.requests.clear()
    source.bytes = 0
    apart.read(spans, ["mel.npy"])
    filled = [int(n) for n in store.lengths[11:14] if n]
    assert [method for method, _ in server.requests] == ["GET"] * len(filled) + ["HEAD"]
    assert source.bytes == 12 * sum(filled)
    server.requests.clear()
    apart.read(spans, ["mel.npy"])  # they have come
    assert server.requests == []


def test_the_bytes_of_labels_come_where_they_are_verified(web, ranges):
    server, source = web
    spans = np.array([[n, 0, 1] for n in (11, 12, 13)])
    for verify, asked in (("off", []), (None, ["GET", "HEAD"])):
        store = open_store(location_of(server), remote=ranges(gap=1 << 20), verify=verify)
        read(store, 12, 0, 0)  # the shard is known
        server.requests.clear()
        source.bytes = 0
        assert store.read(spans, ["cls"])["cls"][0].tolist() == [11 % 5]
        assert [method for method, _ in server.requests] == asked


def test_keys_ask_for_nothing(web, ranges):
    store = open_store(location_of(web[0]), remote=ranges())
    web[0].requests.clear()
    assert store.keys([12]) == ["dir/u12"]
    assert web[0].requests == []


def test_a_flipped_bit_is_named_where_its_block_is_read_and_only_there(web, ranges, folder):
    index = index_of(folder, 0)
    begin = int(index.members["mel.npy"].begins[LONG])
    flip(folder / "x-000.tar", begin + 3 * BLOCK + 5)
    store = open_store(location_of(web[0]), remote=ranges())
    read(store, LONG, 0, 100)
    with pytest.raises(CorruptSampleError, match=r"dir/u7.*mel\.npy") as caught:
        read(store, LONG, 3 * BLOCK // 12 + 10, 3 * BLOCK // 12 + 11)
    facts = caught.value.details
    assert (facts["file"], facts["sequence"], facts["shard"]) == ("x-000.tar", LONG, 0)
    assert facts["offset"] <= begin + 3 * BLOCK + 5 < facts["offset"] + facts["length"]


def test_what_comes_is_looked_at_each_time(web, ranges, folder):
    server, source = web
    source.tags = False
    store = open_store(location_of(server), remote=ranges(memory_bytes=0))
    keeping = open_store(location_of(server), remote=ranges())
    must = [read(one, LONG, 0, 10) for one in (store, keeping)]
    flip(folder / "x-000.tar", int(index_of(folder, 0).members["mel.npy"].begins[LONG]))
    with pytest.raises(CorruptSampleError):
        read(store, LONG, 0, 10)
    assert np.array_equal(read(keeping, LONG, 0, 10), must[1])


def test_a_shard_that_is_replaced_meanwhile_is_not_mixed_with_the_old_one(web, ranges, folder):
    store = open_store(location_of(web[0]), remote=ranges())
    read(store, LONG, 0, 10)
    flip(folder / "x-000.tar", int(index_of(folder, 0).members["txt"].begins[0]))
    for _ in range(2):  # what came of another file is not kept
        with pytest.raises(
            FingerprintMismatch, match="must not change while it is read, but was replaced"
        ):
            read(store, LONG, 20_000, 20_010)


def test_another_shard_in_its_place_is_refused_before_anything_of_it_is_read(web, ranges, folder):
    store = open_store(location_of(web[0]), remote=ranges())
    good = (folder / "x-001.tar").read_bytes()
    (folder / "x-001.tar").write_bytes(good + bytes(10_240))
    with pytest.raises(
        CorruptShardError, match=r"must have \d+ bytes as when it was indexed, but has"
    ):
        read(store, 12, 0, 0)
    renamed = good.replace(b"dir/u10.", b"dir/u1x.", 1)
    (folder / "x-001.tar").write_bytes(renamed)
    with pytest.raises((CorruptShardError, FingerprintMismatch)) as caught:
        read(store, 12, 0, 0)
    assert caught.value.details["file"] == "x-001.tar"
    (folder / "x-001.tar").unlink()
    with pytest.raises(MissingShardError, match=r"is not there\. Check the URL, or restore it"):
        read(store, 12, 0, 0)


@pytest.mark.parametrize("fault", [network.unavailable, network.reset, network.short])
def test_what_passes_is_tried_again(web, ranges, folder, fault):
    server, _ = web
    store = open_store(
        location_of(server), remote=ranges(retry_seconds=patient(20), stall_seconds=patient(5))
    )
    read(store, LONG, 0, 1)
    server.fault, server.hits = fault(1), "x-000.tar"
    must = open_webdataset(folder)
    assert np.array_equal(read(store, LONG, 20_000, 20_400), read(must, LONG, 20_000, 20_400))


def test_what_does_not_pass_names_shard_bytes_and_attempts(web, ranges):
    server, _ = web
    store = open_store(
        location_of(server), remote=ranges(retry_seconds=patient(0.5), stall_seconds=patient(1))
    )
    read(store, LONG, 0, 1)
    server.fault, server.hits = network.unavailable(), "x-000.tar"
    with pytest.raises(RemoteReadError) as caught:
        read(store, LONG, 20_000, 20_010)
    facts = caught.value.details
    assert (facts["file"], facts["shard"], facts["length"]) == ("x-000.tar", 0, BLOCK)


def test_shards_here_and_elsewhere_are_one_store(web, ranges, folder):
    server, source = web
    both = f"{folder}/x-000.tar::{server.url}/x-001.tar::{server.url}/x-002.tar"
    store = open_store(both, remote=ranges())
    source.bytes = 0
    read(store, LONG, 0, 40_000)
    assert source.bytes == 0
    local = open_webdataset(folder)
    assert digest_of(store) == digest_of(local)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [None, "forkserver", pytest.param("spawn", marks=pytest.mark.nightly)]
)
def test_every_batch_from_a_bucket_is_that_from_here(s3, folder, tmp_path, method):
    system, options = s3
    system.mkdirs("ranged", exist_ok=True)
    for path in [*folder.glob("*.tar"), *folder.glob("seqdata-index/*")]:
        system.pipe_file(f"ranged/{path.relative_to(folder)}", path.read_bytes())
    remote = Remote(how="ranges", cache_dir=tmp_path / "cache", storage_options=options)
    store = open_store("s3://ranged/x-{000..002}.tar", remote=remote)
    how = {} if method is None else {"num_workers": 1, "start_method": method}
    loader = Loader(store, Bucketed(4), seed=2, **how)
    try:
        for ours, due in zip(loader, Loader(str(folder), Bucketed(4), seed=2), strict=True):
            assert ours.ids.tolist() == due.ids.tolist()
            for name in ("mel.npy", "tok.npy", "cls", "mean.npy"):
                assert ours[name].equal(due[name])
            assert [json.loads(one) for one in ours["json"]]
    finally:
        loader.shutdown()
    assert not (tmp_path / "cache").exists()


@pytest.mark.filterwarnings("ignore:loader. shuffle=True draws each batch from all")
@pytest.mark.parametrize("room", [1, 100_000])
def test_shards_that_the_cache_has_no_room_for_are_read_by_ranges(web, folder, tmp_path, room):
    schema = {"json": {"a": Field("int64", (), "a")}}  # lengths that must be decoded for it
    remote = Remote(cache_dir=tmp_path / "shard-cache", cache_bytes=room)
    store = open_webdataset(location_of(web[0]), remote=remote, schema=schema, progress=False)
    local = open_webdataset(folder, schema=schema)
    assert store.lengths_of["a"].tolist() == local.lengths_of["a"].tolist()
    loaders = [Loader(one, Fixed(8), seed=2) for one in (store, local)]
    for ours, due in zip(*loaders, strict=True):
        assert ours.ids.tolist() == due.ids.tolist()
        for name in ("mel.npy", "cls", "json.a"):
            assert ours[name].equal(due[name])
        assert ours["txt"] == due["txt"]
    held = [one.stat().st_size for one in (tmp_path / "shard-cache").rglob("*") if one.is_file()]
    assert any(one > 10_000 for one in held) == (room > 1)

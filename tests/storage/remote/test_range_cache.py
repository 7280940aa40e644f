"""What came by ranges stays in memory for the batches that need it next, up to a bound."""

import threading
from pathlib import Path

import numpy as np
import pytest

from seqdata import TBPTT, Loader, Remote, RemoteReadError, open_store, write_store
from seqdata.errors import FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.range_cache import (
    RangeCache,
    RangeDownload,
    SparseFile,
    allocate_sparse,
    download_missing,
)
from seqdata.storage.remote.transport import ForkSafeThreadPool
from seqdata_testing.faults import network
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.waiting import patient

LONG = 30_000  # timesteps of int64: 4 blocks of 64 KiB, the last not whole


def take(kept, sizes, count=10):
    with kept.files(sizes) as held:
        for one in held.values():
            one.mark_present(np.array([[0, count]]))
    return held


def test_files_stay_while_there_is_room_and_the_longest_unused_go_first():
    kept = RangeCache(40)
    first = take(kept, dict.fromkeys(range(4), 100))
    assert take(kept, {0: 100})[0] is first[0]
    take(kept, {4: 100})
    assert take(kept, {0: 100})[0] is first[0]
    assert take(kept, {1: 100})[1] is not first[1]


def test_a_file_that_holds_its_share_begins_anew():
    kept = RangeCache(40)
    first = take(kept, {0: 100}, 39)
    assert take(kept, {0: 100}, 40)[0] is first[0]
    assert take(kept, {0: 100})[0] is not first[0]
    assert take(RangeCache(0), {0: 100})[0].present.tolist() == [[0, 10]]
    nothing = RangeCache(0)
    assert take(nothing, {0: 100})[0] is not take(nothing, {0: 100})[0]


def test_files_of_one_read_share_the_room():
    kept = RangeCache(40)
    first = take(kept, {0: 100, 1: 100}, 19)
    assert take(kept, {0: 100, 1: 100}, 20)[1] is first[1]
    assert take(kept, {0: 100, 1: 100})[1] is not first[1]


class FewFiles:
    """Files of a folder, by name; each byte is its place."""

    remote = Remote(gap=0)

    def read(self, name, low, high, location):
        return bytes(range(low, high))


@pytest.mark.parametrize("replaced", [0, 1, 2])
def test_where_one_of_the_files_was_replaced_what_came_of_none_counts(replaced):
    files = {number: SparseFile(allocate_sparse(100)) for number in range(3)}
    wanted = {number: [np.array([[number, 20 + number]])] for number in files}

    def make_download(number, file, ranges):
        return RangeDownload(
            FewFiles(), str(number), file.content, ranges, DataLocation(dataset="d")
        )

    def check_unchanged(number):
        if number == replaced:
            raise FingerprintMismatch.at("replaced")

    with pytest.raises(FingerprintMismatch, match="replaced"):
        download_missing(files, wanted, make_download, check_unchanged, ForkSafeThreadPool(2))
    assert [len(file.present) for file in files.values()] == [0, 0, 0]
    replaced = None
    download_missing(files, wanted, make_download, check_unchanged, ForkSafeThreadPool(2))
    for number, file in files.items():
        assert file.present.tolist() == [[number, 20 + number]]
        assert file.content[number : 20 + number] == bytes(range(number, 20 + number))


@pytest.fixture
def far(tmp_path):
    """Long sequences on a web server that counts requests: (store here, server)."""
    drawn = np.random.default_rng(0)
    local = write_store(
        tmp_path / "store",
        [{"id": f"s{n}", "x": drawn.integers(0, 1 << 40, LONG)} for n in range(6)],
        shard_bytes=500_000,
    )
    with served(folder_of(Path(local.location))) as server:
        yield local, server


def reading(server, tmp_path, **options):
    return open_store(server.url, remote=Remote(how="ranges", cache_dir=tmp_path / "c", **options))


def gets(server):
    return sum(method == "GET" and path.endswith(".arrow") for method, path in server.requests)


@pytest.mark.slow
def test_lanes_bring_each_block_once_and_read_what_lies_here(far, tmp_path):
    local, server = far
    policy = TBPTT(6, 750)
    store = reading(server, tmp_path)
    assert len(store.shards) > 1
    near = Loader(local, policy)
    for batch, must in zip(Loader(store, policy), near, strict=True):
        assert (batch["x"] == must["x"]).all()
    blocks = 6 * -(-LONG * 8 // (64 << 10))
    assert gets(server) <= blocks + 2 * len(store.shards) < len(near)
    server.requests.clear()
    for _ in Loader(reading(server, tmp_path, memory_bytes=0), policy):
        pass
    assert gets(server) > 6 * len(near)  # a request for every lane in every step


@pytest.mark.slow
def test_two_readers_of_one_store_get_what_lies_here(far, tmp_path):
    local, server = far
    store = reading(server, tmp_path)
    wrong = []

    def play(seed):
        loaders = [Loader(one, TBPTT(3, 700), seed=seed) for one in (store, local)]
        wrong.extend(
            batch.number
            for batch, must in zip(*loaders, strict=True)
            if not (batch["x"] == must["x"]).all()
        )

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(timeout=patient())
    assert wrong == []


def test_what_could_not_be_read_is_asked_for_again(far, tmp_path):
    local, server = far
    store = reading(server, tmp_path, retry_seconds=patient(1), stall_seconds=patient(1))
    spans = np.array([[0, 0, 10], [5, 0, 10]])
    store.read(np.array([[0, LONG // 2, LONG // 2 + 10]]), ["x"])
    server.fault, server.hits = network.unavailable(), local.shards[-1]
    with pytest.raises(RemoteReadError):
        store.read(spans, ["x"])
    server.fault = None
    found, must = (one.read(spans, ["x"])["x"] for one in (store, local))
    for row in range(2):
        assert np.array_equal(found[row], must[row])

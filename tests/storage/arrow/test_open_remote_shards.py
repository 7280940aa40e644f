"""Stores at S3, at web addresses and in memory give what the local one gives."""

import json
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from seqdata import (
    Bucketed,
    ConfigError,
    CorruptSampleError,
    CorruptShardError,
    DataError,
    FingerprintMismatch,
    IncompleteDatasetError,
    Loader,
    MissingShardError,
    Remote,
    open_store,
    split,
)
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.stores import check_store
from seqdata_testing.waiting import until
from tests.storage.remote.samples import read_all, sequences, spans_of, write


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def there(local, s3):
    s3.mkdir("remote-shards")
    s3.put(f"{local.location}/", "remote-shards/store/", recursive=True)
    return "s3://remote-shards/store"


@pytest.fixture
def web(local):
    with served(folder_of(Path(local.location))) as made:
        yield made


@pytest.fixture
def in_memory(local):
    system = fsspec.filesystem("memory")
    system.put(f"{local.location}/", "/store/", recursive=True)
    yield "memory://store"
    system.rm("/store", recursive=True)


WAYS = ["cache", "ranges"]


@pytest.mark.parametrize("how", WAYS)
def test_everything_at_s3_is_what_lies_here(there, local, remote, how):
    store = open_store(there, remote=remote(how=how))
    assert store.fingerprint == local.fingerprint
    assert np.array_equal(store.lengths, local.lengths)
    assert dict(store.fields) == dict(local.fields)
    assert list(store.shards) == list(local.shards)
    assert len(store.shards) > 2
    assert read_all(store) == read_all(local)
    mixed = spans_of(local, np.random.default_rng(1).permutation(len(local))[:40])
    assert read_all(store, mixed) == read_all(local, mixed)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.slow
def test_parts_of_sequences_at_s3_are_what_lies_here(there, local, remote, how):
    store = open_store(there, remote=remote(how=how, gap=0))
    spans = spans_of(local, [5, 100, 5, 60, 119])
    spans[:, 1] = spans[:, 2] // 3
    spans[:, 2] = spans[:, 2] * 2 // 3
    assert read_all(store, spans) == read_all(local, spans)


@pytest.mark.parametrize("how", WAYS)
def test_a_web_address_gives_the_same(web, local, tmp_path, how):
    store = open_store(web.url, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    assert read_all(store) == read_all(local)


@pytest.mark.parametrize("how", WAYS)
def test_memory_gives_the_same(in_memory, local, tmp_path, how):
    store = open_store(in_memory, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    assert read_all(store) == read_all(local)
    assert store.title == "RemoteStore('memory://store', 120 sequences)"


@pytest.mark.parametrize("how", WAYS)
def test_ids_and_texts_come_without_the_shards(web, local, tmp_path, how):
    store = open_store(web.url, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    numbers = np.array([119, 0, 60, 0])
    assert store.keys(numbers) == local.keys(numbers)
    for name in (None, "text"):
        for found, must in zip(
            store.raw_texts(name, numbers), local.raw_texts(name, numbers), strict=True
        ):
            assert found.tobytes() == must.tobytes()
    parts = split(store, {"train": 0.8, "val": 0.2})
    assert (
        parts["val"].numbers.tolist()
        == split(local, {"train": 0.8, "val": 0.2})["val"].numbers.tolist()
    )
    sizes = {Path(local.location, name).stat().st_size for name in local.shards}
    kept = {path.stat().st_size for path in (tmp_path / "cache" / "seqdata-shards").iterdir()}
    assert not sizes & kept


@pytest.mark.parametrize("is_kept", [False, True])
def test_ranges_bring_what_a_batch_needs_and_keep_what_lies_between_where_all_has_room(
    web, local, tmp_path, is_kept
):
    options = {} if is_kept else {"gap": 0}
    remote = Remote(how="ranges", cache_dir=tmp_path / "cache", **options)
    store = open_store(web.url, remote=remote)
    store.read(spans_of(local, [0]), ["x"])["x"][0]
    web.requests.clear()
    store.read(spans_of(local, [3, 4]), ["x"])["x"][0]
    shard = local.shards[0]
    assert web.requests == [("GET", f"/{shard}"), ("HEAD", f"/{shard}")]
    assert read_all(store, spans_of(local, [4, 0])) == read_all(local, spans_of(local, [4, 0]))
    web.requests.clear()
    store.read(spans_of(local, [4, 0, 3]), ["x", "tokens"])["x"][0]
    # the tokens of the third lie between those of the others
    assert web.requests == ([] if is_kept else [("GET", f"/{shard}"), ("HEAD", f"/{shard}")])


def test_a_shard_is_fetched_once(web, local, tmp_path):
    remote = Remote(cache_dir=tmp_path / "cache")
    read_all(open_store(web.url, remote=remote))
    web.requests.clear()
    read_all(open_store(web.url, remote=remote))
    assert {path for method, path in web.requests if method == "GET"} == {"/seqdata.json", "/"}


def test_what_the_next_batches_need_is_fetched_ahead(web, local, tmp_path):
    store = open_store(web.url, remote=Remote(cache_dir=tmp_path / "cache"))
    assert store.prefetch(np.array([0, 1])) is True
    assert store.prefetch(np.arange(len(local))) is False or len(local.shards) <= 4
    wanted = store._reader._files.make_request(0)
    assert until(lambda: store._reader._files._cache.has(wanted))


READERS = [
    ("cache", 0, None),
    pytest.param("cache", 2, "forkserver", marks=pytest.mark.nightly),
    pytest.param("cache", 1, "spawn", marks=pytest.mark.nightly),
    pytest.param("cache", 1, "fork", marks=pytest.mark.nightly),
    pytest.param("ranges", 0, None, marks=pytest.mark.nightly),
    ("ranges", 1, "fork"),
    pytest.param("ranges", 2, "forkserver", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("how", "workers", "method"), READERS)
@pytest.mark.slow
def test_every_batch_from_s3_is_that_from_here(there, local, remote, how, workers, method):
    store = open_store(there, remote=remote(how=how))
    read_all(store, spans_of(local, [0]))  # a client is there before workers are
    options = {"num_workers": workers, "seed": 3}
    if method is not None:
        options["start_method"] = method
    far, near = Loader(store, Bucketed(8), **options), Loader(local, Bucketed(8), seed=3)
    for batch, must in zip(far, near, strict=True):
        assert batch.ids.tolist() == must.ids.tolist()
        assert (batch["x"] == must["x"]).all()
        assert batch["text"] == must["text"]
    far.shutdown()


def test_a_view_is_read_ahead_and_gives_the_same(there, local, remote):
    store = open_store(there, remote=remote()).take([110, 3, 3, 70])
    batches = list(Loader(store, Bucketed(2), seed=0))
    must = list(Loader(local.take([110, 3, 3, 70]), Bucketed(2), seed=0))
    assert [one.ids.tolist() for one in batches] == [one.ids.tolist() for one in must]
    assert all((one["x"] == two["x"]).all() for one, two in zip(batches, must, strict=True))


@pytest.mark.parametrize("how", WAYS)
def test_bad_asks_are_refused(in_memory, tmp_path, how):
    store = open_store(in_memory, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    one = np.array([[0, 0, 1]])
    with pytest.raises(
        ConfigError, match=r"the index of a sequence must be in \[0, 120\), but is 120\. Use a"
    ):
        store.read(np.array([[120, 0, 0]]), ["x"])
    with pytest.raises(
        ConfigError, match=r"sequence 0: its span must be within 0\.\..*, but is 0\.\.999\."
    ):
        store.read(np.array([[0, 0, 999]]), ["x"])
    with pytest.raises(
        ConfigError,
        match=(
            r"`spans` must have shape \(n, 3\), .* has shape \(3,\)|`spans` have shape \(3,\), "
            r"must be \(n, 3\)"
        ),
    ):
        store.read(np.array([0, 0, 1]), ["x"])
    with pytest.raises(ConfigError, match="no field 'nope'"):
        store.read(one, ["nope"])
    with pytest.raises(ConfigError, match="no axis 'nope'"):
        store.read(one, ["x"], axis="nope")
    with pytest.raises(ConfigError, match="no field of strings 'x'"):
        store.raw_texts("x", np.array([0]))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("opened", ["first", "again"])
def test_a_remote_store_keeps_all_that_a_store_promises(web, tmp_path, how, opened):
    remote = Remote(how=how, cache_dir=tmp_path / "cache")
    store = open_store(web.url, remote=remote)
    if opened == "again":
        read_all(store)
    check_store(store, sequences(), methods=("fork",) if opened == "first" else ())


@pytest.mark.parametrize("how", WAYS)
def test_nothing_is_asked_for_and_given(in_memory, tmp_path, how):
    store = open_store(in_memory, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    assert store.keys([]) == []
    assert store.raw_texts(None, np.array([], dtype=np.int64))[1].tolist() == [0]
    columns = store.read(np.empty((0, 3), dtype=np.int64), ["x", "text"])
    assert (len(columns["x"]), columns["text"]) == (0, [])


@pytest.fixture
def damaged(local, tmp_path):
    """A copy of the store, to be changed, and the address that it is served at."""
    folder = tmp_path / "copy"
    shutil.copytree(local.location, folder)
    with served(folder_of(folder)) as made:
        yield folder, made.url


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_never_enters_the_cache(damaged, local, tmp_path):
    folder, url = damaged
    store = open_store(url, remote=Remote(cache_dir=tmp_path / "cache"))
    flip(folder / local.shards[1], local.manifest.shards[1].buffers["x"][0][0] + 40)
    with pytest.raises(
        CorruptShardError, match=r"must have sha256 .*, but has .*: it was replaced"
    ):
        read_all(store)
    sizes = {path.stat().st_size for path in (tmp_path / "cache" / "seqdata-shards").iterdir()}
    assert local.manifest.shards[1].bytes not in sizes


def test_a_flipped_bit_in_a_range_names_the_sequence(damaged, local, tmp_path):
    folder, url = damaged
    place = local.manifest.shards[1].buffers["x"][0][0] + 40
    flip(folder / local.shards[1], place)
    store = open_store(url, remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    with pytest.raises(CorruptSampleError, match=r"sequence .* field .x., bytes") as caught:
        read_all(store)
    facts = caught.value.details
    assert facts["dataset"] == url
    assert facts["shard"] == 1
    assert facts["offset"] <= place < facts["offset"] + facts["length"]


def test_a_shard_that_is_gone_or_cut_is_found_at_opening(damaged, local, tmp_path):
    folder, url = damaged
    remote = Remote(cache_dir=tmp_path / "cache")
    path = folder / local.shards[1]
    content = path.read_bytes()
    path.write_bytes(content[:-512])
    with pytest.raises(CorruptShardError, match=r"must have \d+ bytes, but has \d+"):
        open_store(url, remote=remote)
    path.unlink()
    with pytest.raises(
        MissingShardError, match=r"shard 1 .* is not there\. Check the URL, or restore it"
    ):
        open_store(url, remote=remote)


def test_two_shards_in_each_others_place_are_found(damaged, local, tmp_path):
    folder, url = damaged
    store = open_store(url, remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    shard = local.manifest.shards[0]
    path = folder / shard.file
    content = path.read_bytes()
    path.write_bytes(content[: -shard.footer_bytes] + bytes(shard.footer_bytes))
    with pytest.raises(CorruptShardError, match=r"must have a footer with SHA-256 .*, but has"):
        read_all(store)


@pytest.mark.parametrize("how", WAYS)
def test_a_shard_that_is_replaced_is_not_mixed_with_the_old_one(damaged, local, tmp_path, how):
    folder, url = damaged
    store = open_store(url, remote=Remote(how=how, cache_dir=tmp_path / "cache"))
    read_all(store, spans_of(local, [0]))
    flip(folder / local.shards[0], local.manifest.shards[0].buffers["x"][0][0] + 40)
    if how == "ranges":
        text = "must not change while it is read, but was replaced"
        for _ in range(4):  # what came is not kept
            with pytest.raises(FingerprintMismatch, match=text):
                read_all(store, spans_of(local, [1]))
    assert read_all(store, spans_of(local, [0])) == read_all(local, spans_of(local, [0]))


def test_damaged_lengths_are_refused_at_opening(damaged, local, tmp_path):
    folder, url = damaged
    flip(folder / "lengths-time.u32", 0)
    with pytest.raises(CorruptShardError, match="must have sha256"):
        open_store(url, remote=Remote(cache_dir=tmp_path / "cache"))


def test_a_location_without_a_manifest_says_what_is_there(s3, bucket, remote):
    s3.pipe(f"{bucket}/half/part-00000.arrow", b"x")
    s3.pipe(f"{bucket}/other/notes.md", b"x")
    with pytest.raises(IncompleteDatasetError, match="is not there, but 1 files of a store are"):
        open_store(f"s3://{bucket}/half", remote=remote())
    with pytest.raises(
        DataError, match=r"must be a store's folder, but holds notes.md and no 'seqdata.json'"
    ):
        open_store(f"s3://{bucket}/other", remote=remote())
    with pytest.raises(MissingShardError, match=r"/nothing: is not there: no file or folder has"):
        open_store(f"s3://{bucket}/nothing", remote=remote())


def test_files_that_others_wrote_are_read_from_s3(s3, bucket, remote, tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(2):
        ids = [f"{letter}{number}" for letter in "abcd"]
        table = pa.table({"x": [[1, 2, 3], [4], [], [5, 6]], "id": ids})
        parquet.write_table(table, tmp_path / "files" / f"{number}.parquet")
    s3.put(f"{tmp_path}/files/", f"{bucket}/files/", recursive=True)
    near = open_store(tmp_path / "files", verify="off")
    for location in (f"s3://{bucket}/files", f"s3://{bucket}/files/0.parquet"):
        store = open_store(location, verify="off", remote=remote())
        part = len(store)
        assert read_all(store) == {name: values[:part] for name, values in read_all(near).items()}
    far = open_store(f"s3://{bucket}/files", verify="off", remote=remote())
    assert far.fingerprint == near.fingerprint
    assert far.location == f"s3://{bucket}/files"
    batches = list(Loader(far, Bucketed(4), seed=0, num_workers=1))
    must = list(Loader(near, Bucketed(4), seed=0))
    assert [one["x"].tolist() for one in batches] == [one["x"].tolist() for one in must]
    state = {"_data_files": [{"filename": "1.parquet"}, {"filename": "2.parquet"}]}
    s3.pipe_file(f"{bucket}/files/state.json", json.dumps(state).encode())
    with pytest.raises(MissingShardError, match=r'shard 1 \("2.parquet"\): must be in the folder'):
        open_store(f"s3://{bucket}/files", verify="off", remote=remote())
    state["_data_files"].pop()
    s3.pipe_file(f"{bucket}/files/state.json", json.dumps(state).encode())
    assert len(open_store(f"s3://{bucket}/files", verify="off", remote=remote())) == 4

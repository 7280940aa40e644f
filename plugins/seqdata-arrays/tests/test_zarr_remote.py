"""Zarr behind URLs: what is read locally is read there, and no more of it than is asked for."""

import json
import warnings

import fsspec
import numcodecs
import numpy as np
import pytest
import zarr
from arrays_samples import (
    check_names_what_has_no_label,
    recordings,
    write_without_a_label,
    write_zarr,
)
from click.testing import CliRunner
from seqdata_arrays import Zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec

from seqdata import TBPTT, Bucketed, LongSequenceDataModule, Remote, Windows, open_store
from seqdata import Loader as _Loader
from seqdata.cli.app import app
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    DataError,
    FingerprintMismatch,
    MissingShardError,
    RemoteReadError,
)
from seqdata_testing.faults.network import Answer, before, folder_of, served
from seqdata_testing.s3 import check_equal_batches
from seqdata_testing.stores import check_processes, check_reads
from seqdata_testing.waiting import patient

FORMS = {
    "v3": {"compressors": [BloscCodec()]},
    "v3 sharded": {"compressors": [GzipCodec()], "shards": (64, 3)},
    "v3 crc32c": {"compressors": [Crc32cCodec()]},
    "v2": {"zarr_format": 2, "compressors": [numcodecs.Blosc()]},
    "v2 plain": {"zarr_format": 2, "compressors": None},
}
CHUNK = 10


def Loader(store, policy, **options):
    return _Loader(store, policy, seed=3, **options)


@pytest.fixture
def counted(s3):
    """The same server behind one that notes requests: (its options, requests)."""
    requests = []
    source = before(s3.host, s3.port)

    def note(request):
        spans = {name.lower(): value for name, value in request.headers}.get("range", "")
        requests.append((request.method, request.path, spans.removeprefix("bytes=")))
        return source(request)

    with served(note) as web:
        yield {**s3.storage_options, "endpoint_url": web.url}, requests


def chunks_of(requests, method="GET"):
    """Return name and range of the requests for chunks."""
    return [
        (path.partition("/x/")[2], span)
        for each, path, span in requests
        if each == method and "/x/" in path and not path.endswith(".json")
    ]


def consolidate(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not in the specification of version 3 yet
        zarr.consolidate_metadata(path)


def wave(folder, rows=200, **options):
    """Write one array of small chunks."""
    return write_zarr(folder, [{"id": "a", "x": np.arange(rows)}], chunk=CHUNK, **options)


def system_of(s3):
    return fsspec.filesystem("s3", **s3.storage_options)


# What is read


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_from_s3_is_that_of_the_local_folder(s3, tmp_path, form, how):
    rows = [{"id": row["id"], "frames": row["frames"]} for row in recordings(5)]
    path = write_zarr(tmp_path / "data/x.zarr", rows, **FORMS[form])
    url = s3.upload(tmp_path / "data")
    local, there = (
        open_store(place, backend=Zarr(), **more)
        for place, more in (
            (path, {}),
            (f"{url}/x.zarr", {"remote": s3.remote(tmp_path / "far", how=how)}),
        )
    )
    check_equal_batches(Loader(there, Bucketed(2)), Loader(local, Bucketed(2)))
    assert (there.fingerprint, there.shards) == (local.fingerprint, local.shards)


@pytest.mark.slow
def test_labels_texts_attributes_and_long_arrays_are_those_of_the_local_folder(s3, tmp_path):
    write_zarr(tmp_path / "data/rec.zarr", recordings(4))
    root = zarr.open_group(str(tmp_path / "data/long.zarr"), mode="w", zarr_format=2)
    for name, values in (("x", np.arange(20.0).reshape(10, 2)), ("n", np.array([3, 0, 7]))):
        root.create_array(name, shape=values.shape, dtype=values.dtype)[...] = values
    names = np.array(["a", "b", "c"], dtype="<U1")
    root.create_array("who", shape=(3,), dtype=names.dtype)[...] = names
    url = s3.upload(tmp_path / "data")
    remote = s3.remote(tmp_path / "far", how="ranges")
    check_reads(open_store(f"{url}/rec.zarr", backend=Zarr(), remote=remote), recordings(4))
    backend = Zarr(lengths="n", ids="who", fields=["x"])
    local = open_store(tmp_path / "data/long.zarr", backend=backend)
    there = open_store(f"{url}/long.zarr", backend=backend, remote=remote)
    assert there.keys(range(3)) == ["a", "b", "c"]
    assert there[2]["x"].tolist() == local[2]["x"].tolist()
    assert there.fingerprint == local.fingerprint


@pytest.mark.slow
def test_folders_of_zarr_and_globs_in_a_bucket_are_one_store(s3, tmp_path):
    for name in ("part10", "part2"):
        write_zarr(tmp_path / f"data/{name}.zarr", [{"id": name, "x": np.arange(3)}])
    url, remote = s3.upload(tmp_path / "data"), s3.remote(tmp_path / "far")
    local = open_store(tmp_path / "data", backend=Zarr())
    for location, backend in ((url, None), (f"{url}/*.zarr", Zarr())):
        there = open_store(location, backend=backend, remote=remote)
        assert there.keys([0, 1]) == ["part2", "part10"]
        assert there.fingerprint == local.fingerprint
        assert there[1]["x"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"there is no zarr\.json or \.zarray or \.zgroup"):
        open_store(f"{url}/q*.zarr", backend=Zarr(), remote=remote)


@pytest.mark.slow
def test_workers_and_children_by_fork_and_spawn_read_the_same(s3, tmp_path, rows):
    path = write_zarr(tmp_path / "data/x.zarr", rows)
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    there = open_store(url, backend=Zarr(), remote=s3.remote(tmp_path / "far", how="ranges"))
    check_processes(there, ("fork", "spawn"))
    policy = Windows(8, stride=8, batch_size=16)
    local = open_store(path, backend=Zarr())
    check_equal_batches(Loader(there, policy, num_workers=2), Loader(local, policy))


@pytest.mark.slow
def test_a_run_continues_in_the_middle_of_an_epoch(s3, tmp_path, rows):
    path = write_zarr(tmp_path / "data/x.zarr", rows)
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    remote, policy = s3.remote(tmp_path / "far"), TBPTT(lanes=2, chunk=20)
    due = [batch["frames"].clone() for batch in Loader(open_store(path, backend=Zarr()), policy)]
    loader = Loader(open_store(url, backend=Zarr(), remote=remote), policy)
    batches = iter(loader)
    for must in due[:3]:
        assert next(batches)["frames"].equal(must)
    state = json.loads(json.dumps(loader.state_dict()))
    again = Loader(open_store(url, backend=Zarr(), remote=remote), policy)
    again.load_state_dict(state)
    rest = [batch["frames"] for batch in again]
    assert len(rest) == len(due) - 3
    assert all(found.equal(must) for found, must in zip(rest, due[3:], strict=True))


@pytest.mark.slow
def test_data_modules_and_commands_open_a_url(s3, tmp_path, rows, monkeypatch):
    write_zarr(tmp_path / "data/x.zarr", rows)
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    for name, value in (
        ("HOME", str(tmp_path)),
        *s3.enter_environment().items(),
    ):
        monkeypatch.setenv(name, value)
    data = LongSequenceDataModule(url, fields=["frames"], chunk=16, split={"train": 1.0})
    assert next(iter(data.train_dataloader()))["frames"].shape[1:] == (16, 3)
    done = CliRunner().invoke(app, ["stats", url, "--json"])
    assert json.loads(done.output)["sequences"] == len(rows)
    done = CliRunner().invoke(app, ["verify", url])
    assert "all could be read" in done.output


# What is fetched


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_only_the_chunks_asked_for_are_fetched(s3, counted, tmp_path, how):
    wave(tmp_path / "data/x.zarr")
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    options, requests = counted
    remote = Remote(how=how, cache_dir=tmp_path / "far", storage_options=options)
    store = open_store(url, backend=Zarr(), remote=remote)
    assert not chunks_of(requests)
    found = store.base.read(np.array([[0, 35, 52]]), ["x"])["x"]
    assert found[0].tolist() == list(range(35, 52))
    assert sorted(name for name, _ in chunks_of(requests)) == ["c/3", "c/4", "c/5"]
    requests.clear()
    store.base.read(np.array([[0, 35, 52]]), ["x"])  # decoded chunks are kept
    assert not requests
    again = open_store(url, backend=Zarr(), remote=remote)
    again.base.read(np.array([[0, 35, 52]]), ["x"])
    assert len(chunks_of(requests)) == (0 if how == "cache" else 3)


@pytest.mark.slow
def test_of_shards_the_index_and_the_chunks_asked_for_are_fetched_by_ranges(s3, counted, tmp_path):
    path = wave(tmp_path / "data/x.zarr", shards=(50,), compressors=None)
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    options, requests = counted
    remote = Remote(how="ranges", cache_dir=tmp_path / "far", storage_options=options)
    store = open_store(url, backend=Zarr(), remote=remote)
    found = store.base.read(np.array([[0, 35, 52]]), ["x"])["x"]
    assert found[0].tolist() == list(range(35, 52))
    size, index = (path / "a/x/c/0").stat().st_size, 16 * 5 + 4
    assert sorted(chunks_of(requests)) == sorted(
        [
            ("c/0", f"{size - index}-{size - 1}"),
            ("c/1", f"{size - index}-{size - 1}"),
            ("c/0", "240-399"),  # two chunks that lie side by side
            ("c/1", "0-79"),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_is_fetched_once(s3, counted, tmp_path, version):
    path = write_zarr(tmp_path / "data/x.zarr", recordings(4), zarr_format=version)
    consolidate(str(path))
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    last = ".zmetadata" if version == 2 else "zarr.json"
    system_of(s3).pipe_file(f"{url}/{last}", (path / last).read_bytes())  # as writers do
    options, requests = counted
    remote = Remote(cache_dir=tmp_path / "far", storage_options=options)
    there = open_store(url, backend=Zarr(), remote=remote)
    check_reads(there, recordings(4), rounds=1)
    names = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    fetched = [path for method, path, _ in requests if method == "GET" and path.endswith(names)]
    assert len(fetched) == 1
    assert there.fingerprint == open_store(path, backend=Zarr()).fingerprint


def test_an_array_that_grew_after_its_metadata_was_consolidated_is_read_whole(tmp_path):
    wave(tmp_path / "x.zarr", rows=50)
    consolidate(str(tmp_path / "x.zarr"))
    system, folder = fsspec.filesystem("memory"), f"grown-{tmp_path.name}"
    put(system, tmp_path / "x.zarr", folder)
    zarr.open_array(str(tmp_path / "x.zarr/a/x")).append(np.arange(50, 80))
    put(system, tmp_path / "x.zarr/a", f"{folder}/a")
    remote = Remote(cache_dir=tmp_path / "far")
    store = open_store(f"memory://{folder}", backend=Zarr(), remote=remote)
    assert store[0]["x"].tolist() == list(range(80))


def test_groups_whose_names_begin_alike_are_those_of_the_local_folder(tmp_path):
    names = ["a", "a-b", "a.b", "a0", "a/b", "b", "b0"]
    rows = [{"id": name, "x": np.arange(3), "x-b": np.arange(3)} for name in names]
    path = write_zarr(tmp_path / "x.zarr", rows)
    system, folder = fsspec.filesystem("memory"), f"alike-{tmp_path.name}"
    put(system, path, f"{folder}/x.zarr")
    remote = Remote(cache_dir=tmp_path / "far")
    there = open_store(f"memory://{folder}/x.zarr", backend=Zarr(), remote=remote)
    local = open_store(path, backend=Zarr())
    assert sorted(there.keys(range(7))) == sorted(names)
    assert list(there.fields) == list(local.fields) == ["x", "x-b"]
    assert there.keys(range(7)) == local.keys(range(7))
    assert there.fingerprint == local.fingerprint


def put(system, source, folder):
    """Copy a folder, the metadata of its root at last, as writers do."""
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda each: -len(each.parts)):
        system.pipe_file(f"/{folder}/{path.relative_to(source)}", path.read_bytes())


# Chunks that are not there, and damage


@pytest.mark.parametrize("how", ["cache", "ranges"])
@pytest.mark.parametrize("form", ["v3", "v3 sharded", "v2"])
def test_a_chunk_that_was_never_written_holds_the_fill_value(tmp_path, form, how):
    options = {"v2": {"zarr_format": 2}, "v3": {}, "v3 sharded": {"zarr_format": 3}}[form]
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", **{"zarr_format": 3, **options})
    more = {"shards": (20,)} if form == "v3 sharded" else {}
    array = root.create_array("x", shape=(60,), chunks=(10,), dtype="f4", fill_value=3.5, **more)
    array[20:30] = 1
    system, folder = fsspec.filesystem("memory"), f"fill-{tmp_path.name}"
    put(system, tmp_path / "x.zarr", folder)
    remote = Remote(cache_dir=tmp_path / "far", how=how)
    found = open_store(f"memory://{folder}", backend=Zarr(), remote=remote)[0]["x"]
    assert found.tobytes() == np.asarray(array[:]).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_a_chunk_that_is_gone_replaced_or_damaged_is_an_error(s3, tmp_path, rows, how):
    path = write_zarr(tmp_path / "data/x.zarr", rows, compressors=None)
    url, system = s3.upload(tmp_path / "data"), system_of(s3)
    remote = s3.remote(tmp_path / "far", how=how, retry_seconds=patient(1))
    key = f"{url}/x.zarr/rec3/frames/c/0/0"
    content = (path / "rec3/frames/c/0/0").read_bytes()

    def opened():
        return open_store(f"{url}/x.zarr", backend=Zarr(), remote=remote)

    store = opened()
    system.rm_file(key)
    with pytest.raises(CorruptSampleError, match=r'"rec3"\), field "frames".*is not there'):
        store[3]
    for other in (content[::-1], content[:-9], content + b"more"):
        system.pipe_file(key, content)
        store = opened()
        function, arguments = store.base.__reduce__()
        system.pipe_file(key, other)
        with pytest.raises(FingerprintMismatch, match=r'rec3/frames/c/0/0"\).*was replaced'):
            store[3]
        with pytest.raises(FingerprintMismatch, match="must be the data that was opened"):
            function(*arguments)
        assert store[4]["frames"].tobytes() == rows[4]["frames"].tobytes()
    system.pipe_file(key, content[:-9])
    with pytest.raises(DataError, match='chunk 0 of "rec3/frames" cannot be decoded'):
        opened()[3]


def test_a_damaged_index_of_a_shard_behind_a_url_is_refused(tmp_path):
    path = wave(tmp_path / "x.zarr", shards=(50,))
    shard = path / "a/x/c/0"
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(content)
    folder = f"index-{tmp_path.name}"
    put(fsspec.filesystem("memory"), path, folder)
    remote = Remote(cache_dir=tmp_path / "far", how="ranges")
    store = open_store(f"memory://{folder}", backend=Zarr(), remote=remote)
    with pytest.raises(DataError, match=r'"a"\), field "x".*its index is damaged'):
        store[0]


# Web servers, which list nothing


@pytest.fixture
def web(tmp_path):
    """A web server of the folder `served`."""
    with served(folder_of(tmp_path / "served")) as server:
        yield server


@pytest.mark.parametrize("version", [2, 3])
def test_a_web_server_is_read_by_consolidated_metadata(tmp_path, web, version):
    path = tmp_path / "served/x.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=version)
    array = root.create_array("a/x", shape=(60,), chunks=(10,), dtype="f4", fill_value=3.5)
    array[20:30] = 1
    remote = Remote(cache_dir=tmp_path / "far", how="ranges", retry_seconds=patient(1))
    with pytest.raises(MissingShardError, match=r"its server lists no files.*consolidate_metadata"):
        open_store(f"{web.url}/x.zarr", backend=Zarr(), remote=remote)
    consolidate(str(path))
    store = open_store(f"{web.url}/x.zarr", backend=Zarr(), remote=remote)
    assert store[0]["x"].tobytes() == np.asarray(array[:]).tobytes()
    check_processes(store, ("fork",))
    fresh = open_store(f"{web.url}/x.zarr", backend=Zarr(), remote=remote)
    name = "a/x/c/2" if version == 3 else "a/x/2"
    fresh.base._source.files.find_sizes([name])
    (path / name).write_bytes(b"other")
    with pytest.raises(FingerprintMismatch, match="was replaced"):
        fresh[0]
    with pytest.raises(ConfigError, match="must be one Zarr folder, since its server lists no"):
        open_store(f"{web.url}/*.zarr", backend=Zarr(), remote=remote)


@pytest.mark.parametrize("version", [2, 3])
def test_labels_that_a_group_behind_a_url_lacks_name_the_group(tmp_path, web, version):
    path = tmp_path / "served/rec.zarr"
    write_without_a_label(path, write_zarr, zarr_format=version)
    consolidate(str(path))
    remote = Remote(cache_dir=tmp_path / "far", how="ranges", retry_seconds=patient(1))
    check_names_what_has_no_label(f"{web.url}/rec.zarr", remote)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_a_bucket_that_may_not_be_listed_is_read_by_consolidated_metadata(s3, tmp_path, version):
    path = wave(tmp_path / "data/x.zarr", rows=50, zarr_format=version)
    consolidate(str(path))
    url = f"{s3.upload(tmp_path / 'data')}/x.zarr"
    source = before(s3.host, s3.port)

    def refuse(request):
        answer = Answer(403) if "list-type" in request.path else source(request)
        return Answer(403) if answer.status == 404 else answer  # as S3 without ListBucket

    with served(refuse) as web:
        options = {**s3.storage_options, "endpoint_url": web.url}
        remote = Remote(
            cache_dir=tmp_path / "far", storage_options=options, retry_seconds=patient(1)
        )
        store = open_store(url, backend=Zarr(), remote=remote)
        assert store[0]["x"].tolist() == list(range(50))
        system_of(s3).rm_file(f"{url}/a/x/" + ("3" if version == 2 else "c/3"))
        again = open_store(url, backend=Zarr(cache_bytes=0), remote=remote)
        with pytest.raises(RemoteReadError, match=r"a/x/.*Check address, permissions"):
            again[0]


def test_a_server_that_does_not_answer_is_an_error_without_credentials(tmp_path):
    remote = Remote(cache_dir=tmp_path / "far", retry_seconds=0.1)
    with pytest.raises(RemoteReadError, match=r"127\.0\.0\.1:9/x\.zarr.*could not be read") as seen:
        open_store("http://me:secret@127.0.0.1:9/x.zarr", backend=Zarr(), remote=remote)
    assert "secret" not in str(seen.value)

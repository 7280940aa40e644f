"""Zarr of both versions: what zarr writes opens by path, and what is damaged is refused."""

import functools
import json
import warnings

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from arrays_samples import (
    check_names_what_has_no_label,
    recordings,
    write_without_a_label,
    write_zarr,
)
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_arrays import Zarr
from seqdata_arrays.zarr_folder import LocalFiles
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec

from seqdata import Bucketed, Loader, Windows, open_store
from seqdata.cli.app import app
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    DataError,
    DecodeError,
    FingerprintMismatch,
)
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_pickling, check_reads, check_store

CODECS = {
    "v3": {},
    "v3 gzip and crc32c": {"compressors": [GzipCodec(level=5), Crc32cCodec()]},
    "v3 blosc": {"compressors": [BloscCodec()]},
    "v3 plain": {"compressors": None},
    "v2": {"zarr_format": 2},
    "v2 blosc": {"zarr_format": 2, "compressors": [numcodecs.Blosc()]},
    "v2 F order": {"zarr_format": 2, "order": "F", "compressors": [numcodecs.Zlib()]},
    "v2 shuffled": {
        "zarr_format": 2, "filters": [numcodecs.Shuffle(4)], "compressors": [numcodecs.GZip()],
    },
}  # fmt: skip


class TestZarr(StoreContract):
    sequences = tuple(recordings(7))
    methods = ("fork",)

    def make(self, folder, sequences):
        return open_store(write_zarr(folder / "x.zarr", sequences), backend=Zarr())


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("name", CODECS)
def test_every_codec_of_the_library_is_undone(tmp_path, name, columns):
    rows = [{"id": row["id"], "frames": row["frames"]} for row in recordings(4)]
    path = write_zarr(tmp_path / "x.zarr", rows, columns=columns, **CODECS[name])
    check_reads(open_store(path, backend=Zarr()), rows, rounds=1)


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_of_shards_are_read_one_by_one(tmp_path, location):
    values = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    codec = zarr.codecs.ShardingCodec(chunk_shape=(10, 3), index_location=location)
    array = zarr.create(
        store=str(tmp_path / "x.zarr"), path="x", shape=values.shape, dtype="f4",
        chunks=(40, 3), codecs=[codec], zarr_format=3, fill_value=7,
    )  # fmt: skip
    array[:90] = values[:90]
    values[90:] = 7
    zarr.open_group(str(tmp_path / "x.zarr"), mode="a")
    check_store(open_store(tmp_path / "x.zarr", backend=Zarr()), [{"id": "x.zarr", "x": values}])


@pytest.mark.parametrize("name", ["v3 plain", "v2"])
@pytest.mark.parametrize("dtype", ["<i2", "bool"])
def test_dtypes_of_numbers_are_kept(tmp_path, name, dtype):
    rows = [{"id": "a", "frames": np.arange(40).reshape(20, 2).astype(dtype)}]
    store = open_store(write_zarr(tmp_path / "x.zarr", rows, **CODECS[name]), backend=Zarr())
    check_reads(store, rows, rounds=1)


def test_numbers_in_another_byte_order_are_turned(tmp_path):
    rows = [{"id": "a", "frames": np.arange(40, dtype=">f4").reshape(20, 2)}]
    store = open_store(write_zarr(tmp_path / "x.zarr", rows, zarr_format=2), backend=Zarr())
    assert store[0]["frames"].dtype == np.float32
    assert store[0]["frames"].tolist() == rows[0]["frames"].tolist()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("fill", [3.5, float("nan"), float("inf"), 0])
def test_chunks_that_were_never_written_hold_the_fill_value(tmp_path, version, fill):
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=version)
    array = root.create_array("x", shape=(50,), chunks=(10,), dtype="f4", fill_value=fill)
    array[20:30] = 1
    found = open_store(tmp_path / "x.zarr", backend=Zarr())[0]["x"]
    assert found.tobytes() == np.asarray(array[:]).tobytes()


@settings(max_examples=5, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_any_spans_of_any_chunks_are_those_of_the_library(tmp_path_factory, lengths, chunk, seed):
    random = np.random.default_rng(seed)
    rows = [
        {"id": f"r{number}", "x": random.integers(0, 1000, length).astype(np.int32)}
        for number, length in enumerate(lengths)
    ]
    path = write_zarr(tmp_path_factory.mktemp("any") / "x.zarr", rows, chunk=chunk)
    check_reads(open_store(path, backend=Zarr(cache_bytes=300)), rows, rounds=3)


@pytest.mark.parametrize("version", [2, 3])
def test_long_arrays_are_cut_by_lengths(tmp_path, version):
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=version)
    for name, values in (("x", np.arange(20.0).reshape(10, 2)), ("n", np.array([3, 0, 7]))):
        root.create_array(name, shape=values.shape, dtype=values.dtype)[...] = values
    names = np.array(["a", "b", "c"], dtype="<U1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts of v3 are not in the specification yet
        root.create_array("who", shape=(3,), dtype=names.dtype)[...] = names
    store = open_store(tmp_path / "x.zarr", backend=Zarr(lengths="n", ids="who", fields=["x"]))
    assert (store.keys(range(3)), store.lengths.tolist()) == (["a", "b", "c"], [3, 0, 7])
    assert store[2]["x"].tolist() == np.arange(20.0).reshape(10, 2)[3:].tolist()


def test_folders_of_zarr_and_globs_are_one_store(tmp_path):
    for name in ("part10", "part2"):
        write_zarr(tmp_path / f"{name}.zarr", [{"id": name, "x": np.arange(3)}])
    for location in (tmp_path, f"{tmp_path}/*.zarr"):
        store = open_store(location, backend=Zarr())
        assert store.keys([0, 1]) == ["part2", "part10"]
    write_zarr(tmp_path / "part3.zarr", [{"id": "part2", "x": np.arange(3)}])
    with pytest.raises(DecodeError, match=r"part2.*must have a unique id.*keys='by_shard'"):
        open_store(tmp_path, backend=Zarr())
    by_folder = functools.partial(Zarr(), keys="by_shard")
    assert open_store(tmp_path, backend=by_folder).keys([0]) == ["part2.zarr/part2"]


@pytest.mark.parametrize("version", [2, 3])
def test_labels_that_a_group_lacks_name_the_group(tmp_path, version):
    path = tmp_path / "rec.zarr"
    write_without_a_label(path, write_zarr, zarr_format=version)
    check_names_what_has_no_label(path)


def test_only_the_chunks_asked_for_are_read(tmp_path, monkeypatch):
    path = write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(200)}], chunk=10)
    store = open_store(path, backend=Zarr())
    read = []
    own = LocalFiles.read
    monkeypatch.setattr(
        LocalFiles, "read", lambda self, pieces: (read.extend(pieces), own(self, pieces))[1]
    )
    store.base.read(np.array([[0, 35, 52]]), ["x"])
    names = [each.path.rpartition("/")[2] for each in read]
    assert (names, store.base.decoded_chunks) == (["3", "4", "5"], 3)


def test_workers_read_what_one_process_reads(tmp_path, rows):
    store = open_store(write_zarr(tmp_path / "x.zarr", rows), backend=Zarr())
    policy = Bucketed(4, shuffle=True)
    own = [batch["frames"] for batch in Loader(store, policy, seed=3)]
    for batch, due in zip(Loader(store, policy, seed=3, num_workers=2), own, strict=True):
        assert torch.equal(batch["frames"], due)
    assert next(iter(Loader(store, Windows(8, stride=8, batch_size=2))))["frames"].shape == (
        2,
        8,
        3,
    )


# Damage


def chunk_of(path):
    """Return the file of the first chunk of the third recording."""
    return path / "rec3/frames/c/0/0"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda chunk: chunk.write_bytes(chunk.read_bytes()[:-9]), "bytes, but had"),
        (lambda chunk: chunk.unlink(), "cannot be read"),
        (lambda chunk: chunk.write_bytes(bytes(chunk.stat().st_size)), "cannot be decoded"),
    ],
)
def test_a_damaged_chunk_names_sequence_and_field(tmp_path, rows, harm, message):
    path = write_zarr(tmp_path / "x.zarr", rows)
    store = open_store(path, backend=Zarr())
    harm(chunk_of(path))
    with pytest.raises(DataError, match=rf'"rec3"\), field "frames".*{message}'):
        store[3]
    assert store[4]["frames"].tobytes() == rows[4]["frames"].tobytes()


def test_a_damaged_chunk_is_named_once_with_its_file_and_without_a_sequence_of_its_number(tmp_path):
    path = write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(100)}])
    store = open_store(path, backend=Zarr())
    chunk = path / "a/x/c/3"
    size = chunk.stat().st_size
    chunk.write_bytes(b"123")
    with pytest.raises(CorruptSampleError) as caught:
        store[0]
    assert str(caught.value) == (
        f'{path} shard 0 ("x.zarr"), sequence 0 ("a"), field "x": chunk 3 ("a/x/c/3") is damaged: '
        f"has 3 bytes, but had {size} when it was opened. Restore it"
    )
    assert "chunk" not in caught.value.details


def test_a_damaged_chunk_counts_the_other_sequences_in_it(tmp_path):
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    for name, value in (("x", np.arange(40)), ("n", np.array([10, 10, 20]))):
        root.create_array(name, data=value, chunks=(20,))
    store = open_store(tmp_path / "x.zarr", backend=Zarr(lengths="n", fields=["x"]))
    (tmp_path / "x.zarr/x/c/0").unlink()
    message = r'sequence 0 .*: chunk 0 \("x/c/0"\), with values of this sequence and 1 more, is dam'
    with pytest.raises(CorruptSampleError, match=message):
        store[1]
    assert store[2]["x"].tolist() == list(range(20, 40))


def test_a_chunk_that_was_cut_off_before_is_refused(tmp_path, rows):
    path = write_zarr(tmp_path / "x.zarr", rows)
    chunk_of(path).write_bytes(chunk_of(path).read_bytes()[:-9])
    with pytest.raises(DecodeError, match='chunk 0 of "rec3/frames" cannot be decoded'):
        open_store(path, backend=Zarr())[3]


def test_a_damaged_index_of_a_shard_is_refused(tmp_path):
    path = write_zarr(
        tmp_path / "x.zarr", [{"id": "a", "x": np.arange(200)}], chunk=10, shards=(50,)
    )
    shard = next(each for each in (path / "a/x/c").iterdir() if each.name == "0")
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged: its index is damaged: .*[^.]\. Restore it"):
        open_store(path, backend=Zarr())[0]


def test_a_shard_whose_index_points_outside_of_it_is_refused(tmp_path):
    path = write_zarr(
        tmp_path / "x.zarr", [{"id": "a", "x": np.arange(200)}], chunk=10, shards=(50,)
    )
    shard = path / "a/x/c/0"
    content = bytearray(shard.read_bytes())
    pairs = np.frombuffer(content[-84:-4], "<u8").copy()  # offset and size of each of 5 chunks
    pairs[1] += 4096
    index = numcodecs.registry.get_codec({"id": "crc32c"}).encode(pairs.tobytes())
    shard.write_bytes(content[:-84] + bytes(index))
    message = (
        rf"the shard index puts a chunk at bytes 0\.\.{pairs[1]} of 'c/0', which has "
        rf"{len(content)} bytes\. Restore it"
    )
    with pytest.raises(DataError, match=message):
        open_store(path, backend=Zarr())[0]


def test_data_that_changed_is_not_reopened(tmp_path, rows):
    path = write_zarr(tmp_path / "x.zarr", rows)
    store = open_store(path, backend=Zarr()).base
    check_pickling(store, rows)
    function, arguments = store.__reduce__()
    chunk_of(path).write_bytes(b"other")
    with pytest.raises(FingerprintMismatch, match="must be the data that was opened"):
        function(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(zarr_format=7), "must have valid metadata.*zarr_format 7"),
        (lambda found: found.pop("codecs"), "must have valid metadata.*KeyError"),
        (lambda found: found["codecs"].insert(0, {"name": "transpose", "configuration": {
            "order": [0]}}), None),
        (lambda found: found["codecs"].__setitem__(0, {"name": "vlen-utf8"}),
         "chunks of plain bytes"),
        (lambda found: found["chunk_grid"].update(name="odd"),
         "a regular grid of chunks, but has odd"),
        (lambda found: found.update(fill_value=[]), "a fill value of int64, but has"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_read_is_refused(tmp_path, change, message):
    path = write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(20)}])
    file = path / "a/x/zarr.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    if message is None:
        assert open_store(path, backend=Zarr())[0]["x"].tolist() == list(range(20))
        return
    with pytest.raises(DataError, match=message) as caught:
        open_store(path, backend=Zarr())
    assert caught.value.details["file"] == "x.zarr"


def test_an_array_of_no_numbers_is_refused(tmp_path):
    path = write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(3) * 1j}])
    with pytest.raises(DecodeError, match=r"array 'a/x' must hold real numb.* holds complex128"):
        open_store(path, backend=Zarr())


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        ("nothing.zarr", {}, r"must be a Zarr folder, or hold some \(`\*\.zarr`\)"),
        ("x.zarr", {"remote": "ranges"}, "`remote` must be left out for a path, but is given"),
        ("x.zarr", {"verify": "always"}, "`verify` must be None or 'off', but is 'always'"),
    ],
)
def test_what_is_no_zarr_folder_is_refused(tmp_path, monkeypatch, location, options, message):
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(3)}])
    with pytest.raises(ConfigError, match=message):
        Zarr()(location, **options)


def test_commands_open_a_folder(tmp_path, rows):
    path = str(write_zarr(tmp_path / "x.zarr", rows))
    done = CliRunner().invoke(app, ["stats", path, "--json", "--backend", "zarr"])
    assert json.loads(done.output)["sequences"] == len(rows)
    done = CliRunner().invoke(app, ["verify", path, "--backend", "zarr"])
    assert "all could be read" in done.output


def test_a_codec_that_is_not_installed_is_named(tmp_path):
    path = write_zarr(tmp_path / "x.zarr", [{"id": "a", "x": np.arange(3.0)}], zarr_format=2)
    file = path / "a/x/.zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"compressor": {"id": "nope"}}))
    store = open_store(path, backend=Zarr())
    with pytest.raises(DecodeError, match="its codec 'nope' is not installed") as caught:
        store[0]
    assert "Restore" not in str(caught.value)

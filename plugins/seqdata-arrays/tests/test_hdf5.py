"""HDF5 files: what h5py writes opens by path, equal bit by bit, and what is damaged is refused."""

import functools
import json
import multiprocessing
import os
import pickle
import re
import shutil
import threading

import fsspec
import h5py
import lightning as L
import numpy as np
import pytest
import torch
from arrays_samples import (
    check_names_what_has_no_label,
    recordings,
    write,
    write_hdf5,
    write_without_a_label,
)
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_arrays import HDF5

from seqdata import TBPTT, Bucketed, Fixed, Loader, Remote, SequenceDataModule, Windows, open_store
from seqdata.capabilities import find_missing
from seqdata.cli.app import app
from seqdata.errors import CorruptSampleError, DataError, DecodeError, SeqDataError
from seqdata_testing.contract import StoreContract, sample_sequences
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.stores import check_pickling, check_processes, check_reads, check_store
from seqdata_testing.waiting import patient

GZIP = {"chunks": 16, "compression": "gzip", "shuffle": True}
FILTERS = {
    "gzip": {"compression": "gzip"},
    "shuffled": {"compression": "gzip", "shuffle": True},
    "lzf": {"compression": "lzf", "shuffle": True},
    "checked": {"fletcher32": True},
    "checked and gzip": {"fletcher32": True, "compression": "gzip"},
    "plain": {},
}


def base(store):
    """Return the store below the view that ``open_store`` makes."""
    return getattr(store, "base", store)


class TestInPlace(StoreContract):
    methods = ("fork",)

    def make(self, folder, sequences):
        return open_store(write_hdf5(folder / "x.h5", sequences), backend=HDF5())


class TestChunks(StoreContract):
    methods = ("fork", "spawn")

    def make(self, folder, sequences):
        return open_store(write_hdf5(folder / "x.h5", sequences, **GZIP), backend=HDF5())


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("dtype", ["float32", ">f8", "int8"])
def test_every_filter_of_h5py_is_undone(tmp_path, name, dtype):
    rows = recordings(5)
    rows = [{"id": row["id"], "frames": row["frames"].astype(dtype)} for row in rows]
    path = write_hdf5(tmp_path / "x.h5", rows, chunks=16, **FILTERS[name])
    store = open_store(path, backend=HDF5())
    assert store.fields["frames"].dtype == np.dtype(dtype).name
    native = [{**row, "frames": row["frames"].astype(np.dtype(dtype).name)} for row in rows]
    check_reads(store, native, rounds=2)


def test_filters_that_only_hdf5_has_are_undone_by_it(tmp_path):
    values = np.arange(1_000, dtype=np.int32).reshape(-1, 2) % 77
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(32, 2), scaleoffset=0)
        if h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
            file.create_dataset("b", data=values, chunks=(32, 2), compression="szip")
    store = open_store(tmp_path / "x.h5", backend=HDF5())
    for name in store.fields:
        assert np.array_equal(store[0][name], values)


def test_a_filter_that_is_not_installed_is_named(tmp_path, monkeypatch):
    path = write_hdf5(tmp_path / "x.h5", recordings(3), chunks=16, compression="lzf")
    store = open_store(path, backend=HDF5())
    monkeypatch.setattr("h5py.h5z.filter_avail", lambda code: False)
    with pytest.raises(
        DecodeError, match=r"HDF5 filter 32000 is not installed.*hdf5plugin"
    ) as caught:
        store[2]
    assert "Restore" not in str(caught.value)


@pytest.mark.parametrize("chunks", [(7, 3, 5), (7, 2, 2), (1, 1, 1), (50, 3, 4)])
def test_chunks_may_cut_every_dimension(tmp_path, chunks):
    values = np.random.default_rng(0).normal(size=(50, 3, 5)).astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=chunks, compression="gzip")
    check_store(open_store(tmp_path / "x.h5", backend=HDF5()), [{"id": "x.h5", "x": values}])


def test_chunks_that_were_never_written_hold_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", (100, 2), ">i4", chunks=(10, 2), fillvalue=-7)
        data[35:52] = 1
        file.create_dataset("late", (100,), "float32", fillvalue=2.5)  # no bytes at all
    store = open_store(tmp_path / "x.h5", backend=HDF5())
    with h5py.File(tmp_path / "x.h5") as file:
        assert store[0]["x"].tolist() == file["x"][()].tolist()
        assert store[0]["late"].tolist() == file["late"][()].tolist()


def test_arrays_in_the_header_of_the_file_are_read(tmp_path):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple((5,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I16LE, space, properties)
        file["x"][...] = np.arange(5)
    assert open_store(tmp_path / "x.h5", backend=HDF5())[0]["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_user_block_moves_every_extent(tmp_path):
    for name, options in (("a.h5", {}), ("b.h5", {"chunks": (4,), "compression": "gzip"})):
        with h5py.File(tmp_path / name, "w", userblock_size=1024) as file:
            file.create_dataset("x", data=np.arange(10), **options)
        assert open_store(tmp_path / name, backend=HDF5())[0]["x"].tolist() == list(range(10))


def test_booleans_stay_booleans(tmp_path):
    for name, options in (("a.h5", {}), ("b.h5", {"chunks": (4,)})):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=np.array([True, False, True, True, False]), **options)
        store = open_store(tmp_path / name, backend=HDF5())
        assert store.fields["x"].dtype == "bool"
        assert store[0]["x"].tolist() == [True, False, True, True, False]


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    chunk=st.integers(1, 40),
    cache=st.sampled_from([0, 500, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_any_spans_of_any_chunks_are_those_of_h5py(tmp_path_factory, lengths, chunk, cache, seed):
    random = np.random.default_rng(seed)
    rows = [
        {"id": f"r{number}", "x": random.integers(0, 1000, length).astype(np.int32)}
        for number, length in enumerate(lengths)
    ]
    path = tmp_path_factory.mktemp("any") / "x.h5"
    write_hdf5(path, rows, chunks=chunk, compression="gzip")
    check_reads(open_store(path, backend=HDF5(cache_bytes=cache)), rows, rounds=3)


# Files


def test_a_folder_of_recordings_is_one_store(tmp_path):
    for name in ("part10.h5", "part2.h5"):
        write(tmp_path / name, {"x": np.arange(3)})
    for location in (tmp_path, f"{tmp_path}/*.h5", f"{tmp_path}/part{{2,10}}.h5"):
        store = open_store(location, backend=HDF5())
        assert store.keys([0, 1]) == ["part2.h5", "part10.h5"]


@pytest.mark.parametrize("options", [{}, GZIP])
def test_ids_that_repeat_in_other_files_are_refused_until_files_name_them(tmp_path, options):
    for name in ("a.h5", "b.h5"):
        write_hdf5(tmp_path / name, recordings(3), **options)
    with pytest.raises(DataError, match=r"'?rec0.*keys='by_shard'"):
        open_store(tmp_path, backend=HDF5())
    by_file = functools.partial(HDF5(), keys="by_shard")
    store = open_store(tmp_path, backend=by_file)
    assert store.keys([1, 3]) == ["a.h5/rec1", "b.h5/rec0"]


def test_files_with_and_without_chunks_are_one_store(tmp_path):
    rows = recordings(6)
    write_hdf5(tmp_path / "a.h5", rows[:3])
    write_hdf5(tmp_path / "b.h5", rows[3:], **GZIP)
    for _ in range(2):
        check_store(open_store(tmp_path, backend=HDF5()), rows)


def test_files_of_other_fields_are_refused(tmp_path):
    for name, dtype in (("a.h5", "f4"), ("b.h5", "f8")):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=np.zeros(9, dtype), chunks=(4,))
    message = r"b\.h5.*field \"x\".*must be float32 \[\] on axis time as in 'a.h5', but is float64"
    with pytest.raises(DecodeError, match=message):
        open_store(tmp_path, backend=HDF5())
    (tmp_path / "b.h5").unlink()
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("y", data=np.zeros(9, "f4"), chunks=(4,))
    shutil.rmtree(tmp_path / "seqdata-index")
    with pytest.raises(DecodeError, match=r"must be float32.*but is missing"):
        open_store(tmp_path, backend=HDF5())


def test_arrays_in_other_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["x"] = np.arange(10)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(tmp_path / "source.h5", "x", (10,))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("x", (10,), "i8", external=[(tmp_path / "raw", 0, 80)])
    for name in ("virtual.h5", "external.h5"):
        with pytest.raises(DecodeError, match="must be stored in this file, but is stor"):
            open_store(tmp_path / name, backend=HDF5())


def test_very_many_chunks_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (1 << 40,), "i1", chunks=(16,))
    with pytest.raises(DecodeError, match="must have at most 50000000 chunks, but has 68719476736"):
        open_store(tmp_path / "x.h5", backend=HDF5())


# Damage


def chunk_extent(path, name):
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(0)
        return info.byte_offset, info.size


def test_a_changed_byte_of_a_chunk_names_file_sequence_and_field(tmp_path, rows):
    path = write_hdf5(tmp_path / "x.h5", rows, **GZIP)
    store = open_store(path, backend=HDF5())
    begin, size = chunk_extent(path, "rec5/frames")
    content = bytearray(path.read_bytes())
    content[begin + size // 2] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(
            DataError, match=r'x\.h5.*sequence 5 \("rec5"\), field "frames"'
        ) as caught:
            store[5]
        assert caught.value.details["sequence"] == 5
    assert store[4]["frames"].tobytes() == rows[4]["frames"].tobytes()
    done = CliRunner().invoke(app, ["verify", str(path)])
    assert done.exit_code == 1
    assert "rec5/frames#0" in done.output


def test_a_changed_byte_of_a_chunk_is_told_once_with_one_command(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=np.arange(40), **{**GZIP, "chunks": (5,)})
        place = data.id.get_chunk_info(3)
    store = open_store(path, backend=HDF5())
    content = bytearray(path.read_bytes())
    content[place.byte_offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptSampleError) as caught:
        store[0]
    first, stop = place.byte_offset, place.byte_offset + place.size
    message, *commands = str(caught.value).split("\n")
    assert message.startswith(
        f'{path} shard 0 ("x.h5"), sequence 0 ("x.h5"), field "x", bytes {first}..{stop}: '
        'chunk 3 of "x" is damaged: must have crc32c '
    )
    assert "__chunk__" not in message
    assert commands == [f"  Verify: seqdata verify {path} --shard 0."]
    assert caught.value.details["offset"] == first
    assert "expected" in caught.value.details


@pytest.mark.parametrize("filters", ["gzip", "checked"])
def test_without_checksums_a_damaged_chunk_is_still_refused(tmp_path, rows, filters):
    path = write_hdf5(tmp_path / "x.h5", rows, chunks=16, **FILTERS[filters])
    store = open_store(path, backend=HDF5(), verify="off")
    begin, size = chunk_extent(path, "rec5/frames")
    content = bytearray(path.read_bytes())
    content[begin : begin + size] = os.urandom(size)
    path.write_bytes(content)
    with pytest.raises(DecodeError, match=r'"rec5".*chunk 0 of "rec5/frames" cannot be decoded'):
        store[5]


def test_a_chunk_of_another_size_than_its_header_says_is_refused(tmp_path):
    for number, size in enumerate((64, 400)):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            data = file.create_dataset("x", (50,), "i4", chunks=(50,), compression="gzip")
            import zlib

            data.id.write_direct_chunk((0,), zlib.compress(bytes(size)))
        message = "decompresses to 64 bytes, not 200" if size < 200 else "decompress to more than"
        with pytest.raises(DecodeError, match=message):
            open_store(path, backend=HDF5())[0]


@pytest.mark.parametrize("options", [{}, GZIP])
def test_a_file_that_is_cut_off_is_refused(tmp_path, rows, options):
    path = write_hdf5(tmp_path / "x.h5", rows, **options)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(DataError, match=r"x\.h5.*complete file.*restore it"):
        open_store(path, backend=HDF5())
    path.write_bytes(content)
    store = open_store(path, backend=HDF5())
    path.write_bytes(content[:-4096])
    with pytest.raises(SeqDataError, match=r"x\.h5"):
        open_store(path, backend=HDF5())
    del store


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"no hdf5 " * 100)
    with pytest.raises(DataError, match="must be a complete file of its format"):
        open_store(tmp_path / "x.h5", backend=HDF5())


@settings(max_examples=10, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path_factory, at, bit):
    rows = recordings(4, longest=60)
    folder = tmp_path_factory.mktemp("bit")
    path = write_hdf5(folder / "x.h5", rows, **GZIP)
    store = open_store(path, backend=HDF5())
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        found = [dict(row) for row in store]
    except SeqDataError:
        return
    for row, due in zip(found, rows, strict=True):
        assert row["frames"].tobytes() == due["frames"].tobytes()


# Reading


def long_file(path, *, chunk=100, count=2, steps=1_000):
    with h5py.File(path, "w") as file:
        for number in range(count):
            values = np.arange(steps * 2, dtype=np.float32).reshape(-1, 2) + number
            file.create_dataset(f"r{number}/x", data=values, chunks=(chunk, 2), compression="gzip")
    return path


def test_only_the_chunks_asked_for_are_decoded(tmp_path):
    store = base(open_store(long_file(tmp_path / "x.h5"), backend=HDF5()))
    assert store.decoded_chunks == 0
    store.read(np.array([[0, 110, 190], [1, 295, 305], [0, 120, 121]]), ["x"])
    assert store.decoded_chunks == 3
    store.read(np.array([[0, 100, 200]]), ["x"])
    assert store.decoded_chunks == 3


def test_bytes_of_other_chunks_are_not_read(tmp_path):
    path = long_file(tmp_path / "x.h5")
    store = base(open_store(path, backend=HDF5()))
    read = []
    source = store._source
    own = type(source).read
    type(source).read = lambda self, numbers: (read.extend(numbers.tolist()), own(self, numbers))[1]
    try:
        store.read(np.array([[1, 250, 450]]), ["x"])
    finally:
        type(source).read = own
    assert read == [12, 13, 14]  # of 20


@pytest.mark.parametrize(("cache", "again"), [(1 << 20, 0), (900, 1), (0, 1)])
def test_the_cache_is_bounded(tmp_path, cache, again):
    path = long_file(tmp_path / "x.h5")
    store = base(open_store(path, backend=HDF5(cache_bytes=cache)))
    for _ in range(2):
        for number in (0, 1):
            store.read(np.array([[number, 100, 200]]), ["x"])
    assert store.decoded_chunks == 2 + 2 * again
    assert store._cache._bytes <= cache


def test_what_lanes_read_next_is_decoded_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    store = base(open_store(long_file(tmp_path / "x.h5"), backend=HDF5()))
    store.read(np.array([[0, 0, 60]]), ["x"])
    assert not store._cache._ahead
    store.read(np.array([[0, 60, 120]]), ["x"])  # goes on: the next are 120..180, of chunk 1
    store.read(np.array([[0, 120, 180]]), ["x"])  # then 180..240
    assert list(store._cache._ahead) == [2]
    (column,) = store.read(np.array([[0, 180, 240]]), ["x"]).values()
    assert column[0][:, 0].tolist() == list(range(360, 480, 2))


def count_threads(store, answers):
    """Read chunks, and answer with the number of threads that decode them."""
    store.read(np.array([[0, 0, 300], [1, 0, 300]]), ["x"])
    answers.put(sum(thread.name.startswith("chunks") for thread in threading.enumerate()))


@pytest.mark.parametrize(("is_worker", "threads"), [(False, [1, 2]), (True, [0])])
def test_a_rank_that_was_spawned_decodes_by_threads_and_a_worker_does_not(
    tmp_path, monkeypatch, is_worker, threads
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # what is forked has it, too
    store = base(open_store(long_file(tmp_path / "x.h5"), backend=HDF5()))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=count_threads, args=(store, answers), daemon=is_worker)
    process.start()
    assert answers.get(timeout=patient()) in threads
    process.join(timeout=patient())


@pytest.mark.parametrize(
    ("options", "method"),
    [({}, "fork"), (GZIP, "fork"), pytest.param(GZIP, "spawn", marks=pytest.mark.slow)],
)
def test_workers_read_what_one_process_reads(tmp_path, options, method):
    rows = recordings(12)
    store = open_store(write_hdf5(tmp_path / "x.h5", rows, **options), backend=HDF5())
    store[11]  # the parent has a cache and threads
    policy = Bucketed(4, shuffle=True)
    own = [batch["frames"] for batch in Loader(store, policy, seed=3)]
    workers = Loader(store, policy, seed=3, num_workers=2, start_method=method)
    for batch, due in zip(workers, own, strict=True):
        assert torch.equal(batch["frames"], due)


def test_lanes_and_windows_read_every_timestep_once(tmp_path):
    rows = [row for row in recordings(7) if len(row["labels"])]
    store = open_store(write_hdf5(tmp_path / "x.h5", rows, **GZIP), backend=HDF5())
    due = sorted(np.concatenate([row["labels"] for row in rows]).tolist())
    found = []
    for batch in Loader(store, TBPTT(lanes=3, chunk=8)):
        found += batch["labels"][batch.mask].tolist()
    assert sorted(found) == due
    (batch, *_) = Loader(store, Windows(32, stride=32, batch_size=2))
    assert batch["frames"].shape == (2, 32, 3)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch):
        return self.layer(batch["frames"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_step_is_trained_by_path(tmp_path):
    path = write_hdf5(tmp_path / "x.h5", recordings(6), **GZIP)
    data = SequenceDataModule(train=open_store(path, backend=HDF5()), batching=Fixed(2))
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data)
    assert trainer.global_step == 1


@pytest.mark.parametrize("options", [{}, GZIP])
def test_commands_open_files_by_their_suffix(tmp_path, rows, options):
    path = str(write_hdf5(tmp_path / "x.h5", rows, **options))
    done = CliRunner().invoke(app, ["stats", path, "--json", "--backend", "hdf5"])
    assert json.loads(done.output)["sequences"] == len(rows)
    done = CliRunner().invoke(app, ["verify", path, "--backend", "hdf5"])
    assert "every byte is as written" in done.output
    done = CliRunner().invoke(app, ["index", path, "--backend", "hdf5"])
    assert re.search(r"indexed 0 of 1 shards", done.output), done.output


@pytest.mark.parametrize("options", [{}, GZIP])
@pytest.mark.parametrize("remote", ["cache", "ranges"])
def test_files_behind_a_url_are_read(tmp_path, rows, options, remote):
    path = write_hdf5(tmp_path / "x.h5", rows, **options)
    url = f"memory://{tmp_path.name}/x.h5"
    fsspec.filesystem("memory").pipe(url, path.read_bytes())
    store = open_store(url, backend=HDF5(), remote=remote)
    check_reads(store, rows, rounds=2)
    check_pickling(store, rows)
    assert len(list(Loader(store, Fixed(3)))) == 3
    if remote == "cache":
        check_processes(open_store(path, backend=HDF5()), ["fork"])


def test_an_unchanged_file_is_opened_without_h5py(tmp_path, rows, monkeypatch):
    path = write_hdf5(tmp_path / "x.h5", rows, **GZIP)
    open_store(path, backend=HDF5())
    monkeypatch.setattr(h5py, "File", None)
    check_reads(open_store(path, backend=HDF5()), rows, rounds=1)


def test_options_tell_stores_apart(tmp_path):
    rows = sample_sequences(4)
    path = write_hdf5(tmp_path / "x.h5", rows, **GZIP)
    one = open_store(path, backend=HDF5(fields=["tokens"]))
    other = open_store(path, backend=HDF5(fields=["frames"]))
    same = open_store(path, backend=HDF5(fields=["tokens"], cache_bytes=7))
    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize("options", [{}, GZIP], ids=["mapped", "chunked"])
def test_arrays_of_several_rates_are_read_in_seconds(tmp_path, options):
    random = np.random.default_rng(1)
    rows = [
        {
            "acc": random.normal(size=(100 * seconds, 3)).astype("float32"),
            "ecg": random.normal(size=500 * seconds).astype("float32"),
            "temp": random.normal(size=4 * seconds).astype("float32"),
        }
        for seconds in (60, 37)
    ]
    write_hdf5(tmp_path / "rec.h5", rows, **options)
    rates = {"acc": 100, "ecg": 500, "temp": 4}
    store = open_store(tmp_path / "rec.h5", backend=HDF5(), rates=rates)
    policy = Windows(seconds=2.0, stride_seconds=1.0, batch_size=64)
    for batch in Loader(store, policy):
        if len(batch) == 64:
            shapes = [tuple(batch[name].shape) for name in rates]
            assert shapes == [(64, 200, 3), (64, 1_000), (64, 8)]
        for at, number in enumerate(batch.ids.tolist()):
            second = int(batch.start[at]) // 100
            for name, rate in rates.items():
                due = rows[number][name][rate * second : rate * (second + 2)]
                assert np.array_equal(batch[name][at].numpy(), due)
    for name in rates:
        found = {0: [], 1: []}
        for batch in Loader(store, TBPTT(2, seconds=7), seed=3):
            lengths = batch.lengths_of[batch.axes.along(name)].tolist()
            for at, number in enumerate(batch.ids.tolist()):
                found[number].append(batch[name][at, : lengths[at]].numpy())
        for number, pieces in found.items():
            assert np.array_equal(np.concatenate(pieces), rows[number][name])


@pytest.mark.parametrize("options", [{}, GZIP], ids=["in place", "by chunks"])
def test_labels_that_a_group_lacks_name_the_group(tmp_path, options):
    path = write_without_a_label(folder_in(tmp_path) / "rec.h5", write_hdf5, **options)
    for source in (path, path.parent):
        check_names_what_has_no_label(source)
    again = pickle.loads(pickle.dumps(open_store(path)))
    assert find_missing(again, "label") == (1, ["r3"])
    assert find_missing(again[:5], "label") == (0, ())
    assert find_missing(again, "nothing") == (0, [])


@pytest.mark.parametrize("options", [{}, GZIP], ids=["in place", "by chunks"])
def test_groups_of_all_files_that_lack_an_attribute_are_counted(tmp_path, options):
    for number in range(3):
        rows = [
            {"id": f"r{at + 10 * number}", "x": np.zeros(20, "f4"), **({"a": 1} if at == 2 else {})}
            for at in range(8)
        ]
        write_hdf5(tmp_path / f"{number}.h5", rows, **options)
    count, ids = find_missing(open_store(tmp_path), "a")
    assert (count, ids[:5]) == (21, ["r0", "r1", "r3", "r4", "r10"])


@pytest.mark.parametrize("options", [{}, GZIP], ids=["in place", "by chunks"])
def test_files_of_which_one_lacks_an_attribute_open_without_it(tmp_path, options):
    for number in range(2):
        row = {"id": f"r{number}", "x": np.ones(20, "f4"), **({} if number else {"a": 1})}
        write_hdf5(tmp_path / f"{number}.h5", [row, {**row, "id": f"s{number}"}], **options)
    remedy = r", or name what all of them have with `fields`, `axes` and `attributes`"
    with pytest.raises(DecodeError, match=rf"as two stores{remedy}$"):
        open_store(tmp_path)
    store = open_store(tmp_path, backend=HDF5(attributes=[]))
    assert [*store.ids] == ["r0", "s0", "r1", "s1"]


@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_labels_that_a_group_behind_a_url_lacks_name_the_group(tmp_path, how):
    served_folder = folder_in(tmp_path)
    write_without_a_label(served_folder / "rec.h5", write_hdf5)
    remote = Remote(cache_dir=tmp_path / "far", how=how, retry_seconds=patient(1))
    with served(folder_of(served_folder)) as web:
        check_names_what_has_no_label(f"{web.url}/rec.h5", remote)


def folder_in(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"

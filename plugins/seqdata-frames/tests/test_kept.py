"""Sorting out of memory, and what is kept of a table: atomic, of one version, by one process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from frames_samples import alike, sales, shuffle, write
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_frames import Frames
from seqdata_frames import opening as opening_module

from seqdata import open_store
from seqdata.errors import CacheError, CorruptShardError, SeqDataWarning
from seqdata_testing.waiting import patient, until

BY = {"group": "series", "order": "time"}


def folders(path):
    return sorted(each for each in (path / "seqdata-index").glob("frames-*") if each.is_dir())


def reference(frame):
    return open_store(frame, axes={"area": None}, **BY)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=7),
    rows=st.integers(1, 9),
    seed=st.integers(0, 99),
    sort_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
def test_rows_are_sorted_in_any_number_of_buckets(
    tmp_path_factory, lengths, rows, seed, sort_bytes
):
    folder = tmp_path_factory.mktemp("sorted")
    frame = shuffle(sales(lengths, seed), seed)
    frame["time"] = frame["time"].dt.floor("3h")  # equal times stay in the order of the table
    path = write(frame, folder / "t.parquet", rows)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        patch.setattr(opening_module, "_KEEP_ROWS", 1)
        frames = Frames(sort_bytes=sort_bytes, static=["area"])
        assert alike(open_store(path, backend=frames, **BY), reference(frame))
        store = open_store(path, backend=frames, **BY)
        assert alike(store, reference(frame))
        spans = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 1]])
        assert store.read(spans, ["load"])["load"].lengths.tolist() == [0, 1, 0]
    assert len(folders(folder)) == 1


@pytest.mark.parametrize("mixed", [False, True], ids=["in place", "sorted"])
def test_a_second_opening_reads_no_rows_and_says_the_same(tmp_path, kept, monkeypatch, mixed):
    frame = shuffle(sales()) if mixed else sales()
    frame["time"] = frame["time"].dt.floor("2h")
    path = write(frame, tmp_path / "t.parquet")
    with pytest.warns(SeqDataWarning, match="equal values within a group"):
        first = open_store(path, backend=Frames(static="auto"), **BY)
    monkeypatch.setattr(opening_module, "scan_table", None)
    with pytest.warns(SeqDataWarning, match="equal values within a group"):
        second = open_store(path, backend=Frames(static="auto"), **BY)
    assert second.fingerprint == first.fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert alike(second, reference(frame))


def test_what_is_kept_is_of_one_version_of_the_files(tmp_path, kept):
    path = write(shuffle(sales()), tmp_path / "t.parquet")
    first = open_store(path, backend=Frames(static="auto"), **BY)
    (old,) = folders(tmp_path)
    changed = shuffle(sales(seed=1))
    write(changed, path)
    store = open_store(path, backend=Frames(static="auto"), **BY)
    (new,) = folders(tmp_path)
    assert new.name != old.name
    assert store.fingerprint != first.fingerprint
    assert alike(store, reference(changed))
    open_store(path, backend=Frames(static=[]), **BY)  # other options have a folder of their own
    assert len(folders(tmp_path)) == 2


def test_a_damaged_index_is_made_again(tmp_path, kept):
    frame = shuffle(sales())
    path = write(frame, tmp_path / "t.parquet")
    open_store(path, backend=Frames(static="auto"), **BY)
    (folder,) = folders(tmp_path)
    content = (folder / "index.npz").read_bytes()
    for damaged in (b"", content[: len(content) // 2], content.replace(b"time", b"emit")):
        (folder / "index.npz").write_bytes(damaged)
        with pytest.warns(SeqDataWarning, match=r"index.npz is damaged .* made again"):
            store = open_store(path, backend=Frames(static="auto"), **BY)
        assert alike(store, reference(frame))


def test_damaged_rows_are_found_where_they_are_verified(tmp_path, kept):
    path = write(shuffle(sales((30, 30))), tmp_path / "t.parquet", 20)
    open_store(path, backend=Frames(static="auto"), **BY)
    (folder,) = folders(tmp_path)
    columns = sorted(folder.glob("*.column"), key=lambda file: int(file.stem))
    content = bytearray(columns[1].read_bytes())  # `load`, behind `time`
    content[4 * 25] ^= 1
    columns[1].write_bytes(content)
    spans = np.array([[0, 0, 5]])
    verified = open_store(path, backend=Frames(static="auto"), verify="first_read", **BY)
    verified.read(spans, ["load"])  # of another unit
    with pytest.raises(CorruptShardError, match=r"rows 20 to 39 must have the checksum.*Remove"):
        verified.read(np.array([[0, 22, 28]]), ["load"])
    columns[1].write_bytes(content[:6])
    with pytest.raises(CorruptShardError, match="must have row 1, but ends before it"):
        open_store(path, backend=Frames(static="auto"), **BY).read(spans, ["load"])
    columns[1].unlink()
    columns[1].with_suffix(".units").unlink()
    with pytest.raises(
        CacheError, match=r"must have the sorted rows of load, but part 0 .*seqdata-index/frames-"
    ):
        open_store(path, backend=Frames(static="auto"), **BY).read(spans, ["load"])


def test_a_row_group_that_is_decoded_again_is_stored(tmp_path, kept):
    frame = sales((40, 40))
    path = write(frame, tmp_path / "t.parquet", 10)
    opened = Frames(static="auto", cache_bytes=0, **BY)
    store = opened(path)
    (folder,) = folders(tmp_path)
    spans = np.array([[0, 3, 26], [1, 39, 40]])
    for count in (4, 7, 8, 8):  # the latest one is in memory for a while
        column = store.read(spans, ["load"])["load"]
        assert store._columns.decoded == count
        assert column[0].tolist() == frame["load"][3:26].tolist()
        assert column[1].tolist() == frame["load"][79:].tolist()
    assert len(list(folder.glob("*.column"))) == 1
    other = opened(path)  # as another process
    assert other.read(spans, ["load"])["load"][0].tolist() == frame["load"][3:26].tolist()
    assert other._columns.decoded == 0
    checked = opened(path, verify="first_read")
    assert checked.read(spans, ["load"])["load"][1].tolist() == frame["load"][79:].tolist()


def test_a_full_disk_costs_time_only(tmp_path, kept, monkeypatch):
    frame = sales((40, 40))
    store = Frames(static="auto", cache_bytes=0, **BY)(write(frame, tmp_path / "t.parquet", 10))
    monkeypatch.setattr(os, "pwrite", _raise_full_disk)
    spans = np.array([[0, 3, 26]])
    store.read(spans, ["load"])
    with pytest.warns(SeqDataWarning, match=r"cannot be stored on disk .*No space left"):
        store.read(spans, ["load"])
    assert store.read(spans, ["load"])["load"][0].tolist() == frame["load"][3:26].tolist()


def _raise_full_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_sort_needs_room_and_leaves_nothing_behind(tmp_path, kept, monkeypatch):
    path = write(shuffle(sales()), tmp_path / "t.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _raise_full_disk)
        with pytest.raises(CacheError, match=r"must be written to .*No space left.*cache_dir="):
            open_store(path, backend=Frames(static="auto"), **BY)
    assert folders(tmp_path) == []


def test_a_cache_folder_in_place_of_one_next_to_the_data(tmp_path, kept, cache, monkeypatch):
    path = write(shuffle(sales()), tmp_path / "t.parquet")
    open_store(path, backend=Frames(static="auto", cache_dir=str(tmp_path / "there")), **BY)
    assert len(list((tmp_path / "there").glob("frames-*/index.npz"))) == 1
    assert not (tmp_path / "seqdata-index").exists()
    (tmp_path / "seqdata-index").write_text("no folder")
    open_store(path, backend=Frames(static="auto"), **BY)
    assert len(list((cache / "frames").glob("frames-*/index.npz"))) == 1
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match=r"a folder must be writable.*cache_dir="):
        open_store(path, backend=Frames(static=[]), **BY)


def _open(path, results):
    opening_module._KEEP_ROWS = 1
    store = open_store(path, backend=Frames(static="auto"), **BY)
    results.put((store.fingerprint, store[0]["load"].tolist()))


def test_processes_that_open_at_once_sort_once(tmp_path):
    path = write(shuffle(sales((60, 60, 60))), tmp_path / "t.parquet", 5)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_open, args=(path, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=patient(30)) for _ in processes]
    for process in processes:
        process.join(patient(30))
    assert found == found[:1] * 3
    assert len(folders(tmp_path)) == 1


def test_a_sort_that_is_killed_is_begun_again(tmp_path, kept):
    frame = shuffle(sales((60, 60)))
    path = write(frame, tmp_path / "t.parquet", 5)
    program = (
        "import os, sys, time\n"
        "from seqdata_frames import Frames, external_sort, opening\n"
        "opening._KEEP_ROWS = 1\n"
        "def stop(*_): time.sleep(600)\n"
        "external_sort._distribute = stop\n"
        f"Frames(group='series', order='time', static='auto')({str(path)!r})\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: list((tmp_path / "seqdata-index").glob("*.new/code.column")), 60)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(patient(10))
    assert [each.suffix for each in folders(tmp_path)] == [".new"]
    assert alike(open_store(path, backend=Frames(static="auto"), **BY), reference(frame))
    (folder,) = folders(tmp_path)
    assert folder.suffix == ""
    assert not [each for each in folder.iterdir() if each.stem in ("code", "key")]


def test_a_bar_and_a_line_where_they_are_asked_for(tmp_path, kept, capsys):
    path = write(shuffle(sales()), tmp_path / "t.parquet")
    store = Frames(static="auto", progress=True, **BY)(path)
    shown = " ".join(capsys.readouterr().err.split())
    assert "scanning the table" in shown
    assert f"rows are not in order; sorted by series and time into {store.sorted_in}" in shown
    Frames(progress=False, static=[], **BY)(path)
    assert capsys.readouterr().err == ""

"""Very many small files: each batch opens, reads and closes its own, and nothing is believed."""

import os

import numpy as np
import pytest

from seqdata.backends import FormatBackend
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    CorruptShardError,
    MissingShardError,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed import shards
from seqdata.storage.indexed.small_files import SmallFiles, _read_into
from tests.storage.indexed.records import Records, sequences, write_files

ROWS = sequences(6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MANY", 2)
    return write_files(tmp_path / "data", ROWS, per_file=1, digits=2)


def opened(folder, **options):
    store = FormatBackend(Records())(folder, progress=False, **options)
    assert isinstance(store._reader, SmallFiles)
    return store


def order_of(store):
    """Return store number -> number in ROWS: files of a folder below come first."""
    return [int(key[-3:]) for key in store.keys(range(len(store)))]


@pytest.mark.parametrize("verify", ["off", "always"])
def test_parts_of_values_are_read_in_any_order(folder, verify):
    store = opened(folder, verify=verify)
    rows = [ROWS[number] for number in order_of(store)]
    spans = [[at, len(row["frames"]) // 3, len(row["frames"])] for at, row in enumerate(rows)]
    spans = np.array(spans[::-1] + spans[:2])
    columns = store.read(spans, ["frames", "label", "name", "note"])
    for at, (number, start, stop) in enumerate(spans.tolist()):
        assert np.array_equal(columns["frames"][at], rows[number]["frames"][start:stop])
        assert columns["label"][at].tolist() == [rows[number]["label"]]
        assert columns["name"][at] == rows[number]["name"]
        assert np.array_equal(columns["note"][at], rows[number]["note"])


def test_no_file_stays_open(folder):
    store = opened(folder)
    before = len(os.listdir("/proc/self/fd"))
    column = store.read(np.array([[0, 0, 1], [2, 0, 1]]), ["frames"])["frames"]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(column[0]) == 1


def test_requests_that_cannot_be_are_refused(folder):
    store = opened(folder)
    with pytest.raises(ConfigError, match=r"the index of a sequence must be in \[0, 6\), but is 6"):
        store.read(np.array([[6, 0, 0]]), ["frames"])
    spans = np.array([[0, 0, 1], [3, 0, 99_999]])
    with pytest.raises(ConfigError, match=r": sequence 3, field 'frames': timesteps must be in 0"):
        store.read(spans, ["frames"])["frames"][0]


def test_texts_and_ids_are_read_too(folder):
    store = opened(folder)
    rows = [ROWS[number] for number in order_of(store)]
    texts = store._reader.texts("name")
    assert texts.take([3, 0]) == [rows[3]["name"], rows[0]["name"]]
    content, offsets = texts.read_bytes(np.array([1]))
    assert content.tobytes() == rows[1]["name"].encode()
    assert offsets.tolist() == [0, len(rows[1]["name"])]
    assert [texts.is_readable(number) for number in (-1, 0, 5, 6)] == [False, True, True, False]
    assert store._reader.texts("frames") is None
    assert store._reader.texts("unknown") is None


def test_damage_is_named_where_it_lies(folder):
    store = opened(folder)
    number = order_of(store).index(5)  # longer than a block of checksums
    begin = int(store.manifest[number].members["frames"].begins[0])
    path = folder / store.shards[number]
    raw = bytearray(path.read_bytes())
    raw[begin + 70_000] ^= 1
    path.write_bytes(raw)
    assert len(store.read(np.array([[number, 0, 10]]), ["frames"])["frames"][0]) == 10
    with pytest.raises(CorruptSampleError, match=r"bytes .*: must have crc32"):
        store.read(np.array([[number, 5_830, 5_840]]), ["frames"])["frames"][0]
    _, reports = FormatBackend(Records()).audit(
        str(folder), shard=None, repair=False, on_progress=lambda _: None
    )
    assert [report.damages for report in reports].count(1) == 1


def test_a_range_is_read_as_a_whole_or_not_at_all(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    place = DataLocation(dataset="/d", file="a")
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        content = bytearray(4)
        _read_into(memoryview(content), descriptor, 6, place)
        assert content == b"6789"
        with pytest.raises(
            CorruptShardError, match=r"bytes 7\.\.11: must have 4 bytes here .* 3\."
        ):
            _read_into(memoryview(content), descriptor, 7, place)
    finally:
        os.close(descriptor)


def test_a_file_of_another_size_or_none_is_an_error_when_it_is_read(folder):
    store = opened(folder)
    (folder / store.shards[0]).unlink()
    spans = np.array([[0, 0, 1]])
    with pytest.raises(MissingShardError, match=rf'shard 0 \("{store.shards[0]}"\)'):
        store.read(spans, ["frames"])
    path = folder / store.shards[1]
    path.write_bytes(path.read_bytes() + b"x")
    spans[0, 0] = store._reader.layout.shard_offsets[1]
    with pytest.raises(CorruptShardError, match="bytes as when it was indexed, but has"):
        store.read(spans, ["frames"])

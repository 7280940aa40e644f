"""Shards that are brought when they are needed: whole or by ranges, the values are the same."""

import pickle

import numpy as np
import pytest

from seqdata import Remote
from seqdata.errors import ConfigError, CorruptSampleError, UnknownNameError
from seqdata.storage.arrow.open_remote import open_remote
from seqdata.storage.arrow.store import open_local
from seqdata_testing.stores import check_reads
from tests.storage.rows import FEW_ROWS


@pytest.fixture(params=["cache", "ranges", "no room"])
def store(request, there, tmp_path):
    options = {"how": "ranges"} if request.param == "ranges" else {}
    if request.param == "no room":
        options = {"cache_bytes": 1}
    return open_remote(there[0], remote=Remote(cache_dir=tmp_path / "cache", **options))


def test_values_are_those_that_were_written(store):
    check_reads(store, FEW_ROWS, rounds=3)
    check_reads(pickle.loads(pickle.dumps(store)), FEW_ROWS, rounds=1)
    assert not store.is_local


def test_spans_of_several_shards_come_in_their_order(store):
    spans = np.array([[4, 1, 3], [0, 0, 0], [2, 0, 2], [4, 3, 4]])
    columns = store.read(spans, ["x", "id"])
    assert [piece.tolist() for piece in columns["x"]] == [[1, 2], [], [0, 1], [3]]
    assert columns["id"] == ["s4", "s0", "s2", "s4"]
    assert spans.tolist()[0] == [4, 1, 3]  # the request is not changed
    assert len(store.read(np.empty((0, 3), np.int64), ["x"])["x"]) == 0


def test_ids_and_texts_are_read_alone(store):
    assert store.keys([3, 1, 3]) == ["s3", "s1", "s3"]
    values, offsets = store.raw_texts("id", np.array([4, 0]))
    assert (values.tobytes(), offsets.tolist()) == (b"s4s0", [0, 2, 4])
    assert store._reader.texts("x") is None
    texts = store._reader.texts("id")
    assert [texts.is_readable(number) for number in (-1, 0, 4, 5)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("span", "text"),
    [
        ((5, 0, 0), r"the index of a sequence must be in \[0, 5\), but is 5"),
        ((2, 0, 3), r"sequence 2: its span must be within 0\.\.2, but is 0\.\.3\. Plan over this"),
        ((2, 2, 1), r"sequence 2: its span must be within 0\.\.2, but is 2\.\.1"),
        ((2, -1, 1), "sequence 2: its span must be within"),
    ],
)
def test_requests_that_cannot_be_are_refused_before_anything_comes(store, span, text):
    with pytest.raises(ConfigError, match=text):
        store.read(np.array([[0, 0, 0], span]), ["x"])
    with pytest.raises(UnknownNameError, match="z"):
        store.read(np.array([[0, 0, 0]]), ["z"])


def test_what_comes_next_may_be_announced(store):
    how = store._reader._files.remote.how
    assert store.prefetch(np.array([0, 1])) == (how != "ranges")
    with pytest.raises(ConfigError, match="the index of a sequence must be in"):
        store.prefetch(np.array([9]))
    check_reads(store, FEW_ROWS, rounds=1)


def test_the_first_read_may_be_of_one_shard(store):
    columns = store.read(np.array([[4, 1, 3]]), ["x", "id"])
    assert ([piece.tolist() for piece in columns["x"]], columns["id"]) == ([[1, 2]], ["s4"])


def test_each_checksum_has_a_bit_of_its_own_whichever_shards_are_open(there, tmp_path):
    def mark(opens, numbers, **options):
        store = opens(**options)
        for number in numbers:
            store.read(np.array([[number, 0, store.lengths[number]]]), ["x", "id"])["x"][0]
        return set(np.flatnonzero(np.unpackbits(np.frombuffer(store._info.bits.buffer, np.uint8))))

    def opens(how="cache"):
        return open_remote(there[0], remote=Remote(how=how, cache_dir=tmp_path / "cache"))

    whole = mark(lambda: open_local(tmp_path / "store"), range(5))
    each = [mark(opens, [number]) for number in range(5)]
    assert all(each)
    assert sum(map(len, each)) == len(whole)
    assert set().union(*each) == whole == mark(opens, range(5))
    assert mark(opens, range(5), how="ranges") == set()


def test_checksums_that_were_damaged_in_the_cache_come_again(there, tmp_path):
    store = open_remote(there[0], remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    file = store.manifest.shards[3].checksums
    store.read(np.array([[3, 0, 3]]), ["x"])["x"][0]
    (copy,) = (tmp_path / "cache").rglob(file.sha256)
    copy.write_bytes(bytes(file.bytes))
    store = open_remote(there[0], remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    with pytest.raises(CorruptSampleError, match=r"(?s)shard 3 .*were dropped\. Read them again"):
        store.read(np.array([[3, 0, 3]]), ["x"])["x"][0]
    assert store.read(np.array([[3, 0, 3]]), ["x"])["x"][0].tolist() == [0, 1, 2]

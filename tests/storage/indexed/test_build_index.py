"""Indexes of files are built once, wherever that is done, with a checksum of each value."""

import hashlib
import itertools
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqdata.errors import DataError, MissingShardError, SeqDataWarning
from seqdata.storage.indexed import build_index
from seqdata.storage.indexed.build_index import (
    build,
    compute_checksums,
    compute_sha256,
    describe_indexes,
)
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.index_folder import DataIndex
from seqdata.storage.indexed.shards import LocalShard, map_shards
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES
from tests.index_files import forget_index, list_index_files, load_indexes
from tests.storage.indexed.records import Records, sequences, write_files

FORMAT = UserFormat(Records())
ROWS = sequences(6)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", ROWS, per_file=2)


def build_all(folder, **options):
    found = find_shards(str(folder), FORMAT)
    return build("/d", found.shards, found.index, FORMAT, **options)


def test_only_files_without_an_index_are_read(folder):
    assert build_all(folder) == [str(folder / "seqdata-index")] * 3
    assert build_all(folder) == []
    forget_index(folder / "part-0.recs", folder)
    assert build_all(folder) == [str(folder / "seqdata-index")]
    assert len(build_all(folder, rebuild=True)) == 3
    assert len(build_all(folder, have=[True, False, True])) == 1


def test_progress_counts_sequences_and_bytes(folder):
    calls = []
    build_all(folder, progress=lambda *counts: calls.append(counts))
    assert len(calls) == 3
    assert calls[-1] == (6, sum(path.stat().st_size for path in folder.rglob("*.recs")))
    assert calls == sorted(calls)


@pytest.mark.parametrize("many", [2, 1 << 20])
def test_files_are_read_on_the_executor_that_is_passed(folder, many, monkeypatch):
    monkeypatch.setattr(build_index, "MANY", many)
    calls = []
    found = find_shards(str(folder), FORMAT)
    with ThreadPoolExecutor(2) as executor:
        folders = build(
            "/d", found.shards, found.index, FORMAT, executor=executor,
            progress=lambda *counts: calls.append(counts),
        )  # fmt: skip
    assert len(folders) == 3
    assert calls[-1][0] == 6
    details = describe_indexes(found.shards, folders, found.index)
    assert (details["shards"], details["indexed"], details["sequences"]) == (3, 3, 6)
    assert details["bytes"] == calls[-1][1]
    assert details["folders"] == sorted(set(folders))


def test_finished_indexes_are_kept_after_an_error(folder):
    (folder / "more" / "part-2.recs").write_bytes(b"nonsense")
    with ThreadPoolExecutor(1) as executor, pytest.raises(DataError, match="cannot be read by"):
        build_all(folder, executor=executor)
    assert len(load_indexes(folder)) == 2
    gone = [LocalShard(folder, "gone.recs")]
    with pytest.raises(MissingShardError, match=r'/d shard 0 \("gone.recs"\): is not there'):
        build("/d", gone, DataIndex(FORMAT), FORMAT)


def test_finished_indexes_are_kept_when_the_user_interrupts(folder):
    def interrupt(*counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_all(folder, progress=interrupt)
    assert load_indexes(folder)


def test_many_bytes_are_saved_on_the_way(folder, monkeypatch):
    """A process may be killed, and then nothing is saved at the end."""
    monkeypatch.setattr(build_index, "_SAVED_BYTES", 1)
    counts = []
    build_all(folder, progress=lambda *_: counts.append(len(load_indexes(folder))))
    assert counts == [1, 2, 3]
    assert len(list_index_files(folder)) == 3
    assert len(build_all(folder, rebuild=True)) == 3
    assert build_all(folder) == []


def test_damaged_indexes_are_built_again_with_one_warning(folder):
    build_all(folder)
    (folder / "part-3.recs").write_bytes((folder / "part-0.recs").read_bytes())
    build_all(folder)
    list_index_files(folder)[0].write_bytes(b"nonsense")
    with pytest.warns(SeqDataWarning, match=r"/d: .* but 3 of 4 cannot be used: .* The fi") as told:
        assert len(build_all(folder)) == 3
    assert len(told) == 1
    assert build_all(folder) == []
    assert len(list_index_files(folder)) == 1


def test_results_are_in_the_order_of_numbers(folder):
    shards = find_shards(str(folder), FORMAT).shards
    assert map_shards(shards, lambda number: number * 10) == [0, 10, 20]
    assert map_shards(shards, lambda number: number * 10, range(1, 3)) == [10, 20]


def test_the_digest_of_a_file_is_that_of_its_bytes():
    content = np.arange(9 << 20, dtype=np.uint32).view(np.uint8)[: (8 << 20) + 5]
    assert compute_sha256(content) == hashlib.sha256(content.tobytes()).hexdigest()


SIZES = [-1, 0, 1, 7, CHECKSUM_BYTES, CHECKSUM_BYTES + 1, 140_000]


@st.composite
def values_of_a_file(draw):
    """Return begins and sizes of values, in any order, with gaps or one over the other."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=6))
    begins, at = np.full(len(sizes), -1), 3
    step = draw(st.sampled_from(["after", "over"]))
    for number in draw(st.permutations(range(len(sizes)))):
        if sizes[number] >= 0:
            begins[number] = at
            at += (sizes[number] if step == "after" else 1) + draw(st.integers(0, 5))
    return begins, np.maximum(np.array(sizes), 0), draw(st.integers(0, len(sizes)))


@settings(max_examples=50)
@given(values_of_a_file())
@example((np.array([3, 3]), np.array([1, 0]), 0))
@example((np.array([-1, -1]), np.array([0, 0]), 1))
def test_checksums_are_those_of_each_block_of_each_value(values):
    begins, sizes, split = values
    content = (np.arange(int((begins + sizes).max()) + 4) * 31 >> 3).astype(np.uint8)
    parts = [slice(0, split), slice(split, None)]
    fields = [(begins[part], sizes[part]) for part in parts]
    results = list(compute_checksums(content, fields, "crc32"))
    for (first_bytes, its_sizes), (sums, firsts) in zip(fields, results, strict=True):
        due, counts = [], []
        for begin, size in zip(first_bytes.tolist(), its_sizes.tolist(), strict=True):
            blocks = range(0, max(size, 1), CHECKSUM_BYTES)
            counts.append(len(blocks))
            for at in blocks:
                raw = content[begin + at : begin + min(size, at + CHECKSUM_BYTES)].tobytes()
                due.append(0 if begin < 0 else zlib.crc32(raw))
        assert sums.tolist() == due
        if firsts is None:
            assert set(counts) <= {1}
        else:
            assert firsts.tolist() == [0, *itertools.accumulate(counts)]


def test_there_may_be_no_fields():
    assert list(compute_checksums(np.zeros(4, np.uint8), [], "crc32")) == []

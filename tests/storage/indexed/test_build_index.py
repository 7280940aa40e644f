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
from seqdata.storage.indexed import catalogs
from seqdata.storage.indexed.build_index import (
    build,
    compute_checksums,
    compute_sha256,
    index_facts,
)
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.shards import LocalShard, map_shards
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES
from tests.storage.indexed.records import Records, sequences, write_files

FORMAT = UserFormat(Records())
ROWS = sequences(6)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", ROWS, per_file=2)


def shards_of(folder):
    return find_shards(str(folder), FORMAT)


def test_only_files_without_an_index_are_read(folder):
    shards = shards_of(folder)
    assert sorted(build("/d", shards, FORMAT)) == sorted(
        str(folder / "seqdata-index" / name) for name in (".", "more", "more")
    )
    assert build("/d", shards, FORMAT) == []
    (folder / "seqdata-index" / "part-0.recs.idx").unlink()
    assert build("/d", shards, FORMAT) == [str(folder / "seqdata-index")]
    assert len(build("/d", shards, FORMAT, rebuild=True)) == 3
    assert len(build("/d", shards, FORMAT, have=[True, False, True])) == 1


def test_progress_counts_sequences_and_bytes(folder):
    calls = []
    build("/d", shards_of(folder), FORMAT, progress=lambda *counts: calls.append(counts))
    assert len(calls) == 3
    assert calls[-1] == (6, sum(path.stat().st_size for path in folder.rglob("*.recs")))
    assert calls == sorted(calls)


@pytest.mark.parametrize("many", [2, 1 << 20])
def test_files_are_read_on_the_executor_that_is_passed(folder, many, monkeypatch):
    monkeypatch.setattr(catalogs, "MANY", many)
    calls = []
    with ThreadPoolExecutor(2) as executor:
        shards = catalogs.attach_catalogs(shards_of(folder), FORMAT)
        folders = build(
            "/d", shards, FORMAT, executor=executor, progress=lambda *counts: calls.append(counts)
        )
    assert len(folders) == 3
    assert calls[-1][0] == 6
    shards = catalogs.attach_catalogs(shards_of(folder), FORMAT)
    facts = index_facts("/d", shards, folders, FORMAT)
    assert (facts["shards"], facts["indexed"], facts["sequences"]) == (3, 3, 6)
    assert facts["bytes"] == calls[-1][1]
    assert facts["folders"] == sorted(set(folders))


def test_finished_indexes_are_kept_after_an_error(folder):
    (folder / "more" / "part-2.recs").write_bytes(b"nonsense")
    shards = shards_of(folder)
    with ThreadPoolExecutor(1) as executor, pytest.raises(DataError, match="cannot be read by"):
        build("/d", shards, FORMAT, executor=executor)
    assert [shard.has_index("/d", 0, FORMAT) for shard in shards].count(True) == 2
    gone = [LocalShard(folder, "gone.recs")]
    with pytest.raises(MissingShardError, match=r'/d shard 0 \("gone.recs"\): is not there'):
        build("/d", gone, FORMAT)


def test_damaged_indexes_are_built_again_with_one_warning(folder):
    shards = shards_of(folder)
    build("/d", shards, FORMAT)
    paths = sorted((folder / "seqdata-index").rglob("*.idx"))
    for path in paths[:2]:
        path.write_bytes(b"nonsense")
    with pytest.warns(SeqDataWarning, match=r"/d: .* but 2 of 3 cannot be used: .* The fi") as told:
        assert len(build("/d", shards, FORMAT)) == 2
    assert len(told) == 1
    assert build("/d", shards, FORMAT) == []


def test_results_are_in_the_order_of_numbers(folder):
    shards = shards_of(folder)
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

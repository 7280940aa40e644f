"""Shards of the webdataset library read by us, and ours by it: the same samples."""

import gc
import io
import itertools
import tarfile

import numpy as np
import pytest
import webdataset
from seqdata_webdataset import open_webdataset

from seqdata import (
    Bucketed,
    Fixed,
    Loader,
    Packed,
    SequenceDataModule,
    TokenBudget,
    Windows,
    open_store,
    write_store,
)
from seqdata.protocols import Field
from seqdata_testing.stores import check_store

pytestmark = [  # the library leaves its files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def theirs(location, *, decoded=False):
    """Samples as the library gives them: (key, extension -> bytes, or what it makes of them)."""
    made = webdataset.WebDataset(location, shardshuffle=False, empty_check=False)
    found = list(made.decode() if decoded else made)
    gc.collect()
    return [
        (one["__key__"], {name: value for name, value in one.items() if name[0] != "_"})
        for one in found
    ]


@pytest.mark.parametrize("verify", ["first_read", "always", "off"])
def test_the_store_keeps_every_promise(folder, sequences, verify):
    check_store(open_webdataset(folder, verify=verify), sequences)


@pytest.mark.slow
def test_worker_processes_read_the_same(folder, sequences):
    check_store(open_webdataset(folder), sequences, methods=("spawn",))


@pytest.mark.slow
def test_keys_and_extensions_are_the_librarys(folder):
    store = open_webdataset(str(folder / "x-{000..002}.tar"))
    due = theirs(str(folder / "x-{000..002}.tar"))
    assert store.keys(np.arange(len(store))) == [key for key, _ in due]
    assert sorted(store.fields) == sorted(due[0][1])
    column = store.read(np.array([[4, 0, 0]]), ["json"])["json"]
    assert column == [due[4][1]["json"]]


def test_fields_have_the_types_and_axes_of_their_members(folder):
    store = open_webdataset(folder)
    assert store.fields == {
        "cls": Field("int64", (), None),
        "json": Field("bytes", (), None),
        "mean.npy": Field("float32", (), None),
        "mel.npy": Field("float32", (3,), "time"),
        "tok.npy": Field("int64", (), "tok"),
        "txt": Field("str", (), None),
    }
    assert store.lengths_of["tok"].tolist() == [2 * length for length in store.lengths.tolist()]


ROWS = [
    {
        "id": f"a/u{i}",
        "x": np.random.default_rng(i).normal(size=(i % 7, 3)).astype(np.float32),
        "label": i,
        "weight": i / 3,
        "good": i % 2 == 0,
        "text": f"é{i}",
        "raw": b"\0\1" * i,
        "vector": np.arange(4, dtype=np.int16) + i,
        "big": np.uint64(2**63 + i),
    }
    for i in range(50)
]


def test_what_we_write_the_library_reads(tmp_path):
    store = write_store(
        tmp_path / "s", ROWS, format="webdataset", shard_bytes=60_000, axes={"vector": None}
    )
    location = str(tmp_path / "s" / f"shard-{{000000..{len(store.shards) - 1:06d}}}.tar")
    found = theirs(location, decoded=True)
    assert len(store.shards) > 3
    for row, (key, one) in zip(ROWS, found, strict=True):
        assert key == row["id"]
        assert np.array_equal(one["x.npy"], row["x"])
        assert one["label.cls"] == row["label"]
        assert one["weight.npy"] == row["weight"]
        assert one["good.cls"] == row["good"]
        assert one["text"] == row["text"]
        assert one["raw.bin"] == row["raw"]
        assert np.array_equal(one["vector.npy"], row["vector"])


def test_what_we_write_is_again_what_it_was(tmp_path):
    write_store(
        tmp_path / "s", ROWS, format="webdataset", shard_bytes=60_000, axes={"vector": None}
    )
    sequences = [{name: row[name] for name in row if name != "id"} for row in ROWS]
    store = open_store(tmp_path / "s")
    check_store(store, sequences)
    assert store.keys([3]) == ["a/u3"]


def test_the_standard_library_reads_what_we_write(tmp_path):
    write_store(tmp_path / "s", [{"x": [1, 2]}], format="webdataset")
    with tarfile.open(tmp_path / "s" / "shard-000000.tar") as shard:
        (member,) = shard.getmembers()
        assert member.name == "000000000.x.npy"
        assert np.load(io.BytesIO(shard.extractfile(member).read())).tolist() == [1, 2]


POLICIES = [
    Fixed(4),
    Bucketed(4),
    TokenBudget(50_000),
    Packed(rows=2, row_length=50_000),
    Windows(size=3, stride=2, batch_size=8),
]


@pytest.fixture
def pair(folder, shards, tmp_path):
    """The same data as tar shards and as an Arrow store."""
    rows = [{name: one[name] for name in ("mel.npy", "cls")} for one in shards[1]]
    schema = dict.fromkeys(("tok.npy", "txt", "json", "mean.npy"))
    return open_webdataset(folder, schema=schema), write_store(tmp_path / "arrow", rows)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: type(one).__name__)
def test_every_policy_gives_the_batches_of_an_arrow_store(pair, policy):
    for ours, due in itertools.zip_longest(*(Loader(one, policy, seed=3) for one in pair)):
        assert ours.ids.tolist() == due.ids.tolist()
        for name, tensor in due.data.items():
            assert ours.data[name].equal(tensor), name


def test_lanes_read_chunks_of_members_in_place(pair):
    from seqdata import TBPTT

    batches = [list(Loader(one, TBPTT(lanes=3, chunk=16), seed=1)) for one in pair]
    assert len(batches[0]) == len(batches[1]) > 100
    assert all(a["mel.npy"].equal(b["mel.npy"]) for a, b in zip(*batches, strict=True))


def test_worker_processes_and_training_take_a_location(folder):
    data = SequenceDataModule(
        train=str(folder / "x-{000..002}.tar"), batching=Bucketed(4), fields=("mel.npy", "cls"),
        num_workers=1,
    )  # fmt: skip
    loader = Loader(str(folder), Bucketed(4), fields=("mel.npy",), num_workers=1)
    try:
        total = sum(int(batch.lengths.sum()) for batch in loader)
    finally:
        loader.shutdown()
    assert total == int(open_store(folder).lengths.sum())
    assert data is not None

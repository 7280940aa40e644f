"""What is kept of shards is not believed where it could be wrong: lengths, labels, old indexes."""

import json
import logging
import os
import pickle

import numpy as np
import pytest
from seqdata_webdataset import index_shards, open_webdataset
from seqdata_webdataset.decoders import decode_member

from seqdata import Fixed, Loader, open_store
from seqdata.errors import ConfigError, CorruptSampleError, FingerprintMismatch
from tests.index_files import index_of

SCHEMA = {"json": "int64"}


def lists(*lengths):
    return [(f"u{n}.json", json.dumps(list(range(m))).encode()) for n, m in enumerate(lengths)]


def opened(path, **options):
    return open_webdataset(path, schema=SCHEMA, progress=False, **options)


def kept_of(path):
    (kept,) = (path.parent / "seqdata-index").glob("lengths-*.npy")
    return kept


def correct(path, extension, sample, content):
    """Overwrite a member's bytes in place, at equal size, as an editor of shards does."""
    members = index_of(path).members[extension]
    begin, size = int(members.begins[sample]), int(members.sizes[sample])
    assert size == len(content)
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(content)


@pytest.mark.parametrize("bits", [40, pytest.param(None, marks=pytest.mark.nightly)])
def test_a_flipped_bit_in_kept_lengths_is_never_believed(tar, bits):
    path = tar(lists(3, 0, 5))
    opened(path, index="build")
    kept = kept_of(path)
    raw = kept.read_bytes()
    every = np.arange(8 * len(raw))
    chosen = every if bits is None else np.random.default_rng(0).choice(every, bits, replace=False)
    for bit in chosen.tolist():
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        kept.write_bytes(flipped)
        assert opened(path).lengths.tolist() == [3, 0, 5]
    assert kept.read_bytes() == raw  # made again


def test_lengths_of_an_older_release_or_another_shard_are_counted_again(tar, caplog):
    path = tar([*lists(3, 0, 5), ("u3.json", b"[1]")])
    opened(path, index="build")
    kept = kept_of(path)
    np.save(kept, np.array([2, 0, 5, 1]))  # without a seal
    with caplog.at_level(logging.WARNING):
        assert opened(path).lengths.tolist() == [3, 0, 5, 1]
    assert f"{kept}: has no digest line, so it is ignored" in caplog.text
    opened(tar(lists(1, 2, 3, 4), name="two.tar"), index="build")
    (other,) = (one for one in kept.parent.glob("lengths-*.npy") if one != kept)
    os.replace(other, kept)  # sealed, but for another shard
    with caplog.at_level(logging.WARNING):
        assert opened(path).lengths.tolist() == [3, 0, 5, 1]
    assert "is damaged, or was written under another name" in caplog.text


def test_lengths_of_a_shard_that_is_written_again_are_counted_again(tar):
    path = tar(lists(3, 0, 5))
    opened(path, index="build")
    tar(lists(3, 1, 4), name=path.name)
    index_shards(path, rebuild=True, progress=False)
    assert opened(path).lengths.tolist() == [3, 1, 4]


@pytest.mark.parametrize("counted", [2, 4])
def test_a_member_of_another_length_than_was_counted_is_an_error(tar, monkeypatch, counted):
    path = tar(lists(3))
    with monkeypatch.context() as patched:
        patched.setattr(
            "seqdata_webdataset.indexed_format.decode_member",
            lambda *given: decode_member(*given)[[0, 1, 2, 0][:counted]],
        )
        store = opened(path, index="build")
    with pytest.raises(
        CorruptSampleError, match=f"must have {counted} timesteps, as counted before, but has 3"
    ):
        opened(path).read(np.array([[0, 0, 1]]), ["json"])
    assert store.lengths.tolist() == [counted]


def labelled(tar, labels=(1, 2, 3)):
    members = []
    for number, label in enumerate(labels):
        members += [(f"u{number}.bin", bytes(8)), (f"u{number}.cls", str(label).encode())]
    return tar(members)


def labels_of(store, spans):
    return [int(one[0]) for one in store.read(spans, ["cls"])["cls"]]


@pytest.mark.parametrize("verify", [None, "always"])
def test_a_label_that_was_corrected_in_place_is_not_taken_from_the_index(tar, verify):
    path = labelled(tar)
    spans = np.array([[n, 0, 1] for n in (2, 0, 1)])
    options = {"schema": {"bin": "uint8"}, "progress": False, "verify": verify}
    store = open_webdataset(path, index="build", **options)
    for _ in range(2):
        assert labels_of(store, spans) == [3, 1, 2]
    correct(path, "cls", 1, b"7")
    store = open_webdataset(path, **options)
    assert labels_of(store, spans[:2]) == [3, 1]
    with pytest.raises(
        CorruptSampleError, match=r'sequence 1 \("u1"\), field "cls", bytes'
    ) as told:
        labels_of(store, spans)
    assert told.value.details["remedy"].endswith("--shard 0")
    index_shards(path, rebuild=True, progress=False)
    assert labels_of(open_webdataset(path, **options), spans) == [3, 1, 7]


def test_without_verifying_labels_are_those_of_the_index(tar):
    path = labelled(tar)
    open_webdataset(path, index="build", schema={"bin": "uint8"}, progress=False)
    correct(path, "cls", 1, b"7")
    store = open_webdataset(path, verify="off", schema={"bin": "uint8"})
    assert labels_of(store, np.array([[1, 0, 1]])) == [2]


@pytest.mark.parametrize("location", ["x-000.tar", "{x-000,x-001}.tar", "x-000.tar::x-001.tar"])
def test_a_relative_location_means_the_same_from_any_folder(
    folder, tmp_path, monkeypatch, location
):
    monkeypatch.chdir(folder)
    store = open_webdataset(location)
    sent = pickle.dumps(store)
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(sent).fingerprint == store.fingerprint
    assert store.location.startswith(str(folder))


def test_workers_refuse_shards_that_were_written_again_since(tar):
    path = labelled(tar)
    options = {"schema": {"bin": "uint8"}, "progress": False}
    store = open_webdataset(path, index="build", **options)
    sent = pickle.dumps(store)
    path.unlink()
    labelled(tar, (4, 5, 6))
    index_shards(path, rebuild=True, progress=False)
    with pytest.raises(FingerprintMismatch, match="must be the data that was opened"):
        pickle.loads(sent)
    loader = Loader(store, Fixed(1), num_workers=1)
    try:
        with pytest.raises(ConfigError, match=r"cannot open the data \(FingerprintMismatch"):
            list(loader)
    finally:
        loader.shutdown()
    assert open_store(path, schema={"bin": "uint8"}).fingerprint != store.fingerprint

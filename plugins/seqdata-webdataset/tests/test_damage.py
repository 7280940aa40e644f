"""Damaged shards: no wrong value passes, and ``seqdata verify`` names what is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from seqdata_webdataset import open_webdataset

from seqdata import Bucketed, Loader, open_store, write_store
from seqdata.cli.app import app
from seqdata.errors import CorruptSampleError, CorruptShardError, SeqDataError
from seqdata_testing.stores import digest_of
from tests.index_files import (
    forget_index,
    index_of,
    index_path,
    load_indexes,
    replace_indexes,
)


def flip(path, at, bit=0):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def verify(*arguments):
    done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return done.exit_code, done.output


def place_of(folder, shard, extension, sample):
    index = index_of(folder / f"x-{shard:03d}.tar")
    members = index.members[extension]
    return int(members.begins[sample]), int(members.sizes[sample])


@pytest.mark.parametrize("mode", ["first_read", "always"])
def test_a_flipped_bit_is_found_when_it_is_read(folder, mode):
    begin, size = place_of(folder, 0, "mel.npy", 7)
    assert size == 40_000 * 12
    at = begin + 70_000
    flip(folder / "x-000.tar", at)
    store = open_webdataset(folder, verify=mode)
    with pytest.raises(CorruptSampleError) as caught:
        store.read(np.array([[7, 5000, 6000]]), ["mel.npy"])["mel.npy"][0]
    facts = caught.value.details
    assert (facts["shard"], facts["file"], facts["sequence"]) == (0, "x-000.tar", 7)
    assert (facts["key"], facts["field"]) == ("dir/u7", "mel.npy")
    assert (facts["offset"], facts["length"]) == (begin + 65_536, 65_536)
    assert facts["expected"] != facts["found"]
    assert f"Verify: seqdata verify {folder} --shard 0." in str(caught.value)
    early = store.read(np.array([[7, 0, 5000]]), ["mel.npy"])["mel.npy"]  # another block
    assert early[0].shape == (5000, 3)


def test_without_checksums_nothing_is_looked_at(folder):
    begin, _ = place_of(folder, 0, "mel.npy", 7)
    flip(folder / "x-000.tar", begin + 9)
    digest_of(open_webdataset(folder, verify="off"))


@pytest.mark.parametrize("extension", ["mel.npy", "tok.npy", "txt", "json", "mean.npy"])
def test_every_kind_of_field_is_verified(folder, extension):
    begin, _ = place_of(folder, 1, extension, 3)
    flip(folder / "x-001.tar", begin)
    with pytest.raises(CorruptSampleError, match=f'sequence 13 .*field "{extension}"'):
        digest_of(open_webdataset(folder))


def test_random_flips_never_pass_as_data(folder):
    """A flip in values is an error; one in headers or room between harms nobody."""
    path = folder / "x-000.tar"
    due, raw = digest_of(open_webdataset(folder)), path.read_bytes()
    rng = np.random.default_rng(3)
    outcomes = {"error": 0, "data": 0}
    for _ in range(40):
        flip(path, int(rng.integers(len(raw))), int(rng.integers(8)))
        try:
            assert digest_of(open_webdataset(folder)) == due
            outcomes["data"] += 1
        except SeqDataError:
            outcomes["error"] += 1
        path.write_bytes(raw)
    assert outcomes["error"] > 20


def test_a_worker_says_the_same_of_a_damaged_member(folder):
    begin, _ = place_of(folder, 0, "mel.npy", 7)
    flip(folder / "x-000.tar", begin + 5)
    errors = []
    for workers in (0, 1):
        loader = Loader(str(folder), Bucketed(4), fields=("mel.npy",), num_workers=workers)
        try:
            with pytest.raises(CorruptSampleError) as caught:
                list(loader)
        finally:
            loader.shutdown()
        errors.append(caught.value.details)
    for name in ("shard", "file", "sequence", "key", "field", "offset", "expected", "found"):
        assert errors[0][name] == errors[1][name]


def test_verify_finds_nothing_where_nothing_is(folder):
    code, told = verify(folder)
    assert code == 0
    assert f"{folder}: every byte is as written (3 files, " in told
    assert "x-001.tar" not in told


def test_verify_names_every_damaged_sequence(folder):
    begins = [place_of(folder, 1, *one)[0] for one in (("mel.npy", 3), ("txt", 4), ("txt", 9))]
    for begin in begins:
        flip(folder / "x-001.tar", begin)
    code, told = verify(folder, "--json")
    assert code == 1
    facts = json.loads(told)
    assert facts["damages"] == 3
    found = [one["details"] for one in facts["files"][1]["findings"]]
    assert [(one["sequence"], one["field"], one["offset"]) for one in found] == [
        (13, "mel.npy", begins[0]), (14, "txt", begins[1]), (19, "txt", begins[2])
    ]  # fmt: skip
    code, told = verify(folder, "--shard", "1")
    assert code == 1
    assert "shard 1 (x-001.tar): DAMAGED in 3 places" in told
    assert '"dir/u13"' in told
    assert verify(folder, "--shard", "0")[0] == 0


def test_verify_names_a_block_of_a_long_member(folder):
    begin, size = place_of(folder, 0, "mel.npy", 7)
    flip(folder / "x-000.tar", begin + size - 1)
    (finding,) = json.loads(verify(folder, "--json")[1])["files"][0]["findings"]
    last = size // 65_536 * 65_536
    damage = finding["details"]
    assert (damage["offset"], damage["length"]) == (begin + last, size - last)


def test_verify_tells_damage_between_members(folder):
    begin, _ = place_of(folder, 1, "mel.npy", 3)
    flip(folder / "x-001.tar", begin // 512 * 512 - 512 + 3)  # its header's name
    code, told = verify(folder)
    assert code == 1
    assert "must be a valid header of a tar file" in told


def test_verify_tells_damage_of_no_consequence(folder):
    path = folder / "x-001.tar"
    begin, size = place_of(folder, 1, "txt", 3)
    flip(path, begin + size + 5)  # room up to the next header
    code, told = verify(folder)
    assert code == 1
    assert "No sequence is damaged, but other readers may need the rest: restore it" in told


def test_verify_refuses_a_shard_that_there_is_not(folder):
    code, told = verify(folder, "--shard", "7")
    assert code == 2
    assert "the shard must be in [0, 3), but is 7. Choose another index" in told


def test_verify_reads_the_structure_where_there_is_no_index(folder):
    forget_index(folder / "x-001.tar")
    code, told = verify(folder)
    assert code == 0
    assert "shard 1 (x-001.tar): unverified, 10 sequences" in told
    assert "unverified: there are no checksums" in told
    path = folder / "x-001.tar"
    path.write_bytes(path.read_bytes()[:-10_240])
    code, told = verify(folder)
    assert code == 1
    assert "cut off or never finished" in told


def test_verify_goes_on_after_a_shard_that_is_missing(folder):
    (folder / "x-001.tar").unlink()
    code, told = verify(folder / "x-{000..002}.tar")
    assert code == 1
    assert "is not there. Restore it" in told
    assert told.splitlines()[-1].endswith(
        "damaged in 1 place: restore these files, or write the store again"
    )


@pytest.mark.parametrize("what", ["missing", "damaged", "stale"])
def test_an_index_is_repaired(folder, what):
    path = folder / "x-001.tar"
    due = digest_of(open_webdataset(folder))
    if what == "missing":
        forget_index(path)
    elif what == "damaged":
        flip(index_path(folder), 200)
        assert verify(folder)[0] == 1
    else:
        indexes = load_indexes(folder)
        indexes["x-001.tar"] = replace(indexes["x-002.tar"], shard="x-001.tar")
        replace_indexes(folder, indexes.values())
        code, told = verify(folder)
        assert code == 1
        assert "as when it was indexed, but has " in told
        with pytest.raises(SeqDataError):
            open_store(folder)
    code, _ = verify(folder, "--repair-index")
    assert code == 0
    assert digest_of(open_webdataset(folder)) == due
    assert path.is_file()


def test_a_damaged_shard_gets_no_index(folder):
    path = folder / "x-001.tar"
    forget_index(path)
    path.write_bytes(path.read_bytes()[:2048])
    code, told = verify(folder, "--repair-index")
    assert code == 1
    assert "cut off" in told
    assert index_of(path) is None


def test_repair_never_takes_damage_for_data(folder):
    begin, _ = place_of(folder, 1, "mel.npy", 3)
    before = index_path(folder).read_bytes()
    flip(folder / "x-001.tar", begin)
    assert verify(folder, "--repair-index")[0] == 1
    assert index_path(folder).read_bytes() == before


def test_repair_is_for_what_has_an_index(tmp_path):
    write_store(tmp_path / "s", [[1, 2]])
    code, told = verify(tmp_path / "s", "--repair-index")
    assert code == 2
    assert "`--repair-index` must be left out" in told


def test_an_index_that_cannot_be_true_is_refused(folder):
    """Whoever means harm can seal an index anew; places in it are looked at all the same."""
    indexes = load_indexes(folder)
    index = indexes["x-001.tar"]
    members, whole = index.members["mel.npy"], index_path(folder).read_bytes()
    for name, value in (("begins", 1 << 60), ("sizes", 1 << 60), ("begins", -5), ("sizes", -1)):
        array = getattr(members, name).copy()
        array[2] = value
        changed = {"begins": members.begins, "sizes": members.sizes, name: array}
        forged = type(members)(
            **changed, sums=members.sums, firsts=members.firsts, heads=members.heads,
            codes=members.codes,
        )  # fmt: skip
        everything = {**index.members, "mel.npy": forged}
        indexes["x-001.tar"] = replace(index, members=everything)
        index_path(folder).write_bytes(whole)
        replace_indexes(folder, indexes.values())
        with pytest.raises(CorruptShardError, match=r"is invalid .*invalid places"):
            open_webdataset(folder)

"""The list of all shards that a writer made: what is gone, stale or not its own is told."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from seqdata_webdataset import index_shards, open_webdataset, write_webdataset
from seqdata_webdataset.indexed_format import IndexedTar

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
)
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.index_file import SHARD_LIST
from seqdata.storage.local_files import list_folder
from seqdata.storage.writing.staging_dir import STAGING_PREFIX
from tests.index_files import forget_index, index_path, load_indexes, replace_indexes

SHARD = 20_000


def rows(more=0):
    for number in range(40):
        x = np.arange(number % 9 * 50, dtype=np.int32)
        yield {"id": f"u{number}", "x": x, "y": number + more}


@pytest.fixture
def written(tmp_path):
    write_webdataset(tmp_path / "s", rows(), shard_bytes=SHARD)
    return tmp_path / "s"


def names(folder):
    return sorted(path.name for path in folder.glob("*.tar"))


def audited(folder, repair=False):
    """Return the findings of each shard."""
    _, reports = audit_files(
        str(folder), IndexedTar(), shard=None, repair=repair, on_progress=lambda _: None
    )
    return [[finding.text for finding in report.findings] for report in reports]


def take_index(folder, other, name):
    """Put the index of a file in place of that of the file of the same name."""
    indexes = load_indexes(folder) | {name: load_indexes(other)[name]}
    replace_indexes(folder, indexes.values())


def test_a_shard_that_is_gone_is_told(written):
    (written / "shard-000001.tar").unlink()
    with pytest.raises(MissingShardError, match=r"is not there. Restore it") as caught:
        open_webdataset(written)
    assert caught.value.details["shard"] == 1
    assert caught.value.details["length"] > SHARD
    forget_index(written / "shard-000001.tar")
    with pytest.raises(MissingShardError, match="is not there"):
        open_webdataset(written)


def test_the_last_shard_that_is_gone_with_its_index_is_told(written):
    last = names(written)[-1]
    forget_index(written / last)
    (written / last).unlink()
    with pytest.raises(MissingShardError, match=f'"{last}'):
        open_webdataset(written)


def test_a_shard_of_others_that_is_gone_is_told_by_its_index(folder):
    (folder / "x-001.tar").unlink()
    with pytest.raises(
        MissingShardError,
        match=r"is not there, but its index in seqdata-index/index.idx is. Restore",
    ):
        open_webdataset(folder)
    assert index_shards(folder, progress=False)["indexed"] == 0  # as the message says
    assert len(open_webdataset(folder)) == 20


def test_an_index_that_is_gone_is_told(written):
    forget_index(written / "shard-000002.tar")
    text = "is not there. Rebuild it with `seqdata verify --repair-index`"
    with pytest.raises(MissingShardError, match=text):
        open_webdataset(written)


def test_an_index_of_an_older_write_is_told(written, tmp_path):
    """Headers and sizes are alike; the class, which is read from the index, would be another."""
    write_webdataset(tmp_path / "older", rows(more=100), shard_bytes=SHARD)
    take_index(written, tmp_path / "older", "shard-000004.tar")
    with pytest.raises(
        FingerprintMismatch,
        match=(
            r"must be of the shard with sha256 [0-9a-f]{16} that was written, but is of "
            r"[0-9a-f]{16}"
        ),
    ):
        open_webdataset(written)
    with pytest.raises(FingerprintMismatch):
        open_webdataset(written / "shard-{000003..000004}.tar")


def test_a_list_that_is_gone_is_told(written):
    (written / "seqdata-index" / SHARD_LIST).unlink()
    with pytest.raises(
        IncompleteDatasetError,
        match=r"is from a writer that records all of its shards in seqdata-index/shards.json, but",
    ):
        open_webdataset(written)
    index_shards(written, rebuild=True, progress=False)  # they are shards as anybody's from here on
    assert "x.npy" in open_webdataset(written).fields


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version": 1', b'"version": 2'),
        (b'"version": 1', b'"vErsion": 1'),
        (b"shard-000000", b"shard-100000"),
        (b"{", b"["),
        (b"{\n", b"{ "),
        (b'"x"', b'"z"'),
    ],
)
def test_a_list_that_is_damaged_is_told(written, old, new):
    path = written / "seqdata-index" / SHARD_LIST
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(
        CorruptShardError,
        match=r"must be unchanged since it was written, but is (damaged|of version 2)\. Restore it",
    ):
        open_webdataset(written)


def test_an_index_that_is_damaged_is_repaired_and_the_list_stays(written):
    whole, path = open_webdataset(written), index_path(written)
    due = path.read_bytes()
    path.write_bytes(due[:-8] + b"x" * 8)
    text = r"index\.idx.*must be a valid index, but is damaged.*`seqdata verify --repair-index`"
    for options in ({}, {"index": "build"}):
        with pytest.raises(CorruptShardError, match=text):
            open_webdataset(written, **options)
    assert [len(texts) for texts in audited(written)] == [1] * 5
    assert not any(audited(written, repair=True))
    assert path.read_bytes() == due
    assert open_webdataset(written).fingerprint == whole.fingerprint
    path.unlink()
    with pytest.raises(MissingShardError, match=r"is not there\. Rebuild it with `seqdata verify"):
        open_webdataset(written)


def test_a_shard_that_is_not_in_the_list_is_told(written):
    (written / "more.tar").write_bytes((written / "shard-000000.tar").read_bytes())
    with pytest.raises(
        FingerprintMismatch,
        match=r'"more.tar".*must be in the list of the folder.s shards, but is not',
    ):
        open_webdataset(written)


def test_some_of_the_shards_are_opened_by_name(written):
    whole = open_webdataset(written)
    some = open_webdataset(written / "shard-{000001..000002}.tar")
    assert 0 < len(some) < len(whole)
    assert set(some.fields) == set(whole.fields) == {"x", "y"}


def test_an_index_that_is_repaired_says_what_the_writer_said(written):
    whole = open_webdataset(written)
    forget_index(written / "shard-000000.tar")
    (text,) = audited(written)[0]
    assert "is not there. Rebuild it" in text
    assert not any(audited(written, repair=True))
    again = open_webdataset(written)
    assert dict(again.fields) == dict(whole.fields)
    assert again.fingerprint == whole.fingerprint


def test_an_audit_tells_a_shard_of_another_write_and_does_not_bless_it(written, tmp_path):
    """The shard and its index fit each other; only the list knows that they are of others."""
    write_webdataset(tmp_path / "other", rows(more=100), shard_bytes=SHARD)
    name = "shard-000001.tar"
    (written / name).write_bytes((tmp_path / "other" / name).read_bytes())
    take_index(written, tmp_path / "other", name)
    for repair in (False, True, False):
        found = audited(written, repair)
        assert [len(texts) for texts in found] == [0, 1, 0, 0, 0]
        assert "must be of the shard with sha256" in found[1][0]
        with pytest.raises(FingerprintMismatch, match="must be of the shard with sha256"):
            open_webdataset(written)
        _, reports = audit_files(
            str(written), IndexedTar(), shard=None, repair=repair, on_progress=lambda _: None
        )
        assert all(report.sequences for report in reports)  # later findings have right numbers


def test_an_audit_repairs_an_index_of_an_older_write(written, tmp_path):
    """Headers and sizes are alike."""
    due = open_webdataset(written).fingerprint
    older = ({**row, "x": row["x"] + 1} for row in rows())
    write_webdataset(tmp_path / "older", older, shard_bytes=SHARD)
    take_index(written, tmp_path / "older", "shard-000004.tar")
    assert [len(texts) for texts in audited(written)] == [0, 0, 0, 0, 1]
    assert not any(audited(written, repair=True))
    assert not any(audited(written))
    assert open_webdataset(written).fingerprint == due


def test_an_audit_tells_that_the_list_is_gone_and_damage_too(written):
    (written / "seqdata-index" / SHARD_LIST).unlink()
    (written / "shard-000003.tar").unlink()
    forget_index(written / "shard-000003.tar")
    for repair in (False, True):  # a new index would hide that shards are gone
        found = audited(written, repair)
        assert [len(texts) for texts in found] == [1] * 4
        assert all(
            "records all of its shards in seqdata-index/shards.json" in one for (one,) in found
        )
        with pytest.raises(IncompleteDatasetError, match="records all of its shards"):
            open_webdataset(written)
    path = written / "shard-000002.tar"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert len(audited(written)[2]) == 2


OLD = Path(__file__).parents[3] / "tests" / "compat" / "saved" / "tar"


@pytest.fixture
def of_old(tmp_path):
    """What an earlier release has written: an index for each shard, and a list of shards."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_the_list_of_an_earlier_release_is_kept_to(of_old):
    due = open_webdataset(of_old)
    (of_old / "more.tar").write_bytes((of_old / "shard-000000.tar").read_bytes())
    with pytest.raises(FingerprintMismatch, match=r"must be in the list of the folder.s shards"):
        open_webdataset(of_old)
    (of_old / "more.tar").unlink()
    (of_old / "seqdata-index" / "shard-000003.tar.idx").unlink()
    with pytest.raises(MissingShardError, match=r"is not there\. Rebuild it with `seqdata verify"):
        open_webdataset(of_old)
    assert not any(audited(of_old, repair=True))
    assert open_webdataset(of_old).fingerprint == due.fingerprint
    assert dict(open_webdataset(of_old).fields) == dict(due.fields)
    (of_old / "shard-000004.tar").unlink()
    with pytest.raises(MissingShardError, match=r'"shard-000004.tar"'):
        open_webdataset(of_old)


def test_the_index_of_an_earlier_release_without_its_list_is_told(of_old):
    (of_old / "seqdata-index" / "shards.json").unlink()
    for options in ({}, {"index": "build"}):
        with pytest.raises(IncompleteDatasetError, match="records all of its shards"):
            open_webdataset(of_old, **options)
    index_shards(of_old, rebuild=True, progress=False)
    assert len(open_webdataset(of_old).shards) == 5


def test_a_write_over_data_of_an_earlier_release_leaves_nothing_of_it(of_old, written):
    with pytest.raises(ConfigError, match="must be an empty folder"):
        write_webdataset(of_old, rows(), shard_bytes=SHARD)
    write_webdataset(of_old, rows(), shard_bytes=SHARD, overwrite=True)
    names = [sorted(path.name for path in root.rglob("*")) for root in (of_old, written)]
    assert names[0] == names[1]


@pytest.mark.parametrize("moved", [1, 5, 6])
def test_a_writer_that_was_stopped_in_its_commit_is_gone_on_with(written, tmp_path, moved):
    due = {path.name: path.read_bytes() for path in written.rglob("*") if path.is_file()}
    root = tmp_path / "again"
    real, count = os.replace, 0

    def stops(source, target):
        nonlocal count
        if str(root) in str(target) and ".seqdata-tmp" not in str(target):
            count += 1
            if count > moved:
                raise KeyboardInterrupt
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", stops)
        with pytest.raises(KeyboardInterrupt):
            write_webdataset(root, rows(), shard_bytes=SHARD)
    with pytest.raises(IncompleteDatasetError, match="was not finished writing"):
        open_webdataset(root)
    write_webdataset(root, rows(), shard_bytes=SHARD)
    assert {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()} == due


def test_a_folder_whose_writer_only_had_to_sweep_is_whole(written):
    (written / f"{STAGING_PREFIX}x").mkdir()
    assert len(open_webdataset(written)) == 40
    with pytest.raises(ConfigError, match="must be an empty folder"):
        write_webdataset(written, rows(), shard_bytes=SHARD)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EMFILE, r"Raise `ulimit -n` \(now \d+\)"), (errno.EACCES, "Check its permissions")],
)
def test_a_folder_that_cannot_be_listed_says_why(written, monkeypatch, number, remedy):
    def refuses(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listdir", refuses)
    with pytest.raises(
        DataError, match=rf"must be readable, but cannot be opened \(.*\)\. {remedy}"
    ):
        list_folder(written)

"""An audit of indexed files compares every byte, names each damage, and repairs indexes."""

import re
import shutil

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.build_index import build
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.shards import LocalShard
from seqdata.storage.indexed.user_format import UserFormat
from tests.index_files import forget_index, index_path, load_indexes
from tests.storage.indexed.records import (
    Documents,
    Records,
    sequences,
    write_documents,
    write_files,
)

FORMAT = UserFormat(Records())
ROWS = sequences(40)  # of a file, the values in the middle are between the ends that are compared


def build_all(folder, file_format):
    found = find_shards(str(folder), file_format)
    build("/d", found.shards, found.index, file_format)


@pytest.fixture
def folder(tmp_path):
    folder = write_files(tmp_path / "data", ROWS, per_file=20)
    build_all(folder, FORMAT)
    return folder


def audit(folder, shard=None, repair=False):
    """Return the total size, the reports, and the sizes that were counted."""
    counted = []
    total, reports = audit_files(
        str(folder), FORMAT, shard=shard, repair=repair, on_progress=counted.append
    )
    return total, list(reports), counted


def change(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def extents(folder, shard, name):
    file = find_shards(str(folder), FORMAT).shards[shard].name
    members = load_indexes(folder)[file].members[name]
    return members.begins, members.sizes


def test_files_as_they_were_indexed_have_no_damage(folder):
    total, reports, counted = audit(folder)
    assert [(report.damages, report.sequences, report.by) for report in reports] == [
        (0, 20, "checksums"), (0, 20, "checksums"),
    ]  # fmt: skip
    assert sum(counted) == total == sum(path.stat().st_size for path in folder.rglob("*.recs"))


def test_each_damaged_value_is_named_by_its_number_in_the_store(folder):
    begins, sizes = extents(folder, 0, "frames")
    end = int(begins[5] + sizes[5])
    change(folder / "part-0.recs", end - 1)  # longer than a block, in its last one
    change(folder / "part-0.recs", int(extents(folder, 0, "label")[0][7]))
    change(folder / "more" / "part-1.recs", int(extents(folder, 1, "label")[0][10]))
    _, reports, _ = audit(folder)
    assert [report.damages for report in reports] == [2, 1]
    first, second = (finding.text for finding in reports[0].findings)
    low = begins[5] + sizes[5] // 65536 * 65536
    assert f'sequence 5 ("s0-005"), field "frames", bytes {low}..{end}: must have crc32' in first
    assert 'sequence 7 ("s0-007"), field "label", bytes ' in second
    assert reports[1].findings[0].details["sequence"] == 30
    (report,) = audit(folder, shard=1)[1]  # the same number where it is audited alone
    assert report.findings == reports[1].findings


def test_a_byte_of_no_sequence_is_a_damage_of_the_file(folder):
    begins, sizes = extents(folder, 0, "name")
    name_end = int(begins[7] + sizes[7])
    padding = int(extents(folder, 0, "frames")[0][7])  # zeros up to a multiple of 4
    assert padding > name_end
    change(folder / "part-0.recs", name_end)
    _, (report, _), counted = audit(folder)
    assert "must have sha256" in report.findings[0].text
    assert "No sequence is damaged" in report.findings[0].text
    assert counted[0] == (folder / "part-0.recs").stat().st_size


@pytest.mark.parametrize("shard", [-1, 2])
def test_a_file_that_is_not_there_cannot_be_chosen(folder, shard):
    with pytest.raises(ConfigError, match=rf"the shard must be in \[0, 2\), but is {shard}. Choos"):
        audit(folder, shard=shard)


def test_a_file_that_is_gone_is_reported(folder):
    location = f"{folder}/part-0.recs::{folder}/more/part-1.recs"
    (folder / "part-0.recs").unlink()
    _, (gone, whole), _ = audit(location)
    assert (gone.damages, gone.by) == (1, "structure")
    assert "is not there" in gone.findings[0].text
    assert whole.sequences == 20


def test_without_an_index_only_the_structure_is_looked_at(folder):
    forget_index(folder / "more" / "part-1.recs", folder)
    _, reports, _ = audit(folder)
    assert sorted((report.by, report.damages, report.sequences) for report in reports) == [
        ("checksums", 0, 20), ("structure", 0, 20),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_an_index_that_is_missing_or_damaged_is_repaired(folder, content):
    number = [shard.name for shard in find_shards(str(folder), FORMAT).shards].index(
        "more/part-1.recs"
    )
    path = index_path(folder)
    path.unlink() if content is None else path.write_bytes(content)
    _, (report,), _ = audit(folder, shard=number)
    assert report.by == "structure"
    assert report.damages == (content is not None)
    _, (report,), _ = audit(folder, shard=number, repair=True)
    assert (report.by, report.damages) == ("checksums", 0)
    assert audit(folder, shard=number)[1][0].by == "checksums"


def test_a_file_of_another_size_is_not_the_one_that_was_indexed(folder):
    path = folder / "part-0.recs"
    path.write_bytes(path.read_bytes() + b"x")
    _, reports, _ = audit(f"{folder}/part-0.recs", repair=True)
    assert reports[0].by == "structure"  # it cannot be indexed either
    assert "cannot be read by Records" in reports[0].findings[0].text
    _, reports, _ = audit(f"{folder}/part-0.recs")
    assert reports[0].damages == 2


def test_other_ends_of_a_file_are_told_by_their_digests(folder):
    change(folder / "part-0.recs", (folder / "part-0.recs").stat().st_size - 1)
    text = audit(f"{folder}/part-0.recs")[1][0].findings[0].text
    assert re.search(r"last bytes of digest \w{16} as when it was indexed, but has \w{16}:", text)


def test_very_many_files_that_are_not_there_are_told_once(folder, monkeypatch):
    shutil.copy(folder / "part-0.recs", folder / "part-1700.recs")
    looked = []
    monkeypatch.setattr(LocalShard, "size", lambda shard: looked.append(shard.name) or 1)
    _, reports, _ = audit(f"{folder}/part-{{0..1999}}.recs")
    numbers = (*range(101), 1700)
    assert [report.file for report in reports[:-1]] == [f"part-{i}.recs" for i in numbers]
    assert [report.damages for report in reports] == [0, *[1] * 100, 0, 1898]
    assert "is not there. Restore it" in reports[1].findings[0].text
    (finding,) = reports[-1].findings
    assert "must hold all files that it names, but 1,898 more files are not there" in finding.text
    assert "from 'part-101.recs' to 'part-1999.recs'. Restore them" in finding.text
    assert finding.details["missing"] == 1898
    assert len(looked) == 102
    assert len(reports) == 103


@pytest.fixture
def documents(tmp_path):
    """A file with another next to it, and one without; with their indexes."""
    write_documents(tmp_path / "a.tok", 10, 999, tokens=999)
    write_documents(tmp_path / "b.tok", 10, 100).with_suffix(".ends").unlink()
    build_all(tmp_path, UserFormat(Documents()))
    return tmp_path


def audit_documents(folder, repair=False):
    """Return the findings of each file."""
    _, reports = audit_files(
        str(folder), UserFormat(Documents()), shard=None, repair=repair, on_progress=lambda _: None
    )
    return [[finding.text for finding in report.findings] for report in reports]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_sibling_that_changed_or_came_since_is_told_and_repaired(documents, name):
    assert audit_documents(documents) == [[], []]
    np.array([20, 100]).astype("<i8").tofile(documents / f"{name}.ends")
    (text,) = audit_documents(documents)["ab".index(name)]
    assert f'sibling of {name}.tok ("{name}.ends"): must be as when' in text
    told = "was changed since. Restore it" if name == "a" else "was added since. Remove it"
    assert f"but {told}, or rebuild" in text
    assert audit_documents(documents, repair=True) == audit_documents(documents) == [[], []]


def test_a_sibling_that_was_cut_off_is_told_and_not_blessed(documents):
    path = documents / "a.ends"
    path.write_bytes(path.read_bytes()[:-3])
    before = index_path(documents).read_bytes()
    changed, unreadable = audit_documents(documents)[0]
    assert "must be as when 'a.tok' was indexed" in changed
    assert "cannot be read by Documents" in unreadable
    assert audit_documents(documents, repair=True)[0] == [unreadable]
    assert index_path(documents).read_bytes() == before


def test_a_sibling_that_is_gone_is_told_and_not_blessed_and_damage_too(documents):
    (documents / "a.ends").unlink()
    for repair in (False, True, False):
        ((text,), others) = audit_documents(documents, repair)
        assert "\"a.ends\"): existed when 'a.tok' was indexed, but is missing. Restore it" in text
        assert others == []
    change(documents / "a.tok", 999)  # between the ends that are compared
    assert len(audit_documents(documents)[0]) == 2

"""Reports of audits: damaged bytes are copied, and a store without checksums is read as a whole."""

import numpy as np
import pytest

from seqdata import open_store
from seqdata.errors import CorruptSampleError
from seqdata.storage.integrity import audit
from seqdata.storage.integrity.audit import AuditFinding, audit_by_reading, copy_damaged_bytes


@pytest.mark.parametrize("name", ["a.arrow", "more/a.arrow"])
def test_the_bytes_of_a_finding_are_copied(name, tmp_path):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")
    finding = AuditFinding("damaged", {"file": name, "offset": 3, "length": 4})
    target = copy_damaged_bytes(tmp_path / "data", finding, tmp_path / "copies")
    assert target.read_bytes() == b"3456"
    assert target.parent == tmp_path / "copies"
    assert target.name.endswith("a.arrow.3-7.bad")
    past = AuditFinding("short", {"file": name, "offset": 8, "length": 99})
    assert copy_damaged_bytes(tmp_path / "data", past, tmp_path / "copies").read_bytes() == b"89"


@pytest.mark.parametrize(
    "details",
    [{}, {"file": "gone", "offset": 0, "length": 1}, {"file": "a", "offset": 0},
     {"file": "a", "length": 1}, {"offset": 0, "length": 1}],
)  # fmt: skip
def test_a_finding_without_bytes_has_no_copy(details, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    assert copy_damaged_bytes(tmp_path, AuditFinding("t", details), tmp_path / "copies") is None
    assert not (tmp_path / "copies").exists()


def test_no_more_is_copied_than_can_be_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_MAX_COPIED_BYTES", 4)
    (tmp_path / "a").write_bytes(b"0123456789")
    finding = AuditFinding("t", {"file": "a", "offset": 1, "length": 9})
    assert copy_damaged_bytes(tmp_path, finding, tmp_path / "copies").read_bytes() == b"1234"


class Damaged:
    """A store some of whose sequences cannot be read."""

    def __init__(self, base, *bad):
        self.base, self.bad = base, set(bad)
        for name in ("fields", "lengths_of", "shards"):
            setattr(self, name, getattr(base, name))

    def __len__(self):
        return len(self.base)

    def read(self, spans, fields, *, axis):
        for number in self.bad.intersection(spans[:, 0].tolist()):
            raise CorruptSampleError.at(f"sequence {number} is damaged", sequence=number)
        return self.base.read(spans, fields, axis=axis)


@pytest.fixture
def base():
    return open_store([{"x": np.zeros(number % 3)} for number in range(600)])


def test_each_sequence_that_cannot_be_read_is_a_finding(base):
    counted = []
    report = audit_by_reading(Damaged(base, 3, 299, 300), counted.append)
    assert (report.sequences, report.damages, report.by) == (600, 3, "structure")
    assert [finding.details["sequence"] for finding in report.findings] == [3, 299, 300]
    assert sum(counted) == 600
    assert len(counted) == 3
    assert audit_by_reading(base, counted.append).damages == 0


def test_all_damages_are_counted_but_not_all_are_listed(base, monkeypatch):
    monkeypatch.setattr(audit, "MAX_FINDINGS", 2)
    report = audit_by_reading(Damaged(base, 1, 2, 3, 4), lambda _: None)
    assert (report.damages, len(report.findings)) == (4, 2)

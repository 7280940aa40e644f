"""A format of files: what its interface names is all that the engine asks of it."""

import hashlib
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from seqdata.errors import DataError
from seqdata.protocols import Field
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.indexed_format import IndexedField, IndexedFormat
from seqdata.storage.indexed.opening import open_files
from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex, digest_ends
from seqdata_testing.stores import check_store


@dataclass(frozen=True)
class Lines:
    """Files of lines: each line is a sequence of bytes; no member that is not in the interface."""

    name: str = "lines"
    identity: str = "Lines() version 1"
    suffixes: tuple = (".lines",)
    packed: tuple = (".lines.gz",)
    is_nested: bool = False
    item: str = "line"
    needs_command: bool = False

    def make_index(self, content, name, place, read_sibling=None):
        raw = content.tobytes()
        if raw and not raw.endswith(b"\n"):
            raise place.make_error(DataError, "must end with a line break. Restore it")
        lines = raw.splitlines()
        sizes = np.array([len(line) for line in lines], np.int64)
        begins = np.cumsum(sizes + 1) - sizes - 1
        sums = np.array([zlib.crc32(line) for line in lines], np.uint32)
        ids = [f"{name}:{number}".encode() for number in range(len(lines))]
        last = max(0, len(raw) - 512)
        return ShardIndex(
            shard=name, bytes=len(raw), sha256=self.digest(raw), ends=digest_ends(raw, last),
            last=last, algorithm="crc32", block=65536, keys=np.frombuffer(b"".join(ids), np.uint8),
            key_ends=np.cumsum([0, *map(len, ids)]), declared={}, format_identity=self.identity,
            members={"text": FieldIndex(begins, sizes, sums)},
        )  # fmt: skip

    def digest(self, raw):
        return hashlib.sha256(raw).hexdigest()

    def check(self, index):
        if set(index.members) != {"text"}:
            raise ValueError("other members")

    def is_header(self, block):
        return True

    def scan(self, content, place):
        pass

    def fields(self, opened):
        sizes = [index.members["text"].sizes for index in opened.indexes]
        return [
            IndexedField(
                name="text", member="text", field=Field("uint8"), access="place",
                lengths=np.concatenate(sizes),
            ),
            IndexedField(
                name="label", member="text", field=Field("str", (), None), access="text",
            ),
        ]  # fmt: skip


def members(protocol):
    names = {name for base in protocol.__mro__[:-2] for name in vars(base)}
    return {name for name in names if not name.startswith("_")}


def test_the_kind_of_this_test_has_the_members_of_the_interface_only():
    mine = {name for name in dir(Lines()) if not name.startswith("_")}
    assert mine - {"digest"} == members(IndexedFormat)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.lines").write_bytes(b"first\n\nthird\n")
    (tmp_path / "b.lines").write_bytes(b"fourth\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.lines").write_bytes(b"fifth\n")
    return tmp_path


def test_files_of_a_kind_are_opened_indexed_and_audited(folder):
    rows = [
        {"text": np.frombuffer(line, np.uint8), "label": line.decode()}
        for line in (b"first", b"", b"third", b"fourth", b"fifth")
    ]
    for _ in range(2):  # with indexes that are built, and that are kept
        store = open_files(folder, Lines())
        check_store(store, rows)
    assert store.keys([0, 3, 4]) == ["a.lines:0", "b.lines:0", "c.lines:0"]
    assert (folder / "below" / "seqdata-index" / "index.idx").is_file()
    _, reports = audit_files(
        str(folder), Lines(), shard=None, repair=False, on_progress=lambda _: None
    )
    assert [report.damages for report in reports] == [0, 0, 0]


def test_errors_of_a_kind_name_the_file(folder):
    (folder / "b.lines").write_bytes(b"fourth")
    with pytest.raises(DataError, match=r'shard 1 \("b.lines"\): must end with a line break'):
        open_files(folder, Lines())
    (folder / "c.lines").write_bytes(b"")
    with pytest.raises(DataError, match="must hold at least one line, but holds none"):
        open_files(folder / "c.lines", Lines())

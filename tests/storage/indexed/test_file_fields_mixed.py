"""Files of a format that store the same field in different ways, few of them and very many."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from seqdata import open_store
from seqdata.backends import Extents, FileFormat, FileIndex
from seqdata.errors import DecodeError
from seqdata.storage.indexed import shards
from seqdata.storage.indexed.opening import open_files
from seqdata.storage.indexed.user_format import UserFormat
from seqdata_testing.stores import check_store


@dataclass(frozen=True)
class Numbers(FileFormat):
    """Files of numbers: raw, of the other byte order, written as text, or rows of three."""

    suffixes = (".raw", ".swapped", ".txt", ".rows")

    def index(self, file):
        begins, ends, kind = np.array([0]), np.array([file.size]), file.name.rpartition(".")[2]
        if kind == "txt":
            lengths = np.array([len(file.read(0, file.size).split())])
            found = Extents(begins, ends, "int16", decoder=self.decode, lengths=lengths)
        elif kind == "rows":
            found = Extents(begins, ends, "<i2", (3,))
        else:
            found = Extents(begins, ends, ">i2" if kind == "swapped" else "<i2")
        return FileIndex({"x": found})

    def decode(self, content):
        return np.array(content.split(), np.int16)


@pytest.fixture(params=["few", "very many"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MANY", 2 if request.param == "very many" else 1 << 20)
    (tmp_path / "a.raw").write_bytes(np.array([1, 2], "<i2").tobytes())
    (tmp_path / "b.swapped").write_bytes(np.array([3, 4, 5], ">i2").tobytes())
    (tmp_path / "c.txt").write_bytes(b"6 7 8 9")
    (tmp_path / "d.raw").write_bytes(np.array([10], "<i2").tobytes())
    return tmp_path


def test_each_is_read_in_its_own_way(folder):
    rows = [[1, 2], [3, 4, 5], [6, 7, 8, 9], [10]]
    for _ in range(2):  # the second time by indexes that were kept
        store = open_store(folder, backend=Numbers())
        check_store(store, [{"x": np.array(row, np.int16)} for row in rows])
        assert store.keys([0, 1, 2]) == ["a.raw", "b.swapped", "c.txt"]


def test_what_they_hold_must_be_alike_however_often_they_are_opened(folder):
    (folder / "e.rows").write_bytes(bytes(6))
    text = r"e\.rows.*hold int16 \[\] on axis time like 'a.raw', but holds int16 \[3\] on axis time"
    for _ in range(2):
        with pytest.raises(DecodeError, match=text) as caught:
            open_store(folder, backend=Numbers())
        assert "seqdata verify" not in str(caught.value)  # it would find nothing wrong


@dataclass(frozen=True)
class Gaps(FileFormat):
    """The second field has no value."""

    suffixes = (".raw",)

    def index(self, file):
        begins, ends = np.array([0]), np.array([file.size])
        return FileIndex({"x": Extents(begins, ends, "u1"), "y": Extents(begins - 1, ends, "u1")})


class OfSchema(UserFormat):
    """A format that takes a `schema`."""

    def fields(self, opened):
        return [replace(field, is_chosen_by_schema=True) for field in super().fields(opened)]


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        (UserFormat, "Open it with a format that leaves the field out"),
        (OfSchema, "Leave the field out with `schema={'y': None}`"),
    ],
)
def test_a_missing_value_is_answered_with_what_the_format_takes(tmp_path, made, advice):
    (tmp_path / "a.raw").write_bytes(b"12")
    with pytest.raises(DecodeError) as caught:
        open_files(tmp_path, made(Gaps()), progress=False)
    text = 'must have a value of field "y" as the others, but 1 sequences of the file have none. '
    assert f"{text}{advice}, or write the file again" in str(caught.value)

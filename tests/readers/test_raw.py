"""Formats ``bytes``, ``text`` and ``npy``: a sequence per file."""

import io
import pickle

import numpy as np
import pytest

from seqdata.errors import DecodeError
from seqdata.readers.npy import read_npy
from seqdata.readers.raw import read_bytes, read_text
from seqdata.readers.source import ReadOptions, find_files

OPTIONS = ReadOptions()


def test_bytes_are_a_sequence_per_file_named_by_its_path(tmp_path):
    (tmp_path / "a").write_bytes(b"\x00\xff\r\n")
    (tmp_path / "b").write_bytes(b"")
    one, two = read_bytes(find_files(tmp_path), ReadOptions(field="raw"))
    assert one["id"] == "a"
    assert one["raw"].dtype == np.uint8
    assert one["raw"].tolist() == [0, 255, 13, 10]
    assert two["raw"].tolist() == []


def test_text_is_utf8_without_a_mark_and_with_plain_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffé\r\nz".encode())
    (one,) = read_text(find_files(tmp_path), OPTIONS)
    assert one["x"].tobytes() == "é\nz".encode()


def test_text_that_is_not_utf8_is_refused_with_the_place(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    with pytest.raises(DecodeError, match=r"a\.txt': byte 2 is 0xff, but must be UTF-8") as caught:
        list(read_text(find_files(tmp_path), OPTIONS))
    assert caught.value.facts == {"file": str(tmp_path / "a.txt"), "offset": 2}


def test_npy_is_an_array_per_file(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "a.npy", array)
    (one,) = read_npy(find_files(tmp_path), ReadOptions(field="mel"))
    assert one["id"] == "a.npy"
    assert one["mel"].dtype == np.float32
    assert one["mel"].tolist() == array.tolist()


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("the pickle was run",)


def archive():
    out = io.BytesIO()
    np.savez(out, a=np.zeros(2))
    return out.getvalue()


def saved(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no array", "cannot be read"),
        (b"", "cannot be read"),
        (pickle.dumps(Bomb()), "cannot be read"),
        (saved(np.array([Bomb()], dtype=object), allow_pickle=True), "cannot be read .Object"),
        (saved(np.float32(3)), "holds a single number"),
        (archive(), "is an archive of several arrays"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(
        DecodeError, match=rf"a\.npy': {message}.*, but must be a \.npy file of one"
    ):
        list(read_npy(find_files(tmp_path), OPTIONS))

"""Formats ``bytes``, ``text`` and ``npy``: a sequence per file."""

import numpy as np
import pytest

from seqdata.errors import DecodeError
from seqdata.readers.binary import read_bytes, read_text
from seqdata.readers.source import ReadOptions, find_source


def test_bytes_are_a_sequence_per_file_named_by_its_path(tmp_path):
    (tmp_path / "a").write_bytes(b"\x00\xff\r\n")
    (tmp_path / "b").write_bytes(b"")
    one, two = read_bytes(find_source(tmp_path)[0], ReadOptions(field="raw"))
    assert one["id"] == "a"
    assert one["raw"].dtype == np.uint8
    assert one["raw"].tolist() == [0, 255, 13, 10]
    assert two["raw"].tolist() == []


def test_text_is_utf8_without_a_mark_and_with_plain_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffé\r\nz".encode())
    (one,) = read_text(find_source(tmp_path)[0], ReadOptions())
    assert one["x"].tobytes() == "é\nz".encode()


def test_text_that_is_not_utf8_is_refused_with_the_place(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    with pytest.raises(DecodeError, match=r"a\.txt': byte 2 is 0xff, but must be UTF-8") as caught:
        list(read_text(find_source(tmp_path)[0], ReadOptions()))
    assert caught.value.details == {"file": str(tmp_path / "a.txt"), "offset": 2}

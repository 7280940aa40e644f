import bz2
import gzip
import io
import lzma
import os

import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DecodeError
from seqdata.storage.compressed_files import (
    COMPRESSED_SUFFIXES,
    find_compression,
    open_decompressed,
    refuse_repeated,
    strip_compression,
)

CONTENT = os.urandom(5000) + b"line\n" * 20_000
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.fixture(params=COMPRESSED_SUFFIXES)
def ending(request):
    return request.param


def write(path, content):
    path.write_bytes(content)
    return path


def read(path, size=-1):
    with open_decompressed(path) as file:
        return b"".join(iter(lambda: file.read(size), b""))


@pytest.mark.parametrize("size", [-1, 1 << 16, 10_007])
def test_content_is_that_which_was_compressed(tmp_path, ending, size):
    content = COMPRESS[ending](CONTENT)
    assert read(write(tmp_path / f"a{ending}", content), size) == CONTENT
    several = content + COMPRESS[ending](b"end")  # as of pigz, pbzip2 and `cat`
    assert read(write(tmp_path / f"b{ending.upper()}", several), size) == CONTENT + b"end"
    assert read(write(tmp_path / f"c{ending}", COMPRESS[ending](b""))) == b""


def test_lines_are_lines(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", COMPRESS[ending](b"one\r\ntwo\nthree"))
    with open_decompressed(path) as file:
        assert file.readline() == b"one\r\n"
        assert file.read(2) + file.readline() == b"two\n"
        assert list(io.TextIOWrapper(file)) == ["three"]


def test_a_file_of_another_name_is_read_as_it_is(tmp_path):
    assert read(write(tmp_path / "a.txt", CONTENT)) == CONTENT
    assert read(write(tmp_path / "b.txt", b"")) == b""
    assert read(write(tmp_path / "c.txt", b"BZh is how it begins")) == b"BZh is how it begins"


@pytest.mark.parametrize("damage", ["cut", "begun", "garbage", "flipped", "other", "empty"])
def test_damage_is_an_error_and_never_an_end(tmp_path, ending, damage):
    content = COMPRESS[ending](os.urandom(300_000))
    at = len(content) // 2
    damaged = {
        "cut": content[:-3],
        "begun": content + COMPRESS[ending](b"text")[:9],
        "garbage": content + b"other bytes",
        "flipped": content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :],
        "other": b'{"text": "not compressed"}\n',
        "empty": b"",
    }[damage]
    if damage == "flipped" and ending == ".zst":
        pytest.skip("pyarrow writes no checksum of the content")
    path = write(tmp_path / f"a{ending}", damaged)
    message = (
        rf"file '.*a{ending}': must be a whole {ending} file, but is not \(.+\)\. Restore it; a "
        rf"file that is not compressed must not end in {ending}"
    )
    with pytest.raises(DecodeError, match=message):
        read(path, 1000)


def test_padding_at_the_end_is_none_of_the_content(tmp_path):
    for ending in (".gz", ".xz"):
        padded = COMPRESS[ending](b"text") + bytes(8)
        assert read(write(tmp_path / f"a{ending}", padded)) == b"text"
        assert read(write(tmp_path / f"a{ending}", padded + padded)) == b"texttext"


def test_a_compressed_file_whose_name_does_not_say_so(tmp_path, ending):
    path = write(tmp_path / "a.jsonl", COMPRESS[ending](CONTENT))
    message = (
        rf"must be text, but begins like a file compressed as {ending}\. Name it 'a\.jsonl{ending}"
        r"', or decompress it"
    )
    with pytest.raises(DecodeError, match=message):
        open_decompressed(path)


def test_a_file_that_is_not_there(tmp_path, ending):
    with pytest.raises(FileNotFoundError):
        open_decompressed(tmp_path / f"a{ending}")


def test_names():
    assert [find_compression(f"a.csv{each}") for each in COMPRESSED_SUFFIXES] == [
        *COMPRESSED_SUFFIXES
    ]
    assert find_compression("a.gz/b.csv") == find_compression(".gz") == ""
    assert strip_compression("a.b/c.csv.GZ") == "a.b/c.csv"


def test_the_same_data_twice_is_refused():
    refuse_repeated("x", ["a.csv", "b.csv.gz", "c/a.csv.gz"])
    message = r"x: must have each file once, but has 'a\.csv' and 'a\.csv\.gz', .* Remove one of"
    with pytest.raises(ConfigError, match=message):
        refuse_repeated("x", ["a.csv", "a.csv.gz"])

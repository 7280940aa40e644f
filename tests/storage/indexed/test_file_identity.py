"""A file is the one that was indexed: its size and both ends say so, and a copy may be mended."""

from dataclasses import replace

import numpy as np
import pytest

from seqdata.errors import CorruptShardError, FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_identity import check_ends, check_size, get_checked_content
from seqdata.storage.indexed.shard_index import ENDS, digest_ends
from tests.storage.indexed.samples import make_index

PLACE = DataLocation(dataset="/d", shard=0, file="a.recs")
CONTENT = b"H" + bytes(range(1, 200)) * 10 + b"H" + b"e" * (ENDS - 1)
LAST = len(CONTENT) - ENDS
INDEX = replace(make_index(), bytes=len(CONTENT), last=LAST, ends=digest_ends(CONTENT, LAST))


class AnyFormat:
    """Files whose headers begin with H."""

    def is_header(self, block):
        return block.startswith(b"H")


class Copy:
    """A copy of a file, which is mended as often as there are other copies."""

    def __init__(self, *contents):
        self.contents = list(contents)

    def content(self, place, index=None, *, ahead=False, release=None):
        self.mapped = np.frombuffer(bytearray(self.contents.pop(0)), np.uint8)
        return self.mapped

    def repair_copy(self, content, index, place):
        if self.contents:
            content[:] = np.frombuffer(self.contents.pop(0), np.uint8)
        return True


def other(at, byte=b"?"):
    return CONTENT[:at] + byte + CONTENT[at + 1 :]


def test_the_file_that_was_indexed_passes():
    check_size(len(CONTENT), INDEX, PLACE)
    check_ends(CONTENT[:ENDS], CONTENT[-ENDS:], INDEX, PLACE, AnyFormat())
    assert get_checked_content(Copy(CONTENT), INDEX, PLACE, AnyFormat(), None).tobytes() == CONTENT


@pytest.mark.parametrize("size", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_size_is_named(size):
    with pytest.raises(CorruptShardError, match=rf"must have {len(CONTENT)} bytes .* has {size}"):
        check_size(size, INDEX, PLACE)


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (other(0), CorruptShardError, rf"bytes 0\.\.{ENDS}: must be the header that was indexed"),
        (other(LAST), CorruptShardError, rf"bytes {LAST}\.\.{LAST + ENDS}: must be the header"),
        (other(9), FingerprintMismatch, "must have first and last bytes of digest .* another file"),
        (CONTENT[:-1], CorruptShardError, "as when it was indexed, but has"),
    ],
)
def test_another_file_is_named(content, error, text):
    with pytest.raises(error, match=text):
        get_checked_content(Copy(content), INDEX, PLACE, AnyFormat(), None)


def test_a_byte_between_the_ends_is_left_to_checksums():
    content = other(1000)
    assert get_checked_content(Copy(content), INDEX, PLACE, AnyFormat(), None).tobytes() == content


def test_a_damaged_copy_is_mended_once():
    assert get_checked_content(
        Copy(other(0), CONTENT), INDEX, PLACE, AnyFormat(), None
    ).tobytes() == (CONTENT)
    with pytest.raises(CorruptShardError, match="must be the header"):
        get_checked_content(Copy(other(0), other(0)), INDEX, PLACE, AnyFormat(), None)

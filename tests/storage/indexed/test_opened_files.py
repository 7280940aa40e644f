"""A file is the one that was indexed: its size and both ends say so; a damaged copy comes again."""

from dataclasses import replace

import numpy as np
import pytest

from seqdata.errors import CorruptShardError, FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.build_index import build
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.opened_files import OpenedFiles, check_ends, check_size
from seqdata.storage.indexed.shard_index import ENDS, digest_ends
from seqdata.storage.indexed.user_format import UserFormat
from tests.storage.indexed.records import Records, sequences, write_files
from tests.storage.indexed.samples import make_index

FORMAT = UserFormat(Records())

PLACE = DataLocation(dataset="/d", shard=0, file="a.recs")
CONTENT = b"H" + bytes(range(1, 200)) * 10 + b"H" + b"e" * (ENDS - 1)
LAST = len(CONTENT) - ENDS
INDEX = replace(make_index(), bytes=len(CONTENT), last=LAST, ends=digest_ends(CONTENT, LAST))


class AnyFormat:
    """Files whose headers begin with H."""

    def is_header(self, block):
        return block.startswith(b"H")


class Copy:
    """A copy of a file, which is fetched again as often as there are other copies."""

    name = "a.recs"

    def __init__(self, *contents):
        self.contents = list(contents)

    def content(self, place, index=None, *, ahead=False, release=None):
        self.mapped = np.frombuffer(bytearray(self.contents.pop(0)), np.uint8)
        return self.mapped

    def drop_copy(self, index, location):
        return "it was dropped" if self.contents else None


def open_copy(copy):
    return OpenedFiles("/d", [copy], [INDEX], AnyFormat(), None).content(0)


def other(at, byte=b"?"):
    return CONTENT[:at] + byte + CONTENT[at + 1 :]


def test_the_file_that_was_indexed_passes():
    check_size(len(CONTENT), INDEX, PLACE)
    check_ends(CONTENT[:ENDS], CONTENT[-ENDS:], INDEX, PLACE, AnyFormat())
    assert open_copy(Copy(CONTENT)).tobytes() == CONTENT


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
        open_copy(Copy(content))


def test_a_byte_between_the_ends_is_left_to_checksums():
    content = other(1000)
    assert open_copy(Copy(content)).tobytes() == content


def test_a_damaged_copy_is_fetched_again_once():
    assert open_copy(Copy(other(0), CONTENT)).tobytes() == CONTENT
    with pytest.raises(CorruptShardError, match="must be the header"):
        open_copy(Copy(other(0), other(0)))


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", sequences(4), per_file=2)


def make(folder, indexes=None):
    found = find_shards(str(folder), FORMAT)
    build("/d", found.shards, found.index, FORMAT)
    indexes = indexes or list(map(found.index.get, found.shards))
    return OpenedFiles("/d", found.shards, indexes, FORMAT, None)


def test_files_of_this_machine_are_read_as_they_are(folder):
    files = make(folder)
    assert files.file(0) is None
    assert files.sizes == [(folder / shard.name).stat().st_size for shard in files.shards]
    assert files.content(1).tobytes() == (folder / "more" / "part-1.recs").read_bytes()
    assert str(files.locate_shard(1)) == '/d shard 1 ("more/part-1.recs")'
    assert files.locate_shard(1).verify


def test_a_file_of_this_machine_is_not_read_by_ranges(folder):
    with pytest.raises(ValueError, match="shard 0: must be a remote file, but is on this machine"):
        make(folder).check(0)


def test_another_file_is_refused_when_it_is_opened(folder):
    indexes = make(folder).indexes
    (folder / "part-0.recs").write_bytes(b"x")
    with pytest.raises(CorruptShardError, match="bytes as when it was indexed, but has 1"):
        make_without_index(folder, indexes).content(0)


def make_without_index(folder, indexes):
    shards = find_shards(str(folder), FORMAT).shards
    return OpenedFiles("/d", shards, indexes, FORMAT, None)


def test_a_view_ends_with_the_file_and_cannot_be_written(folder):
    files = make(folder)
    size = files.sizes[0]
    view = files.view(0, bytearray(size + 4096))  # memory comes in pages
    assert len(view) == size
    assert not view.flags.writeable
    assert view.dtype == np.uint8

"""The files of a store that are opened on demand: compared with their index, whole or by ranges."""

import numpy as np
import pytest

from seqdata.errors import CorruptShardError
from seqdata.storage.indexed.build_index import build
from seqdata.storage.indexed.file_shards import FileShards, release_nothing
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote_shards import SupportsOffsets
from tests.storage.indexed.records import Records, sequences, write_files

FORMAT = UserFormat(Records())


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", sequences(4), per_file=2)


def make(folder, indexes=None):
    shards = find_shards(str(folder), FORMAT)
    build("/d", shards, FORMAT)
    indexes = indexes or [shard.index("/d", 0, FORMAT) for shard in shards]
    return FileShards.of("/d", shards, indexes, FORMAT, Remote())


def test_files_of_this_machine_are_read_as_they_are(folder):
    files = make(folder)
    assert files.folders == {}
    assert files.file(0) is None
    assert files.sizes == [(folder / shard.name).stat().st_size for shard in files.shards]
    assert files.content(1).tobytes() == (folder / "more" / "part-1.recs").read_bytes()
    files.download(0)
    assert str(files.locate(1)) == '/d shard 1 ("more/part-1.recs")'
    assert files.locate(1).verify


def test_a_file_of_this_machine_is_not_read_by_ranges(folder):
    with pytest.raises(ValueError, match="shard 0: must be read by ranges, but is on this machine"):
        make(folder).check(0)


def test_what_lies_where_is_known_from_the_index(folder):
    files = make(folder)
    assert not isinstance(files, SupportsOffsets)
    assert files.opens_for_texts(0)
    files.join([])


def test_fields_are_not_known_before_they_were_compared(folder):
    files = make(folder)
    for ask in (lambda: files.layout, lambda: files.fields, lambda: files.ids,
                lambda: files.hold(0, release_nothing)):  # fmt: skip
        with pytest.raises(ValueError, match="/d: fields are asked for before they are known"):
            ask()


def test_another_file_is_refused_when_it_is_opened(folder):
    indexes = make(folder).indexes
    (folder / "part-0.recs").write_bytes(b"x")
    with pytest.raises(CorruptShardError, match="bytes as when it was indexed, but has 1"):
        make_without_index(folder, indexes).content(0)


def make_without_index(folder, indexes):
    shards = find_shards(str(folder), FORMAT)
    return FileShards.of("/d", shards, indexes, FORMAT, Remote())


def test_a_view_ends_with_the_file_and_cannot_be_written(folder):
    files = make(folder)
    size = files.sizes[0]
    view = files._make_view(0, bytearray(size + 4096))  # memory comes in pages
    assert len(view) == size
    assert not view.flags.writeable
    assert view.dtype == np.uint8

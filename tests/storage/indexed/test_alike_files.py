"""Many small files are indexed at once, as if each had been indexed alone."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from seqdata.backends import Extents, FileFormat, FileIndex
from seqdata.errors import CorruptShardError, PluginError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed import build_index
from seqdata.storage.indexed.alike_files import group_alike
from seqdata.storage.indexed.build_index import build_indexes
from seqdata.storage.indexed.file_format import FileReader, check_extents
from seqdata.storage.indexed.indexed_format import UnindexedFile
from seqdata.storage.indexed.shards import LocalShard
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES
from tests.index_files import dump_one

KINDS = b"msgdiknlv"


@dataclass(frozen=True)
class Kinds(FileFormat):
    """The first byte of a file says what is in it."""

    suffixes = (".k",)

    def index(self, file):
        kind = file.read(0, 1)
        whole = Extents(np.array([4]), np.array([file.size]), "<i2")
        rate = Extents(np.array([0]), np.array([4]), "int64", axis=None, values=np.array([7]))
        if kind == b"s":
            whole = replace(whole, shape=(2,))
        elif kind == b"g":
            file.sibling(file.name + "x")
        elif kind == b"d":
            whole = replace(whole, decoder=self.decode_it, dtype="int16", lengths=np.array([5]))
        elif kind == b"n":
            return FileIndex({"x": whole, "rate": rate}, missing={"y": (0, (0,))})
        elif kind == b"l":
            whole = replace(whole, begins=[4], ends=[file.size])
        elif kind == b"v":
            whole = replace(whole, begins=np.array([4, 4]), ends=np.array([4, file.size]))
            rate = replace(rate, begins=np.zeros(2, int), ends=np.array([0, 4]), values=np.ones(2))
        elif kind == b"e":
            whole = replace(whole, ends=np.array([file.size + 2]))
        elif kind == b"o":
            whole = replace(whole, ends=np.array([file.size - 1]))
        return FileIndex({"x": whole, "rate": rate}, ["id"] if kind == b"i" else None)

    def decode_it(self, raw):
        return np.frombuffer(raw, np.int16)


FORMAT = UserFormat(Kinds())


def make_files(kinds, size=40):
    def read_sibling(name, place):
        return np.arange(9, dtype=np.uint8)

    def make(number, kind):
        content = np.arange(4 + 4 * (number % 7) + size, dtype=np.uint32).astype(np.uint8)
        content[:4] = kind
        place = DataLocation(dataset="/d", shard=number, file=f"{number}.k")
        return UnindexedFile(f"{number}.k", content, place, read_sibling)

    return [make(number, kind) for number, kind in enumerate(kinds)]


def make_alone(file):
    return FORMAT.make_index(file.content, file.name, file.place, file.read_sibling)


@pytest.mark.parametrize("size", [0, 40, CHECKSUM_BYTES])
def test_indexes_made_together_are_those_made_alone(size):
    files = make_files(KINDS * 3, size)
    together = FORMAT.make_indexes(files)
    assert [index.shard for index in together] == [file.name for file in files]
    assert list(map(dump_one, together)) == [dump_one(make_alone(file)) for file in files]


def test_files_with_one_plain_sequence_of_the_same_kinds_are_alike():
    readers = [
        FileReader(file.name, file.content, file.place, file.read_sibling)
        for file in make_files(KINDS * 2)
    ]
    found = [FORMAT.format.index(reader) for reader in readers]
    groups = [bytes(KINDS[number % len(KINDS)] for number in group) for group in group_alike(found)]
    assert sorted(group for group in groups if len(group) > 1) == [b"dd", b"mgkmgk", b"ss"]


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (b"e", CorruptShardError, r'shard 2 \("2.k"\).* inside the 52 bytes .*, but end at 54'),
        (b"o", PluginError, "'2.k'.*, field 'x': .* sequence 0 must have a multiple of 2 bytes"),
    ],
)
def test_an_invalid_one_of_many_is_named(kind, error, text):
    files = make_files(b"mm" + kind + b"mm")
    with pytest.raises(error, match=text) as together:
        FORMAT.make_indexes(files)
    with pytest.raises(error) as alone:
        make_alone(files[2])
    assert str(together.value) == str(alone.value)


def test_only_some_bytes_of_files_are_taken_together(tmp_path, monkeypatch):
    calls = []

    class Counted(UserFormat):
        def make_indexes(self, files):
            calls.append(len(files))
            return super().make_indexes(files)

    for file in make_files(b"m" * 8):
        (tmp_path / file.name).write_bytes(file.content.tobytes())
    shards = [(number, LocalShard(tmp_path, f"{number}.k")) for number in range(8)]
    expected = [dump_one(index) for _, index in build_indexes("/d", shards, FORMAT)]
    monkeypatch.setattr(build_index, "_TOGETHER", 200)
    found = build_indexes("/d", shards, Counted(Kinds()))
    assert [shard.name for shard, _ in found] == [shard.name for _, shard in shards]
    assert [dump_one(index) for _, index in found] == expected
    assert calls == [4, 3]


def test_values_must_end_inside_the_file_of_their_own_sequence():
    extents = Extents(np.array([0, 0]), np.array([4, 6]), "<i2")
    check_extents(extents, 2, np.array([4, 6]), "here", DataLocation(dataset="/d"), "x")
    with pytest.raises(CorruptShardError, match="sequence 1 must end inside the 5 bytes"):
        check_extents(extents, 2, np.array([4, 5]), "here", DataLocation(dataset="/d"), "x")

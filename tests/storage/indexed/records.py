"""A format of somebody else's: records in one binary file, in which everything lies anywhere.

A file is ``RECS``, uint32 records, and for each record: uint16 bytes of its name, uint32 steps,
int32 label, uint32 bytes of a note that is packed by zlib; then the name, zeros up to a multiple of
4, the steps of 3 float32, and the note.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from seqdata.backends import Extents, FileFormat, FileIndex, FormatBackend, RandomAccessFile
from seqdata.errors import MissingShardError
from seqdata.storage.indexed.shards import INDEX_FOLDER
from seqdata_testing.faults.targets import VERIFY, FaultTarget
from tests.index_files import index_of

HEAD = struct.Struct("<HIiI")
STEP = np.dtype(("<f4", (3,)))


@dataclass(frozen=True)
class Records(FileFormat):
    """The format."""

    with_notes: bool = True
    suffixes = (".recs",)

    def index(self, file: RandomAccessFile) -> FileIndex:
        if file.read(0, 4) != b"RECS":
            raise ValueError("does not begin with RECS")
        (count,) = struct.unpack("<I", file.read(4, 8))
        at, names, frames, notes, labels = 8, [], [], [], []
        for _ in range(count):
            size, steps, label, packed = HEAD.unpack(file.read(at, at + HEAD.size))
            labels.append((at + 6, at + 10, label))
            at += HEAD.size
            names.append((at, at + size))
            at += size + -(at + size) % 4
            frames.append((at, at + steps * STEP.itemsize))
            notes.append((frames[-1][1], frames[-1][1] + packed))
            at = notes[-1][1]
        if at != file.size:
            raise ValueError(f"ends at byte {at}, has {file.size}")
        fields = {
            "frames": Extents(*edges(frames), "<f4", (3,)),
            "label": Extents(
                *edges(labels), "int32", axis=None, values=np.array([one[2] for one in labels])
            ),
            "name": Extents(*edges(names), "str", axis=None),
        }
        if self.with_notes:
            fields["note"] = Extents(*edges(notes), "uint8", axis="letters", decoder=self.decode)
        ids = [file.read(*one).decode() for one in names]
        return FileIndex(fields, ids)

    def decode(self, raw: bytes) -> np.ndarray:
        return np.frombuffer(zlib.decompress(raw), np.uint8)


@dataclass(frozen=True)
class Documents(FileFormat):
    """Two bytes a token; documents end where a file next to it says, if there is one."""

    suffixes = (".tok",)

    def index(self, file: RandomAccessFile) -> FileIndex:
        name = file.name.rpartition("/")[2].replace(".tok", ".ends")
        try:
            ends = np.frombuffer(file.sibling(name).read(0, 1 << 20), "<i8") * 2
        except MissingShardError:
            ends = np.array([file.size])
        return FileIndex({"tokens": Extents(np.append(0, ends[:-1]), ends, "<u2")})


def write_documents(path, *ends, tokens=100):
    """Write a file of tokens, and the file next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.arange(tokens, dtype="<u2").tofile(path)
    np.array(ends, dtype="<i8").tofile(path.with_suffix(".ends"))
    return path


def edges(pairs):
    table = np.array([one[:2] for one in pairs], dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def sequences(count=40, seed=0):
    """Return what files of the format hold: one is empty, one is longer than a checksum's block."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 30, count)
    lengths[[1, min(5, count - 1)]] = 0, 9_000
    return [
        {
            "frames": random.standard_normal((length, 3)).astype(np.float32),
            "label": np.int32(random.integers(-9, 9)),
            "name": f"s{seed}-{number:03}",
            "note": np.frombuffer(b"note %d" % number * (1 + number % 3), np.uint8),
        }
        for number, length in enumerate(lengths.tolist())
    ]


def write_file(path, given):
    """Write one file of the format."""
    content = bytearray(b"RECS" + struct.pack("<I", len(given)))
    for one in given:
        name, note = one["name"].encode(), zlib.compress(bytes(one["note"]))
        content += HEAD.pack(len(name), len(one["frames"]), int(one["label"]), len(note)) + name
        content += bytes(-len(content) % 4) + np.ascontiguousarray(one["frames"], "<f4").tobytes()
        content += note
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_files(folder, given, per_file=16, digits=1):
    """Write files of so many records each, some in a folder below."""
    for number, first in enumerate(range(0, len(given), per_file)):
        where = folder / "more" if number else folder
        write_file(where / f"part-{number:0{digits}}.recs", given[first : first + per_file])
    return folder


def _write(folder, given):
    write_files(folder, given, digits=2)
    _open(folder, "off")


def _open(folder, verify):
    return FormatBackend(Records())(folder, verify=verify, progress=False)


def _values(folder):
    found = []
    for path in sorted(folder.rglob("*.recs")):
        for one in index_of(path, folder).members.values():
            name = path.relative_to(folder).as_posix()
            both = np.stack([one.begins, one.sizes], axis=1).tolist()
            found += [(name, begin, size) for begin, size in both if size > 0]
    return found


def _others(folder):
    return [
        path.relative_to(folder).as_posix()
        for path in sorted((folder / INDEX_FOLDER).rglob("*.idx"))
    ]


def _shards(folder):
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.recs"))]


TARGET = FaultTarget(
    name="records", verify=VERIFY, write=_write, open=_open, hits=".recs", shards=_shards,
    values=_values, others=_others, dataset=sequences,
)  # fmt: skip
"""Files of the format, for the matrix of faults."""

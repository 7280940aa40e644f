"""A shard is an ordinary Arrow file, and what the manifest says of it is where it lies."""

import hashlib
import os

import numpy as np
import pyarrow as pa
import pytest

from seqdata.errors import CorruptShardError, DecodeError
from seqdata.storage.arrow.shard_file import read_footer, write_shard
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.fields import make_packer
from seqdata.storage.schema import infer_fields

ROWS = [
    {"x": np.ones((3, 2), np.float32), "id": "a", "flag": True, "v": np.arange(2)},
    {"x": np.zeros((0, 2), np.float32), "id": "zwölf", "flag": False, "v": np.arange(2) + 5},
]


@pytest.fixture
def written(tmp_path):
    fields = infer_fields(ROWS[0], {"v": None})
    packers = {name: make_packer(field, is_key=name == "id") for name, field in fields.items()}
    for row in ROWS:
        for name, value in row.items():
            packers[name].add(value)
    packed = {name: packer.take() for name, packer in packers.items()}
    path = tmp_path / "a.arrow"
    return path, packed, write_shard(path, fields, packed, {"time": 3}, {"part": 0}, "crc32")


def test_any_arrow_reader_reads_it(written):
    path, _, shard = written
    rows = pa.ipc.open_file(str(path)).read_all().to_pylist()
    assert [row["x"] for row in rows] == [[[1.0, 1.0]] * 3, []]
    assert [(row["id"], row["v"]) for row in rows] == [("a", [0, 1]), ("zwölf", [5, 6])]
    assert (shard.sequences, shard.timesteps) == (2, {"time": 3})


def test_the_manifest_says_where_each_buffer_lies(written):
    path, packed, shard = written
    content = path.read_bytes()
    for name, (values, offsets) in packed.items():
        at, size = shard.buffers[name][0]
        assert content[at : at + size] == values.tobytes()
        if offsets is not None:
            at, size = shard.buffers[name][1]
            assert content[at : at + size] == offsets.tobytes()
    assert shard.sha256 == hashlib.sha256(content).hexdigest()
    assert shard.bytes == len(content)
    footer = content[-shard.footer_bytes :]
    assert shard.footer_sha256 == hashlib.sha256(footer).hexdigest()
    assert path.with_suffix(".crc").exists()


@pytest.mark.parametrize(
    "content", [b"", b"ARROW1", bytes(20), b"\xff\xff\xff\x7fARROW1", b"\0\0\0\0ARROW1",
                b"\xff\xff\xff\xffARROW1"],
)  # fmt: skip
def test_a_file_without_a_footer_is_refused(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        with pytest.raises(CorruptShardError, match="a: must end with a footer and b'ARROW1'"):
            read_footer(descriptor, len(content), "a")
    finally:
        os.close(descriptor)


def test_ids_are_unique_over_shards(tmp_path):
    rows = [{"id": name, "x": np.arange(2)} for name in ("a", "b", "a")]
    with pytest.raises(DecodeError, match=r"2.*'a'.*0"):
        write_arrow(tmp_path / "store", rows, shard_bytes=1)
    rows[2]["id"] = "c"  # no shard counts as finished: the same call writes all again
    assert write_arrow(tmp_path / "store", rows, shard_bytes=1).keys([0, 1, 2]) == ["a", "b", "c"]


def test_files_have_their_names_in_the_store(tmp_path):
    write_arrow(tmp_path / "store", [{"x": np.arange(2)}] * 2, shard_bytes=1)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "lengths-time.u32", "part-00000.arrow", "part-00000.crc", "part-00001.arrow",
        "part-00001.crc", "seqdata.json",
    ]  # fmt: skip

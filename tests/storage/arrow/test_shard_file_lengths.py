"""Lengths are written in the narrowest type that holds them."""

import numpy as np

from seqdata.storage.arrow.shard_file import LengthsWriter


def test_lengths_are_written_in_uint32(tmp_path):
    writer = LengthsWriter(tmp_path, "time")
    writer.add(np.array([1, 2]))
    writer.add(np.array([3]))
    written = writer.finish()
    assert (written.file, written.dtype) == ("lengths-time.u32", "uint32")
    assert np.fromfile(tmp_path / written.file, dtype="<u4").tolist() == [1, 2, 3]


def test_lengths_become_uint64_where_one_needs_it(tmp_path):
    writer = LengthsWriter(tmp_path, "time")
    writer.add(np.array([1, 2]))
    writer.add(np.array([1 << 32]))
    writer.add(np.array([3]))
    written = writer.finish()
    assert (written.file, written.dtype) == ("lengths-time.u64", "uint64")
    assert np.fromfile(tmp_path / written.file, dtype="<u8").tolist() == [1, 2, 1 << 32, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["lengths-time.u64"]

"""Lengths are uint32 until one of them needs more."""

import numpy as np

from seqdata.storage.arrow.lengths_file import LengthsWriter
from seqdata.storage.lengths import narrow_lengths


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


def test_lengths_in_memory_take_the_narrower_type():
    assert narrow_lengths(np.array([(1 << 32) - 1])).dtype == np.uint32
    assert narrow_lengths(np.array([1 << 32])).dtype == np.uint64

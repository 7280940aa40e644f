"""Mapped files, and reading them ahead."""

import os

import numpy as np
import pytest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(np.arange(5000, dtype=np.int32).tobytes())
    return path


def mapped(engine, path, size=None):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return engine.map_file(descriptor, path.stat().st_size if size is None else size)
    finally:
        os.close(descriptor)


def test_a_mapping_outlives_its_descriptor_and_is_read_only(engine, file):
    array = np.frombuffer(mapped(engine, file), dtype=np.int32)
    assert (array == np.arange(5000)).all()
    assert not array.flags.writeable


def test_the_compiled_kernel_keeps_no_descriptor_per_mapping(file):
    engine = pytest.importorskip("seqdata.kernel._fill")
    before = len(os.listdir("/dev/fd"))
    mappings = [mapped(engine, file) for _ in range(20)]
    assert len(os.listdir("/dev/fd")) == before
    assert len(mappings) == 20


def test_a_mapping_of_nothing_is_refused(engine, file):
    with pytest.raises(ValueError, match="`bytes` must be at least 1"):
        mapped(engine, file, 0)


def test_a_mapping_of_a_closed_descriptor_is_refused(engine):
    with pytest.raises(OSError, match="Bad file descriptor"):
        engine.map_file(987654, 10)


@pytest.mark.parametrize(("first", "stop"), [(0, 20000), (5000, 5001), (-5, 1 << 40), (9, 3)])
def test_populate_reads_ahead_and_keeps_to_the_mapping(engine, file, first, stop):
    assert engine.populate(mapped(engine, file), first, stop) is True

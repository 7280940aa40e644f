"""Ranges of a shard: those that a request needs, in whole blocks where they are checked."""

import numpy as np
import pytest

from seqdata import Remote
from seqdata.errors import CorruptSampleError
from seqdata.protocols import Field
from seqdata.storage.arrow.open_remote import open_remote
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.integrity.verify import FieldChecksums
from seqdata.storage.shards_on_demand import RangeReader, ShardRequest, value_ranges
from seqdata.storage.store import StoreFields

LAYOUT = ShardLayout("/d", ("a",), [0, 3], {"time": np.array([4, 0, 6])})
OFFSETS = np.array([0, 4, 4, 10])


def fields(checks=None):
    values = np.zeros(10, np.int32)
    x = BufferSource.from_arrays("x", Field("int32"), LAYOUT, [values], [OFFSETS], [100], checks)
    y = BufferSource.from_arrays(
        "y", Field("int8", (), None), LAYOUT, [np.zeros(3, np.int8)], None, [500]
    )
    return StoreFields(LAYOUT, {"x": x, "y": y}, None)


def ranges(names, *spans, checks=None, axis="time"):
    request = ShardRequest(np.array(spans, np.int64), names, axis)
    return [each.tolist() for each in value_ranges(fields(checks), request)]


def test_only_the_timesteps_of_a_span_are_asked_for():
    assert ranges(["x"], [0, 1, 3], [2, 0, 6], [1, 0, 0]) == [[[104, 112], [116, 140], [116, 116]]]


def test_values_without_the_axis_come_whole():
    assert ranges(["y", "x"], [2, 1, 2]) == [[[502, 503]], [[120, 124]]]
    assert ranges(["x"], [2, 1, 2], axis="frames") == [[[116, 140]]]


def test_checksums_need_whole_blocks():
    checks = FieldChecksums(
        "crc32", 8, (np.zeros(5, np.uint32),), (np.array([0, 2, 2, 5]),), ("a.crc",), None, (0,),
        None,
    )  # fmt: skip
    assert ranges(["x"], [2, 1, 2], [0, 3, 4], checks=checks) == [[[116, 124], [108, 116]]]


def test_a_shard_on_this_machine_has_no_ranges(there, tmp_path):
    store = open_remote(there[0], remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    reader = store._reader._ranges
    assert isinstance(reader, RangeReader)
    location, path_of, system = there
    content = bytearray(system.cat_file(path_of("part-00004.arrow")))
    at = store.manifest.shards[4].buffers["x"][0][0]
    content[at] ^= 1
    system.pipe_file(path_of("part-00004.arrow"), bytes(content))
    store = open_remote(location, remote=Remote(how="ranges", cache_dir=tmp_path / "cache"))
    with pytest.raises(CorruptSampleError, match=r'shard 4 \("part-00004.arrow"\).*field "x"'):
        store.read(np.array([[4, 0, 4]]), ["x"])["x"][0]
    assert store.read(np.array([[3, 0, 3]]), ["x"])["x"][0].tolist() == [0, 1, 2]

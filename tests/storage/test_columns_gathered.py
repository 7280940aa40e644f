"""Bytes of many sequences end to end: any order, and no more memory than the shards hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError, CorruptSampleError, CorruptShardError
from seqdata.protocols import Field
from seqdata.storage import columns as module
from seqdata.storage.columns import BufferSource, compute_sizes, gather_bytes, make_value_spans
from seqdata.storage.data_location import ShardLayout

TEXTS = [b"", b"one", b"two", b"", b"longer", b"x"]  # of two shards


def make(begins=None, ends=None, *, extents=True):
    contents = [b"".join(TEXTS[:3]), b"".join(TEXTS[3:])]
    values = [np.frombuffer(content, np.uint8) for content in contents]
    layout = ShardLayout("/d", ("a", "b"), [0, 3, 6], {})
    field = Field("bytes", (), None)
    if not extents:
        return BufferSource.from_arrays("t", field, layout, values)
    sizes = [np.array([len(text) for text in part]) for part in (TEXTS[:3], TEXTS[3:])]
    begins = begins or [np.cumsum(size) - size for size in sizes]
    ends = ends or [begin + size for begin, size in zip(begins, sizes, strict=True)]
    return BufferSource.from_files("t", field, layout, values, list(zip(begins, ends, strict=True)))


@given(st.lists(st.integers(0, 5), max_size=9))
def test_they_come_in_the_order_that_was_asked_for(numbers):
    wanted = np.array(numbers, dtype=np.int64)
    values, offsets = gather_bytes(make(), wanted)
    assert values.tobytes() == b"".join(TEXTS[number] for number in numbers)
    assert np.diff(offsets).tolist() == [len(TEXTS[number]) for number in numbers]
    spans = make_value_spans(make(), wanted)
    assert spans.tolist() == [[number, 0, len(TEXTS[number])] for number in numbers]


@pytest.mark.parametrize("number", [-1, 6])
def test_a_sequence_that_does_not_exist_is_refused(number):
    with pytest.raises(ConfigError, match=rf"must be in \[0, 6\), but is {number}"):
        gather_bytes(make(), np.array([0, number]))


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 99)])
def test_a_recorded_place_outside_of_the_shard_is_a_damage(begin, end):
    begins, ends = [np.zeros(3, np.int64)] * 2, [np.zeros(3, np.int64), np.zeros(3, np.int64)]
    begins = [begins[0], np.array([0, begin, 0])]
    ends[1][1] = end
    with pytest.raises(CorruptSampleError, match=rf"sequence 4.* but is at {begin}\.\.{end} of 7"):
        compute_sizes(make(begins, ends), np.array([0, 4]))


def test_values_that_overlap_are_not_copied_without_end(monkeypatch):
    whole = [np.zeros(3, np.int64)] * 2
    ends = [np.full(3, 6), np.full(3, 7)]
    source = make(whole, ends)
    assert len(gather_bytes(source, np.arange(6))[0]) == 39  # it is little
    monkeypatch.setattr(module, "UNCHECKED_BYTES", 10)
    with pytest.raises(CorruptShardError, match="and 5 others must not overlap, but take 39 bytes"):
        gather_bytes(source, np.arange(6))
    twice = np.array([1, 4, 1, 4])  # asked for twice is not an overlap
    assert len(gather_bytes(make(), twice)[0]) == 18


def test_a_field_without_extents_has_no_bytes_of_that_kind():
    with pytest.raises(ValueError, match="'t': must have extents to gather its bytes, but"):
        compute_sizes(make(extents=False), np.array([0]))

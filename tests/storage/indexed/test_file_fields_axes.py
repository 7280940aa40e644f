"""Fields get their axes: equal lengths share one, named ones must agree, others get their own."""

from pathlib import Path

import numpy as np
import pytest

from seqdata.errors import DecodeError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.fields import TEXT
from seqdata.storage.indexed.file_fields import assign_axes
from seqdata.storage.indexed.indexed_format import IndexedField
from seqdata.storage.indexed.opened_files import OpenedFiles
from seqdata.storage.indexed.shard_index import FieldIndex
from seqdata.storage.indexed.shards import LocalShard
from tests.storage.indexed.samples import make_index

LAYOUT = ShardLayout("/d", ("a.recs", "b.recs"), [0, 2, 3], {})


def int64(*values):
    return np.array(values, dtype=np.int64)


def opened(*members):
    """Return files with one field each; a file without sequences has no extents."""
    indexes = [
        make_index([0] * len(b), members={"x": FieldIndex(b, s, s, None)}) for b, s in members
    ]
    starts = [0, *np.cumsum([len(begins) for begins, _ in members]).tolist()]
    texts = b"".join(b"k%d" % number for number in range(starts[-1]))
    layout = ShardLayout("/d", ("ids",), [0, starts[-1]], {})
    offsets = 2 * np.arange(starts[-1] + 1, dtype=np.int64)
    ids = BufferSource.from_arrays(
        "__key__", TEXT, layout, [np.frombuffer(texts, np.uint8)], [offsets]
    )
    shards = [LocalShard(Path("/d"), name) for name in LAYOUT.shards[: len(indexes)]]
    return OpenedFiles("/d", shards, indexes, None, ids)


def field(name, axis="time", **options):
    return IndexedField(
        name=name, member="x", field=Field("int8", (), axis), access="place", **options
    )


FILES = opened((int64(0, 1), int64(1, 1)), (int64(4), int64(1)))


def axes(fields, **lengths):
    counted = {name: int64(*values) for name, values in lengths.items()}
    found, lengths_of = assign_axes(FILES, fields, counted, LAYOUT)
    return {name: found[name].axis for name in found}, {
        axis: values.tolist() for axis, values in lengths_of.items()
    }


def test_fields_of_equal_lengths_share_an_axis():
    assert axes([field("a"), field("b")], a=(1, 2, 3), b=(1, 2, 3)) == (
        {"a": "time", "b": "time"}, {"time": [1, 2, 3]},
    )  # fmt: skip


def test_a_field_of_other_lengths_gets_an_axis_after_its_name():
    fields = [field("a"), field("b.npy", is_named=False), field("b.bin", is_named=False)]
    found, lengths_of = axes(fields, a=(1, 2, 3), **{"b.npy": (1, 2, 4), "b.bin": (9, 9, 9)})
    assert found == {"a": "time", "b.npy": "b", "b.bin": "b_bin"}
    assert lengths_of == {"time": [1, 2, 3], "b": [1, 2, 4], "b_bin": [9, 9, 9]}


def test_named_axes_come_first_and_time_is_the_first_axis():
    fields = [field("a", is_named=False), field("b", "frames"), field("c")]
    found, lengths_of = axes(fields, a=(1, 1, 1), b=(5, 5, 5), c=(2, 2, 2))
    assert list(found.items()) == [("a", "a"), ("b", "frames"), ("c", "time")]
    assert list(lengths_of) == ["time", "frames", "a"]


def test_fields_that_were_given_one_axis_must_agree():
    text = (
        r'shard 1 \("b.recs"\), sequence 2, field "b": must have 3 timesteps like another field '
        r"along axis 'time', but has 4. Give it an axis of its own: axis='b'; or, if it has one "
        r"value per sequence, none: axis=None"
    )
    locate = ShardLayout("/d", LAYOUT.shards, LAYOUT.shard_offsets, {}, FILES.locate_shard)
    with pytest.raises(DecodeError, match=text):
        assign_axes(
            FILES, [field("a"), field("b")], {"a": int64(1, 2, 3), "b": int64(1, 2, 4)}, locate
        )


def test_a_value_without_an_axis_has_one_size():
    files = opened((int64(0, 1), int64(1, 1)), (int64(4), int64(2)))
    text = r'shard 1 .*sequence 2 \("k2"\), field "a", byte 4: must have 1 bytes for int8 \[\] per'
    with pytest.raises(DecodeError, match=text):
        assign_axes(files, [field("a", None)], {}, LAYOUT)
    assert assign_axes(FILES, [field("a", None)], {}, LAYOUT)[1] == {}


def test_a_value_is_located_for_an_error():
    files = opened((int64(-1, 7), int64(0, 1)), (int64(), int64()))
    assert str(files.locate(1, "x", "a")) == (
        '/d shard 0 ("a.recs"), sequence 1 ("k1"), field "a", byte 7'
    )
    first = files.place(0, files.indexes[0].members["x"], "a", None)
    assert (first.sequence, first.offset) == (1, 7)  # the first that has a value
    none = files.place(1, files.indexes[1].members["x"], "a", None)
    assert (none.shard, none.key, none.offset) == (1, None, 0)

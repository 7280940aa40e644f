"""Small values are read from the index, but only where the file has the bytes they were read of."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource, IndexedValues
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import RAW
from seqdata.storage.indexed.build_index import compute_checksums
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES
from seqdata.storage.integrity.verify import FieldChecksums

FIELD = Field("int32", (), None)


def make(content, begins, sizes, values, *, verified=True):
    """Return the values of one file whose bytes may be changed through ``content``."""
    begins, sizes = np.array(begins, np.int64), np.array(sizes, np.int64)
    layout = ShardLayout(
        "/d", ("a",), [0, len(begins)], {}, lambda shard: DataLocation(dataset="/d", shard=shard)
    )
    checks = None
    if verified:
        ((sums, firsts),) = compute_checksums(content, [(begins, sizes)], "crc32")
        checks = FieldChecksums(
            "crc32", CHECKSUM_BYTES, (sums,), (firsts,), ("index of a",), None, (0,), None
        )
    source = BufferSource.from_files(
        "label", RAW, layout, [content], [(begins, begins + sizes)], checks
    )
    return IndexedValues.from_index("label", FIELD, layout, [np.array(values)], source)


def spans(*numbers):
    return np.array([[number, 0, 1] for number in numbers], np.int64).reshape(-1, 3)


@pytest.mark.parametrize("size", [2, CHECKSUM_BYTES + 1])
def test_a_value_comes_with_the_checksum_of_its_bytes(size):
    content = np.zeros(3 * size, np.uint8)
    source = make(content, [0, size, 2 * size], [size] * 3, [7, 8, 9])
    assert [int(piece[0]) for piece in source.column(spans(2, 0))] == [9, 7]
    assert source.column(spans(0)).dtype == np.int32
    assert (source.texts, source.field) == (None, FIELD)
    content[2 * size - 1] = 1  # corrected in place, after it was indexed
    assert int(source.column(spans(0, 2))[1][0]) == 9
    with pytest.raises(CorruptSampleError, match=r'sequence 1, field "label".*: must have crc32'):
        source.column(spans(0, 1))


def test_nothing_is_compared_where_nothing_is_verified():
    content = np.zeros(4, np.uint8)
    source = make(content, [0, 2], [2, 2], [7, 8], verified=False)
    content[:] = 1
    assert int(source.column(spans(1))[0][0]) == 8


def test_values_without_bytes_have_nothing_to_compare():
    source = make(np.zeros(4, np.uint8), [0, 2], [0, 2], [7, 8])
    assert [int(piece[0]) for piece in source.column(spans(0, 1))] == [7, 8]


def test_a_sequence_that_does_not_exist_is_refused():
    source = make(np.zeros(4, np.uint8), [0, 2], [2, 2], [7, 8])
    with pytest.raises(ConfigError, match=r"the index of a sequence must be in \[0, 2\), but is 2"):
        source.column(spans(2))


def test_values_of_the_index_cannot_be_changed_by_a_reader():
    source = make(np.zeros(4, np.uint8), [0, 2], [2, 2], [7, 8])
    with pytest.raises(ValueError, match="read-only"):
        source.column(spans(0))[0][:] = 1

"""Structs of Thrift's compact protocol, and what is none."""

import pytest

from seqdata.storage.foreign import untrusted_parquet
from seqdata.storage.foreign.untrusted_parquet import ThriftError, read_struct


def test_a_struct_is_read_with_what_is_wanted_of_it():
    inner = b"\x15\x06\x00"  # {1: 3}
    data = (
        b"\x15\x02"  # 1: 1
        b"\x11"  # 2: true
        b"\x18\x03abc"  # 3: bytes
        b"\x1c" + inner  # 4: a struct
        + b"\x19\x2c" + inner * 2  # 5: a list of two
        + b"\x19\x21\x01\x02"  # 6: a list of bools
        b"\x13\x7f\x17" + b"\0" * 8  # 7: a byte, 8: a double
        + b"\x05\xc8\x01\x03\x00"  # 100: -2, far away
    )  # fmt: skip
    wanted = {1: None, 3: bytes, 4: {1: None}, 5: [{1: None}], 100: None}
    found, end = read_struct(memoryview(data), 0, wanted)
    assert found == {1: 1, 3: b"abc", 4: {1: 3}, 5: [{1: 3}, {1: 3}], 100: -2}
    assert end == len(data)
    assert read_struct(memoryview(data), 0, {}) == ({}, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x15", b"\x15\x02", b"\x15" + b"\xff" * 11, b"\x1b\x00\x00", b"\x1e\x00",
        b"\x18\x7fabc\x00", b"\x19\xfc\x7f\x00", b"\x1c" * 20 + b"\x00" * 21,
        b"\x19\x19" + b"\x19" * 20 + b"\x00" * 30,
    ],
)  # fmt: skip
def test_what_is_no_struct_is_an_error(data):
    for wanted in ({}, {1: None}, {1: bytes}, {1: [None]}, {1: {}}):
        with pytest.raises(ThriftError):
            read_struct(memoryview(data), 0, wanted)


def test_a_field_of_another_type_is_an_error():
    with pytest.raises(ThriftError):
        read_struct(memoryview(b"\x15\x02\x00"), 0, {1: {1: None}})
    assert untrusted_parquet.MAX_NESTING == 12

"""A bounds-checked reader of Thrift's compact protocol (Parquet's footers and page headers).

Only requested fields are kept; invalid structs are errors, and nothing outside of the given bytes
is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_NESTING = 12  # maximum depth of structs and lists
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)  # of 16, 32 and 64 bits

StructFields = Mapping[int, Any]
"""Field -> None for a number, bytes for ``bytes``, a mapping for a struct, [what] for a list."""
Struct = dict[int, Any]


class ThriftError(Exception):
    """The bytes are not a struct, or not the requested one."""


def read_struct(
    data: memoryview, at: int, wanted_fields: StructFields, depth: int = 0
) -> tuple[Struct, int]:
    """Return the wanted fields of a struct, as far as it has them, and its end.

    Args:
        data: The bytes, uint8.
        at: Offset of the struct.
        wanted_fields: Its fields.
        depth: Depth of the struct in other structs.

    Raises:
        ThriftError: If it is invalid.
    """
    found: Struct = {}
    field = 0
    while True:
        head, at = _read_byte(data, at), at + 1
        if not head:
            return found, at
        field += head >> 4
        if not head >> 4:
            field, at = _read_zigzag(data, at)
        if field in wanted_fields:
            found[field], at = _read_value(data, at, head & 15, wanted_fields[field], depth + 1)
        else:
            at = _skip_value(data, at, head & 15, depth + 1)


def _read_value(
    data: memoryview, at: int, type_: int, wanted_type: Any, depth: int
) -> tuple[Any, int]:
    if wanted_type is None and type_ in _NUMBERS:
        return _read_zigzag(data, at)
    if wanted_type is bytes and type_ == _BINARY:
        size, at = _read_varint(data, at)
        if size > len(data) - at:
            raise ThriftError
        return bytes(data[at : at + size]), at + size
    if isinstance(wanted_type, list) and type_ == _LIST and depth <= MAX_NESTING:
        type_, count, at = _read_list_header(data, at)
        values = []
        for _ in range(count):
            value, at = _read_value(data, at, type_, wanted_type[0], depth + 1)
            values.append(value)
        return values, at
    if isinstance(wanted_type, Mapping) and type_ == _STRUCT and depth <= MAX_NESTING:
        return read_struct(data, at, wanted_type, depth)
    raise ThriftError


def _skip_value(data: memoryview, at: int, type_: int, depth: int) -> int:
    """Return the end of a value that is skipped."""
    if type_ in (_TRUE, _FALSE):  # in a struct, the type of a bool is its value
        return at
    if type_ in (_BYTE, _DOUBLE):
        return at + (1 if type_ == _BYTE else 8)
    if type_ in _NUMBERS:
        return _read_varint(data, at)[1]
    if type_ == _BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if depth > MAX_NESTING:
        raise ThriftError
    if type_ in (_LIST, _SET):
        type_, count, at = _read_list_header(data, at)
        for _ in range(count):
            at = _skip_value(data, at, _BYTE if type_ in (_TRUE, _FALSE) else type_, depth + 1)
        return at
    if type_ == _STRUCT:
        return read_struct(data, at, {}, depth)[1]
    raise ThriftError  # Parquet has no maps


def _read_list_header(data: memoryview, at: int) -> tuple[int, int, int]:
    """Return type and number of a list's values, and their offset."""
    head, at = _read_byte(data, at), at + 1
    count = head >> 4
    if count == 15:
        count, at = _read_varint(data, at)
    if count > len(data) - at:  # each takes at least one byte
        raise ThriftError
    return head & 15, count, at


def _read_byte(data: memoryview, at: int) -> int:
    if at >= len(data):
        raise ThriftError
    return data[at]


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte, at = _read_byte(data, at), at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ThriftError


def _read_zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at

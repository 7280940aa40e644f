"""Size checks of untrusted Parquet footers and page headers.

A run of one value, or of one dictionary entry, takes a few bytes for any number of rows; so the
sizes in a column's page headers are added up before pyarrow allocates memory. Field numbers are
those of ``parquet.thrift``.

Footers and headers are read by a bounds-checked reader of Thrift's compact protocol. Only requested
fields are kept; invalid structs are errors, and nothing outside of the given bytes is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqdata.errors import DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.limits import (
    UNCHECKED_BYTES,
    check_rows,
    check_size,
    make_damage_error,
    make_no_footer_error,
    raise_limit_error,
)

MAGIC = b"PAR1"
MAX_PAGES = 1 << 18
"""Maximum number of pages of one column of one row group."""
TEXT_BATCH_BYTES = UNCHECKED_BYTES // 8
"""Decoded bytes of strings that are read before they are counted."""
_LEVEL_BYTES = 8  # bytes per value for levels and offsets while a column is read
_TYPE_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # Type -> bytes; 6 is a string
_TEXT_TYPE = 6
_TAIL_BYTES = 8  # bytes of the footer's size and the magic

_CHUNK_FIELDS = {1: None, 3: [bytes], 5: None, 7: None, 9: None, 11: None}  # ColumnMetaData
_GROUP_FIELDS = {1: [{3: _CHUNK_FIELDS}], 3: None}
_ENCRYPTION = 8  # of FileMetaData: its encryption algorithm
_FOOTER_FIELDS: Mapping[int, Any] = {
    2: [{2: None, 5: None}],
    3: None,
    4: [_GROUP_FIELDS],
    _ENCRYPTION: {},
}
_PAGE_FIELDS = {2: None, 3: None, 5: {1: None}, 8: {1: None}}  # PageHeader
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
    """Return the wanted fields that a struct has, and its end.

    Args:
        data: The bytes, uint8.
        at: Offset of the struct.
        wanted_fields: The fields to return.
        depth: Depth of the struct in other structs.

    Raises:
        ThriftError: If it is invalid.
    """
    found: Struct = {}
    field = 0
    while True:
        try:
            head = data[at]
        except IndexError:
            raise ThriftError from None
        at += 1
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
    try:
        while shift < 70:
            byte = data[at]
            at += 1
            if byte < 128:
                return value | byte << shift, at
            value |= (byte & 127) << shift
            shift += 7
    except IndexError:
        pass
    raise ThriftError


def _read_zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


@dataclass(frozen=True, slots=True)
class ColumnChunkInfo:
    """One column of one row group, by the footer.

    Attributes:
        path: Names from the column down to its values.
        values: Number of values, with nulls and empty lists.
        begin: Offset of its pages in the file.
        size: Size of its pages in bytes.
        width: Bytes of a value; None: values are strings.
    """

    path: str
    values: int
    begin: int
    size: int
    width: int | None


@dataclass(frozen=True, slots=True)
class RowGroupInfo:
    """One row group."""

    rows: int
    chunks: tuple[ColumnChunkInfo, ...]


@dataclass(frozen=True, slots=True)
class PageTotals:
    """The totals of a column's pages, by their headers.

    Attributes:
        values: Number of values, with nulls and empty lists.
        needed: Bytes of all pages when they are decompressed.
        largest: Bytes of the largest of them; no string of the column is longer.
    """

    values: int
    needed: int
    largest: int


def read_row_groups(location: DataLocation, data: memoryview) -> tuple[RowGroupInfo, ...]:
    """Return the row groups by the footer.

    Args:
        location: The file, for messages.
        data: The bytes of the file, uint8.

    Raises:
        CorruptShardError: If the footer cannot be read.
        DataError: If columns are encrypted.
    """
    if len(data) < _TAIL_BYTES + len(MAGIC) or data[-len(MAGIC) :] != MAGIC:
        raise make_no_footer_error(location)
    size = int.from_bytes(data[-_TAIL_BYTES:-4], "little")
    try:
        if size > len(data) - _TAIL_BYTES:
            raise ThriftError
        footer, _ = read_struct(
            data[len(data) - _TAIL_BYTES - size : -_TAIL_BYTES], 0, _FOOTER_FIELDS
        )
        if _ENCRYPTION in footer:
            raise make_encrypted_error(location)
        lengths = [element.get(2, 0) for element in footer[2] if not element.get(5)]
        groups = tuple(_parse_row_group(row_group, lengths) for row_group in footer[4])
    except (ThriftError, KeyError, UnicodeDecodeError) as error:
        raise make_damage_error(location, "a footer that cannot be read") from error
    rows = sum(group.rows for group in groups)
    if rows != footer.get(3):
        raise make_damage_error(location, f"{rows} rows in its row groups of {footer.get(3)}")
    return groups


def _parse_row_group(group: Struct, lengths: list[int]) -> RowGroupInfo:
    if len(group[1]) != len(lengths):
        raise ThriftError
    chunks = []
    for column, length in zip(group[1], lengths, strict=True):
        metadata = column[3]
        dictionary = metadata.get(11, 0)
        begin = min(metadata[9], dictionary) if dictionary > 0 else metadata[9]
        path = b".".join(metadata[3]).decode()
        width = None if metadata[1] == _TEXT_TYPE else _TYPE_WIDTHS.get(metadata[1], length)
        chunks.append(ColumnChunkInfo(path, metadata[5], begin, metadata[7], width))
    return RowGroupInfo(group[3], tuple(chunks))


def check_column(location: DataLocation, data: memoryview, group: RowGroupInfo, name: str) -> int:
    """Check the pages of one column of a row group; return how many rows may be read at once.

    Args:
        location: The column, for messages.
        data: The file, uint8.
        group: The row group.
        name: The name of the column.

    Raises:
        LimitError: If it exceeds a limit.
        CorruptShardError: If a page lies outside the file, or the pages hold another number of
            values than is declared.
    """
    rows = group.rows
    check_rows(location, rows)
    for chunk in group.chunks:
        if chunk.path != name and not chunk.path.startswith(f"{name}."):
            continue
        found = sum_pages(location, data, chunk)
        if rows > found.values:
            raise make_damage_error(location, f"{found.values} values for {rows} rows")
        if found.values != chunk.values:
            raise make_damage_error(location, f"pages of {found.values} of {chunk.values} values")
        needed = found.values * (_LEVEL_BYTES + (chunk.width or 0)) + found.needed
        check_size(location, len(data), needed)
        # each string may be a copy of the longest, which takes a few bits in the file
        if chunk.width is None:
            rows = min(rows, max(1, TEXT_BATCH_BYTES // (found.largest + 1)))
    return rows


def sum_pages(location: DataLocation, data: memoryview, chunk: ColumnChunkInfo) -> PageTotals:
    """Add up the headers of a column's pages; raises as ``check_column`` does."""
    if not chunk.values:  # nothing is read, and its offsets are meaningless
        return PageTotals(0, 0, 0)
    if chunk.begin < 0 or not 0 <= chunk.size <= len(data) - chunk.begin:
        raise make_damage_error(location, "pages that extend beyond the file")
    at, end, pages = chunk.begin, chunk.begin + chunk.size, 0
    values = needed = largest = 0
    while at < end and values < chunk.values:  # as pyarrow reads
        if pages == MAX_PAGES:
            raise_limit_error(
                location, "has too many pages", f"have at most {MAX_PAGES}", pages + 1, MAX_PAGES
            )
        try:
            header, begin = read_struct(data[:end], at, _PAGE_FIELDS)
            size, compressed_size = _read_count(header, 2), _read_count(header, 3)
            values += sum(_read_count(header[value], 1) for value in (5, 8) if value in header)
        except ThriftError as error:
            raise make_damage_error(location, "a page without a header") from error
        check_size(location, len(data), size)
        at, pages = begin + compressed_size, pages + 1
        needed, largest = needed + size, max(largest, size)
    if at > end:
        raise make_damage_error(location, "pages that extend beyond the column")
    return PageTotals(values, needed, largest)


def _read_count(struct: Struct, field: int) -> int:
    value: Any = struct.get(field)
    if value is None or value < 0:
        raise ThriftError
    return int(value)


def make_encrypted_error(location: DataLocation) -> DataError:
    """Return the error of a file that is encrypted, or whose columns are."""
    return location.make_error(
        DataError,
        "must be a Parquet file without encryption, but is encrypted. Read it with its keys "
        "(pyarrow.parquet.encryption) and write it again without",
    )

"""What the pages of a Parquet column say of themselves, read without believing the footer.

A run of one value, or of one dictionary entry, takes a few bytes for any number of rows; so the
headers of a column's pages are added up before pyarrow makes room for it. They are structs in
Thrift's compact protocol (``parquet.thrift``: ``PageHeader``). Place in the flow: before a column
of a row group is read. Reads: a mapped file. Makes: errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqdata.errors import CorruptShardError
from seqdata.storage.limits import FREE_BYTES, check_rows, check_size, refuse
from seqdata.storage.places import Place

MAX_PAGES = 1 << 18
"""Pages of one column of one row group."""
_MAX_HEADER = 1 << 20  # bytes
_LEVELS = 8  # bytes per value for levels and offsets while a column is read
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_NEEDED, _STORED = 2, 3  # fields of PageHeader
_DATA, _DATA_2 = 5, 8  # which hold structs of their own, where a page holds data
_MAX_NESTING = 4  # structs in a header

Struct = dict[int, Any]
"""Field -> number, struct, or None for what is of no interest."""


class _Damage(Exception):
    """A header is no header."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What the pages of a column hold, as their headers say.

    Attributes:
        values: Their number, nulls and empty lists, too.
        needed: Bytes of all pages when they are decompressed.
        largest: Bytes of the largest of them; no text of the column is longer.
    """

    values: int
    needed: int
    largest: int


def check_column(place: Place, data: memoryview, about: Any, unit: int, name: str) -> int:
    """Check the pages of one column of a row group; gives how many rows may be read at once.

    Args:
        place: The column, for messages.
        data: The file.
        about: pyarrow's ``FileMetaData``.
        unit: Number of the row group.
        name: Of the column.

    Raises:
        LimitError: If it asks for more than a cap allows.
        CorruptShardError: If a page does not lie inside of the file.
    """
    group = about.row_group(unit)
    rows: int = group.num_rows
    check_rows(place, rows)
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema != name and not chunk.path_in_schema.startswith(f"{name}."):
            continue
        found = pages_of(place, data, chunk)
        if group.num_rows > found.values:
            raise _damaged(place, f"{found.values} values for {group.num_rows} rows")
        is_text = chunk.physical_type == "BYTE_ARRAY"
        width = _WIDTHS.get(chunk.physical_type) or about.schema.column(number).length
        needed = found.values * (_LEVELS + (0 if is_text else width)) + found.needed
        check_size(place, len(data), needed)
        if is_text:  # each may be a copy of the longest, which has a few bytes in the file
            rows = min(rows, max(1, FREE_BYTES // (found.largest + 1)))
    return rows


def pages_of(place: Place, data: memoryview, chunk: Any) -> Pages:
    """Add up the headers of a column's pages; raises as ``check_column`` does.

    Args:
        place: The column, for messages.
        data: The file.
        chunk: pyarrow's ``ColumnChunkMetaData``.
    """
    if not chunk.num_values:  # nothing is read, and its places mean nothing
        return Pages(0, 0, 0)
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    at, size = min(starts), chunk.total_compressed_size
    if at < 0 or size < 0 or at + size > len(data):
        raise _damaged(place, "pages that lead out of the file")
    data, at, pages = data[at : at + size], 0, 0
    values = needed = largest = 0
    while at < len(data):
        if pages == MAX_PAGES:
            refuse(place, "has too many pages", f"have at most {MAX_PAGES}", pages + 1, MAX_PAGES)
        try:
            header, begin = _struct(data[: at + _MAX_HEADER], at, 0)
            inner: Struct = next((header[one] for one in (_DATA, _DATA_2) if header.get(one)), {})
            sizes = (_count(header, _NEEDED), _count(header, _STORED))
            count = _count(inner, 1) if inner else 0
        except _Damage as error:
            raise _damaged(place, "a page without a header") from error
        check_size(place, len(data), sizes[0])
        at, pages, values = begin + sizes[1], pages + 1, values + count
        needed, largest = needed + sizes[0], max(largest, sizes[0])
    if at != len(data):
        raise _damaged(place, "pages that lead out of the column")
    return Pages(values, needed, largest)


def _count(struct: Struct, field: int) -> int:
    value = struct.get(field)
    if not isinstance(value, int) or value < 0:
        raise _Damage
    return value


def _struct(data: memoryview, at: int, depth: int) -> tuple[Struct, int]:
    """Give the fields of a struct, and where it ends."""
    found: Struct = {}
    field = 0
    while True:
        head, at = _byte(data, at), at + 1
        if not head:
            return found, at
        field += head >> 4
        if not head >> 4:
            field, at = _signed(data, at)
        found[field], at = _value(data, at, head & 15, depth)


def _value(data: memoryview, at: int, type_: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_NESTING:
        raise _Damage
    if type_ in (1, 2):  # a bool is its type
        return type_ == 1, at
    if type_ == 3:
        return _byte(data, at), at + 1
    if type_ in (4, 5, 6):
        return _signed(data, at)
    if type_ == 7:
        return None, at + 8
    if type_ == 8:
        size, at = _unsigned(data, at)
        return None, at + size
    if type_ == 12:
        return _struct(data, at, depth + 1)
    if type_ in (9, 10):  # no header has a list today
        head, at = _byte(data, at), at + 1
        count = head >> 4
        if count == 15:
            count, at = _unsigned(data, at)
        for _ in range(count):
            _, at = _value(data, at, 3 if head & 15 in (1, 2) else head & 15, depth + 1)
        return None, at
    raise _Damage


def _byte(data: memoryview, at: int) -> int:
    if at >= len(data):
        raise _Damage
    return data[at]


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte, at = _byte(data, at), at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _Damage


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _damaged(place: Place, what: str) -> CorruptShardError:
    return place.error(
        CorruptShardError, f"has {what}, must be as it was written; restore the file"
    )

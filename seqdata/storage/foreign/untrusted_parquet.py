"""What a Parquet file's footer and pages say of their sizes, read without believing it.

A run of one value, or of one dictionary entry, takes a few bytes for any number of rows; so the
headers of a column's pages are added up before pyarrow makes room for it. Numbers are those of
``parquet.thrift``. Place in the flow: before a column of a row group is read. Reads: a mapped file.
Makes: errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import Place
from seqdata.storage.foreign.thrift_compact import NoStructError, Struct, read_struct
from seqdata.storage.limits import FREE_BYTES, check_rows, check_size, refuse

MAGIC = b"PAR1"
MAX_PAGES = 1 << 18
"""Pages of one column of one row group."""
PIECE_BYTES = FREE_BYTES // 8
"""Bytes that texts may become before they are counted."""
_LEVELS = 8  # bytes per value for levels and offsets while a column is read
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # Type -> bytes; 6 is text
_TEXT = 6
_ENDS = 8  # bytes of the footer's size and the magic

_CHUNK = {1: None, 3: [bytes], 5: None, 7: None, 9: None, 11: None}  # ColumnMetaData
_GROUP = {1: [{3: _CHUNK}], 3: None}
_FOOTER = {2: [{2: None, 5: None}], 4: [_GROUP]}
_PAGE = {2: None, 3: None, 5: {1: None}, 8: {1: None}}  # PageHeader


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group, as the footer says.

    Attributes:
        path: Names from the column down to its values.
        values: Their number, nulls and empty lists, too.
        begin: Where its pages lie in the file.
        size: Their bytes.
        width: Bytes of a value; None: it is text.
    """

    path: str
    values: int
    begin: int
    size: int
    width: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """One row group."""

    rows: int
    chunks: tuple[Chunk, ...]


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


def groups_of(place: Place, data: memoryview) -> tuple[Group, ...]:
    """Give what the footer says of the row groups.

    Args:
        place: The file, for messages.
        data: Its bytes, uint8.

    Raises:
        CorruptShardError: If the footer cannot be read.
    """
    if len(data) < _ENDS + len(MAGIC) or data[-len(MAGIC) :] != MAGIC:
        raise place.error(
            CorruptShardError,
            "has no footer at its end, must have one; it was cut off or not finished, restore it",
        )
    size = int.from_bytes(data[-_ENDS:-4], "little")
    try:
        if size > len(data) - _ENDS:
            raise NoStructError
        footer, _ = read_struct(data[len(data) - _ENDS - size : -_ENDS], 0, _FOOTER)
        lengths = [one.get(2, 0) for one in footer[2] if not one.get(5)]
        return tuple(_group(one, lengths) for one in footer[4])
    except (NoStructError, KeyError, UnicodeDecodeError) as error:
        raise _damaged(place, "a footer that cannot be read") from error


def _group(group: Struct, lengths: list[int]) -> Group:
    if len(group[1]) != len(lengths):
        raise NoStructError
    chunks = []
    for column, length in zip(group[1], lengths, strict=True):
        about = column[3]
        dictionary = about.get(11, 0)
        begin = min(about[9], dictionary) if dictionary > 0 else about[9]
        path = b".".join(about[3]).decode()
        width = None if about[1] == _TEXT else _WIDTHS.get(about[1], length)
        chunks.append(Chunk(path, about[5], begin, about[7], width))
    return Group(group[3], tuple(chunks))


def check_column(place: Place, data: memoryview, group: Group, name: str) -> int:
    """Check the pages of one column of a row group; gives how many rows may be read at once.

    Args:
        place: The column, for messages.
        data: The file, uint8.
        group: The row group.
        name: Of the column.

    Raises:
        LimitError: If it asks for more than a cap allows.
        CorruptShardError: If a page does not lie inside of the file.
    """
    rows = group.rows
    check_rows(place, rows)
    for chunk in group.chunks:
        if chunk.path != name and not chunk.path.startswith(f"{name}."):
            continue
        found = pages_of(place, data, chunk)
        if rows > found.values:
            raise _damaged(place, f"{found.values} values for {rows} rows")
        needed = found.values * (_LEVELS + (chunk.width or 0)) + found.needed
        check_size(place, len(data), needed)
        if chunk.width is None:  # each may be a copy of the longest, at a few bits in the file
            rows = min(rows, max(1, PIECE_BYTES // (found.largest + 1)))
    return rows


def pages_of(place: Place, data: memoryview, chunk: Chunk) -> Pages:
    """Add up the headers of a column's pages; raises as ``check_column`` does."""
    if not chunk.values:  # nothing is read, and its places mean nothing
        return Pages(0, 0, 0)
    if chunk.begin < 0 or not 0 <= chunk.size <= len(data) - chunk.begin:
        raise _damaged(place, "pages that lead out of the file")
    at, end, pages = chunk.begin, chunk.begin + chunk.size, 0
    values = needed = largest = 0
    while at < end and values < chunk.values:  # as pyarrow goes
        if pages == MAX_PAGES:
            refuse(place, "has too many pages", f"have at most {MAX_PAGES}", pages + 1, MAX_PAGES)
        try:
            head, begin = read_struct(data[:end], at, _PAGE)
            size, stored = _count(head, 2), _count(head, 3)
            values += sum(_count(head[one], 1) for one in (5, 8) if one in head)
        except NoStructError as error:
            raise _damaged(place, "a page without a header") from error
        check_size(place, len(data), size)
        at, pages = begin + stored, pages + 1
        needed, largest = needed + size, max(largest, size)
    if at > end:
        raise _damaged(place, "pages that lead out of the column")
    return Pages(values, needed, largest)


def _count(struct: Struct, field: int) -> int:
    value: Any = struct.get(field)
    if value is None or value < 0:
        raise NoStructError
    return int(value)


def _damaged(place: Place, what: str) -> CorruptShardError:
    return place.error(
        CorruptShardError, f"has {what}, must be as it was written; restore the file"
    )

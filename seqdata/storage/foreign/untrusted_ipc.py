"""Size checks of untrusted Arrow IPC metadata, before pyarrow decodes anything.

Checked are the extents of each message, its rows and buffers, and the decompressed sizes of
buffers. Field numbers are those of Arrow's ``File.fbs`` and ``Message.fbs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seqdata.storage.data_location import DataLocation
from seqdata.storage.limits import (
    MAX_METADATA,
    check_rows,
    check_size,
    make_damage_error,
    make_no_footer_error,
    raise_limit_error,
)

MAGIC = b"ARROW1"
_TAIL_BYTES = 10  # bytes of the footer's size and the magic
_CONTINUATION = 0xFFFFFFFF
_BLOCK_DTYPE = np.dtype([("at", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])
_BUFFER_DTYPE = np.dtype([("at", "<i8"), ("bytes", "<i8")])
_DICTIONARY, _BATCH = 2, 3  # Message.header_type
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3  # fields of Footer
_HEADER_TYPE, _HEADER, _BODY = 1, 2, 3  # of Message
_DICTIONARY_DATA = 1  # of DictionaryBatch: its RecordBatch
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3  # of RecordBatch


MessageExtents = tuple[tuple[int, int, int], ...]
"""Per message: its offset, bytes of its metadata, bytes of its buffers."""


class _BadMetadata(Exception):
    """An offset in the metadata leads outside of it."""


@dataclass(frozen=True, slots=True)
class _FlatTable:
    """A table of a flatbuffer: every offset is checked before it is read."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> _FlatTable:
        return cls(data, _read_number(data, 0, "<I"))

    def find_field(self, field: int) -> int | None:
        """Return the offset of a field; None if it has its default."""
        vtable = self.at - _read_number(self.data, self.at, "<i")
        if 4 + 2 * field + 2 > _read_number(self.data, vtable, "<H"):
            return None
        offset = _read_number(self.data, vtable + 4 + 2 * field, "<H")
        return self.at + offset if offset else None

    def read_number(self, field: int, code: str) -> int:
        offset = self.find_field(field)
        return 0 if offset is None else _read_number(self.data, offset, code)

    def read_table(self, field: int) -> _FlatTable | None:
        offset = self.find_field(field)
        return (
            None
            if offset is None
            else _FlatTable(self.data, offset + _read_number(self.data, offset, "<I"))
        )

    def read_vector(
        self, field: int, dtype: np.dtype[np.void]
    ) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        offset = self.find_field(field)
        if offset is None:
            return np.empty(0, dtype)
        start = offset + _read_number(self.data, offset, "<I")
        count = _read_number(self.data, start, "<I")
        if start + 4 + count * dtype.itemsize > len(self.data):
            raise _BadMetadata
        return np.frombuffer(self.data, dtype, count, start + 4)


def _read_number(data: memoryview, at: int, code: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(code):
        raise _BadMetadata
    found: int = struct.unpack_from(code, data, at)[0]
    return found


def find_batches(location: DataLocation, data: memoryview) -> MessageExtents:
    """Return the extents of the record batches of an Arrow file; its dictionaries are checked.

    Raises:
        LimitError: If a dictionary exceeds a limit.
        CorruptShardError: If there is no footer, or it or a message extends beyond the file.
    """
    if len(data) < _TAIL_BYTES or data[-len(MAGIC) :] != MAGIC:
        raise make_no_footer_error(location)
    size = _read_number(data, len(data) - _TAIL_BYTES, "<i")
    if not 0 <= size <= len(data) - _TAIL_BYTES:
        raise make_damage_error(location, "a footer that extends beyond the file")
    try:
        footer = _FlatTable.root(data[len(data) - _TAIL_BYTES - size : len(data) - _TAIL_BYTES])
        dictionaries, batches = (
            footer.read_vector(field, _BLOCK_DTYPE)[["at", "metadata", "body"]].tolist()
            for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES)
        )
    except _BadMetadata as error:
        raise make_damage_error(location, "a footer that extends beyond the file") from error
    if sum(metadata + body for _, metadata, body in (*dictionaries, *batches)) > len(data):
        raise make_damage_error(
            location, "overlapping messages, or one that extends beyond the file"
        )
    for block in dictionaries:
        check_message(replace(location, file_kind="dictionary"), data, *block)
    return tuple((int(at), int(metadata), int(body)) for at, metadata, body in batches)


def check_stream(location: DataLocation, data: memoryview) -> None:
    """Check the messages of an Arrow stream; raises as ``check_message`` does.

    A stream is held in memory as a whole, so its batches count together.
    """
    needed = 0
    for at, metadata, body in _iter_messages(location, data):
        needed += check_message(replace(location, offset=at), data, at, metadata, body)
    check_size(location, len(data), needed)


def _iter_messages(location: DataLocation, data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield offset, bytes of metadata and bytes of the body of each message."""
    at = 0
    while at + 4 <= len(data):
        prefix_bytes = 8 if _read_number(data, at, "<I") == _CONTINUATION else 4
        if at + prefix_bytes > len(data):
            raise make_damage_error(location, "a message that extends beyond the file")
        size = _read_number(data, at + prefix_bytes - 4, "<i")
        if size == 0:
            return
        if not 0 < size <= len(data) - at - prefix_bytes:
            raise make_damage_error(location, "a message that extends beyond the file")
        try:
            body = _FlatTable.root(data[at + prefix_bytes : at + prefix_bytes + size]).read_number(
                _BODY, "<q"
            )
        except _BadMetadata as error:
            raise make_damage_error(location, "a message that extends beyond the file") from error
        if not 0 <= body <= len(data) - at - prefix_bytes - size:
            raise make_damage_error(location, "a message that extends beyond the file")
        yield at, prefix_bytes + size, body
        at += prefix_bytes + size + body


def check_message(
    location: DataLocation, data: memoryview, at: int, metadata: int, body: int
) -> int:
    """Check one message; return the size of its buffers in memory.

    Args:
        location: The message, for errors.
        data: The file.
        at: Offset of the message.
        metadata: Bytes of its metadata.
        body: Bytes of its buffers.

    Raises:
        LimitError: If it exceeds a limit.
        CorruptShardError: If it is not inside of the file, or its buffers are not inside of it.
    """
    if metadata > MAX_METADATA:
        raise_limit_error(
            location, f"has {metadata} bytes of metadata", f"have at most {MAX_METADATA}",
            metadata, MAX_METADATA,
        )  # fmt: skip
    if min(at, metadata, body) < 0 or at + metadata + body > len(data):
        raise make_damage_error(location, "a message that extends beyond the file")
    try:
        prefix_bytes = 8 if _read_number(data, at, "<I") == _CONTINUATION else 4
        batch = _parse_batch(data[at + prefix_bytes : at + metadata])
        if batch is None:
            return 0
        check_rows(location, batch.read_number(_ROWS, "<q"))
        buffers = batch.read_vector(_BUFFERS, _BUFFER_DTYPE)
        begins, sizes = buffers["at"], buffers["bytes"]
        if ((begins < 0) | (sizes < 0) | (sizes > body) | (begins > body - sizes)).any():
            raise _BadMetadata
        if batch.find_field(_COMPRESSION) is None:
            return int(sizes.sum())
        return _check_compressed(location, data[at + metadata : at + metadata + body], buffers)
    except _BadMetadata as error:
        raise make_damage_error(location, "a message that extends beyond the file") from error


def _parse_batch(metadata: memoryview) -> _FlatTable | None:
    """Return the record batch of a message; None if it has none."""
    message = _FlatTable.root(metadata)
    header_type = message.read_number(_HEADER_TYPE, "<B")
    header = message.read_table(_HEADER)
    if header_type == _DICTIONARY and header is not None:
        return header.read_table(_DICTIONARY_DATA)
    return header if header_type == _BATCH else None


def _check_compressed(
    location: DataLocation, body: memoryview, buffers: np.ndarray[tuple[int], np.dtype[np.void]]
) -> int:
    total = 0
    for at, size in buffers.tolist():
        if not size:
            continue
        declared = _read_number(body, at, "<q") if size >= 8 else -1
        if declared < 0 and (declared != -1 or size < 8):
            raise _BadMetadata
        check_size(location, len(body), declared)
        total += max(declared, size)  # -1: not compressed
    return total

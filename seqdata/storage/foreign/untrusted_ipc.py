"""What an Arrow IPC file or stream says of its record batches, read without believing it.

Only sizes are looked at, before anything is decompressed or handed to pyarrow: where each message
lies, its rows, its buffers, and for how many bytes a compressed one asks. Numbers are those of
Arrow's ``File.fbs`` and ``Message.fbs``. Place in the flow: foreign files are checked here first.
Reads: a mapped file. Makes: errors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import Place
from seqdata.storage.limits import MAX_METADATA, check_rows, check_size, refuse

MAGIC = b"ARROW1"
_END = 10  # bytes of the footer's size and the magic
_CONTINUES = 0xFFFFFFFF
_BLOCK = np.dtype([("at", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])
_BUFFER = np.dtype([("at", "<i8"), ("bytes", "<i8")])
_DICTIONARY, _BATCH = 2, 3  # Message.header_type
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3  # fields of Footer
_HEADER_TYPE, _HEADER, _BODY = 1, 2, 3  # of Message
_INSIDE = 1  # of DictionaryBatch: its RecordBatch
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3  # of RecordBatch


Blocks = tuple[tuple[int, int, int], ...]
"""Per message: where it begins, bytes of its metadata, bytes of its buffers."""


class _Damage(Exception):
    """A number of the metadata leads outside of it."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer: every place is checked before it is read."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _number(data, 0, "<I"))

    def place(self, field: int) -> int | None:
        """Give where a field lies; None where it has its default."""
        types = self.at - _number(self.data, self.at, "<i")
        if 4 + 2 * field + 2 > _number(self.data, types, "<H"):
            return None
        offset = _number(self.data, types + 4 + 2 * field, "<H")
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else _number(self.data, place, form)

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        return None if place is None else _Table(self.data, place + _number(self.data, place, "<I"))

    def vector(
        self, field: int, dtype: np.dtype[np.void]
    ) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        place = self.place(field)
        if place is None:
            return np.empty(0, dtype)
        start = place + _number(self.data, place, "<I")
        count = _number(self.data, start, "<I")
        if start + 4 + count * dtype.itemsize > len(self.data):
            raise _Damage
        return np.frombuffer(self.data, dtype, count, start + 4)


def _number(data: memoryview, at: int, form: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise _Damage
    found: int = struct.unpack_from(form, data, at)[0]
    return found


def batches_of(place: Place, data: memoryview) -> Blocks:
    """Give where the record batches of an Arrow file lie; its dictionaries are checked.

    Raises:
        LimitError: If a dictionary asks for more than a cap allows.
        CorruptShardError: If the footer leads out of the file.
    """
    if len(data) < _END or data[-len(MAGIC) :] != MAGIC:
        raise place.error(
            CorruptShardError,
            "has no footer at its end, must have one; it was cut off or not finished, restore it",
        )
    size = _number(data, len(data) - _END, "<i")
    if not 0 <= size <= len(data) - _END:
        raise _damaged(place, "a footer")
    try:
        footer = _Table.root(data[len(data) - _END - size : len(data) - _END])
        dictionaries, batches = (
            footer.vector(field, _BLOCK)[["at", "metadata", "body"]].tolist()
            for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES)
        )
    except _Damage as error:
        raise _damaged(place, "a footer") from error
    if sum(metadata + body for _, metadata, body in (*dictionaries, *batches)) > len(data):
        raise _damaged(place, "messages that lie on one another, or one")
    for block in dictionaries:
        check_message(replace(place, part="dictionary"), data, *block)
    return tuple((int(at), int(metadata), int(body)) for at, metadata, body in batches)


def check_stream(place: Place, data: memoryview) -> None:
    """Check the messages of an Arrow stream; raises as ``check_message`` does.

    All of a stream is held in memory, so its batches count together.
    """
    needed = 0
    for at, metadata, body in _messages(place, data):
        needed += check_message(replace(place, offset=at), data, at, metadata, body)
    check_size(place, len(data), needed)


def _messages(place: Place, data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Give place, bytes of metadata and bytes of the body of each message."""
    at = 0
    while at + 4 <= len(data):
        head = 8 if _number(data, at, "<I") == _CONTINUES else 4
        if at + head > len(data):
            raise _damaged(place, "a message")
        size = _number(data, at + head - 4, "<i")
        if size == 0:
            return
        if not 0 < size <= len(data) - at - head:
            raise _damaged(place, "a message")
        try:
            body = _Table.root(data[at + head : at + head + size]).number(_BODY, "<q")
        except _Damage as error:
            raise _damaged(place, "a message") from error
        if not 0 <= body <= len(data) - at - head - size:
            raise _damaged(place, "a message")
        yield at, head + size, body
        at += head + size + body


def check_message(place: Place, data: memoryview, at: int, metadata: int, body: int) -> int:
    """Check one message; gives the bytes that its buffers take in memory.

    Args:
        place: The message, for errors.
        data: The file.
        at: Where the message begins.
        metadata: Bytes of its metadata.
        body: Bytes of its buffers.

    Raises:
        LimitError: If it asks for more than a cap allows.
        CorruptShardError: If it does not lie inside of the file, or its buffers inside of it.
    """
    if metadata > MAX_METADATA:
        refuse(
            place, f"has {metadata} bytes of metadata", f"have at most {MAX_METADATA}",
            metadata, MAX_METADATA,
        )  # fmt: skip
    if min(at, metadata, body) < 0 or at + metadata + body > len(data):
        raise _damaged(place, "a message")
    try:
        head = 8 if _number(data, at, "<I") == _CONTINUES else 4
        batch = _batch_of(data[at + head : at + metadata])
        if batch is None:
            return 0
        check_rows(place, batch.number(_ROWS, "<q"))
        buffers = batch.vector(_BUFFERS, _BUFFER)
        begins, sizes = buffers["at"], buffers["bytes"]
        if ((begins < 0) | (sizes < 0) | (sizes > body) | (begins > body - sizes)).any():
            raise _Damage
        if batch.place(_COMPRESSION) is None:
            return int(sizes.sum())
        return _check_compressed(place, data[at + metadata : at + metadata + body], buffers)
    except _Damage as error:
        raise _damaged(place, "a message") from error


def _batch_of(metadata: memoryview) -> _Table | None:
    """Give what a message says of its record batch; None where it has none."""
    message = _Table.root(metadata)
    kind = message.number(_HEADER_TYPE, "<B")
    header = message.table(_HEADER)
    if kind == _DICTIONARY and header is not None:
        return header.table(_INSIDE)
    return header if kind == _BATCH else None


def _check_compressed(
    place: Place, body: memoryview, buffers: np.ndarray[tuple[int], np.dtype[np.void]]
) -> int:
    total = 0
    for at, size in buffers.tolist():
        if not size:
            continue
        asked = _number(body, at, "<q") if size >= 8 else -1
        if asked < 0 and (asked != -1 or size < 8):
            raise _Damage
        check_size(place, len(body), asked)
        total += max(asked, size)  # -1: it is not compressed after all
    return total


def _damaged(place: Place, what: str) -> CorruptShardError:
    return place.error(
        CorruptShardError,
        f"has {what} that leads out of the file, must be as it was written; restore the file",
    )

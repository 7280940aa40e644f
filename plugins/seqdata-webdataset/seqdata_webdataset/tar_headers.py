"""The headers of a tar file, read one after the other without its data.

Plain ustar, GNU long names and pax; nothing else is a sample. Every header's sum is compared, both
blocks of zeros at the end are asked for, and nothing but zeros may follow: a shard that was cut off
or lost a part is never taken for a shorter one. Place in the flow: indexing walks a shard with it.
Reads: mapped bytes. Makes: names and places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from seqdata.backends import Place, quoted
from seqdata.backends import refuse_size as refuse
from seqdata.errors import CorruptShardError, DecodeError, UnsafeContentError

BLOCK = 512
MAX_HEADER = 1 << 20
"""Bytes of a long name or of pax records."""

_ZEROS = bytes(BLOCK)
_PLAIN = (b"0", b"\0", b"7")
_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_DEVICES = {b"3": "a device", b"4": "a device", b"6": "a pipe"}
_OWN_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_SUM = slice(148, 156)
_PREFIX = slice(345, 500)


def walk(content: Any, place: Place) -> Iterator[tuple[bytes, int, int]]:
    """Give (name, first byte, bytes) of every plain file in a shard, in order.

    Args:
        content: The shard, a buffer of bytes.
        place: The shard's, for errors.

    Raises:
        CorruptShardError: If it is no tar file, is damaged or cut off.
        UnsafeContentError: If a member is a link or a device.
        DecodeError: If a member is stored in a way that is not read, such as sparse.
        LimitError: If a long name is larger than ``MAX_HEADER``.
    """
    view = memoryview(content).cast("B") if len(content) else memoryview(b"")
    total, at = len(view), 0
    name: bytes | None = None  # from a header before
    size: int | None = None
    while True:
        block = bytes(view[at : at + BLOCK])
        if len(block) < BLOCK:
            _no_end(place, total)
        if block == _ZEROS:
            _check_end(view, at, place)
            return
        own = _number(block[_SIZE])
        if own is None or not sum_is_right(block):
            raise replace(place, offset=at, length=BLOCK).error(
                CorruptShardError,
                "is no header of a tar file or a damaged one, must be one; restore the shard, or "
                "write it again",
            )
        kind, begin = block[156:157], at + BLOCK
        length = own if size is None or kind in b"LKxg" else size
        if length > total - begin:
            raise replace(place, offset=at).error(
                CorruptShardError,
                f"begins a member of {length} bytes, {total - begin} are left, must be whole; it "
                "was cut off, restore the shard",
                expected=length, found=total - begin,
            )  # fmt: skip
        at = begin + -(-length // BLOCK) * BLOCK
        if kind in b"LKxg":
            if length > MAX_HEADER:
                refuse(
                    replace(place, offset=begin, length=length), f"is a header of {length} bytes",
                    f"have at most {MAX_HEADER}", length, MAX_HEADER,
                )  # fmt: skip
            told = bytes(view[begin : begin + length])
            if kind == b"L":
                name = told.partition(b"\0")[0]
            elif kind == b"x":
                name, size = _records(told, name, place, begin)
            continue
        whole = _name(block) if name is None else name
        name, size = None, None
        if kind in _PLAIN and not whole.endswith(b"/"):
            yield whole, begin, length
        elif kind not in (b"5", b"\0", b"0"):
            _refuse(kind, whole, replace(place, offset=begin - BLOCK, length=BLOCK))


def _name(block: bytes) -> bytes:
    name = block[_OWN_NAME].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return block[_PREFIX].partition(b"\0")[0] + b"/" + name
    return name


def _number(field: bytes) -> int | None:
    """Give a number of a header, octal or of 256 digits; None: it is none."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.partition(b"\0")[0].strip(b" ") or b"0"
    try:
        return int(text, 8) if text.isdigit() else None
    except ValueError:  # 8 and 9
        return None


def sum_is_right(block: bytes) -> bool:
    """Tell whether the sum in a header is that of its bytes."""
    must = _number(block[_SUM])
    blanked = 256 - sum(block[_SUM])
    if must == sum(block) + blanked:
        return True
    high = sum(byte > 127 for byte in block[:148]) + sum(byte > 127 for byte in block[156:])
    return high > 0 and must == sum(block) + blanked - 256 * high  # by old programs, signed


def _records(
    told: bytes, name: bytes | None, shard: Place, begin: int
) -> tuple[bytes | None, int | None]:
    """Give the name and size of the next member that pax records tell, where they do."""
    at, size = 0, None
    if b" path=" not in told and b" size=" not in told and b"GNU.sparse" not in told:
        return name, None
    place = replace(shard, offset=begin, length=len(told))
    while at < len(told):
        digits, blank, _ = told[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = told[at : at + length]
        word, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not (blank and equals and len(record) == length and record.endswith(b"\n")):
            raise place.error(
                CorruptShardError, "is no list of pax records, must be; restore the shard"
            )
        if word == b"path":
            name = value
        elif word == b"size":
            size = int(value) if value.isdigit() else -1
            if size < 0:
                raise place.error(
                    CorruptShardError,
                    f"says a size of {value[:20]!r}, must be a number; restore the shard",
                )
        elif word.startswith(b"GNU.sparse"):
            _refuse(b"S", b"", place)
        at += length
    return name, size


def _refuse(kind: bytes, name: bytes, place: Place) -> NoReturn:
    text = quoted(name.decode(errors="replace"))
    if what := _LINKS.get(kind) or _DEVICES.get(kind):
        raise place.error(
            UnsafeContentError,
            f"member {text} is {what}, must be a plain file; write the shard again without it",
            member=name.decode(errors="replace"),
        )
    what = "sparse" if kind == b"S" else f"of type {kind!r}"
    raise place.error(
        DecodeError,
        f"member {text} is {what}, must be a plain file; write the shard again, as plain ustar",
        member=name.decode(errors="replace"),
    )


def _no_end(place: Place, total: int) -> NoReturn:
    raise replace(place, offset=total).error(
        CorruptShardError,
        f"ends after {total} bytes without two blocks of zeros, must have them; it was cut off or "
        "never finished, restore the shard",
    )


def _check_end(view: memoryview, at: int, place: Place) -> None:
    if len(view) - at < 2 * BLOCK:
        _no_end(place, len(view))
    rest = np.frombuffer(view[at:], dtype=np.uint8)
    if rest.any():
        first = at + int(rest.argmax() if rest[0] else np.flatnonzero(rest)[0])
        raise replace(place, offset=at, length=first - at).error(
            CorruptShardError,
            f"ends at byte {at} but goes on at byte {first}, must have nothing but zeros after its "
            "end; a part was lost, or several tar files were joined: restore it, or write it again",
        )

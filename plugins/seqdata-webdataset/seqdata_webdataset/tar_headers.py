"""Headers and names of the members of a tar file, read without its data.

Plain ustar, GNU long names and pax are supported. The checksum of every header is compared, both
blocks of zeros at the end are required, and only zeros may follow, so a shard that was cut off or
lost a part is always detected. Names are split into key and extension exactly as by the webdataset
library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from seqdata import CorruptShardError, DecodeError, LimitError, UnsafeContentError
from seqdata.backends import DataLocation, quote

TAR_BLOCK = 512
MAX_HEADER_BYTES = 1 << 20
"""Maximum size in bytes of a long name or of pax records."""
MAX_KEY_BYTES = 1024
"""Maximum size of a key in bytes."""

_ZEROS = bytes(TAR_BLOCK)
_FILE_TYPES = (b"0", b"\0", b"7")
_NO_FILE_TYPES = (b"5", b"D", b"V")  # folders, and the label that `tar -V` writes
_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_DEVICES = {b"3": "a device", b"4": "a device", b"6": "a pipe"}
_OWN_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_PREFIX = slice(345, 500)
_MEMBER_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META_NAME = re.compile(r"__[^/]*__($|/)")


def iter_members(content: Any, location: DataLocation) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, first byte, size in bytes) of every plain file in a shard, in order.

    Args:
        content: The shard, a buffer of bytes.
        location: The location of the shard, for errors.

    Raises:
        CorruptShardError: If it is not a tar file, is damaged or cut off.
        UnsafeContentError: If a member is a link or a device.
        DecodeError: If a member is stored in an unsupported way, such as sparse.
        LimitError: If a long name is larger than ``MAX_HEADER_BYTES``.
    """
    view = memoryview(content).cast("B") if len(content) else memoryview(b"")
    total, at = len(view), 0
    name: bytes | None = None  # from an earlier header
    size: int | None = None
    while True:
        block = bytes(view[at : at + TAR_BLOCK])
        if len(block) < TAR_BLOCK:
            _raise_no_end(location, total)
        if block == _ZEROS:
            _check_end(view, at, location)
            return
        header_size = _read_number(block[_SIZE])
        if header_size is None or not is_checksum_valid(block):
            raise replace(location, offset=at, length=TAR_BLOCK).make_error(
                CorruptShardError,
                "must be a valid header of a tar file, but is not. Restore the shard, or write it "
                "again",
            )
        type_flag, begin = block[156:157], at + TAR_BLOCK
        length = header_size if size is None or type_flag in b"LKxg" else size
        if length > total - begin:
            raise replace(location, offset=at).make_error(
                CorruptShardError,
                f"must be followed by a member of {length} bytes, but only {total - begin} bytes "
                "follow: the shard was cut off. Restore it",
                expected=length, found=total - begin,
            )  # fmt: skip
        at = begin + -(-length // TAR_BLOCK) * TAR_BLOCK
        if type_flag in b"LKxg":
            extended = _read_extended(view, replace(location, offset=begin, length=length))
            if type_flag == b"L":
                name = extended.partition(b"\0")[0]
            elif type_flag == b"x":
                name, size = _parse_pax_records(extended, name, location, begin)
            continue
        full_name = _read_name(block) if name is None else name
        name, size = None, None
        if type_flag in _FILE_TYPES and not full_name.endswith(b"/"):
            yield full_name, begin, length
        elif type_flag not in _NO_FILE_TYPES + _FILE_TYPES:
            _raise_for_type(
                type_flag, full_name, replace(location, offset=begin - TAR_BLOCK, length=TAR_BLOCK)
            )


def _read_extended(view: memoryview, location: DataLocation) -> bytes:
    """Return the content of a header that extends the next one.

    Raises:
        LimitError: If it is larger than ``MAX_HEADER_BYTES``.
    """
    begin, length = location.offset or 0, location.length or 0
    if length > MAX_HEADER_BYTES:
        raise_limit_error(
            location, f"has one of {length}", f"have a header of at most {MAX_HEADER_BYTES} bytes",
            length, MAX_HEADER_BYTES,
        )  # fmt: skip
    return bytes(view[begin : begin + length])


def _read_name(block: bytes) -> bytes:
    name = block[_OWN_NAME].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return block[_PREFIX].partition(b"\0")[0] + b"/" + name
    return name


def _read_number(field: bytes) -> int | None:
    """Return a number of a header, octal or base 256; None if it is invalid."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.partition(b"\0")[0].strip(b" ") or b"0"
    try:
        return int(text, 8) if text.isdigit() else None
    except ValueError:  # 8 and 9
        return None


def is_checksum_valid(block: bytes) -> bool:
    """Return whether the checksum in a header matches its bytes."""
    expected = _read_number(block[_CHECKSUM])
    blanked = 256 - sum(block[_CHECKSUM])
    if expected == sum(block) + blanked:
        return True
    high = sum(byte > 127 for byte in block[:148]) + sum(byte > 127 for byte in block[156:])
    return high > 0 and expected == sum(block) + blanked - 256 * high  # signed, by old programs


def _parse_pax_records(
    content: bytes, name: bytes | None, shard: DataLocation, begin: int
) -> tuple[bytes | None, int | None]:
    """Return the name and size of the next member in pax records; else ``name``, and None.

    Raises:
        CorruptShardError: If the records are invalid.
        DecodeError: If the member is sparse.
    """
    at, size = 0, None
    if b" path=" not in content and b" size=" not in content and b"GNU.sparse" not in content:
        return name, None
    location = replace(shard, offset=begin, length=len(content))
    while at < len(content):
        digits, blank, _ = content[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = content[at : at + length]
        keyword, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not (blank and equals and len(record) == length and record.endswith(b"\n")):
            raise location.make_error(
                CorruptShardError, "must be a list of pax records, but is not. Restore the shard"
            )
        if keyword == b"path":
            name = value
        elif keyword == b"size":
            size = int(value) if value.isdigit() else -1
            if size < 0:
                raise location.make_error(
                    CorruptShardError,
                    f"must have an integer as size, but has {value[:20]!r}. Restore the shard",
                )
        elif keyword.startswith(b"GNU.sparse"):
            _raise_for_type(b"S", b"", location)
        at += length
    return name, size


def _raise_for_type(type_flag: bytes, name: bytes, location: DataLocation) -> NoReturn:
    text = quote(name.decode(errors="replace"))
    if description := _LINKS.get(type_flag) or _DEVICES.get(type_flag):
        raise location.make_error(
            UnsafeContentError,
            f"member {text} must be a plain file, but is {description}. Write the shard again "
            "without it",
            member=name.decode(errors="replace"),
        )
    description = "sparse" if type_flag == b"S" else f"of type {type_flag!r}"
    raise location.make_error(
        DecodeError,
        f"member {text} must be a plain file, but is {description}. Write the shard again, as "
        "plain ustar",
        member=name.decode(errors="replace"),
    )


def _raise_no_end(location: DataLocation, total: int) -> NoReturn:
    raise replace(location, offset=total).make_error(
        CorruptShardError,
        f"must end with two blocks of zeros, but ends after {total} bytes without them: it was "
        "cut off or never finished. Restore the shard",
    )


def _check_end(view: memoryview, at: int, location: DataLocation) -> None:
    if len(view) - at < 2 * TAR_BLOCK:
        _raise_no_end(location, len(view))
    rest = np.frombuffer(view[at:], dtype=np.uint8)
    if rest.any():
        first = at + int(rest.argmax() if rest[0] else np.flatnonzero(rest)[0])
        raise replace(location, offset=at, length=first - at).make_error(
            CorruptShardError,
            f"must have only zeros after its end at byte {at}, but has other data at byte "
            f"{first}: a part was lost, or several tar files were joined. Restore it, or write it "
            "again",
        )


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension) of a member's name; None if it is not part of a sample.

    The key ends at the first dot of the last part of the path; the extension is in lower case.

    Examples:
        >>> split_name("train/utt-7.Mel.npy"), split_name("README"), split_name("__meta__/x.json")
        (('train/utt-7', 'mel.npy'), None, None)
    """
    if _META_NAME.match(name):
        return None
    found = _MEMBER_NAME.match(name)
    return None if found is None else (found[1], found[2].lower())


def last_part(extension: str) -> str:
    """Return the last part of an extension, which determines the decoder.

    Examples:
        >>> last_part("mel.npy")
        'npy'
    """
    return extension.rpartition(".")[2]


def raise_limit_error(
    location: DataLocation, found: str, required: str, requested: int, maximum: int
) -> NoReturn:
    """Raise the error about an exceeded limit.

    Raises:
        LimitError: Always.
    """
    raise location.make_error(
        LimitError,
        f"must {required}, but {found}. If you trust the file, write it again within this limit",
        found=requested, expected=maximum,
    )  # fmt: skip

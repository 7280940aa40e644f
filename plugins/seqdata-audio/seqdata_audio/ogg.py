"""Detection of Ogg files of which libsndfile would only read a part, without an error."""

from __future__ import annotations

import re
import struct
import zlib

_PAGE_BEGIN = re.compile(rb"OggS\x00[\x00-\x07]")
_FIRST_PAGE = re.compile(rb"OggS\x00[\x02\x03\x06\x07]")  # marked as the first of a stream
_LATER_PAGE = re.compile(rb"OggS\x00[\x00\x01\x04\x05]")
_PAGE = 27  # bytes of the header of an Ogg page, without its table
_LONGEST_PAGE = _PAGE + 255 + 255 * 255
_SERIAL_AT = 14  # in that header: the number of the stream, and that of the page, 4 bytes each
_CHECKSUM_AT = 22  # in that header, 4 bytes
_FLAGS_AT, _IS_LAST = 5, 0x04  # in that header: "eos", set on the last page of a stream
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # byte -> its bits reversed


def check_pages(content: bytes) -> None:
    """Raise if a file holds several recordings in sequence, lacks a page, or was cut off.

    Raises:
        ValueError: If the file does not hold exactly one complete recording.
    """
    _check_last_page(content)
    later = _LATER_PAGE.search(content)
    second = None if later is None else _FIRST_PAGE.search(content, later.start())
    if second is not None:
        raise ValueError(
            "must hold one recording, but another begins after the first, at byte "
            f"{second.start()}, which libsndfile does not read"
        )
    _check_numbers(content)


def _check_numbers(content: bytes) -> None:
    """Raise a ValueError if a page is missing; libsndfile would start again after it."""
    last: dict[int, int] = {}
    for match in _PAGE_BEGIN.finditer(content):
        if match.start() + _PAGE > len(content):
            return
        serial, number = struct.unpack_from("<II", content, match.start() + _SERIAL_AT)
        if number != last.get(serial, number - 1) + 1:
            raise ValueError(
                f"must have all its Ogg pages, but page {last[serial]} is followed by {number}"
            )
        last[serial] = number


def _check_last_page(content: bytes) -> None:
    """Raise if an Ogg file does not end with an undamaged last page (RFC 3533, section 6).

    libsndfile ignores other bytes, a page whose checksum is wrong, and a last page that is not
    marked as such, so that samples would be missing.
    """
    tail = content[max(0, len(content) - 2 * _LONGEST_PAGE) :]
    begins = [match.start() for match in _PAGE_BEGIN.finditer(tail)]
    page = tail[begins[-1] :] if begins else b""
    segments = page[_PAGE - 1] if len(page) >= _PAGE else 255
    size = _PAGE + segments + sum(page[_PAGE:][:segments])
    if len(page) < _PAGE + segments or len(page) < size:
        raise ValueError("must end with a whole Ogg page, but ends within one: it was cut off")
    if len(page) > size:
        raise ValueError(
            f"must end with a whole Ogg page, but has {len(page) - size} other bytes after its "
            "last one: it is damaged, or something was added"
        )
    if _compute_checksum(page) != struct.unpack_from("<I", page, _CHECKSUM_AT)[0]:
        raise ValueError("has a last Ogg page whose checksum does not match its bytes")
    if not page[_FLAGS_AT] & _IS_LAST:
        raise ValueError(
            "must end with an Ogg page that is marked as the last of its stream, but this one is "
            "not: the file was cut off between two pages, or its recording was never ended"
        )


def _compute_checksum(page: bytes) -> int:
    """Return the CRC of a page with zeros in place of its checksum.

    Ogg's is zlib's polynomial with the highest bit first, from 0 and without a last inversion.
    """
    plain = page[:_CHECKSUM_AT] + bytes(4) + page[_CHECKSUM_AT + 4 :]
    found = zlib.crc32(plain.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{found:032b}"[::-1], 2)

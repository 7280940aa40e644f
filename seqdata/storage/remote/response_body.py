"""Bodies of web servers' answers: no more is read than was asked for.

A server may send a body that never ends, the whole of a file where a part was asked for, or a few
bytes that unpack to very many; none of it may fill the memory.
"""

from __future__ import annotations

import functools
import re
from typing import Any

MAX_LISTING_BYTES = 16 << 20
"""Bytes that an answer may have at most where no range was asked for: that is a listing."""
PLAIN_ENCODING = "identity"
"""What is accepted as encoding: compressed bytes of a file are not the bytes of the file."""
_RANGE_HEADER = re.compile(r"bytes=(\d+)-(\d+)$")
_CONTENT_RANGE_HEADER = re.compile(r"bytes (\d+)-")
_OK, _PARTIAL, _ERRORS = 200, 206, 400  # status


class WrongBodyError(Exception):
    """A body is not the part of the file that was asked for; another try gives the same."""


@functools.cache
def bounded_response() -> type[Any]:
    """Return the class of answers that read no more than was asked for."""
    import aiohttp

    class BoundedResponse(aiohttp.ClientResponse):
        """An answer of a web server; the body of an error is not read."""

        async def read(self) -> bytes:
            if self._body is None:
                self._body = await _read_body(self)
            return self._body

    return BoundedResponse


async def _read_body(answer: Any) -> bytes:
    """Return the body of an answer.

    Raises:
        WrongBodyError: If it is longer than what was asked for, compressed, or another part of the
            file.
    """
    if answer.status >= _ERRORS:
        answer.close()
        return b""
    encoding = answer.headers.get("Content-Encoding", PLAIN_ENCODING)
    if encoding != PLAIN_ENCODING:
        answer.close()
        raise WrongBodyError(f"the bytes of the file were asked for, they came as {encoding!r}")
    max_bytes = MAX_LISTING_BYTES
    requested = _RANGE_HEADER.match(answer.request_info.headers.get("Range", ""))
    if requested is not None:
        start, max_bytes = int(requested[1]), int(requested[2]) + 1 - int(requested[1])
        answered = _CONTENT_RANGE_HEADER.match(answer.headers.get("Content-Range", ""))
        first_byte = (
            int(answered[1]) if answered is not None and answer.status == _PARTIAL else start
        )
        if answer.status == _OK:
            first_byte = 0
        if first_byte != start:
            answer.close()
            raise WrongBodyError(
                f"bytes from {start} on were asked for, bytes from {first_byte} came"
            )
    pieces, size = [], 0
    while piece := await answer.content.readany():  # ends: the transport bounds each try
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            answer.close()  # what else comes is not waited for
            raise WrongBodyError(f"{max_bytes} bytes were asked for, more came")
    return b"".join(pieces)

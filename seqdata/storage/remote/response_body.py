"""Response bodies of web servers: no more is read than was requested.

A server may send an endless body, a whole file instead of a range, or a few bytes that decompress
to very many; none of these may fill the memory.
"""

from __future__ import annotations

import functools
import re
from typing import Any

MAX_LISTING_BYTES = 16 << 20
"""Maximum bytes of a response without a range: a listing."""
PLAIN_ENCODING = "identity"
"""The only accepted content encoding: compressed bytes are not the bytes of the file."""
_RANGE_HEADER = re.compile(r"bytes=(\d+)-(\d+)$")
_CONTENT_RANGE_HEADER = re.compile(r"bytes (\d+)-")
_OK, _PARTIAL, _ERRORS = 200, 206, 400  # status


class WrongBodyError(Exception):
    """A body is not the requested range of the file; a retry would give the same."""


@functools.cache
def bounded_response() -> type[Any]:
    """Return the class of responses that read no more than was requested."""
    import aiohttp

    class BoundedResponse(aiohttp.ClientResponse):
        """A response of a web server; the body of an error is not read."""

        async def read(self) -> bytes:
            if self._body is None:
                self._body = await _read_body(self)
            return self._body

    return BoundedResponse


async def _read_body(answer: Any) -> bytes:
    """Return the body of a response.

    Raises:
        WrongBodyError: If it is longer than requested, compressed, or another range of the file.
    """
    if answer.status >= _ERRORS:
        answer.close()
        return b""
    encoding = answer.headers.get("Content-Encoding", PLAIN_ENCODING)
    if encoding != PLAIN_ENCODING:
        answer.close()
        raise WrongBodyError(
            f"the bytes of the file were requested, but the response is encoded as {encoding!r}"
        )
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
                f"bytes from {start} on were requested, but bytes from {first_byte} on were "
                "received"
            )
    pieces, size = [], 0
    while piece := await answer.content.readany():  # ends: the transport bounds each attempt
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            answer.close()  # further bytes are not waited for
            raise WrongBodyError(f"{max_bytes} bytes were requested, but more were received")
    return b"".join(pieces)

"""The HTTP client: where a redirected request may go, and how much of a response is read.

Allowed are ``http`` to ``https`` and other servers of the same scheme; never ``file://`` or another
scheme, and never ``https`` to unencrypted ``http``. Headers of the user are sent only to the server
that the user named. A server may send an endless body, a whole file instead of a range, or a few
bytes that decompress to very many: no more is read than was requested.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from functools import partial
from http.cookies import SimpleCookie
from typing import Any

from seqdata.errors import ConfigError
from seqdata.storage.remote.urls import redact_url

MAX_LISTING_BYTES = 16 << 20
"""Maximum bytes of a response without a range: a listing."""
PLAIN_ENCODING = "identity"
"""The only accepted content encoding: compressed bytes are not the bytes of the file."""
_RANGE_HEADER = re.compile(r"bytes=(\d+)-(\d+)$")
_CONTENT_RANGE_HEADER = re.compile(r"bytes (\d+)-")
_OK, _PARTIAL, _REDIRECTS, _ERRORS = 200, 206, 300, 400  # status
_ALLOWED_SCHEMES = {("http", "http"), ("https", "https"), ("http", "https")}
_FORWARDED_HEADERS = ("accept", "accept-encoding", "range", "user-agent")  # headers of any request


class RefusedRedirectError(Exception):
    """A server redirected a request to a location that is not allowed; the text names it."""


class WrongBodyError(Exception):
    """A body is not the requested range of the file; a retry would receive the same."""


async def make_guarded_client(
    *, cookies: Any = None, auth: Any = None, cookie_jar: Any = None, **options: Any
) -> Any:
    """Return an ``aiohttp.ClientSession`` that checks redirects and body sizes, for fsspec.

    It refuses unsafe redirects, and reads no more of a body than was requested. Cookies and
    credentials are set per request: a session would send them to every server.

    Args:
        cookies: The user's, by name.
        auth: The user's ``aiohttp.BasicAuth``.
        cookie_jar: The user's own; each cookie in it must have a domain.
        options: Options of the session.

    Raises:
        ConfigError: If cookies in the jar would go to every server.
    """
    import aiohttp

    _check_cookie_jar(cookie_jar)
    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(partial(_add_credentials, cookies=cookies, auth=auth))
    tracing.on_request_redirect.append(_check_redirect)
    traced = [*options.pop("trace_configs", ()), tracing]
    options.setdefault("response_class", make_response_class())
    options.setdefault("auto_decompress", False)
    return aiohttp.ClientSession(trace_configs=traced, cookie_jar=cookie_jar, **options)


def _check_cookie_jar(jar: Any) -> None:
    """Raise if a jar has cookies without a domain.

    Raises:
        ConfigError: If it has.
    """
    loose = sorted({cookie.key for cookie in jar or () if not cookie["domain"]})
    if loose:
        raise ConfigError(
            "`storage_options`: cookies in `cookie_jar` must have a domain, but "
            f"{', '.join(loose)} has none: such cookies are sent to every server that a request is "
            "redirected to. Pass `cookies` instead, or `jar.update_cookies(cookies, "
            "response_url=URL(...))`"
        )


async def _add_credentials(
    session: Any, context: Any, request: Any, *, cookies: Any, auth: Any
) -> None:
    """Add the user's cookies and credentials to the headers of a request."""
    del session, context
    request.headers.setdefault("Accept-Encoding", PLAIN_ENCODING)
    if cookies:
        pairs = cookies.items() if isinstance(cookies, Mapping) else cookies
        found = SimpleCookie(request.headers.get("Cookie", ""))
        for name, value in pairs:
            if name not in found:
                found[name] = str(getattr(value, "value", value))
        request.headers["Cookie"] = found.output(attrs=(), header="", sep=";").strip()
    if auth is not None and request.url.user is None and "Authorization" not in request.headers:
        request.headers["Authorization"] = auth.encode()


async def _check_redirect(session: Any, context: Any, request: Any) -> None:
    """Check a redirect before it is followed.

    Raises:
        RefusedRedirectError: If it is not allowed.
    """
    del session, context
    headers = request.response.headers
    try:
        target = request.url.join(
            type(request.url)(headers.get("Location") or headers.get("URI") or "")
        )
    except ValueError:
        request.response.close()
        raise RefusedRedirectError("is redirected to something that is not a URL") from None
    if (request.url.scheme, target.scheme) not in _ALLOWED_SCHEMES:
        request.response.close()
        raise RefusedRedirectError(
            f"is redirected from {request.url.scheme}:// to {redact_url(str(target))!r}"
        )
    upgraded = request.url.scheme != target.scheme
    if target.host != request.url.host or (target.port != request.url.port and not upgraded):
        for name in [name for name in request.headers if name.lower() not in _FORWARDED_HEADERS]:
            del request.headers[name]


@functools.cache
def make_response_class() -> type[Any]:
    """Return the class of responses that read no more than was requested."""
    import aiohttp

    class BoundedResponse(aiohttp.ClientResponse):
        """A response of a web server; the body of an error is not read."""

        async def start(self, connection: Any) -> Any:
            await super().start(connection)
            _check_encoding(self)
            return self

        async def read(self) -> bytes:
            if self._body is None:
                self._body = await _read_body(self)
            return self._body

    return BoundedResponse


def _check_encoding(answer: Any) -> None:
    """Raise if a file comes compressed: neither its bytes nor its size are those of the file.

    Raises:
        WrongBodyError: If it does.
    """
    encoding = answer.headers.get("Content-Encoding", PLAIN_ENCODING)
    if encoding != PLAIN_ENCODING and answer.status < _REDIRECTS:
        answer.close()
        raise WrongBodyError(
            f"the bytes of the file were requested, but the response is encoded as {encoding!r}"
        )


def check_first_byte(status: int, content_range: str, start: int) -> None:
    """Raise if an answer has another range of a file than was requested.

    Args:
        status: Its HTTP status.
        content_range: Its header ``Content-Range``; "": it has none.
        start: The first byte that was requested.

    Raises:
        WrongBodyError: If it has.
    """
    answered = _CONTENT_RANGE_HEADER.match(content_range)
    first_byte = int(answered[1]) if answered is not None and status == _PARTIAL else start
    if status == _OK:
        first_byte = 0
    if first_byte != start:
        raise WrongBodyError(
            f"bytes from {start} on were requested, but bytes from {first_byte} on were received"
        )


async def _read_body(answer: Any) -> bytes:
    """Return the body of a response; of an error, ``b""``.

    Raises:
        WrongBodyError: If it is longer than requested, or another range of the file.
    """
    if answer.status >= _ERRORS:
        answer.close()
        return b""
    max_bytes = MAX_LISTING_BYTES
    requested = _RANGE_HEADER.match(answer.request_info.headers.get("Range", ""))
    if requested is not None:
        start, max_bytes = int(requested[1]), int(requested[2]) + 1 - int(requested[1])
        try:
            check_first_byte(answer.status, answer.headers.get("Content-Range", ""), start)
        except WrongBodyError:
            answer.close()
            raise
    pieces, size = [], 0
    while piece := await answer.content.readany():  # ends: the transport bounds each attempt
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            answer.close()  # further bytes are not waited for
            raise WrongBodyError(f"{max_bytes} bytes were requested, but more were received")
    return b"".join(pieces)

"""A web server on this machine whose answers fail like those of networks and object stores.

It serves a folder, with ranges and entity tags, or forwards requests to another server. There is
one function per fault, whose docstring has the expected outcome.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "server", "date")
_PATIENCE = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a server.

    Attributes:
        status: HTTP status.
        headers: Name and value of each header, except those of the connection.
        body: Content of the answer.
        size: Number of bytes that a HEAD reports.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Request to a server: method, path, headers and body."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


Source = Callable[[HttpRequest], Answer]
Fault = Callable[[Answer, BaseHTTPRequestHandler], None]
"""``fault(answer, handler)`` sends an answer, with a fault."""


@dataclass(slots=True, eq=False)
class Served:
    """A running server.

    Attributes:
        url: URL of the server.
        fault: Fault of its answers; None: no fault.
        hits: Part of the paths that the fault applies to.
        requests: Method and path of every request so far.
    """

    url: str
    fault: Fault | None = None
    hits: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def served(source: Source, *, certificate: Path | None = None) -> Iterator[Served]:
    """Run a server on a port of this machine until the end of the block.

    Args:
        source: ``folder_of`` or ``before``.
        certificate: A file with a key and a certificate for ``127.0.0.1``; None: no TLS.
    """
    state = Served("")
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, source, state))
    scheme = "http"
    if certificate is not None:
        safe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        safe.load_cert_chain(certificate)
        server.socket = safe.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    state.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE)


def folder_of(root: Path) -> Source:
    """Return a source of the files of a folder, with HEAD, GET, ranges and tags of the content."""

    def answer(request: HttpRequest) -> Answer:
        path = root / unquote(urlsplit(request.path).path).lstrip("/")
        if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
            return Answer(404)
        content = path.read_bytes()
        tag = hashlib.sha256(content).hexdigest()[:16]
        headers = (
            ("ETag", f'"{tag}"'),
            ("Accept-Ranges", "bytes"),
            ("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True)),
        )
        if request.method == "HEAD":
            return Answer(200, headers, b"", len(content))
        found = _RANGE.match(dict(request.headers).get("Range", ""))
        if found is None:
            return Answer(200, headers, content)
        first, last = int(found[1]), int(found[2] or len(content) - 1)
        if first >= len(content):
            return Answer(416)
        content_range = (
            "Content-Range",
            f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}",
        )
        return Answer(206, (*headers, content_range), content[first : last + 1])

    return answer


def before(host: str, port: int) -> Source:
    """Return a source that forwards requests to another server."""

    def answer(request: HttpRequest) -> Answer:
        connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
        try:
            connection.request(request.method, request.path, request.body, dict(request.headers))
            response = connection.getresponse()
            headers = tuple(
                header for header in response.getheaders() if header[0].lower() not in _HOP
            )
            length = response.getheader("Content-Length")
            size = int(length) if request.method == "HEAD" and length is not None else None
            return Answer(response.status, headers, response.read(), size)
        finally:
            connection.close()

    return answer


def unavailable(times: int | None = None, *, bodies: bool = False) -> Fault:
    """Answer 503 a number of times, or always.

    Expected: a retry that succeeds; or a ``RemoteReadError`` with file, bytes and attempts, in
    time.

    Args:
        times: Number of times; None: always.
        bodies: Whether only answers with a body fail, because a transport may request the size in
            another way without a retry.
    """
    left = _Counter(times)

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        if (answer.body or not bodies) and left.hit():
            answer = Answer(503, (("Retry-After", "0"),), b"slow down")
        send(answer, handler)

    return fault


def refused() -> Fault:
    """Answer 403, as without permission.

    Expected: a ``RemoteReadError`` at once.
    """
    return _first(None, lambda _: Answer(403, (), b"no"))


def reset(times: int | None = None) -> Fault:
    """Break the connection in the middle of a body.

    Expected: as for ``unavailable``.
    """
    left = _Counter(times)

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        if not answer.body or not left.hit():
            send(answer, handler)
            return
        half = replace(answer, body=answer.body[: len(answer.body) // 2])
        send(half, handler, length=len(answer.body))
        handler.wfile.flush()
        linger = struct.pack("ii", 1, 0)  # close sends RST
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.close_connection = True

    return fault


def short(times: int | None = None) -> Fault:
    """Send fewer bytes than there are, without a Content-Length, so that the body looks complete.

    Expected: as for ``unavailable``.
    """
    left = _Counter(times)

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        if not answer.body or not left.hit():
            send(answer, handler)
            return
        send(replace(answer, body=answer.body[:-1]), handler, length=None)
        handler.close_connection = True

    return fault


def slow(rate: int = 1000) -> Fault:
    """Send a body slowly, with ``rate`` bytes per second.

    Expected: as for ``unavailable``.
    """

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        if not answer.body:
            send(answer, handler)
            return
        send(replace(answer, body=b""), handler, length=len(answer.body))
        step = max(1, rate // 10)
        for at in range(0, len(answer.body), step):
            handler.wfile.write(answer.body[at : at + step])
            time.sleep(step / rate)

    return fault


class Replaced:
    """Serve another version of a file, with another tag, after each body. Implements ``Fault``.

    A client that requests the tag, then bytes, then the tag again, sees that the file has changed,
    also if other processes read it meanwhile.

    Expected: a ``FingerprintMismatch``, or one of the versions; never a mixture.

    Args:
        source: Source of the other version, of the same size.

    Attributes:
        changed: Number of bodies that were sent with other bytes than those of the first version.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._version: dict[str, int] = {}
        self._lock = threading.Lock()
        self.changed = 0

    def __call__(self, answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        """Send the version that is next for this file."""
        with self._lock:
            self._version[handler.path] = self._version.get(handler.path, 0) + bool(answer.body)
            version = self._version[handler.path]
        if version:
            request = HttpRequest(handler.command, handler.path, tuple(handler.headers.items()))
            first, answer = answer, self._source(request)
            tags = ("etag", "content-md5", "last-modified")
            headers = [header for header in answer.headers if header[0].lower() not in tags]
            answer = replace(answer, headers=(*headers, ("ETag", f'"{version}"')))
            self.changed += answer.body != first.body
        send(answer, handler)


def retagged(after: int) -> Fault:
    """Send another tag from some answer on, as if the file was replaced.

    Expected: a ``FingerprintMismatch``, or one of the versions; never a mixture.

    Args:
        after: Number of answers that still have the old tag.
    """
    left = _Counter(after)

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        if not left.hit():
            headers = [
                header
                for header in answer.headers
                if header[0].lower() not in ("etag", "content-md5")
            ]
            answer = replace(answer, headers=(*headers, ("ETag", '"another"')))
        send(answer, handler)

    return fault


def _first(times: int | None, change: Callable[[Answer], Answer]) -> Fault:
    left = _Counter(times)

    def fault(answer: Answer, handler: BaseHTTPRequestHandler) -> None:
        send(change(answer) if left.hit() else answer, handler)

    return fault


class _Counter:
    """Thread-safe countdown; None: never ends."""

    __slots__ = ("_left", "_lock")

    def __init__(self, times: int | None) -> None:
        self._left = times
        self._lock = threading.Lock()

    def hit(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0


def send(answer: Answer, handler: BaseHTTPRequestHandler, length: int | None = -1) -> None:
    """Send an answer.

    Args:
        answer: Answer to send.
        handler: Handler of the request.
        length: Content-Length to send; None: no such header; negative: the true one.
    """
    handler.send_response(answer.status)
    for name, value in answer.headers:
        handler.send_header(name, value)
    size = answer.size if answer.size is not None else len(answer.body)
    if length is not None:
        handler.send_header("Content-Length", str(size if length < 0 else length))
    else:
        handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(answer.body)


class _Server(ThreadingHTTPServer):
    """A server that does not report clients that disconnect."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Handler that answers requests from a source."""

    protocol_version = "HTTP/1.1"

    def __init__(self, source: Source, state: Served, *arguments: Any) -> None:
        self._source, self._state = source, state
        super().__init__(*arguments)  # which handles the requests

    def _answer(self) -> None:
        state = self._state
        state.requests.append((self.command, self.path))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        answer = self._source(
            HttpRequest(self.command, self.path, tuple(self.headers.items()), body)
        )
        if state.fault is not None and state.hits in self.path:
            state.fault(answer, self)
        else:
            send(answer, self)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: requests are listed in ``Served.requests``."""

"""A small server of the part of the S3 API that readers use; counts what it sends.

    python benchmarks/bench_set/s3.py FOLDER

Prints its port. ``/-/counts`` gives requests and bytes since it was last asked. Reading only, on
the loopback interface, without signatures; ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    """Objects are files: ``/bucket/key`` is ``FOLDER/bucket/key``."""

    protocol_version = "HTTP/1.1"
    root = Path()
    counts: ClassVar[dict[str, int]] = {"requests": 0, "bytes": 0}
    lock = threading.Lock()

    def do_HEAD(self) -> None:
        self.do_GET(has_body=False)

    def do_GET(self, has_body: bool = True) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/-/counts":
            with self.lock:
                body = json.dumps(self.counts).encode()
                self.counts.update(requests=0, bytes=0)
            self._send(200, body, {})
            return
        with self.lock:
            self.counts["requests"] += 1
        query = parse_qs(parts.query, keep_blank_values=True)
        path = self.root / unquote(parts.path).strip("/")
        if "list-type" in query or (path.is_dir() and path.parent == self.root):
            self._send(200, self._list(path, query.get("prefix", [""])[0]), {}, has_body)
        elif path.is_file():
            self._send_file(path, has_body)
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", {}, has_body)

    def _list(self, bucket: Path, prefix: str) -> bytes:
        entries = [
            f"<Contents><Key>{escape(key)}</Key><Size>{file.stat().st_size}</Size>"
            f"<ETag>&quot;{file.stat().st_mtime_ns:x}&quot;</ETag><StorageClass>STANDARD"
            "</StorageClass><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for file in sorted(bucket.rglob("*"))
            if file.is_file() and (key := str(file.relative_to(bucket))).startswith(prefix)
        ]
        head = f"<Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix>"
        head += f"<KeyCount>{len(entries)}</KeyCount><IsTruncated>false</IsTruncated>"
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        return f"<ListBucketResult {space}>{head}{''.join(entries)}</ListBucketResult>".encode()

    def _send_file(self, path: Path, has_body: bool) -> None:
        size = path.stat().st_size
        first, last, status = 0, size - 1, 200
        if wanted := self.headers.get("Range"):
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first = int(begin) if begin else max(0, size - int(end))
            last = min(int(end), size - 1) if end and begin else size - 1
            status = 206
        headers = {
            "ETag": f'"{path.stat().st_mtime_ns:x}"', "Accept-Ranges": "bytes",
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }  # fmt: skip
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        with path.open("rb") as file:
            file.seek(first)
            body = file.read(last - first + 1) if has_body else b""
        self._send(status, body, headers, has_body, last - first + 1)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], has_body: bool = True,
        length: int | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if has_body:
            with self.lock:
                self.counts["bytes"] += len(body)
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print no line for a request."""


def main() -> None:
    Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""An S3-compatible server (moto) on this machine, for tests of data behind URLs."""

from __future__ import annotations

import logging
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.storage.remote.options import Remote
from seqdata_testing import ConformanceError

KEYS = {"key": "testing", "secret": "testing"}
"""Credentials of a server."""
_READ = re.compile("GET /[^/]+/.")


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3-compatible server.

    Attributes:
        host: Its address.
        port: Its port.
        requests: Method and path of each request so far, such as ``GET /bucket/data/x.csv``.
    """

    host: str
    port: int
    requests: list[str] = field(default_factory=list)

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options of fsspec's file system."""
        return {**KEYS, "endpoint_url": f"http://{self.host}:{self.port}"}

    def enter_environment(self) -> dict[str, str]:
        """Return environment variables that select the server, and clear the cache of fsspec.

        fsspec caches the file system that was made without options, whose server may have ended.
        """
        import fsspec

        fsspec.get_filesystem_class("s3").clear_instance_cache()
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        keys = dict(zip(names, KEYS.values(), strict=True))
        return {**keys, "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}"}

    def list_read(self) -> list[str]:
        """Return the sorted paths of the objects read since the last call; clear ``requests``."""
        found = [request.split("/", 2)[2] for request in self.requests if _READ.match(request)]
        self.requests.clear()
        return sorted(found)

    def remote(self, cache_dir: Path, **options: Any) -> Remote:
        """Return options for reading URLs of the server."""
        return Remote(cache_dir=cache_dir, storage_options=self.storage_options, **options)

    @property
    def filesystem(self) -> Any:
        """File system of fsspec, to change objects on the server."""
        import fsspec

        return fsspec.filesystem("s3", **self.storage_options)

    def upload(self, folder: Path) -> str:
        """Copy a folder into a new bucket, and return its URL."""
        system = self.filesystem
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        system.mkdir(bucket)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                system.pipe_file(f"{bucket}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{bucket}"


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Run an S3-compatible server (moto) on a free port of this machine until the end of the block.

    Yields:
        The server, to upload data to and to read the requests from.

    Examples:
        >>> with serve_s3() as server:  # doctest: +SKIP
        ...     url = server.upload(tmp_path / "data")
        ...     store = open_store(url, remote=server.remote(tmp_path / "cache"))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import ThreadedMotoServer
    log = logging.getLogger("werkzeug")
    level = log.level
    log.setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    made = S3Server(*server.get_host_and_port())
    running: Any = server._server
    running.app = _record(running.app, made.requests)
    try:
        yield made
    finally:
        server.stop()
        log.setLevel(level)


def _record(app: Any, requests: list[str]) -> Any:
    """Return a WSGI application that records each request, and then calls ``app``."""

    def answer(environ: Any, start_response: Any) -> Any:
        requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        return app(environ, start_response)

    return answer


def check_equal_batches(found: Any, expected: Any) -> None:
    """Check that two loaders deliver the same batches, bit for bit.

    Raises:
        ConformanceError: If a batch differs.
    """
    count = 0
    for one, other in zip(found, expected, strict=True):
        if list(one.keys()) != list(other.keys()):
            raise ConformanceError(f"batch {count} has {list(one)}, but must have {list(other)}")
        for name in one:
            left, right = (np.asarray(batch[name]) for batch in (one, other))
            if left.dtype != right.dtype or left.tobytes() != right.tobytes():
                raise ConformanceError(
                    f"batch {count}: {name!r} must equal that of the other loader, but differs"
                )
        count += 1
    if not count:
        raise ConformanceError("there must be at least one batch, but there is none")

"""The files of remote folders over fsspec, and the threads that requests run in.

``make_remote_files`` returns the files of a folder, which can be pickled, and used in threads and
after a fork::

    files = make_remote_files("s3://bucket/data", Remote())
    stat = files.stat("part-00000.tar")  # size, and a tag that changes with the content
    head = files.read("part-00000.tar", 0, 512)  # these bytes, or an error
    cached = make_cache(files).acquire(CacheRequest("part-00000.tar"))  # the whole file
    cached.mapping  # its mapped bytes; not evicted while `cached` lives

Failed requests are retried if that may help (``retry``), within ``Remote.retry_seconds``; errors
name the file without credentials.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from seqdata.errors import ConfigError, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.http_client import (
    WrongBodyError,
    check_first_byte,
    make_guarded_client,
)
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import (
    FileStat,
    ListedFile,
    RemoteFiles,
    WritableFiles,
)
from seqdata.storage.remote.retry import (
    ShortBodyError,
    find_causes,
    find_reason,
    make_changed_error,
    retry,
)
from seqdata.storage.remote.urls import (
    PACKAGES,
    WEB,
    check_url,
    encode_url,
    join_url,
    redact_url,
    split_url,
)


def make_filesystem(scheme: str, url: str, remote: Remote) -> tuple[Any, str]:
    """Return fsspec's file system of this process, and a path in it; fsspec caches them by pid.

    It is not the one that users of fsspec share, which keeps the listings that they make: what is
    asked of a file must be asked of the server.

    Raises:
        ConfigError: If a package is not installed, or does not accept the options.
    """
    import fsspec
    from fsspec.core import url_to_fs

    package = PACKAGES[scheme]
    _reset_dead_event_loop()
    try:
        importlib.import_module(package)
        fsspec.get_filesystem_class(scheme)
        options = dict(remote.storage_options)
        if scheme in WEB:
            options.setdefault("get_client", make_guarded_client)
        elif scheme in _LISTING_SCHEMES:
            options["use_listings_cache"] = False
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise ConfigError(
            f"{redact_url(url)}: {scheme}:// needs the package {package!r}, which is not "
            f"installed. Run: pip install {package}"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        names = ", ".join(remote.storage_options) or "none"
        raise ConfigError(
            f"{redact_url(url)}: `storage_options` must be what {package} accepts for "
            f"{scheme}://, but are {names} ({type(error).__name__}). See its documentation"
        ) from None  # their text may contain credentials
    return system, path


def start_filesystem(system: Any) -> None:
    """Create the client of a file system now, so that no request's timeout has to include it."""
    from fsspec.asyn import AsyncFileSystem, sync

    start = getattr(system, "set_session", None)
    if isinstance(system, AsyncFileSystem) and start is not None:
        sync(system.loop, start, timeout=_START_SECONDS)


def _reset_dead_event_loop() -> None:
    """Make fsspec start a new event loop in a forked process; only newer releases do so themselves.

    The copied loop has no thread; a call to it would never return.
    """
    from fsspec.asyn import iothread, reset_lock

    thread = iothread[0]
    if thread is not None and not thread.is_alive():
        reset_lock()


def keep_alive(system: Any) -> None:
    """Leak one reference to a file system, so that it is never finalized in a forked process.

    In a forked process fsspec drops its copied file systems; their finalizer would remove the
    connections from the event loop that both processes share, and the child would wait for
    responses that never arrive.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(system))


T = TypeVar("T")
ResultT = TypeVar("ResultT")
_TAGS = (
    "ETag", "etag", "md5Hash", "Content-MD5", "content_md5", "generation", "blob_id", "sha256",
    "LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created",
)  # fmt: skip
_LISTING_SCHEMES = ("s3", "gs", "gcs", "az", "abfs")  # their file systems keep listings
_START_SECONDS = 120.0  # to load a client's code and to find credentials
_MOST_PATHS = 4096  # paths that are kept: a folder may hold very many files
SMALLEST_REQUEST = 64 << 10
"""Bytes of a request after a timeout: fewer in ``stall_seconds`` count as no progress."""
_UNLIMITED = 1 << 62
_QUICK = 0.25  # share of the timeout: twice the bytes then need half of it, if nothing changes
_TIME_TAGS = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created")


def make_remote_files(folder: str, remote: Remote) -> RemoteFiles:
    """Return the files of a remote folder.

    Args:
        folder: Its URL.
        remote: The options for reading.

    Raises:
        ConfigError: If its scheme is unknown, or a package that it needs is not installed.
    """
    return FsspecFiles(folder, remote)


def make_writable_files(folder: str, remote: Remote) -> WritableFiles:
    """Return the files of a remote folder, to write to.

    Raises:
        ConfigError: As ``make_remote_files``; or if it is a web address.
    """
    if check_url(folder) in WEB:
        raise ConfigError(
            f"{redact_url(folder)}: must be a location that can be written to, but is a web "
            "address. Write to a bucket, or to a folder and upload it"
        )
    return FsspecFiles(folder, remote)


def make_remote_file(url: str, remote: Remote) -> tuple[RemoteFiles, str]:
    """Return the folder of a remote file, and the name of the file."""
    folder, name = split_url(url)
    return make_remote_files(folder, remote), name


class RequestSizes:
    """The number of bytes that one request to a server asks for; threads share it.

    All requests of a process share its link, so that a large range may need longer than
    ``Remote.stall_seconds`` although bytes arrive all the time. After a timeout, ranges are read in
    small pieces, which grow again as long as they arrive quickly. Each piece that arrives is
    progress.

    Args:
        timeout: Timeout of a request in seconds.
    """

    __slots__ = ("_timeout", "max_bytes")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.max_bytes = _UNLIMITED

    def shrink(self) -> None:
        """Make requests small after a timeout."""
        self.max_bytes = SMALLEST_REQUEST

    def grow(self, size: int, seconds: float) -> None:
        """Make requests larger after a quick one.

        Args:
            size: Its bytes.
            seconds: Its seconds.
        """
        if seconds <= self._timeout * _QUICK:
            self.max_bytes = max(self.max_bytes, 2 * size)


class FsspecFiles:
    """The files of a folder, over fsspec. Created by ``make_remote_files``.

    Args:
        folder: Its URL.
        remote: The options for reading.
    """

    __slots__ = (
        "_folder",
        "_folders",
        "_location",
        "_paths",
        "_remote",
        "_request_sizes",
        "_scheme",
        "_system",
    )

    def __init__(self, folder: str, remote: Remote) -> None:
        self._scheme = check_url(folder)
        folder = f"{self._scheme}{folder[len(self._scheme) :]}"  # in lower case
        self._folder = folder
        self._folders: list[str] | None = None  # of the last listing
        self._location = redact_url(folder)
        self._remote = remote
        self._request_sizes = RequestSizes(remote.stall_seconds)
        self._system: Any = None
        self._paths: tuple[int, dict[str, tuple[Any, str]]] = (os.getpid(), {})
        make_filesystem(self._scheme, encode_url(folder), remote)  # may raise

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecFiles, (self._folder, self._remote)

    def __repr__(self) -> str:
        return f"FsspecFiles({self._location!r})"

    @property
    def location(self) -> str:
        """The folder for messages, without credentials."""
        return self._location

    @property
    def remote(self) -> Remote:
        """The options for reading."""
        return self._remote

    def url(self, name: str) -> str:
        """Return the full URL of a file, which may contain secrets."""
        return join_url(self._folder, name)

    def sizes(self) -> dict[str, int | None]:
        """Return the files in the folder with their bytes; see ``RemoteFiles``."""

        def call(seconds: float) -> dict[str, int | None]:
            system, path = self._get_filesystem()
            system.invalidate_cache()
            found = call_filesystem(system, "ls", (path,), seconds, detail=True)
            system.invalidate_cache()  # otherwise the cache would be asked
            files = [info for info in found if info.get("type") == "file"]
            folders = [info["name"] for info in found if info.get("type") == "directory"]
            folders = [] if self._scheme in WEB else folders  # links of a page may lead anywhere
            self._folders = sorted(self._find_name(path.rstrip("/")) for path in folders)
            return {self._find_name(info["name"]): info.get("size") for info in files}

        found = retry(call, DataLocation(dataset=self._location), self._remote)
        return {name: found[name] for name in sorted(found)}

    def names(self) -> list[str]:
        """Return the names of the files in the folder; see ``RemoteFiles``."""
        return list(self.sizes())

    def folders(self) -> list[str]:
        """Return the names of the folders in the folder; see ``RemoteFiles``."""
        if self._folders is None:
            self.sizes()
        return list(self._folders or ())

    def walk(self) -> dict[str, ListedFile]:
        """Return all files below the folder; see ``RemoteFiles``."""
        location = DataLocation(dataset=self._location)
        if self._scheme in WEB:
            raise location.make_error(
                MissingShardError,
                "must be the URL of a file, but is not, and a web server lists no folder. Name the "
                "files by braces: 'https://host/part-{000..017}.parquet'",
            )

        def call(seconds: float) -> dict[str, ListedFile]:
            del seconds  # a listing may have many pages: the transport bounds each of its requests
            system, path = self._get_filesystem()
            system.invalidate_cache()
            found = call_filesystem(system, "find", (path,), None, detail=True)
            system.invalidate_cache()  # otherwise the cache would be asked
            start = f"{path.rstrip('/')}/"
            return {
                name.removeprefix(start): ListedFile(_parse_info(info, location), _parse_time(info))
                for name, info in found.items()
                if info.get("type") == "file" and name.startswith(start) and name[-1] != "/"
            }

        return retry(call, location, self._remote)

    def stat(self, name: str, location: DataLocation | None = None) -> FileStat:
        """Return size and tag of a file; see ``RemoteFiles``."""
        file_location = self._locate(name, location)

        def call(seconds: float) -> FileStat:
            system, path = self._get_filesystem(name)
            return _parse_info(call_filesystem(system, "info", (path,), seconds), file_location)

        return retry(call, file_location, self._remote)

    def read(self, name: str, start: int, stop: int, location: DataLocation | None = None) -> bytes:
        """Return bytes ``start:stop`` of a file; see ``RemoteFiles``."""
        if start >= stop:
            return b""
        file_location = replace(self._locate(name, location), offset=start, length=stop - start)

        def call(seconds: float) -> bytes:
            system, path = self._get_filesystem(name)
            end, begun = min(stop, at + self._request_sizes.max_bytes), time.monotonic()
            try:
                if self._scheme == "s3":
                    body: bytes = _read_s3(system, path, at, end, seconds)
                else:
                    body = call_filesystem(system, "cat_file", (path,), seconds, start=at, end=end)
            except TimeoutError:
                self._request_sizes.shrink()
                raise
            if len(body) != end - at:
                raise ShortBodyError(f"{len(body)} of {end - at} bytes were received")
            self._request_sizes.grow(len(body), time.monotonic() - begun)
            return body

        pieces, at = [], start
        while at < stop:  # ends: each piece arrives within ``Remote.retry_seconds``
            pieces.append(retry(call, file_location, self._remote))
            at += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check_same(self, name: str, stat: FileStat, location: DataLocation | None = None) -> None:
        """Raise if a file was replaced; see ``RemoteFiles``."""
        if self.stat(name, location) != stat:
            raise make_changed_error(self._locate(name, location))

    def upload(self, name: str, path: Path) -> FileStat:
        """Upload a local file; see ``WritableFiles``."""
        location, size = self._locate(name, None), path.stat().st_size

        def call(seconds: float) -> FileStat:
            del seconds  # a shard may take long: the transport bounds each of its requests
            system, remote_path = self._get_filesystem(name)
            call_filesystem(system, "put_file", (str(path), remote_path), None)
            stat = _parse_info(
                call_filesystem(system, "info", (remote_path,), self._remote.stall_seconds),
                location,
            )
            if stat.size != size:
                raise ShortBodyError(f"{stat.size} of {size} bytes were stored")
            return stat

        return retry(call, location, self._remote, action="written")

    def create(self, name: str, content: bytes) -> None:
        """Create a file that does not exist yet; see ``WritableFiles``."""
        location = self._locate(name, None)

        def call(seconds: float) -> bool:
            system, path = self._get_filesystem(name)
            try:
                call_filesystem(system, "pipe_file", (path, content), seconds, mode="create")
            except FileExistsError:  # an earlier attempt may have created it
                return bool(call_filesystem(system, "cat_file", (path,), seconds) == content)
            return True

        if not retry(call, location, self._remote, action="written"):
            raise ConfigError(
                f"{location}: must not exist, but was created by another writer in the meantime. "
                "Choose another location, or pass `overwrite=True`"
            )

    def remove(self, name: str) -> None:
        """Remove a file if it exists; see ``WritableFiles``."""

        def call(seconds: float) -> None:
            system, path = self._get_filesystem(name)
            try:
                call_filesystem(system, "rm_file", (path,), seconds)
            except FileNotFoundError as error:
                if find_reason(error, find_causes(error)) is not None:
                    raise

        retry(call, self._locate(name, None), self._remote, action="removed")

    def _get_filesystem(self, name: str = "") -> tuple[Any, str]:
        """Return the file system of this process, and the path of a file in it; "": the folder."""
        process, paths = self._paths
        if process != os.getpid():  # a forked process must not use connections of its parent
            self._paths = _, paths = os.getpid(), {}
        found = paths.get(name)
        if found is None:
            if "::" in name and self._scheme not in WEB:  # fsspec takes it for a chain
                system, folder = self._get_filesystem()
                path = f"{folder.rstrip('/')}/{name}"
            else:
                url = self.url(name) if name else self._folder
                system, path = make_filesystem(self._scheme, encode_url(url), self._remote)
            if system is not self._system:
                start_filesystem(system)
                keep_alive(system)
                self._system = system
            if len(paths) >= _MOST_PATHS:
                paths.clear()
            paths[name] = found = system, path
        return found

    def _find_name(self, listed: str) -> str:
        """Return the name of a file as it is on a disk, from that of the file system."""
        name = redact_url(listed).rpartition("/")[2]
        return unquote(name) if self._scheme in WEB else name

    def _locate(self, name: str, location: DataLocation | None) -> DataLocation:
        return DataLocation(dataset=self._location, file=name) if location is None else location


def call_filesystem(
    system: Any, name: str, arguments: Sequence[Any], seconds: float | None, **more: Any
) -> Any:
    """Call a method of a file system, with a timeout in seconds if it is asynchronous."""
    from fsspec.asyn import AsyncFileSystem, sync

    if not isinstance(system, AsyncFileSystem):
        return getattr(system, name)(*arguments, **more)
    return sync(system.loop, getattr(system, f"_{name}"), *arguments, timeout=seconds, **more)


def _read_s3(system: Any, path: str, start: int, stop: int, seconds: float) -> bytes:
    """Return bytes ``start:stop`` of an object of S3; ``s3fs`` does not check which ones came.

    Args:
        system: The file system of ``s3fs``.
        path: Bucket and key, maybe with a version.
        start: First byte.
        stop: One past the last byte.
        seconds: Timeout.

    Raises:
        WrongBodyError: If the answer has other bytes.
    """
    from fsspec.asyn import sync

    body: bytes = sync(system.loop, _request_s3, system, path, start, stop, timeout=seconds)
    return body


async def _request_s3(system: Any, path: str, start: int, stop: int) -> bytes:
    bucket, key, version = system.split_path(path)
    answer = await system._call_s3(
        "get_object",
        Bucket=bucket,
        Key=key,
        Range=f"bytes={start}-{stop - 1}",
        **({} if version is None else {"VersionId": version}),
    )
    try:
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        check_first_byte(status, answer.get("ContentRange", ""), start)
        if answer["ContentLength"] > stop - start:  # it is not downloaded
            raise WrongBodyError(f"{stop - start} bytes were requested, but more were received")
        body: bytes = await answer["Body"].read()
    finally:
        answer["Body"].close()
    return body


def _parse_info(info: dict[str, Any], location: DataLocation) -> FileStat:
    size = info.get("size")
    if info.get("type", "file") != "file":
        raise location.make_error(
            MissingShardError, ("must be a file, but is a folder. Check the path")
        )
    if not isinstance(size, int):
        raise ConfigError(
            f"{location}: the server must send the size of the file (Content-Length), but does "
            "not. Use another server"
        )
    tags = {name: str(info[name]) for name in _TAGS if info.get(name) is not None}
    content_tags = {name: value for name, value in tags.items() if name not in _TIME_TAGS}
    chosen = content_tags or tags
    tag = hashlib.sha256(repr(sorted(chosen.items())).encode()).hexdigest()[:32]
    return FileStat(size, tag if chosen else None)


def _parse_time(info: dict[str, Any]) -> float | None:
    """Return when a file was last written; None if that is not known."""
    found = next((info[name] for name in _TIME_TAGS if info.get(name) is not None), None)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else None


class ForkSafeThreadPool:
    """A thread pool of this process, started at first use.

    Args:
        max_workers: Threads.
    """

    __slots__ = ("_lock", "_max_workers", "_pid", "_pool")

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1
        self._lock = threading.Lock()

    def map(self, function: Callable[[T], ResultT], items: Iterable[T]) -> list[ResultT]:
        """Return a function's results in order; raise the first error when all calls have ended."""
        all_items = list(items)
        if len(all_items) < 2:
            return [function(item) for item in all_items]
        pool = self._get_pool()
        futures = [pool.submit(function, item) for item in all_items]
        results, first_error = [], None
        for future in futures:
            try:
                results.append(future.result())  # ends: every request has a timeout
            except Exception as error:
                first_error = first_error or error
                for pending in futures:
                    pending.cancel()
        if first_error is not None:
            raise first_error
        return results

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function in the pool."""
        return self._get_pool().submit(function, *arguments)

    def _get_pool(self) -> ThreadPoolExecutor:
        # a forked process has none of the threads, and maybe a held lock
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._max_workers, "seqdata-remote")
            return self._pool

"""Remote files: their sizes, their bytes, and whether they are still the same ones.

This is the interface that backends use, in the core and in plugins. ``make_remote_files`` gives the
files of a folder, over fsspec; it may be pickled, used in threads, and after a fork::

    files = make_remote_files("s3://bucket/data", Remote())
    stat = files.stat("part-00000.tar")              # size, and a tag that changes with the content
    head = files.read("part-00000.tar", 0, 512)      # just these bytes, all of them or an error
    held = make_cache(files).hold(Wanted("part-00000.tar"))    # the whole file, through the cache
    held.mapping                                     # its bytes, mapped; held for as long as `held`

Every request is tried again where that may help (``trying``), within ``Remote.retry_seconds``;
errors name the file without credentials.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from seqdata.errors import ConfigError, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.redirects import make_guarded_client
from seqdata.storage.remote.retry import ShortBodyError, make_changed_error, retry
from seqdata.storage.remote.urls import PACKAGES, WEB, check_url, join_url, redact_url, split_url

_TAGS = (
    "ETag", "etag", "md5Hash", "Content-MD5", "content_md5", "generation", "blob_id", "sha256",
    "LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created",
)  # fmt: skip
_TIME_TAGS = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created")


@dataclass(frozen=True, slots=True)
class FileStat:
    """What is known of a remote file.

    Attributes:
        size: Its bytes.
        tag: Changes when it is replaced (32 hex digits); None: the transport tells nothing.
    """

    size: int
    tag: str | None


@runtime_checkable
class RemoteFiles(Protocol):
    """The files of one remote folder."""

    @property
    def location(self) -> str:
        """The folder, for people: no credentials."""
        ...

    @property
    def remote(self) -> Remote:
        """How they are read."""
        ...

    def sizes(self) -> dict[str, int | None]:
        """Return the files in the folder by name, with their bytes where the listing tells them.

        Raises:
            MissingShardError: If there is no such folder, or it cannot be listed (web servers).
            RemoteReadError: If it cannot be asked for.
        """
        ...

    def names(self) -> list[str]:
        """Return the names of the files in the folder, in order; see ``sizes``."""
        ...

    def stat(self, name: str, location: DataLocation | None = None) -> FileStat:
        """Return size and tag of a file.

        Args:
            name: Of the file.
            location: The same, for errors; None: its name.

        Raises:
            MissingShardError: If it is not there.
            RemoteReadError: If it cannot be asked for.
        """
        ...

    def read(self, name: str, start: int, stop: int, location: DataLocation | None = None) -> bytes:
        """Return bytes ``start:stop`` of a file: all of them.

        Raises:
            MissingShardError: If it is not there.
            RemoteReadError: If they cannot be read, or there are fewer.
        """
        ...

    def check_same(self, name: str, stat: FileStat, location: DataLocation | None = None) -> None:
        """Look whether a file is still the one that it was.

        Raises:
            FingerprintMismatch: If it is another.
        """
        ...

    def url(self, name: str) -> str:
        """Return the whole URL of a file, with what may be secret."""
        ...


class WritableFiles(RemoteFiles, Protocol):
    """The files of a remote folder that can be written to."""

    def upload(self, name: str, path: Path) -> FileStat:
        """Send a local file; it is there as a whole or not at all.

        Raises:
            RemoteReadError: If it cannot be sent.
        """
        ...

    def create(self, name: str, content: bytes) -> None:
        """Make a file that is not there yet.

        Raises:
            ConfigError: If somebody else has made it.
            RemoteReadError: If it cannot be sent.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


def make_remote_files(folder: str, remote: Remote) -> RemoteFiles:
    """Return the files of a remote folder.

    Args:
        folder: Its URL.
        remote: How it is read.

    Raises:
        ConfigError: If its scheme is not known, or what it needs is not installed.
    """
    return FsspecFiles(folder, remote)


def make_writable_files(folder: str, remote: Remote) -> WritableFiles:
    """Return the files of a remote folder, to write to.

    Raises:
        ConfigError: As ``make_remote_files``; or if it is a web address.
    """
    if check_url(folder) in WEB:
        raise ConfigError(
            f"{redact_url(folder)}: is a web address, must be a location that can be written to; "
            "write "
            "to a bucket, or to a folder and upload it"
        )
    return FsspecFiles(folder, remote)


def make_remote_file(url: str, remote: Remote) -> tuple[RemoteFiles, str]:
    """Return the files of the folder that a remote file lies in, and its name."""
    folder, name = split_url(url)
    return make_remote_files(folder, remote), name


class FsspecFiles:
    """The files of a folder, over fsspec. Made by ``make_remote_files``.

    Args:
        folder: Its URL.
        remote: How it is read.
    """

    __slots__ = ("_folder", "_location", "_remote", "_scheme", "_system")

    def __init__(self, folder: str, remote: Remote) -> None:
        self._scheme = check_url(folder)
        self._folder = folder
        self._location = redact_url(folder)
        self._remote = remote
        self._system: Any = None
        self._get_filesystem(folder)  # what is not installed is said now

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecFiles, (self._folder, self._remote)

    def __repr__(self) -> str:
        return f"FsspecFiles({self._location!r})"

    @property
    def location(self) -> str:
        """The folder, for people: no credentials."""
        return self._location

    @property
    def remote(self) -> Remote:
        """How they are read."""
        return self._remote

    def url(self, name: str) -> str:
        """Return the whole URL of a file, with what may be secret."""
        return join_url(self._folder, name)

    def sizes(self) -> dict[str, int | None]:
        """Return the files in the folder with their bytes; see ``RemoteFiles``."""

        def call(seconds: float) -> dict[str, int | None]:
            system, path = self._get_filesystem(self._folder)
            system.invalidate_cache()
            found = _call_filesystem(system, "ls", (path,), seconds, detail=True)
            system.invalidate_cache()  # or it would be asked instead of the server
            files = [one for one in found if one.get("type") == "file"]
            return {redact_url(one["name"]).rpartition("/")[2]: one.get("size") for one in files}

        found = retry(call, DataLocation(dataset=self._location), self._remote)
        return {name: found[name] for name in sorted(found)}

    def names(self) -> list[str]:
        """Return the names of the files in the folder; see ``RemoteFiles``."""
        return list(self.sizes())

    def stat(self, name: str, location: DataLocation | None = None) -> FileStat:
        """Return size and tag of a file; see ``RemoteFiles``."""
        url, file_location = self.url(name), self._locate(name, location)

        def call(seconds: float) -> FileStat:
            system, path = self._get_filesystem(url)
            return _parse_info(_call_filesystem(system, "info", (path,), seconds), file_location)

        return retry(call, file_location, self._remote)

    def read(self, name: str, start: int, stop: int, location: DataLocation | None = None) -> bytes:
        """Return bytes ``start:stop`` of a file; see ``RemoteFiles``."""
        if start >= stop:
            return b""
        url = self.url(name)
        file_location = replace(self._locate(name, location), offset=start, length=stop - start)

        def call(seconds: float) -> bytes:
            system, path = self._get_filesystem(url)
            body: bytes = _call_filesystem(
                system, "cat_file", (path,), seconds, start=start, end=stop
            )
            if len(body) != stop - start:
                raise ShortBodyError(f"{len(body)} of {stop - start} bytes came")
            return body

        return retry(call, file_location, self._remote)

    def check_same(self, name: str, stat: FileStat, location: DataLocation | None = None) -> None:
        """Look whether a file is still the one that it was; see ``RemoteFiles``."""
        if self.stat(name, location) != stat:
            raise make_changed_error(self._locate(name, location))

    def upload(self, name: str, path: Path) -> FileStat:
        """Send a local file; see ``WritableFiles``."""
        url, location, size = self.url(name), self._locate(name, None), path.stat().st_size

        def call(seconds: float) -> FileStat:
            del seconds  # a shard may take long: each of its requests has the transport's bound
            system, there = self._get_filesystem(url)
            _call_filesystem(system, "put_file", (str(path), there), None)
            stat = _parse_info(
                _call_filesystem(system, "info", (there,), self._remote.stall_seconds), location
            )
            if stat.size != size:
                raise ShortBodyError(f"{stat.size} of {size} bytes were taken")
            return stat

        return retry(call, location, self._remote, action="written")

    def create(self, name: str, content: bytes) -> None:
        """Make a file that is not there yet; see ``WritableFiles``."""
        url, location = self.url(name), self._locate(name, None)

        def call(seconds: float) -> bool:
            system, path = self._get_filesystem(url)
            try:
                _call_filesystem(system, "pipe_file", (path, content), seconds, mode="create")
            except FileExistsError:  # it may be what an earlier try has made
                return bool(_call_filesystem(system, "cat_file", (path,), seconds) == content)
            return True

        if not retry(call, location, self._remote, action="written"):
            raise ConfigError(
                f"{location}: was made by another writer meanwhile, must not be there; choose "
                "another "
                "location, or pass `overwrite`=True"
            )

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; see ``WritableFiles``."""
        url = self.url(name)

        def call(seconds: float) -> None:
            system, path = self._get_filesystem(url)
            try:
                _call_filesystem(system, "rm_file", (path,), seconds)
            except FileNotFoundError:
                return

        retry(call, self._locate(name, None), self._remote, action="removed")

    def _get_filesystem(self, url: str) -> tuple[Any, str]:
        """Return the file system of this process, and a path in it."""
        system, path = _make_filesystem(self._scheme, url, self._remote)
        if system is not self._system:
            self._system = system
            _keep_alive(system)
        return system, path

    def _locate(self, name: str, location: DataLocation | None) -> DataLocation:
        return DataLocation(dataset=self._location, file=name) if location is None else location


def _make_filesystem(scheme: str, url: str, remote: Remote) -> tuple[Any, str]:
    """Return fsspec's file system of this process, and a path in it; fsspec keeps them by pid.

    Raises:
        ConfigError: If what it needs is not installed, or it does not take the options.
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
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise ConfigError(
            f"{redact_url(url)}: {scheme}:// needs the package {package!r}, which is not "
            "installed; "
            f"pip install {package}"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        names = ", ".join(remote.storage_options) or "none"
        raise ConfigError(
            f"{redact_url(url)}: `storage_options` ({names}) cannot be meant for {scheme}:// "
            f"({type(error).__name__}), must be what {package} takes; see its documentation"
        ) from None  # their text may hold credentials
    return system, path


def _reset_dead_event_loop() -> None:
    """Let fsspec begin a new event loop in a forked process; only newer releases do by themselves.

    The one that was copied has no thread, and would be waited for without end.
    """
    from fsspec.asyn import iothread, reset_lock

    thread = iothread[0]
    if thread is not None and not thread.is_alive():
        reset_lock()


def _keep_alive(system: Any) -> None:
    """Let a file system live for ever, as fsspec's own cache does but for a fork.

    In a forked process fsspec drops what was copied; at its end it would take its connections out
    of the event loop that both processes have, and the one that was forked would wait for answers
    that it is never told of.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(system))


def _call_filesystem(
    system: Any, name: str, arguments: Sequence[Any], seconds: float | None, **more: Any
) -> Any:
    """Call a method of a file system, for so many seconds at most where it is asynchronous."""
    from fsspec.asyn import AsyncFileSystem, sync

    if not isinstance(system, AsyncFileSystem):
        return getattr(system, name)(*arguments, **more)
    return sync(system.loop, getattr(system, f"_{name}"), *arguments, timeout=seconds, **more)


def _parse_info(info: dict[str, Any], location: DataLocation) -> FileStat:
    size = info.get("size")
    if info.get("type", "file") != "file":
        raise location.make_error(MissingShardError, "is a folder, must be a file; check the path")
    if not isinstance(size, int):
        raise ConfigError(
            f"{location}: the server tells no size, must tell one (Content-Length); serve the "
            "files "
            "by another server"
        )
    tags = {name: str(info[name]) for name in _TAGS if info.get(name) is not None}
    content_tags = {name: value for name, value in tags.items() if name not in _TIME_TAGS}
    chosen = content_tags or tags
    tag = hashlib.sha256(repr(sorted(chosen.items())).encode()).hexdigest()[:32]
    return FileStat(size, tag if chosen else None)

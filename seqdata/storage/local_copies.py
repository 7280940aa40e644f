"""Copies of remote files that are read by their names: tables and texts, which are read as a whole.

Files are fetched through the cache, once, and get second names (hard links) in a folder of copies
that is laid out as they are behind their URLs. So local readers find them by their own rules, and
folders, globs and Hive partitions mean what they mean on a disk. A folder of copies is of one
version of all files, complete or not there, and locked for as long as it is read::

    copies = fetch_copies("s3://bucket/sales/", remote, choose=find_files_to_read)
    with copies.explain():  # errors name URLs
        read(copies.path)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from seqdata.errors import CacheError, ConfigError, DataError, MissingShardError, SeqDataError
from seqdata.storage.braces import JOINED, expand_location, split_location
from seqdata.storage.data_location import DataLocation
from seqdata.storage.find_files import FoundFiles, is_pattern
from seqdata.storage.foreign.file_discovery import MAX_STATE_BYTES, STATE_FILE
from seqdata.storage.local_files import is_remote, refuse_remote
from seqdata.storage.remote.cache_folder import (
    CopiesLock,
    lock_copies,
    make_folder_error,
    remove_unused_copies,
)
from seqdata.storage.remote.copy_digests import is_intact
from seqdata.storage.remote.file_cache import (
    CacheFullError,
    CacheRequest,
    FileCache,
    log_damage,
    make_cache,
)
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles, check_name
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.remote.urls import WEB, check_url, identify_url, redact_url, split_url
from seqdata.storage.split_names import DATASET_DICT
from seqdata.storage.writing.progress import progress_bar

Choose = Callable[[str], Iterable[Path]]
"""``choose(path)`` returns the files at ``path`` that are read.

They are placeholders: empty files with the names of the remote ones.
"""
_MAGIC = re.compile(r"[*?\[]")
_READ_FIRST = (STATE_FILE, DATASET_DICT)  # small files by which others are chosen
_MOST_FILES = 1 << 20
_DIGESTS = ".sha256"  # name of the file of the copies' digests, in their folder
_MAX_TRIES = 100  # attempts, if folders of the cache are removed in between
_LOG = logging.getLogger("seqdata.remote")


@dataclass(frozen=True, slots=True, eq=False)
class LocalCopies:
    """Copies of remote files, which are kept for as long as this object exists.

    Attributes:
        location: Location of the files, for messages.
        path: Paths for local readers: a file, folder or glob, or several.
        root: The folder of the copies.
        folder: Folder for data that is computed from the files; all their versions share it.
        scheme: Scheme of the URLs.
        versions: Path of each file -> a string that identifies its version.
        lock: Keeps the folder.
    """

    location: str
    path: str
    root: Path
    folder: Path
    scheme: str
    versions: Mapping[Path, str]
    lock: CopiesLock

    def show(self, found: FoundFiles) -> FoundFiles:
        """Return the files that were found in the copies as files of the URL, for messages."""
        return replace(found, url=self.location)

    @contextmanager
    def explain(self) -> Iterator[None]:
        """Replace paths of copies with their URLs in errors raised within the block."""
        with _name_urls(self.root, self.scheme):
            yield

    def hold(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows unchanged; the copies that they are read from are kept until the end."""
        with self.explain():
            yield from rows


def fetch_copies(
    location: str | os.PathLike[str],
    remote: str | Remote | None,
    choose: Choose,
    *,
    progress: bool | None = None,
) -> LocalCopies | None:
    """Return copies of the files at URLs on this machine; missing ones are fetched.

    Args:
        location: A URL of a file or folder, a glob, braces, or several, joined by ``::``.
        remote: The options for reading; None: the defaults.
        choose: Chooses the files that are read, by their names.
        progress: Whether to show a bar; None: on a terminal.

    Returns:
        The copies; None for a location on this machine.

    Raises:
        ConfigError: If the location is invalid, or options are given for a path.
        MissingShardError: If a file is missing.
        RemoteReadError: If a file cannot be read.
        FingerprintMismatch: If a file is replaced while it is fetched.
        CacheError: If the cache has no room, or cannot be used.
        SeqDataError: As ``choose`` does.
    """
    if not is_remote(location):
        refuse_remote(location, remote)
        return None
    options = resolve_remote(remote)
    for _ in range(_MAX_TRIES):
        with _make_skeleton(os.fspath(location), options) as skeleton:
            chosen = skeleton.choose(choose)
            copies = _find_or_make(skeleton, chosen, progress)
            if copies is not None:
                return copies
    raise CacheError.at(
        f"{options.copies}: must exist while files are opened, but is removed repeatedly. Do not "
        "remove it",
        file=str(options.copies),
    )


def list_files(
    location: str | os.PathLike[str], remote: str | Remote | None, choose: Choose
) -> list[str]:
    """Return the names of the files at URLs that a reader chooses; none is fetched.

    Raises:
        SeqDataError: As ``fetch_copies`` does.
    """
    with _make_skeleton(os.fspath(location), resolve_remote(remote)) as skeleton:
        return skeleton.choose(choose)


@dataclass(slots=True, eq=False)
class _Skeleton:
    """Empty files in the layout of remote ones, by whose names those to fetch are chosen.

    Attributes:
        where: The location, for messages.
        scheme: Scheme of its URLs.
        remote: The options for reading.
        root: The folder.
        folder: The folder of all versions of the location.
        lock: Keeps the folder.
        paths: The parts of the location, below the folder.
        files: Path below the folder -> the remote folder of the file, and its name in it.
        stats: Path -> size and tag, of the files that were asked for them.
    """

    where: str
    scheme: str
    remote: Remote
    root: Path
    folder: Path
    lock: CopiesLock
    paths: list[str] = field(default_factory=list)
    files: dict[str, tuple[RemoteFiles, str]] = field(default_factory=dict)
    stats: dict[str, FileStat] = field(default_factory=dict)
    listed: dict[str, FileStat] = field(default_factory=dict)

    def locate(self, path: str) -> DataLocation:
        """Return the location of a remote file, for errors."""
        files, name = self.files[path]
        return DataLocation(dataset=files.location, file=name)

    def add(self, url: str) -> None:
        """Add the files that a URL may mean."""
        folder, files, names, is_listed = _list_url(url, self.remote)
        self.paths.append(_lay_out(url))
        base = _lay_out(folder)
        if len(self.files) + len(names) > _MOST_FILES:
            raise ConfigError(
                f"{self.where}: must have at most {_MOST_FILES} files below the folder, or below "
                "the folder before the first wildcard, but has more. Name a smaller folder"
            )
        stats = self.listed if is_listed else self.stats
        for name, stat in names.items():
            path = f"{base}/{name}".lstrip("/")
            for part in path.split("/"):
                check_name(DataLocation(dataset=files.location, file=name), part)
            self.files[path] = files, name
            stats[path] = stat
            self._write_placeholder(path)

    def _write_placeholder(self, path: str) -> None:
        target = self.root / path
        content = b""
        if target.name in _READ_FIRST:
            files, name = self.files[path]
            size = files.stat(name).size
            content = files.read(name, 0, size) if size <= MAX_STATE_BYTES else b""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise self.locate(path).make_error(
                DataError,
                "must not have the name of a folder, but does. Rename it",
            ) from error
        except OSError as error:
            raise make_folder_error(self.remote.copies, error) from error

    @property
    def path(self) -> str:
        """Location of the copies for local readers."""
        return JOINED.join(str(self.root / path) for path in self.paths)

    def request_stat(self, path: str) -> FileStat:
        """Return size and tag of a file, as its server sends them."""
        if path not in self.stats:
            files, name = self.files[path]
            self.stats[path] = files.stat(name)
        return self.stats[path]

    def choose(self, choose: Choose) -> list[str]:
        """Return the paths of the files that a reader chooses."""
        with _name_urls(self.root, self.scheme):
            found = [path.relative_to(self.root).as_posix() for path in choose(self.path)]
        return list(dict.fromkeys(found))


@contextmanager
def _make_skeleton(location: str, remote: Remote) -> Iterator[_Skeleton]:
    where = redact_url(location)
    urls = _expand(location, where)
    schemes = {check_url(url) for url in urls}
    if len(schemes) > 1:
        raise ConfigError(
            f"{where}: must be URLs of one kind, but are of {', '.join(sorted(schemes))}. Open "
            "them one by one"
        )
    key = hashlib.sha256("\n".join(map(identify_url, urls)).encode()).hexdigest()[:16]
    folder = remote.copies.absolute() / key
    root = folder / f".new-{uuid.uuid4().hex}"
    try:
        root.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise make_folder_error(remote.copies, error) from error
    held = lock_copies(root, create=True)
    if held is None:  # a new folder is removed by its maker only
        raise make_folder_error(remote.copies, FileNotFoundError(0, "it was removed"))
    skeleton = _Skeleton(where, schemes.pop(), remote, root, folder, held)
    try:
        for url in urls:
            skeleton.add(url)
        yield skeleton
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _expand(location: str, where: str) -> list[str]:
    """Return the URLs of a location.

    Raises:
        ConfigError: If some are paths, or braces are not balanced.
    """
    try:
        urls = [url for part in split_location(location) for url in expand_location(part)]
    except ValueError as error:
        raise ConfigError(f"{where}: must have balanced braces, but has {error}") from error
    for url in urls:
        if not is_remote(url):
            raise ConfigError(
                f"{where}: must be URLs only, but {url!r} is a path. Open them one by one"
            )
    return urls


def _list_url(url: str, remote: Remote) -> tuple[str, RemoteFiles, dict[str, FileStat], bool]:
    """Return a folder's URL and files, those that a URL may mean, and whether it was listed."""
    scheme, path = check_url(url), _lay_out(url)
    if scheme not in WEB and is_pattern(path):
        folder = _MAGIC.split(url, maxsplit=1)[0].rpartition("/")[0]
        files = make_remote_files(folder, remote)
        return folder, files, _list_tree(files), True
    if "/" in path or scheme == "memory":  # else it is a bucket
        folder, name = split_url(url)
        files = make_remote_files(folder, remote)
        try:
            return folder, files, {name: files.stat(name)}, False
        except MissingShardError:
            if scheme in WEB:
                raise
    files = make_remote_files(url, remote)
    return url, files, _list_tree(files), True


def _list_tree(files: RemoteFiles) -> dict[str, FileStat]:
    """Return all files below a folder by their paths, in order, as its listing has them."""
    found = files.walk()
    if not found:
        raise DataLocation(dataset=files.location).make_error(
            MissingShardError,
            "is not there. Check the URL",
        )
    return {path: found[path].stat for path in sorted(found)}


def _lay_out(url: str) -> str:
    """Return the path of a URL, without secrets, below a folder of copies."""
    is_web = check_url(url) in WEB
    path = (redact_url(url) if is_web else identify_url(url)).partition("://")[2].strip("/")
    return unquote(path) if is_web else path


def _find_or_make(
    skeleton: _Skeleton, chosen: Sequence[str], progress: bool | None
) -> LocalCopies | None:
    """Return the copies of files; None if another process has removed them in between."""
    pool = ForkSafeThreadPool(skeleton.remote.connections)
    stats = {path: skeleton.stats.get(path) or skeleton.listed[path] for path in chosen}
    final, versions = _name_copies(skeleton, stats)
    held = _lock_complete(skeleton, final, stats, pool)
    if held is None and not _has_same_tags(skeleton, chosen):
        stats = dict(zip(chosen, pool.map(skeleton.request_stat, chosen), strict=True))
        final, versions = _name_copies(skeleton, stats)
        held = _lock_complete(skeleton, final, stats, pool)
    if held is None:
        _fetch(skeleton, stats, pool, progress)
        with suppress(OSError):  # another process has just made it
            os.rename(skeleton.root, final)
        held = lock_copies(final)
        if held is None:
            return None
        size = sum(stat.size for stat in stats.values())
        _LOG.info("%s: %d files, %d bytes, copied to %s", skeleton.where, len(chosen), size, final)
    else:
        _LOG.info("%s: %d files, read from copies in %s", skeleton.where, len(chosen), final)
    while remove_unused_copies(skeleton.folder, exclude=final, depth=1):
        pass  # earlier versions, and what killed processes left
    return LocalCopies(
        skeleton.where,
        JOINED.join(str(final / path) for path in skeleton.paths),
        final,
        skeleton.folder,
        skeleton.scheme,
        {final / path: version for path, version in versions.items()},
        held,
    )


def _name_copies(skeleton: _Skeleton, stats: Mapping[str, FileStat]) -> tuple[Path, dict[str, str]]:
    """Return the folder of the copies of files of some versions, and the versions by path."""
    versions = {path: _identify(skeleton, path, stat) for path, stat in stats.items()}
    digest = hashlib.sha256(repr((sorted(skeleton.files), sorted(versions.items()))).encode())
    return skeleton.folder / digest.hexdigest()[:16], versions


def _lock_complete(
    skeleton: _Skeleton, folder: Path, stats: Mapping[str, FileStat], pool: ForkSafeThreadPool
) -> CopiesLock | None:
    """Return a lock on a folder of copies; None if the folder is missing, or was damaged."""
    held = lock_copies(folder)
    if held is None or _is_complete(skeleton, folder, stats, pool):
        return held
    shutil.rmtree(folder, ignore_errors=True)  # files in it were changed or removed
    return None


def _has_same_tags(skeleton: _Skeleton, chosen: Sequence[str]) -> bool:
    """Return whether servers send the tags of their listings, by one file of each folder."""
    first_of_folder = {
        id(skeleton.files[path][0]): path for path in reversed(chosen) if path not in skeleton.stats
    }
    return all(
        skeleton.request_stat(path) == skeleton.listed[path] for path in first_of_folder.values()
    )


def _identify(skeleton: _Skeleton, path: str, stat: FileStat) -> str:
    files, name = skeleton.files[path]
    text = f"{identify_url(files.url(name))}\0{stat.size}\0{stat.tag}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_complete(
    skeleton: _Skeleton,
    folder: Path,
    stats: Mapping[str, FileStat],
    pool: ForkSafeThreadPool,
) -> bool:
    """Return whether a folder holds all copies, as they were fetched.

    Their bytes are those of the cache, which may have been written to; they are read once per
    process.
    """
    try:
        digests = json.loads((folder / _DIGESTS).read_bytes())
    except (OSError, ValueError):
        return False

    def check(path: str) -> bool:
        try:
            with open(folder / path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                is_same = is_intact(file.fileno(), size, digests.get(path, ""))
        except OSError:
            return False
        if not (is_same and size == stats[path].size):
            log_damage(folder / path, skeleton.locate(path))
            return False
        return True

    return isinstance(digests, dict) and all(pool.map(check, stats))


def _fetch(
    skeleton: _Skeleton,
    stats: Mapping[str, FileStat],
    pool: ForkSafeThreadPool,
    progress: bool | None,
) -> None:
    """Put files in place of empty ones, from the cache, and record their digests."""
    digests: dict[str, str | None] = {}
    remote, total = skeleton.remote, sum(stat.size for stat in stats.values())
    if total > remote.cache_bytes:
        largest = max(stats, key=lambda path: stats[path].size)
        raise _make_full_error(
            skeleton, largest, stats[largest].size,
            f"all {len(stats)} files at once, {total} bytes, but holds {remote.cache_bytes}",
        )  # fmt: skip
    count = _Count()
    with progress_bar(progress, f"fetching {skeleton.where}", total, "files") as bar:

        def link(path: str) -> None:
            files, name = skeleton.files[path]
            cache = make_cache(cast(RemoteFiles, _CountedFiles(files, on_bytes)))
            try:
                digests[path] = _link(cache, CacheRequest(name, stat=stats[path]), skeleton, path)
            except CacheFullError as error:
                raise _make_full_error(
                    skeleton, path, stats[path].size,
                    f"it, but has only {error.free} bytes free: the rest is being read",
                ) from None  # fmt: skip
            except CacheError as error:
                if "free" not in error.details:  # the disk is not full
                    raise
                raise _make_full_error(
                    skeleton, path, stats[path].size,
                    f"it, but its disk has only {error.details['free']} bytes free",
                ) from error  # fmt: skip
            count.add(files=1)
            on_bytes(0)

        def on_bytes(size: int) -> None:
            count.add(size=size)
            if bar is not None:
                bar.update(count.files, count.size, count.size)

        pool.map(link, stats)
    try:
        (skeleton.root / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
    except OSError as error:
        raise make_folder_error(remote.copies, error) from error


def _link(cache: FileCache, request: CacheRequest, skeleton: _Skeleton, path: str) -> str | None:
    """Link a file of the cache in the folder of copies; return its digest."""
    target, size = skeleton.root / path, request.stat.size if request.stat else 0
    for _ in range(_MAX_TRIES):
        cached = cache.acquire_if_room(
            request, skeleton.locate(path), timeout=cache.remote.stall_seconds
        )
        target.unlink(missing_ok=True)
        try:
            os.link(cached.path, target)
        except FileNotFoundError:  # the folder of the cache was removed
            continue
        except OSError as error:
            raise CacheError.at(
                f"{cache.remote.copies}: must be on a file system with hard links, but cannot have "
                f"one ({error.strerror}). Pass Remote(cache_dir=...) with a folder on a disk of "
                "this machine",
                file=str(cache.remote.copies),
            ) from error
        if target.stat().st_size == size:
            return cached.sha256
    raise CacheError.at(
        f"{cache.remote.folder}: must exist while files are opened, but is removed repeatedly. Do "
        "not remove it",
        file=str(cache.remote.folder),
    )


def _make_full_error(skeleton: _Skeleton, path: str, size: int, what: str) -> CacheError:
    return skeleton.locate(path).make_error(
        CacheError,
        f"has {size} bytes, and the cache must have room for {what}: {skeleton.remote.folder}. "
        "Raise Remote(cache_bytes=...), pass Remote(cache_dir=...) on a larger disk, or name fewer "
        "files",
        needed=size,
    )


@dataclass(slots=True)
class _Count:
    """Files and bytes that were fetched, counted in threads."""

    files: int = 0
    size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, files: int = 0, size: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.files += files
            self.size += size


class _CountedFiles:
    """Remote files whose bytes are counted as they are read."""

    def __init__(self, files: RemoteFiles, on_bytes: Callable[[int], None]) -> None:
        self._files, self._on_bytes = files, on_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, name: str, start: int, stop: int, location: DataLocation | None = None) -> bytes:
        """Return bytes of a file; see ``RemoteFiles``."""
        body = self._files.read(name, start, stop, location)
        self._on_bytes(len(body))
        return body


@contextmanager
def _name_urls(root: Path, scheme: str) -> Iterator[None]:
    """Replace paths below a folder with URLs in errors raised within the block."""
    here, there = f"{root}/", f"{scheme}://"
    try:
        yield
    except SeqDataError as error:
        if here not in f"{error}{error.details}":
            raise
        details = {
            name: value.replace(here, there) if isinstance(value, str) else value
            for name, value in error.details.items()
        }
        raise type(error).at(str(error).replace(here, there), **details) from error

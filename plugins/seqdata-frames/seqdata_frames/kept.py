"""The cache files of a table: its index, sorted rows, and decoded row groups.

They are stored in ``seqdata-index`` next to the data or in a cache folder, in a folder whose name
depends on the options and on the version of the files; folders of older versions are removed. A
folder gets its name when it is complete; one process makes it while others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CacheError, warn

INDEX = "index.npz"
_VERSION = 1
_WAIT_SECONDS = 24 * 3600
_POLL_SECONDS = 0.2

Arrays = Mapping[str, NDArray[Any]]


class Kept:
    """The folder of the cache files of one table, opened with certain options.

    Args:
        folder: The folder of the data; None: the data is in memory.
        cache_dir: Folder for the cache files; None: next to the data, else in the user's cache.
        source: String that identifies the table and the options, but not the version.
        version: The version of the files.
    """

    def __init__(
        self, folder: Path | None, cache_dir: str | None, source: str, version: str
    ) -> None:
        name = hashlib.sha256(f"{_VERSION}\n{source}".encode()).hexdigest()[:12]
        self._prefix = f"frames-{name}-"
        self._name = f"{self._prefix}{version[:16]}"
        self._parents = _list_parents(folder, cache_dir)

    def find(self) -> Path | None:
        """Return the complete folder; None if there is none."""
        for parent in self._parents:
            if (parent / self._name / INDEX).is_file():
                return parent / self._name
        return None

    @contextmanager
    def make(self) -> Iterator[tuple[Path, Path | None]]:
        """Hold the lock of the cache files within the block; yield folders.

        At the end of the block the filled folder gets its final name. Folders of other versions,
        and those that were left by stopped processes, are removed.

        Yields:
            An empty folder to fill, and None; or, if another process has made the folder, a path
            that does not exist, and the complete folder.

        Raises:
            CacheError: If no folder can be written, or another process holds the lock for a day.
        """
        parent = self._find_writable()
        with _lock(parent / f"{self._prefix}lock"):
            for old in parent.glob(f"{self._prefix}*"):
                if old.is_dir() and old.name != self._name:
                    shutil.rmtree(old, ignore_errors=True)
            made = self.find()
            partial = parent / f"{self._name}.{uuid.uuid4().hex}.new"
            if made is None:
                partial.mkdir()
            try:
                yield partial, made
                if made is None:
                    os.replace(partial, parent / self._name)
                    _sync(parent)
            except OSError as error:
                raise CacheError(
                    f"frames: the table's cache files must be written to {parent}, but cannot be "
                    f"({error}). Free space, or pass Frames(cache_dir=)"
                ) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Path of the complete folder.

        Raises:
            CacheError: If the folder was removed.
        """
        found = self.find()
        if found is None:
            raise CacheError(
                f"frames: the cache folder {self._name} must exist, but was removed. Open the "
                "table again"
            )
        return found

    def _find_writable(self) -> Path:
        reason: OSError | None = None
        for parent in self._parents:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                probe = parent / f"{self._prefix}{uuid.uuid4().hex}.probe"
                probe.touch()
                probe.unlink()
            except OSError as error:
                reason = error
                continue
            return parent
        raise CacheError(
            f"frames: a folder must be writable to store the index of the table, but none of "
            f"{', '.join(map(str, self._parents))} is ({reason}). Pass Frames(cache_dir=), or set "
            "SEQDATA_CACHE"
        )


def save_arrays(path: Path, info: Mapping[str, Any], arrays: Arrays) -> None:
    """Write an index to a folder.

    Args:
        path: The folder.
        info: Plain data, for JSON.
        arrays: Name -> array.
    """
    packed = np.frombuffer(json.dumps(info).encode(), dtype=np.uint8)
    with open(path / INDEX, "wb") as file:
        named: dict[str, Any] = {"info": packed, **arrays}
        np.savez(file, **named)
        file.flush()
        os.fsync(file.fileno())


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Return plain data and arrays of the index in a folder; warn and return None if damaged."""
    try:
        with open(path / INDEX, "rb") as file, np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        return json.loads(arrays.pop("info").tobytes()), arrays
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        warn(
            f"frames: {path / INDEX} is damaged ({error}) and will be made again",
        )
        return None


def _list_parents(folder: Path | None, cache_dir: str | None) -> list[Path]:
    if cache_dir is not None:
        return [Path(cache_dir).absolute()]
    user = Path(os.environ.get("SEQDATA_CACHE") or "~/.cache/seqdata").expanduser() / "frames"
    return [user] if folder is None else [folder / "seqdata-index", user]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock within the block; it is released if this process dies.

    Raises:
        CacheError: If another process holds it for a day.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _wait_for(lambda: _try_lock(descriptor), path)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(is_done: Callable[[], bool], path: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            raise CacheError(
                f"frames: the lock {path} must be free, but another process has held it for a day. "
                "Stop that process"
            )
        time.sleep(_POLL_SECONDS)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

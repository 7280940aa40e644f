"""One whole remote file into an open local one: in pieces side by side, and checked.

Place in the flow: the cache fills its files here. Reads: a remote file. Makes: a local one, which
is right or is not used.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from seqdata.errors import CorruptShardError, DataError
from seqdata.storage.data_location import Place
from seqdata.storage.remote.retry import changed
from seqdata.storage.remote.transport import RemoteFiles, Stat

PIECE = 8 << 20
"""Bytes of one request."""
_DIGESTED = 1 << 20  # bytes at a time


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A file that is to be fetched.

    Attributes:
        files: Where it lies.
        name: Of the file.
        size: The bytes that it must have.
        sha256: Its digest; None: not known.
        stat: What is known of it; None: it is asked for.
        place: The file, for errors.
        error: The class of error where it is another; None: ``CorruptShardError``.
    """

    files: RemoteFiles
    name: str
    size: int
    sha256: str | None
    stat: Stat | None
    place: Place
    error: type[DataError] | None = None


def fetched(fetch: Fetch, descriptor: int) -> None:
    """Fetch a file.

    Args:
        fetch: Which one.
        descriptor: Of the local file, whose size is that of the other one.

    Raises:
        CorruptShardError: If it has another size or digest.
        FingerprintMismatch: If it was replaced meanwhile.
        MissingShardError: If it is not there.
        RemoteReadError: If it cannot be read.
    """
    stat = fetch.stat or fetch.files.stat(fetch.name, fetch.place)
    if stat.size != fetch.size:
        shorter, longer = sorted((stat.size, fetch.size))
        raise replace(fetch.place, offset=shorter, length=longer - shorter).error(
            fetch.error or CorruptShardError,
            f"has {stat.size} bytes, must have {fetch.size}; restore it or write the store again",
            expected=fetch.size, found=stat.size,
        )  # fmt: skip
    for last in (False, True):  # what came first may be of two versions
        _fill(fetch, descriptor)
        if fetch.files.stat(fetch.name, fetch.place) != stat:
            raise changed(fetch.place)
        found = _digest(descriptor, fetch.size) if fetch.sha256 is not None else None
        if found == fetch.sha256:
            return
        if last:
            raise replace(fetch.place, offset=0, length=fetch.size).error(
                fetch.error or CorruptShardError,
                f"has sha256 {str(found)[:16]}, must have {str(fetch.sha256)[:16]}; it is another "
                "file or damaged, restore it or write the store again",
                expected=fetch.sha256, found=found,
            )  # fmt: skip


def _fill(fetch: Fetch, descriptor: int) -> None:
    def piece(at: int) -> None:
        stop = min(at + PIECE, fetch.size)
        body = memoryview(fetch.files.read(fetch.name, at, stop, fetch.place))
        while body:
            count = os.pwrite(descriptor, body, at)
            at, body = at + count, body[count:]

    starts = range(0, fetch.size, PIECE)
    if len(starts) < 2:
        for at in starts:
            piece(at)
        return
    threads = min(fetch.files.remote.connections, len(starts))
    with ThreadPoolExecutor(threads, "seqdata-fetch") as pool:
        pieces = [pool.submit(piece, at) for at in starts]
        try:
            for one in pieces:
                one.result()  # ends: every request has its time
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _digest(descriptor: int, size: int) -> str:
    made = hashlib.sha256()
    for at in range(0, size, _DIGESTED):
        made.update(os.pread(descriptor, _DIGESTED, at))
    return made.hexdigest()

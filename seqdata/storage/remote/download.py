"""Download of a whole remote file into an open local one: in parallel requests, and verified."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from seqdata.errors import CorruptShardError, DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.retry import make_changed_error

REQUEST_BYTES = 8 << 20
"""Bytes of one request."""
_DIGEST_BYTES = 1 << 20  # bytes at a time


@dataclass(frozen=True, slots=True, eq=False)
class DownloadSpec:
    """A file to download.

    Attributes:
        files: The folder of the file.
        name: Of the file.
        size: Its expected size in bytes.
        sha256: Its expected digest; None if it is not known.
        stat: Its size and tag; None: they are requested.
        location: The file, for errors.
        error: The class of error if it differs; None: ``CorruptShardError``.
    """

    files: RemoteFiles
    name: str
    size: int
    sha256: str | None
    stat: FileStat | None
    location: DataLocation
    error: type[DataError] | None = None


def download(spec: DownloadSpec, descriptor: int) -> None:
    """Download a file.

    Args:
        spec: The file.
        descriptor: The open local file, of the same size.

    Raises:
        CorruptShardError: If its size or digest differs.
        FingerprintMismatch: If it was replaced in the meantime.
        MissingShardError: If it is not there.
        RemoteReadError: If it cannot be read.
    """
    stat = spec.stat or spec.files.stat(spec.name, spec.location)
    if stat.size != spec.size:
        shorter, longer = sorted((stat.size, spec.size))
        raise replace(spec.location, offset=shorter, length=longer - shorter).make_error(
            spec.error or CorruptShardError,
            f"must have {spec.size} bytes, but has {stat.size}. Restore it, or write the store "
            "again",
            expected=spec.size, found=stat.size,
        )  # fmt: skip
    for is_last_try in (False, True):  # the bytes may be of two versions
        _download_ranges(spec, descriptor)
        if spec.files.stat(spec.name, spec.location) != stat:
            raise make_changed_error(spec.location)
        found = _digest_file(descriptor, spec.size) if spec.sha256 is not None else None
        if found == spec.sha256:
            return
        if is_last_try:
            raise replace(spec.location, offset=0, length=spec.size).make_error(
                spec.error or CorruptShardError,
                f"must have sha256 {str(spec.sha256)[:16]}, but has {str(found)[:16]}: it was "
                "replaced or is damaged. Restore it, or write the store again",
                expected=spec.sha256, found=found,
            )  # fmt: skip


def _download_ranges(spec: DownloadSpec, descriptor: int) -> None:
    def fetch_range(at: int) -> None:
        stop = min(at + REQUEST_BYTES, spec.size)
        body = memoryview(spec.files.read(spec.name, at, stop, spec.location))
        while body:
            count = os.pwrite(descriptor, body, at)
            at, body = at + count, body[count:]

    starts = range(0, spec.size, REQUEST_BYTES)
    if len(starts) < 2:
        for at in starts:
            fetch_range(at)
        return
    threads = min(spec.files.remote.connections, len(starts))
    with ThreadPoolExecutor(threads, "seqdata-fetch") as pool:
        futures = [pool.submit(fetch_range, at) for at in starts]
        try:
            for future in futures:
                future.result()  # ends: every request has a timeout
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _digest_file(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for at in range(0, size, _DIGEST_BYTES):
        digest.update(os.pread(descriptor, _DIGEST_BYTES, at))
    return digest.hexdigest()

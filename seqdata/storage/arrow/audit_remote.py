"""An audit of a remote store: every byte is read from the source, not from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seqdata.errors import ConfigError, CorruptShardError, DataError
from seqdata.storage.arrow.manifest import Manifest
from seqdata.storage.arrow.mapped_files import locate_checksums, locate_lengths, locate_shard
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.audit import AuditFinding, AuditReport, BytesProgressFn
from seqdata.storage.remote.download import REQUEST_BYTES
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool

_CONCURRENT_FILES = 4  # files


def audit_remote(
    files: RemoteFiles, manifest: Manifest, shard_number: int | None, on_progress: BytesProgressFn
) -> Iterator[AuditReport]:
    """Compare every file with its digest.

    Args:
        files: The folder of the store.
        manifest: The manifest.
        shard_number: The number of a single shard; None: all, and the lengths.
        on_progress: Called with the number of bytes that were checked.

    Raises:
        ConfigError: If there is no such shard.
        RemoteReadError: If a file cannot be read.
    """
    audited_files = list(_list_files(files, manifest))
    if shard_number is not None:
        if not 0 <= shard_number < len(manifest.shards):
            raise ConfigError(
                f"verify: the shard must be in [0, {len(manifest.shards)}), but is "
                f"{shard_number}. Choose another number"
            )
        audited_files = [file for file in audited_files if file.shard == shard_number]
    yield from ForkSafeThreadPool(_CONCURRENT_FILES).map(
        lambda file: _audit_file(files, file, on_progress), audited_files
    )


@dataclass(frozen=True, slots=True)
class _AuditedFile:
    """One file with its expected size and digest."""

    name: str
    shard: int | None
    sequences: int
    size: int
    sha256: str
    location: DataLocation


def _list_files(files: RemoteFiles, manifest: Manifest) -> Iterator[_AuditedFile]:
    dataset = files.location
    for axis, lengths_file in manifest.lengths.items():
        size = manifest.sequences * np.dtype(lengths_file.dtype).itemsize
        location = locate_lengths(dataset, manifest, axis)
        yield _AuditedFile(
            lengths_file.file, None, manifest.sequences, size, lengths_file.sha256, location
        )
    for i, shard in enumerate(manifest.shards):
        location = replace(locate_shard(dataset, i, shard), verify=False)
        yield _AuditedFile(shard.file, i, shard.sequences, shard.bytes, shard.sha256, location)
        if shard.checksums is not None:
            checksum_file, location = shard.checksums, locate_checksums(dataset, i, shard.checksums)
            location = replace(location, verify=False)
            yield _AuditedFile(
                checksum_file.file,
                i,
                shard.sequences,
                checksum_file.bytes,
                checksum_file.sha256,
                location,
            )


def _audit_file(
    files: RemoteFiles, file: _AuditedFile, on_progress: BytesProgressFn
) -> AuditReport:
    findings = []
    try:
        _check_file(files, file, on_progress)
    except DataError as error:
        findings.append(AuditFinding(str(error), dict(error.details)))
    return AuditReport(
        file=file.name, shard=file.shard, sequences=file.sequences, bytes=file.size,
        damages=len(findings), findings=tuple(findings), by="digest",
    )  # fmt: skip


def _check_file(files: RemoteFiles, file: _AuditedFile, on_progress: BytesProgressFn) -> None:
    stat = files.stat(file.name, file.location)
    if stat.size != file.size:
        raise file.location.make_error(
            CorruptShardError,
            f"must have {file.size} bytes, but has {stat.size}. Restore it, or write the store "
            "again",
            expected=file.size, found=stat.size,
        )  # fmt: skip
    digest = hashlib.sha256()
    for at in range(0, file.size, REQUEST_BYTES):
        piece = files.read(file.name, at, min(at + REQUEST_BYTES, file.size), file.location)
        digest.update(piece)
        on_progress(len(piece))
    files.check_same(file.name, stat, file.location)
    if digest.hexdigest() != file.sha256:
        raise replace(file.location, offset=0, length=file.size).make_error(
            CorruptShardError,
            f"must have sha256 {file.sha256[:16]}, but has {digest.hexdigest()[:16]}. Restore it, "
            "or write the store again",
            expected=file.sha256, found=digest.hexdigest(),
        )  # fmt: skip

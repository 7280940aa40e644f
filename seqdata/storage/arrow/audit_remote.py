"""Looking at every byte of a remote store, as it lies there and not as it is kept here.

Place in the flow: ``seqdata verify`` asks it for URLs. Reads: all files. Makes: reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seqdata.errors import ConfigError, CorruptShardError, DataError
from seqdata.storage.arrow.manifest import Manifest
from seqdata.storage.arrow.mapped_files import lengths_place, shard_place, sums_place
from seqdata.storage.data_location import Place
from seqdata.storage.integrity.audit import Finding, Report, Told
from seqdata.storage.remote.download import PIECE
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import RemoteFiles

_AT_ONCE = 4  # files


def audit_remote(
    files: RemoteFiles, manifest: Manifest, only: int | None, told: Told
) -> Iterator[Report]:
    """Compare every file with its digest.

    Args:
        files: Where they lie.
        manifest: What was written.
        only: Number of the one shard to look at; None: all, and the lengths.
        told: Called with the number of bytes that were looked at.

    Raises:
        ConfigError: If there is no such shard.
        RemoteReadError: If a file cannot be read.
    """
    parts = list(_parts(files, manifest))
    if only is not None:
        if not 0 <= only < len(manifest.shards):
            raise ConfigError(
                f"verify: no shard {only}, must be in [0, {len(manifest.shards)}); choose one of "
                "these"
            )
        parts = [part for part in parts if part.shard == only]
    yield from Fetchers(_AT_ONCE).each(lambda part: _report(files, part, told), parts)


@dataclass(frozen=True, slots=True)
class _File:
    """One file, and what it must be."""

    name: str
    shard: int | None
    sequences: int
    size: int
    sha256: str
    place: Place


def _parts(files: RemoteFiles, manifest: Manifest) -> Iterator[_File]:
    where = files.location
    for axis, one in manifest.lengths.items():
        size = manifest.sequences * np.dtype(one.dtype).itemsize
        place = lengths_place(where, manifest, axis)
        yield _File(one.file, None, manifest.sequences, size, one.sha256, place)
    for i, shard in enumerate(manifest.shards):
        place = replace(shard_place(where, i, shard), verify=False)
        yield _File(shard.file, i, shard.sequences, shard.bytes, shard.sha256, place)
        if shard.checksums is not None:
            sums, place = shard.checksums, sums_place(where, i, shard.checksums)
            place = replace(place, verify=False)
            yield _File(sums.file, i, shard.sequences, sums.bytes, sums.sha256, place)


def _report(files: RemoteFiles, file: _File, told: Told) -> Report:
    findings = []
    try:
        _check(files, file, told)
    except DataError as error:
        findings.append(Finding(str(error), dict(error.facts)))
    return Report(
        file=file.name, shard=file.shard, sequences=file.sequences, bytes=file.size,
        damages=len(findings), findings=tuple(findings), by="digest",
    )  # fmt: skip


def _check(files: RemoteFiles, file: _File, told: Told) -> None:
    stat = files.stat(file.name, file.place)
    if stat.size != file.size:
        raise file.place.error(
            CorruptShardError,
            f"has {stat.size} bytes, must have {file.size}; restore it or write the store again",
            expected=file.size, found=stat.size,
        )  # fmt: skip
    made = hashlib.sha256()
    for at in range(0, file.size, PIECE):
        piece = files.read(file.name, at, min(at + PIECE, file.size), file.place)
        made.update(piece)
        told(len(piece))
    files.check_same(file.name, stat, file.place)
    if made.hexdigest() != file.sha256:
        raise replace(file.place, offset=0, length=file.size).error(
            CorruptShardError,
            f"sha256 is {made.hexdigest()[:16]}, must be {file.sha256[:16]}; restore it or write "
            "the store again",
            expected=file.sha256, found=made.hexdigest(),
        )  # fmt: skip

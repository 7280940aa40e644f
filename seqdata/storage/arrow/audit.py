"""An audit of an Arrow store: a list of everything that is damaged.

Opening stops at the first damage; an audit checks the digest of every file, and on this machine the
checksums and extents of every sequence. Of a remote store every byte is read from the source, not
from the cache. ``seqdata verify`` runs it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptShardError, DataError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.arrow.manifest import ArrowShard, Manifest
from seqdata.storage.arrow.store import (
    MappedFiles,
    build_fields,
    check_footer,
    load_checksums,
    locate_checksums,
    locate_lengths,
    locate_shard,
    map_file,
    map_lengths,
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.integrity.audit import MAX_FINDINGS, AuditFinding, AuditReport, BytesProgressFn
from seqdata.storage.remote.file_cache import REQUEST_BYTES
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool

_SEQUENCES_PER_PASS = (
    1 << 12
)  # sequences per call of the kernel, which is repeated for each wrong one
_DIGEST_BYTES = 8 << 20  # bytes


def count_bytes(manifest: Manifest, shard_number: int | None) -> int:
    """Return the total that the progress of ``audit_store`` counts to, in bytes."""
    return sum(shard.bytes for _, shard in _select_shards(manifest, shard_number))


def audit_store(
    root: Path, manifest: Manifest, shard_number: int | None, on_progress: BytesProgressFn
) -> Iterator[AuditReport]:
    """Audit all files, shards in several threads; yield a report of each file, in order.

    Args:
        root: The store's folder.
        manifest: The manifest.
        shard_number: The number of a single shard; None: all.
        on_progress: Called with the number of bytes that were checked, from any thread.

    Raises:
        ConfigError: If there is no such shard.
    """
    chosen = _select_shards(manifest, shard_number)
    lengths_of: dict[str, NDArray[Any]] = {}
    for axis in manifest.lengths:
        report, lengths = _audit_lengths(root, manifest, axis)
        if lengths is not None:
            lengths_of[axis] = lengths
        yield report
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        reports = [
            pool.submit(_audit_shard, root, manifest, i, lengths_of, on_progress) for i, _ in chosen
        ]
        try:
            for future in reports:
                yield future.result()  # ends: its thread only reads files
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _FindingCollector:
    """Collects the findings of one file."""

    findings: list[AuditFinding]
    damages: int = 0

    def run_check(self, check: Callable[[], None]) -> bool:
        """Call a check that raises; return whether it found nothing."""
        try:
            check()
        except DataError as error:
            self.damages += 1
            self.findings.append(AuditFinding(str(error), dict(error.details)))
            return False
        return True

    def report(self, **facts: Any) -> AuditReport:
        return AuditReport(damages=self.damages, findings=tuple(self.findings), **facts)


def _select_shards(manifest: Manifest, shard_number: int | None) -> list[tuple[int, ArrowShard]]:
    numbered = list(enumerate(manifest.shards))
    if shard_number is None:
        return numbered
    if not 0 <= shard_number < len(numbered):
        raise ConfigError(
            f"verify: the shard must be in [0, {len(numbered)}), but is {shard_number}. Choose "
            "another number"
        )
    return [numbered[shard_number]]


def _check_digest(
    content: Any, must: str, location: DataLocation, on_progress: BytesProgressFn, advice: str
) -> None:
    """Compare the digest of all bytes of a file.

    Raises:
        CorruptShardError: If it differs.
    """
    view, digest = memoryview(content), hashlib.sha256()
    for at in range(0, len(view), _DIGEST_BYTES):
        if len(view) > _DIGEST_BYTES:
            get_kernel().populate(content, at, at + _DIGEST_BYTES)
        digest.update(view[at : at + _DIGEST_BYTES])
        on_progress(len(view[at : at + _DIGEST_BYTES]))
    if digest.hexdigest() != must:
        raise replace(location, offset=0, length=len(view)).make_error(
            CorruptShardError,
            f"must have sha256 {must[:16]}, but has {digest.hexdigest()[:16]}. {advice}",
            expected=must, found=digest.hexdigest(),
        )  # fmt: skip


def _audit_lengths(
    root: Path, manifest: Manifest, axis: str
) -> tuple[AuditReport, NDArray[Any] | None]:
    lengths_file = manifest.lengths[axis]
    location = locate_lengths(root, manifest, axis)
    findings, mapped = _FindingCollector([]), []
    advice = "Restore the file, or write the store again"

    def check() -> None:
        mapped.append(map_lengths(root, manifest, axis, get_kernel()))
        _check_digest(
            mapped[0].view(np.uint8), lengths_file.sha256, location, lambda _bytes: None, advice
        )

    is_intact = findings.run_check(check)
    size = manifest.sequences * np.dtype(lengths_file.dtype).itemsize
    report = findings.report(
        file=lengths_file.file, shard=None, sequences=manifest.sequences, bytes=size, by="digest"
    )
    return report, mapped[0] if is_intact else None


def _audit_shard(
    root: Path,
    manifest: Manifest,
    i: int,
    lengths_of: Mapping[str, NDArray[Any]],
    on_progress: BytesProgressFn,
) -> AuditReport:
    shard, findings = manifest.shards[i], _FindingCollector([])
    location = replace(locate_shard(root, i, shard), verify=False)
    checksums = _map_checksums(root, i, manifest, findings)
    mapped: list[Any] = []
    is_mapped = findings.run_check(
        lambda: mapped.append(map_file(root, shard.file, shard.bytes, location, get_kernel()))
    )
    if not is_mapped:
        on_progress(shard.bytes)
    else:
        digest_findings = _FindingCollector([])  # of sequences, unless there are some
        digest_matches = digest_findings.run_check(
            lambda: _check_digest(
                mapped[0],
                shard.sha256,
                location,
                on_progress,
                _describe_remedy(checksums is not None),
            )
        )
        footer_matches = findings.run_check(lambda: check_footer(mapped[0], location, shard))
        if checksums is not None and not (digest_matches and findings.damages):
            _audit_sequences(
                _AuditedShard(root, manifest, i, mapped[0], checksums, lengths_of), findings
            )
        if not digest_matches and footer_matches and not findings.damages:
            findings.damages, findings.findings = digest_findings.damages, digest_findings.findings
    return findings.report(
        file=shard.file, shard=i, sequences=shard.sequences, bytes=shard.bytes,
        by="digest" if checksums is None else "checksums",
    )  # fmt: skip


def _describe_remedy(has_checksums: bool) -> str:
    if has_checksums:
        return "No sequence is damaged, but other readers may need the rest: restore it"
    return "Restore it, or write the store again"


def _map_checksums(
    root: Path, i: int, manifest: Manifest, findings: _FindingCollector
) -> Any | None:
    """Map the checksums of a shard; None if there are none that can be used."""
    file, spec = manifest.shards[i].checksums, manifest.checksums
    if file is None or spec is None or spec.algorithm not in get_kernel().algorithms():
        return None
    location = replace(locate_checksums(root, i, file), verify=False)
    mapped: list[Any] = []

    def check() -> None:
        mapped.append(map_file(root, file.file, file.bytes, location, get_kernel()))
        advice = "Restore it, or write the store again"
        _check_digest(mapped[0], file.sha256, location, lambda _bytes: None, advice)

    findings.run_check(check)
    return mapped[0] if mapped else None


@dataclass(frozen=True, slots=True, eq=False)
class _AuditedShard:
    """One shard and the checksums of its sequences."""

    root: Path
    manifest: Manifest
    number: int
    content: Any
    checksums: Any
    lengths_of: Mapping[str, NDArray[Any]]

    def sources(self) -> Iterator[BufferSource]:
        """Yield each field over this shard alone; errors have sequence numbers of the store."""
        shard = self.manifest.shards[self.number]
        shard_offsets = [
            0,
            *itertools.accumulate(
                field_checksums.sequences for field_checksums in self.manifest.shards
            ),
        ]
        first, last = shard_offsets[self.number : self.number + 2]
        shard_manifest = replace(self.manifest, shards=(shard,), sequences=shard.sequences)
        recorded = {
            axis: self.lengths_of[axis][first:last]
            if axis in self.lengths_of
            else _lengths_from_offsets(self.content, shard_manifest, axis)
            for axis in shard_manifest.lengths
        }
        location = replace(locate_shard(self.root, self.number, shard), verify=False)
        layout = ShardLayout(
            str(self.root), (shard.file,), [0, shard.sequences], recorded, lambda _: location,
            first_sequence=first,
        )  # fmt: skip
        mapped = MappedFiles([self.content], recorded, [self.checksums])
        checksums = {
            name: field_checksums
            if shard_manifest.fields[name].axis in self.lengths_of
            else replace(field_checksums, lengths=None)
            for name, field_checksums in (
                load_checksums(shard_manifest, mapped, None) or {}
            ).items()
        }
        fields = build_fields(shard_manifest, layout, [self.content], checksums)
        yield from (source.stored for source in fields.sources.values() if source.stored)


def _lengths_from_offsets(content: Any, shard_manifest: Manifest, axis: str) -> NDArray[np.int64]:
    """Return the lengths by a shard's own offsets, for a store with a damaged file of lengths."""
    name = next(name for name, field in shard_manifest.fields.items() if field.axis == axis)
    position = shard_manifest.shards[0].buffers[name][1][0]
    offsets = np.frombuffer(content, np.int64, shard_manifest.sequences + 1, position)
    return np.maximum(np.diff(offsets), 0)


def _audit_sequences(audited: _AuditedShard, findings: _FindingCollector) -> None:
    for source in audited.sources():
        lengths = np.ones(len(source.layout), dtype=np.int64)
        if not source.kind.is_array and source.extents is not None:
            lengths = np.subtract(source.extents[0][1], source.extents[0][0])
        elif source.field.axis is not None:
            lengths = source.layout.lengths_of[source.field.axis].astype(np.int64)
        for first in range(0, len(lengths), _SEQUENCES_PER_PASS):
            run = lengths[first : first + _SEQUENCES_PER_PASS]
            numbers = np.arange(first, first + len(run))
            spans = np.stack([numbers, np.zeros_like(run), run], axis=1)
            for result, span in _find_bad_spans(source, spans):
                if findings.damages < MAX_FINDINGS:
                    findings.run_check(functools.partial(source.raise_for_result, result, span))
                else:
                    findings.damages += 1


def _find_bad_spans(
    source: BufferSource, spans: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield every wrong span, with the kernel's result for this span alone."""
    while len(spans):
        result = source.engine.verify(source.handle, spans)
        if result == -1:
            return
        at = result if result >= 0 else -2 - result
        if result >= 0:  # recorded places come first: earlier spans were not compared yet
            yield from _find_bad_spans(source, spans[:at])
        yield (0 if result >= 0 else -2), spans[at : at + 1]
        spans = spans[at + 1 :]


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

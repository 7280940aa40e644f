"""An audit of an Arrow store: a list of everything that is damaged.

Opening stops at the first damage; an audit checks the digest of every file, and on this machine the
checksums and extents of every sequence. Of a remote store every byte is read from the source, not
from the cache. ``seqdata verify`` runs it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, MissingShardError, RemoteReadError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.arrow.manifest import MANIFEST, ArrowShard, Manifest, load_manifest
from seqdata.storage.arrow.open_remote import read_manifest
from seqdata.storage.arrow.store import (
    MappedFiles,
    build_fields,
    check_footer,
    check_size,
    get_footer,
    load_checksums,
    locate_checksums,
    locate_lengths,
    locate_shard,
    make_layout,
    map_file,
    map_lengths,
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.audit import (
    MAX_FINDINGS,
    AuditReport,
    BytesProgressFn,
    FindingCollector,
    check_shard_index,
)
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.file_cache import REQUEST_BYTES
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files

_SEQUENCES_PER_PASS = 1 << 12  # per call of the kernel, which is repeated for each wrong one
_DIGEST_BYTES = 8 << 20  # bytes
_RESTORE = "Restore it, or write the store again"


def audit_arrow(
    location: str, *, shard: int | None, on_progress: BytesProgressFn
) -> tuple[int, Iterator[AuditReport]] | None:
    """Return the total size of a store's shards, and an iterator over the reports of its files.

    Args:
        location: A folder or its URL.
        shard: The index of a single shard; None: all, and the lengths.
        on_progress: Called with the number of bytes that were checked, from any thread.

    Returns:
        None if there is no manifest.

    Raises:
        ConfigError: If there is no such shard.
        RemoteReadError: If a file cannot be read.
    """
    if is_remote(location):
        files = make_remote_files(location, Remote())
        if MANIFEST not in _list_names(files):
            return None
        manifest = read_manifest(files)
        chosen = _select_shards(manifest, shard)
        reports = _audit_remote(files, manifest, chosen, shard is None, on_progress)
    else:
        root = local_path(location)
        if not (root / MANIFEST).exists():
            return None
        manifest = load_manifest(root)
        chosen = _select_shards(manifest, shard)
        reports = _audit_local(root, manifest, chosen, on_progress)
    return sum(each.bytes for _, each in chosen), reports


def _list_names(files: RemoteFiles) -> list[str]:
    """Return the names of remote files; the manifest's if they cannot be listed."""
    try:
        return files.names()
    except (MissingShardError, RemoteReadError):  # a web server
        return [MANIFEST]


def _audit_local(
    root: Path,
    manifest: Manifest,
    chosen: Sequence[tuple[int, ArrowShard]],
    on_progress: BytesProgressFn,
) -> Iterator[AuditReport]:
    """Audit the lengths, then shards in several threads; yield a report of each file, in order."""
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


def _select_shards(manifest: Manifest, shard: int | None) -> list[tuple[int, ArrowShard]]:
    check_shard_index(shard, len(manifest.shards))
    numbered = list(enumerate(manifest.shards))
    return numbered if shard is None else [numbered[shard]]


def _read_mapped(content: Any) -> Iterator[memoryview]:
    """Yield the bytes of a mapped file, read ahead in large pieces."""
    view = memoryview(content)
    for at in range(0, len(view), _DIGEST_BYTES):
        if len(view) > _DIGEST_BYTES:
            get_kernel().populate(content, at, at + _DIGEST_BYTES)
        yield view[at : at + _DIGEST_BYTES]


def _read_remote(files: RemoteFiles, file: _AuditedFile) -> Iterator[bytes]:
    """Yield the bytes of a remote file, which must not be replaced meanwhile."""
    stat = files.stat(file.name, file.location)
    check_size(stat.size, file.size, file.location)
    for at in range(0, file.size, REQUEST_BYTES):
        yield files.read(file.name, at, min(at + REQUEST_BYTES, file.size), file.location)
    files.check_same(file.name, stat, file.location)


def _check_digest(
    pieces: Iterable[bytes | memoryview],
    expected: str,
    location: DataLocation,
    on_progress: BytesProgressFn = lambda _bytes: None,
    advice: str = _RESTORE,
) -> None:
    """Compare the digest of all bytes of a file.

    Raises:
        CorruptShardError: If it differs.
    """
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        on_progress(len(piece))
    found = digest.hexdigest()
    if found != expected:
        raise replace(location, offset=0, length=size).make_error(
            CorruptShardError,
            f"must have sha256 {expected[:16]}, but has {found[:16]}. {advice}",
            expected=expected, found=found,
        )  # fmt: skip


def _audit_lengths(
    root: Path, manifest: Manifest, axis: str
) -> tuple[AuditReport, NDArray[Any] | None]:
    lengths_file = manifest.lengths[axis]
    location = locate_lengths(root, manifest, axis)
    findings, mapped = FindingCollector(), []

    def check() -> None:
        mapped.append(map_lengths(root, manifest, axis, get_kernel()))
        _check_digest(
            _read_mapped(mapped[0].view(np.uint8)), lengths_file.sha256, location,
            advice="Restore the file, or write the store again",
        )  # fmt: skip

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
    shard, findings = manifest.shards[i], FindingCollector()
    location = replace(locate_shard(root, i, shard), verify=False)
    checksums = _map_checksums(root, i, manifest, findings)
    mapped: list[Any] = []
    is_mapped = findings.run_check(
        lambda: mapped.append(map_file(root, shard.file, shard.bytes, location, get_kernel()))
    )
    if not is_mapped:
        on_progress(shard.bytes)
    else:
        digest_findings = FindingCollector()  # of sequences, unless there are some
        digest_matches = digest_findings.run_check(
            lambda: _check_digest(
                _read_mapped(mapped[0]),
                shard.sha256,
                location,
                on_progress,
                _describe_remedy(checksums is not None),
            )
        )
        footer_matches = findings.run_check(
            lambda: check_footer(get_footer(mapped[0], shard), location, shard)
        )
        if checksums is not None and not (digest_matches and findings.damages):
            for source in _iter_sources(root, manifest, i, mapped[0], checksums, lengths_of):
                _audit_source(source, findings)
        if not digest_matches and footer_matches and not findings.damages:
            findings.damages, findings.findings = digest_findings.damages, digest_findings.findings
    return findings.report(
        file=shard.file, shard=i, sequences=shard.sequences, bytes=shard.bytes,
        by="digest" if checksums is None else "checksums",
    )  # fmt: skip


def _describe_remedy(has_checksums: bool) -> str:
    if has_checksums:
        return "No sequence is damaged, but other readers may need the rest: restore it"
    return _RESTORE


def _map_checksums(
    root: Path, i: int, manifest: Manifest, findings: FindingCollector
) -> Any | None:
    """Map the checksums of a shard; None if there are none that can be used."""
    file, spec = manifest.shards[i].checksums, manifest.checksums
    if file is None or spec is None or spec.algorithm not in get_kernel().algorithms():
        return None
    location = replace(locate_checksums(root, i, file), verify=False)
    mapped: list[Any] = []

    def check() -> None:
        mapped.append(map_file(root, file.file, file.bytes, location, get_kernel()))
        _check_digest(_read_mapped(mapped[0]), file.sha256, location)

    findings.run_check(check)
    return mapped[0] if mapped else None


def _iter_sources(
    root: Path,
    manifest: Manifest,
    i: int,
    content: Any,
    checksums: Any,
    lengths_of: Mapping[str, NDArray[Any]],
) -> Iterator[BufferSource]:
    """Yield each field over one shard; errors have the indices that sequences have in the store.

    Args:
        root: Folder of the store.
        manifest: Manifest of the store.
        i: Index of the shard.
        content: Bytes of the shard.
        checksums: Bytes of its checksums.
        lengths_of: Axis -> intact lengths of the store; others are read from the shard's offsets.
    """
    one = range(i, i + 1)
    shard_manifest = manifest.select(one)
    layout = make_layout(str(root), manifest, lengths_of).select(one)
    recorded = {
        axis: layout.lengths_of[axis]
        if axis in lengths_of
        else _lengths_from_offsets(content, shard_manifest, axis)
        for axis in manifest.lengths
    }
    location = replace(layout.locate_file(0), verify=False)
    layout = replace(layout, lengths_of=recorded, locate_shard=lambda _: location)
    found = load_checksums(shard_manifest, MappedFiles([content], recorded, [checksums]), None)
    by_field = {
        name: each if manifest.fields[name].axis in lengths_of else replace(each, lengths=None)
        for name, each in (found or {}).items()
    }
    fields = build_fields(shard_manifest, layout, [content], by_field)
    yield from (source.stored for source in fields.sources.values() if source.stored)


def _lengths_from_offsets(content: Any, shard_manifest: Manifest, axis: str) -> NDArray[np.int64]:
    """Return the lengths by a shard's own offsets, for a store with a damaged file of lengths."""
    name = next(name for name, field in shard_manifest.fields.items() if field.axis == axis)
    position = shard_manifest.shards[0].buffers[name][1][0]
    offsets = np.frombuffer(content, np.int64, shard_manifest.sequences + 1, position)
    return np.maximum(np.diff(offsets), 0)


def _audit_source(source: BufferSource, findings: FindingCollector) -> None:
    """Compare the checksums and extents of all sequences of a field."""
    lengths = np.ones(len(source.layout), dtype=np.int64)
    if not source.kind.is_array and source.extents is not None:
        lengths = np.subtract(source.extents[0][1], source.extents[0][0])
    elif source.field.axis is not None:
        lengths = source.layout.lengths_of[source.field.axis].astype(np.int64)
    for first in range(0, len(lengths), _SEQUENCES_PER_PASS):
        run = lengths[first : first + _SEQUENCES_PER_PASS]
        indices = np.arange(first, first + len(run))
        spans = np.stack([indices, np.zeros_like(run), run], axis=1)
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


def _audit_remote(
    files: RemoteFiles,
    manifest: Manifest,
    chosen: Sequence[tuple[int, ArrowShard]],
    with_lengths: bool,
    on_progress: BytesProgressFn,
) -> Iterator[AuditReport]:
    """Compare every file with its digest; yield a report of each, in order."""

    def audit(file: _AuditedFile) -> AuditReport:
        findings = FindingCollector()
        findings.run_check(
            lambda: _check_digest(
                _read_remote(files, file), file.sha256, file.location, on_progress
            )
        )
        return findings.report(
            file=file.name, shard=file.shard, sequences=file.sequences, bytes=file.size, by="digest"
        )

    audited_files = list(_list_files(files.location, manifest, chosen, with_lengths))
    yield from ForkSafeThreadPool(_CONCURRENT_FILES).map(audit, audited_files)


@dataclass(frozen=True, slots=True)
class _AuditedFile:
    """One file with its expected size and digest."""

    name: str
    shard: int | None
    sequences: int
    size: int
    sha256: str
    location: DataLocation


def _list_files(
    dataset: str,
    manifest: Manifest,
    chosen: Sequence[tuple[int, ArrowShard]],
    with_lengths: bool,
) -> Iterator[_AuditedFile]:
    for axis, lengths in manifest.lengths.items() if with_lengths else ():
        size = manifest.sequences * np.dtype(lengths.dtype).itemsize
        location = locate_lengths(dataset, manifest, axis)
        yield _AuditedFile(lengths.file, None, manifest.sequences, size, lengths.sha256, location)
    for i, shard in chosen:
        location = replace(locate_shard(dataset, i, shard), verify=False)
        yield _AuditedFile(shard.file, i, shard.sequences, shard.bytes, shard.sha256, location)
        if shard.checksums is not None:
            file = shard.checksums
            location = replace(locate_checksums(dataset, i, file), verify=False)
            yield _AuditedFile(file.file, i, shard.sequences, file.bytes, file.sha256, location)

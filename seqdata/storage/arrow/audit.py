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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import MissingShardError, RemoteReadError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.arrow.manifest import MANIFEST, ArrowShard, Manifest, load_manifest
from seqdata.storage.arrow.open_remote import read_manifest
from seqdata.storage.arrow.store import (
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
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.audit import (
    INTACT_SEQUENCES,
    MAX_FINDINGS,
    AuditReport,
    BytesProgressFn,
    FindingCollector,
    audit_in_threads,
    make_digest_error,
    select_shards,
)
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.file_cache import REQUEST_BYTES
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles
from seqdata.storage.remote.transport import make_remote_files

_SEQUENCES_PER_PASS = 1 << 12  # per call of the kernel, which is repeated for each wrong one
_DIGEST_BYTES = 8 << 20  # bytes
_CONCURRENT_FILES = 4  # files
_RESTORE = "Restore it, or write the store again"


def audit_arrow(
    location: str, *, shard: int | None, on_progress: BytesProgressFn
) -> tuple[int, Iterator[AuditReport]] | None:
    """Return the total size of a store's shards, and an iterator over the reports of its files.

    Args:
        location: A folder or its URL.
        shard: The index of a single shard; None: all. At a URL, lengths are audited only if None.
        on_progress: Called with the number of bytes that were checked, from any thread.

    Returns:
        None if there is no manifest.

    Raises:
        ConfigError: If there is no such shard.
        DataError: If the manifest is invalid; of a web server, also if there is none.
        RemoteReadError: If the manifest cannot be read, or, from the iterator, another file.
    """
    if is_remote(location):
        files = make_remote_files(location, Remote())
        if MANIFEST not in _list_names(files):
            return None
        manifest = read_manifest(files)
        chosen = select_shards(manifest.shards, shard)
        reports = _audit_remote(files, manifest, chosen, shard is None, on_progress)
    else:
        root = local_path(location)
        if not (root / MANIFEST).exists():
            return None
        manifest = load_manifest(root)
        chosen = select_shards(manifest.shards, shard)
        reports = _audit_local(root, manifest, chosen, on_progress)
    return sum(each.bytes for _, each in chosen), reports


def _list_names(files: RemoteFiles) -> list[str]:
    """Return the names of remote files; the manifest's if they cannot be listed."""
    try:
        return files.names()
    except (MissingShardError, RemoteReadError):  # a web server
        return [MANIFEST]


@dataclass(frozen=True, slots=True)
class _AuditedFile:
    """One file with its expected size and digest."""

    name: str
    shard: int | None
    sequences: int
    size: int
    sha256: str
    location: DataLocation

    @classmethod
    def from_lengths(cls, dataset: Path | str, manifest: Manifest, axis: str) -> _AuditedFile:
        lengths = manifest.lengths[axis]
        size = manifest.sequences * np.dtype(lengths.dtype).itemsize
        location = locate_lengths(dataset, manifest, axis)
        return cls(lengths.file, None, manifest.sequences, size, lengths.sha256, location)

    @classmethod
    def from_shard(cls, dataset: Path | str, i: int, shard: ArrowShard) -> _AuditedFile:
        location = replace(locate_shard(dataset, i, shard), verify=False)
        return cls(shard.file, i, shard.sequences, shard.bytes, shard.sha256, location)

    @classmethod
    def from_checksums(cls, dataset: Path | str, i: int, shard: ArrowShard) -> _AuditedFile | None:
        file = shard.checksums
        if file is None:
            return None
        location = replace(locate_checksums(dataset, i, file), verify=False)
        return cls(file.file, i, shard.sequences, file.bytes, file.sha256, location)

    def report(self, findings: FindingCollector, by: str = "digest") -> AuditReport:
        return findings.report(
            file=self.name, shard=self.shard, sequences=self.sequences, bytes=self.size, by=by
        )


def _audit_local(
    root: Path,
    manifest: Manifest,
    chosen: Sequence[tuple[int, ArrowShard]],
    on_progress: BytesProgressFn,
) -> Iterator[AuditReport]:
    """Audit the lengths, then shards in several threads; yield a report of each file, in order."""
    lengths_of: dict[str, NDArray[Any]] = {}
    for axis, lengths in manifest.lengths.items():
        file, findings = _AuditedFile.from_lengths(root, manifest, axis), FindingCollector()
        content = _map_compared(root, file, findings, "Restore the file, or write the store again")
        if content is not None and not findings.damages:
            lengths_of[axis] = np.frombuffer(content, np.dtype(lengths.dtype).newbyteorder("<"))
        yield file.report(findings)
    audit = functools.partial(_audit_shard, root, manifest, lengths_of, on_progress)
    yield from audit_in_threads(audit, [i for i, _ in chosen], min(8, os.cpu_count() or 1))


def _map_compared(
    root: Path, file: _AuditedFile, findings: FindingCollector, advice: str = _RESTORE
) -> Any | None:
    """Map a file and compare its digest; return None if it cannot be mapped."""
    content = findings.attempt(lambda: _map(root, file))
    if content is not None:
        findings.attempt(lambda: _check_digest(_read_mapped(content), file, advice=advice))
    return content


def _map(root: Path, file: _AuditedFile) -> Any:
    return map_file(root, file.name, file.size, file.location)


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
    file: _AuditedFile,
    on_progress: BytesProgressFn = lambda _bytes: None,
    advice: str = _RESTORE,
) -> None:
    """Compare the digest of all bytes of a file.

    Raises:
        CorruptShardError: If it differs.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        on_progress(len(piece))
    found = digest.hexdigest()
    if found != file.sha256:
        raise make_digest_error(file.location, file.size, file.sha256, found, advice)


def _audit_shard(
    root: Path,
    manifest: Manifest,
    lengths_of: Mapping[str, NDArray[Any]],
    on_progress: BytesProgressFn,
    i: int,
) -> AuditReport:
    shard, findings = manifest.shards[i], FindingCollector()
    file, checksums = _AuditedFile.from_shard(root, i, shard), None
    spec, checksums_file = manifest.checksums, _AuditedFile.from_checksums(root, i, shard)
    if checksums_file and spec and spec.algorithm in get_kernel().algorithms():
        checksums = _map_compared(root, checksums_file, findings)
    content = findings.attempt(lambda: _map(root, file))
    if content is None:
        on_progress(shard.bytes)
    else:
        advice = _RESTORE if checksums is None else INTACT_SEQUENCES
        whole = FindingCollector()  # unless something in it is damaged
        whole.attempt(lambda: _check_digest(_read_mapped(content), file, on_progress, advice))
        findings.attempt(lambda: check_footer(get_footer(content, shard), file.location, shard))
        if checksums is not None and (whole.damages or not findings.damages):
            for source in _iter_sources(root, manifest, i, content, checksums, lengths_of):
                _audit_source(source, findings)
        if not findings.damages:
            findings = whole
    return file.report(findings, by="digest" if checksums is None else "checksums")


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
    found = load_checksums(shard_manifest, [checksums], layout.lengths_of)
    recorded = {
        axis: layout.lengths_of[axis]
        if axis in lengths_of
        else _lengths_from_offsets(content, shard_manifest, axis)
        for axis in manifest.lengths
    }
    location = replace(layout.locate_file(0), verify=False)
    layout = replace(layout, lengths_of=recorded, locate_shard=lambda _: location)
    fields = build_fields(shard_manifest, layout, [content], found)
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
                findings.attempt(functools.partial(source.raise_for_result, result, span))
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


def _audit_remote(
    files: RemoteFiles,
    manifest: Manifest,
    chosen: Sequence[tuple[int, ArrowShard]],
    with_lengths: bool,
    on_progress: BytesProgressFn,
) -> Iterator[AuditReport]:
    """Compare every file with its digest; yield a report of each, in order."""
    dataset = files.location
    axes = manifest.lengths if with_lengths else ()
    audited: list[_AuditedFile | None] = [
        _AuditedFile.from_lengths(dataset, manifest, axis) for axis in axes
    ]
    for i, shard in chosen:
        audited.append(_AuditedFile.from_shard(dataset, i, shard))
        audited.append(_AuditedFile.from_checksums(dataset, i, shard))

    def audit(file: _AuditedFile) -> AuditReport:
        findings = FindingCollector()
        findings.attempt(lambda: _check_digest(_read_remote(files, file), file, on_progress))
        return file.report(findings)

    yield from audit_in_threads(audit, filter(None, audited), _CONCURRENT_FILES)

"""An audit of indexed files: every byte is compared with the index; indexes are repaired."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import (
    CorruptSampleError,
    DataError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.build_index import compute_checksums, compute_sha256, find_modified
from seqdata.storage.indexed.file_format import ABSENT
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.index_folder import DataIndex
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.load_indexes import check_listed, find_changed_sibling
from seqdata.storage.indexed.opened_files import check_content, check_size
from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex
from seqdata.storage.indexed.shards import Shard
from seqdata.storage.integrity.audit import (
    INTACT_SEQUENCES,
    AuditFinding,
    AuditReport,
    FindingCollector,
    make_digest_error,
    select_shards,
)
from seqdata.storage.local_files import FolderListings
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_url

_MAX_MISSING = 100  # files that are reported one by one
BytesFn = Callable[[int], None]


def audit_files(
    location: str,
    file_format: IndexedFormat,
    *,
    shard: int | None,
    repair: bool,
    on_progress: BytesFn,
    remote: Remote | None = None,
) -> tuple[int, Iterator[AuditReport]]:
    """Return the total size of the files, and an iterator over their reports.

    Args:
        location: The location of the files.
        file_format: The format of the files.
        shard: Index of a single file; None: all.
        repair: Whether to rebuild indexes that are missing, damaged, or of another file.
        on_progress: Called with the number of bytes that were checked.
        remote: The options for URLs.

    Raises:
        ConfigError: If there is no file of this index.
        SeqDataError: As ``find_shards``.
    """
    found = find_shards(location, file_format, remote)
    shards, location = found.shards, redact_url(location)
    chosen = select_shards(shards, shard)
    gone = _find_gone(chosen)
    total = sum(shard.size() for number, shard in chosen if number not in gone)
    first = (
        0 if shard is None else sum(_count_sequences(each, found.index) for each in shards[:shard])
    )
    reports = _audit_each(
        location, [(i, each) for i, each in chosen if i not in gone], found.index, file_format,
        first, repair, on_progress,
    )  # fmt: skip
    return total, itertools.chain(reports, _report_gone(location, gone))


def _find_gone(chosen: Sequence[tuple[int, Shard]]) -> dict[int, Shard]:
    """Return the missing local files after the first ``_MAX_MISSING``, by index.

    The first ones are reported one by one, these together. Each folder is listed once.
    """
    if len(chosen) <= _MAX_MISSING:
        return {}
    listings = FolderListings()
    gone = [
        (number, shard)
        for number, shard in chosen
        if shard.is_local and listings.lacks(f"{shard.folder}/{shard.name}")
    ]
    return dict(gone[_MAX_MISSING:])


def _report_gone(location: str, gone: Mapping[int, Shard]) -> Iterator[AuditReport]:
    """Yield one report about missing files, if there are any."""
    if not gone:
        return
    names = [shard.name for shard in gone.values()]
    error = DataLocation(dataset=location).make_error(
        MissingShardError,
        f"must hold all files that it names, but {len(names):,} more files are not there, from "
        f"{names[0]!r} to {names[-1]!r}. Restore them, or check the location",
        missing=len(names),
    )
    yield AuditReport(
        file=f"{len(names):,} more files", shard=None, sequences=0, bytes=0, damages=len(names),
        findings=[AuditFinding(str(error), dict(error.details))], by="structure",
    )  # fmt: skip


def _count_sequences(shard: Shard, index: DataIndex) -> int:
    """Return the number of sequences of a file; 0 if its index cannot be read."""
    try:
        return len(index.get(shard) or ())
    except DataError:  # reported with that file
        return 0


def _audit_each(
    location: str,
    chosen: Sequence[tuple[int, Shard]],
    index: DataIndex,
    file_format: IndexedFormat,
    first: int,
    repair: bool,
    on_progress: BytesFn,
) -> Iterator[AuditReport]:
    repaired: list[tuple[Shard, ShardIndex]] = []
    try:
        for number, shard in chosen:
            shard_location = DataLocation(dataset=location, shard=number, file=shard.name)
            report = _audit_shard(
                shard, shard_location, index, file_format, first, repaired if repair else None
            )
            first += report.sequences
            on_progress(report.bytes)
            yield report
    finally:
        if repaired:
            index.save(repaired)


def _audit_shard(
    shard: Shard,
    location: DataLocation,
    index: DataIndex,
    file_format: IndexedFormat,
    first: int,
    repaired: list[tuple[Shard, ShardIndex]] | None,
) -> AuditReport:
    """Return the report of a file; a new index is added to ``repaired``, if that is given.

    Of a file without a usable index only the structure can be checked.
    """
    findings = FindingCollector()
    report = partial(findings.report, file=shard.name, shard=location.shard)
    content = findings.attempt(lambda: shard.content(location, ahead=True))
    if content is None:
        return report(sequences=0, bytes=0, by="structure")
    found, wrong = _load_index(shard, location, index, file_format, content)
    if wrong is not None and (found is not None or repaired is None):
        findings.add(wrong)
    if found is None:
        modified = find_modified(shard, file_format)
        found = findings.attempt(
            lambda: file_format.make_index(content, shard.name, location, shard.read_sibling)
        )
        if found is not None and repaired is not None:
            made, listed = replace(found, modified=modified), index.listed(shard)
            findings.attempt(lambda: check_listed(location, listed, made))
        if repaired is None or found is None or findings.damages:
            return report(sequences=len(found or ()), bytes=len(content), by="structure")
        repaired.append((shard, made))
    for error in _find_damage(content, found, location, file_format, first):
        findings.add(error)
    return report(sequences=len(found), bytes=len(content), by="checksums")


def _load_index(
    shard: Shard,
    location: DataLocation,
    index: DataIndex,
    file_format: IndexedFormat,
    content: NDArray[np.uint8],
) -> tuple[ShardIndex | None, DataError | None]:
    """Return the index of a file, and the error of the index or of the files it belongs to.

    Returns:
        The index, None if there is none or it is of another file; and the error, if any. Where
        there are both, another file must be restored, and a new index would only hide that.
    """
    found: ShardIndex | None = None
    try:
        found = index.get(shard)
        if found is not None:
            check_size(len(content), found, location)
            check_content(content, found, location, file_format)
        check_listed(location, index.listed(shard), found)
    except IncompleteDatasetError as error:
        return found, error
    except DataError as error:
        return None, error
    try:
        changed = None if found is None else find_changed_sibling(shard, found)
    except DataError as error:
        return found, error
    if changed is not None:
        changed_location = replace(location, file=changed, file_kind=f"sibling of {shard.name}")
        was_absent = found is not None and found.siblings[changed][1] == ABSENT
        problem = "was added since. Remove it" if was_absent else "was changed since. Restore it"
        return None, changed_location.make_error(
            FingerprintMismatch,
            f"must be as when {shard.name!r} was indexed, but {problem}, or rebuild the index with "
            "`seqdata verify --repair-index`",
        )
    return found, None


def _find_damage(
    content: NDArray[np.uint8],
    index: ShardIndex,
    location: DataLocation,
    file_format: IndexedFormat,
    first: int,
) -> list[DataError]:
    """Return the differences from the index; none if the digest is the same."""
    found = compute_sha256(content)
    if found == index.sha256:
        return []
    places = [(members.begins, members.sizes) for members in index.members.values()]
    computed = compute_checksums(content, places, index.algorithm)
    errors: list[DataError] = [
        _make_mismatch(index, members, name, bad, int(sums[bad]), location, first)
        for (name, members), (sums, _) in zip(index.members.items(), computed, strict=True)
        for bad in np.flatnonzero(sums != members.sums).tolist()
    ]
    if errors:
        return errors
    try:
        file_format.scan(content, location)
    except DataError as error:
        return [error]
    return [make_digest_error(location, len(content), index.sha256, found, INTACT_SEQUENCES)]


def _make_mismatch(
    index: ShardIndex,
    members: FieldIndex,
    name: str,
    bad: int,
    found: int,
    location: DataLocation,
    first: int,
) -> DataError:
    """Return the error about a block with another checksum."""
    at, block = bad, 0
    if members.firsts is not None:
        at = int(np.searchsorted(members.firsts, bad, side="right")) - 1
        block = bad - int(members.firsts[at])
    begin = int(members.begins[at])
    size = int(members.sizes[at])
    low, high = begin + block * index.block, begin + min(size, (block + 1) * index.block)
    key = index.id_of(at)
    must = int(members.sums[bad])
    return replace(
        location, sequence=first + at, key=key, field=name, offset=low, length=high - low
    ).make_error(
        CorruptSampleError,
        f"must have {index.algorithm} {must:08x}, but has {found:08x}: the file is damaged. "
        "Restore it",
        expected=f"{must:08x}", found=f"{found:08x}",
    )  # fmt: skip

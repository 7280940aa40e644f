"""Looking at every byte of indexed shards, and listing what is damaged; repairing indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptSampleError, CorruptShardError, DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.build_index import compute_checksums, compute_sha256
from seqdata.storage.indexed.catalogs import attach_catalogs
from seqdata.storage.indexed.file_kind import FileKind
from seqdata.storage.indexed.find_files import find_shards
from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex, digest_ends
from seqdata.storage.indexed.shards import Shard
from seqdata.storage.integrity.audit import MAX_FINDINGS, AuditFinding, AuditReport
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_url

BytesFn = Callable[[int], None]


def audit_files(
    location: str,
    kind: FileKind,
    *,
    shard: int | None,
    repair: bool,
    on_bytes: BytesFn,
    remote: Remote | None = None,
) -> tuple[int, Iterator[AuditReport]]:
    """Return the bytes of shards, and a report of each as it is made.

    Args:
        location: The files.
        kind: What they are.
        shard: The number of one; None: all.
        repair: Whether to make indexes anew that are missing, damaged, or of another shard.
        on_bytes: Called with bytes that were looked at.
        remote: How URLs are read.

    Raises:
        ConfigError: If there is no such shard.
    """
    shards = attach_catalogs(find_shards(location, kind, remote), kind)
    location = redact_url(location)
    if shard is not None and not 0 <= shard < len(shards):
        raise ConfigError(
            f"verify: no shard {shard}, must be in [0, {len(shards)}); choose one of these"
        )
    chosen = list(enumerate(shards)) if shard is None else [(shard, shards[shard])]
    total = sum(one.size() for _, one in chosen)
    first = (
        0
        if shard is None
        else sum(_count_sequences(location, i, p, kind) for i, p in enumerate(shards[:shard]))
    )
    return total, _audit_each(location, chosen, kind, first, repair, on_bytes)


def _count_sequences(location: str, number: int, shard: Shard, kind: FileKind) -> int:
    """Return how many samples a shard has, as far as its index can be read."""
    try:
        return len(shard.index(location, number, kind) or ())
    except DataError:  # said where that shard is looked at
        return 0


def _audit_each(
    location: str,
    chosen: Sequence[tuple[int, Shard]],
    kind: FileKind,
    first: int,
    repair: bool,
    on_bytes: BytesFn,
) -> Iterator[AuditReport]:
    for number, shard in chosen:
        place = DataLocation(dataset=location, shard=number, file=shard.name)
        report = _audit_shard(shard, place, kind, first, repair)
        first += report.sequences
        on_bytes(report.bytes)
        yield report


def _audit_shard(
    shard: Shard, place: DataLocation, kind: FileKind, first: int, repair: bool
) -> AuditReport:
    number = place.shard or 0
    try:
        content = shard.content(place, ahead=True)
    except DataError as error:
        return _make_report(shard.name, number, 0, 0, [error], "structure")
    index, wrong = _load_index(shard, place, kind, content)
    if index is None and repair:
        try:
            index = kind.make_index(content, shard.name, place, shard.neighbour)
        except DataError as damage:
            return _make_report(shard.name, number, 0, len(content), [damage], "structure")
        shard.keep_index(index)
    if index is None:
        return _audit_structure(shard, place, kind, content, wrong)
    damages = _find_damage(content, index, place, kind, first)
    return _make_report(shard.name, number, len(index), len(content), damages, "checksums")


def _load_index(
    shard: Shard, place: DataLocation, kind: FileKind, content: NDArray[np.uint8]
) -> tuple[ShardIndex | None, DataError | None]:
    """Return the index of a shard, if it is this one's; else what is wrong, if anything is."""
    try:
        index = shard.index(place.dataset, place.shard or 0, kind)
    except DataError as error:
        return None, error
    if index is None:
        return None, None
    if index.bytes != len(content) or digest_ends(content, index.last) != index.ends:
        return None, place.make_error(
            CorruptShardError,
            f"has {len(content)} bytes and headers that are not those that were indexed "
            f"({index.bytes} bytes), must be the same shard; restore it, or make its index anew "
            "with --repair-index",
            expected=index.bytes, found=len(content),
        )  # fmt: skip
    return index, None


def _audit_structure(
    shard: Shard,
    place: DataLocation,
    kind: FileKind,
    content: NDArray[np.uint8],
    error: DataError | None,
) -> AuditReport:
    """Report on a shard without an index that counts: its structure is all there is to look at."""
    errors = [] if error is None else [error]
    count = 0
    try:
        count = len(kind.make_index(content, shard.name, place, shard.neighbour))
    except DataError as damage:
        errors.append(damage)
    return _make_report(shard.name, place.shard or 0, count, len(content), errors, "structure")


def _find_damage(
    content: NDArray[np.uint8], index: ShardIndex, place: DataLocation, kind: FileKind, first: int
) -> list[DataError]:
    """Return what is not as it was indexed; nothing where the digest is the same."""
    found = compute_sha256(content)
    if found == index.sha256:
        return []
    names = list(index.members)
    places = [(index.members[name].begins, index.members[name].sizes) for name in names]
    errors: list[DataError] = []
    for name, (sums, _) in zip(
        names, compute_checksums(content, places, index.algorithm), strict=True
    ):
        members = index.members[name]
        for bad in np.flatnonzero(sums != members.sums).tolist():
            errors.append(_make_mismatch(index, members, name, bad, int(sums[bad]), place, first))
    if errors:
        return errors
    try:
        kind.scan(content, place)
    except DataError as error:
        return [error]
    return [
        replace(place, offset=0, length=len(content)).make_error(
            CorruptShardError,
            f"sha256 is {found[:16]}, must be {index.sha256[:16]}; no sequence is damaged, but "
            "other readers may need the rest: restore it",
            expected=index.sha256,
            found=found,
        )
    ]


def _make_mismatch(
    index: ShardIndex,
    members: FieldIndex,
    name: str,
    bad: int,
    found: int,
    place: DataLocation,
    first: int,
) -> DataError:
    """Make the error about a block whose checksum is another."""
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
        place, sequence=first + at, key=key, field=name, offset=low, length=high - low
    ).make_error(
        CorruptSampleError,
        f"has {index.algorithm} {found:08x}, must have {must:08x}; the shard is damaged, "
        "restore it",
        expected=f"{must:08x}", found=f"{found:08x}",
    )  # fmt: skip


def _make_report(
    name: str, number: int, count: int, size: int, errors: Sequence[DataError], by: str
) -> AuditReport:
    findings = [AuditFinding(str(error), dict(error.facts)) for error in errors[:MAX_FINDINGS]]
    return AuditReport(
        file=name, shard=number, sequences=count, bytes=size, damages=len(errors),
        findings=findings, by=by,
    )  # fmt: skip

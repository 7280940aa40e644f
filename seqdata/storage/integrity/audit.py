"""Results of an audit: findings, reports of files, and copies of the damaged bytes.

A store without checksums is audited by reading all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from seqdata.errors import ConfigError, CorruptShardError, DataError, Detail
from seqdata.protocols import Store
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import default_axis
from seqdata.storage.local_files import write_atomically

MAX_FINDINGS = 1000
"""Findings that a report lists; it counts all."""

INTACT_SEQUENCES = "No sequence is damaged, but other readers may need the rest: restore it"
"""Advice about a file of which only bytes between the sequences differ."""

_MAX_COPIED_BYTES = 1 << 20  # bytes
BytesProgressFn = Callable[[int], None]
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_SEQUENCES_PER_READ = 256  # sequences


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One damage.

    Attributes:
        text: Description of the damage and its location.
        details: The location, and the expected and found values.
    """

    text: str
    details: Mapping[str, Detail]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of the audit of one shard with its checksums, or of one file of lengths.

    Attributes:
        file: Name of the file.
        shard: Index of the shard; None if it is not a shard.
        sequences: Expected number of sequences.
        bytes: Expected size of the file.
        damages: Number of damages.
        findings: The first damages.
        by: Kind of comparison: ``checksums`` of its sequences and its digest, ``digest`` alone,
            or ``structure``: it has neither, but everything was read.
    """

    file: str
    shard: int | None
    sequences: int
    bytes: int
    damages: int
    findings: Sequence[AuditFinding]
    by: str


class FindingCollector:
    """Collects the findings of one file; those after ``MAX_FINDINGS`` are counted only."""

    def __init__(self) -> None:
        self.findings: list[AuditFinding] = []
        self.damages = 0

    def add(self, error: DataError) -> None:
        """Add a damage."""
        self.damages += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(AuditFinding(str(error), dict(error.details)))

    def attempt(self, function: Callable[[], ResultT]) -> ResultT | None:
        """Return the result of a function; None if it raised an error, which becomes a finding."""
        try:
            return function()
        except DataError as error:
            self.add(error)
            return None

    def report(self, **details: Any) -> AuditReport:
        """Return the report of the file, with the other attributes of a report."""
        return AuditReport(damages=self.damages, findings=tuple(self.findings), **details)


def select_shards(shards: Sequence[ItemT], shard: int | None) -> list[tuple[int, ItemT]]:
    """Return the shards to audit, with their indices.

    Args:
        shards: All shards.
        shard: The index of a single one; None: all.

    Raises:
        ConfigError: If the shard does not exist.
    """
    if shard is None:
        return list(enumerate(shards))
    if not 0 <= shard < len(shards):
        raise ConfigError(
            f"verify: the shard must be in [0, {len(shards)}), but is {shard}. Choose another index"
        )
    return [(shard, shards[shard])]


def audit_in_threads(
    audit: Callable[[ItemT], AuditReport], items: Iterable[ItemT], threads: int
) -> Iterator[AuditReport]:
    """Audit files in several threads; yield their reports, in order."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        reports = [pool.submit(audit, item) for item in items]
        try:
            for future in reports:
                yield future.result()  # ends: files are read, and every request has a timeout
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def make_digest_error(
    location: DataLocation, size: int, expected: str, found: str, advice: str
) -> CorruptShardError:
    """Return the error about a file whose bytes have another SHA-256."""
    return replace(location, offset=0, length=size).make_error(
        CorruptShardError,
        f"must have sha256 {expected[:16]}, but has {found[:16]}. {advice}",
        expected=expected, found=found,
    )  # fmt: skip


def copy_damaged_bytes(root: Path, finding: AuditFinding, folder: Path) -> Path | None:
    """Copy the damaged bytes of a finding, at most 1 MiB; return the copy, None without bytes."""
    name, offset, length = (finding.details.get(key) for key in ("file", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        return None
    path = root / name
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(min(length, _MAX_COPIED_BYTES))
    folder.mkdir(parents=True, exist_ok=True)
    flat = name.replace("/", "-")  # of a file in a folder below
    target = folder / f"{flat}.{offset}-{offset + len(content)}.bad"
    write_atomically(target, content)
    return target


def audit_by_reading(store: Store, on_progress: Callable[[int], None]) -> AuditReport:
    """Read every field of every sequence; return the report.

    Args:
        store: Any store.
        on_progress: Called with the number of sequences that were read.
    """
    axis = default_axis(store.lengths_of)
    findings = FindingCollector()
    for first in range(0, len(store), _SEQUENCES_PER_READ):
        numbers = np.arange(first, min(first + _SEQUENCES_PER_READ, len(store)))
        if _find_error(store, numbers, axis) is not None:
            for error in _iter_errors(store, numbers, axis):
                findings.add(error)
        on_progress(len(numbers))
    return findings.report(
        file=", ".join(store.shards) if len(store.shards) < 3 else f"{len(store.shards)} files",
        shard=None, sequences=len(store), bytes=0, by="structure",
    )  # fmt: skip


def _iter_errors(store: Store, numbers: Any, axis: str) -> Iterator[DataError]:
    for number in numbers:
        error = _find_error(store, np.array([number]), axis)
        if error is not None:
            yield error


def _find_error(store: Store, numbers: Any, axis: str) -> DataError | None:
    """Return the error of the first of some sequences that cannot be read."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = store.lengths_of[axis][numbers]
    try:
        for column in store.read(spans, store.fields, axis=axis).values():
            for i in range(len(column)):
                column[i]  # read, not kept
    except DataError as error:
        return error
    return None

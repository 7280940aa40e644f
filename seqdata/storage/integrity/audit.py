"""Results of an audit: findings, reports of files, and copies of the damaged bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import Fact

MAX_FINDINGS = 1000
"""Findings that a report lists; it counts all."""

_MAX_COPIED_BYTES = 1 << 20  # bytes
BytesProgressFn = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One damage.

    Attributes:
        text: Description of the damage and its location.
        facts: The location, and the expected and found values.
    """

    text: str
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of the audit of one shard with its checksums, or of one file of lengths.

    Attributes:
        file: Its name.
        shard: Its number; None if it is not a shard.
        sequences: Expected number of sequences.
        bytes: Its expected size.
        damages: Number of damages.
        findings: The first ones.
        by: The kind of comparison: ``checksums`` of its sequences and its digest, ``digest`` alone,
            or ``structure``: it has neither, but everything was read.
    """

    file: str
    shard: int | None
    sequences: int
    bytes: int
    damages: int
    findings: Sequence[AuditFinding]
    by: str


def copy_damaged_bytes(root: Path, finding: AuditFinding, folder: Path) -> Path | None:
    """Copy the damaged bytes of a finding, at most 1 MiB; return the file, or None."""
    name, offset, length = (finding.facts.get(fact) for fact in ("file", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        return None
    path = root / name
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(min(length, _MAX_COPIED_BYTES))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.{offset}-{offset + len(content)}.bad"
    target.write_bytes(content)
    return target

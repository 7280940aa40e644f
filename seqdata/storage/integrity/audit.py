"""Looking at everything that a store of ours consists of, and listing what is damaged.

Where opening stops at the first thing that is wrong, this goes on: every file's digest, every
sequence's checksums and places. Place in the flow: ``seqdata verify`` asks it. Reads: all files.
Makes: reports.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptShardError, DataError, Fact
from seqdata.kernel.dispatch import kernel
from seqdata.storage.arrow.manifest import Manifest, Shard
from seqdata.storage.arrow.mapped_files import (
    Mapped,
    check_footer,
    checks_of,
    lengths_place,
    map_lengths,
    map_whole,
    shard_place,
    source_over,
    sums_place,
)
from seqdata.storage.columns import Layout, Source
from seqdata.storage.data_location import Place
from seqdata.storage.store_fields import keyed
from seqdata.storage.text_source import TextSource

KEPT = 1000
"""Findings that a report lists; it counts all."""

_MOST_KEPT = 1 << 20  # bytes
_RUN = 1 << 12  # sequences that the kernel looks at once; again for each that is wrong
_PIECE = 8 << 20  # bytes
Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        text: What, and where.
        facts: Of the place, and what was expected and found.
    """

    text: str
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found of one shard with its checksums, or of one file of lengths.

    Attributes:
        file: Its name.
        shard: Its number; None: it is none.
        sequences: How many it must hold.
        bytes: Its size, as it must be.
        damages: How many things are wrong.
        findings: The first of them.
        by: What it was compared with: ``checksums`` of its sequences and its digest, ``digest``
            alone, or ``structure``: there was nothing, all could be read.
    """

    file: str
    shard: int | None
    sequences: int
    bytes: int
    damages: int
    findings: Sequence[Finding]
    by: str


def bytes_of(manifest: Manifest, only: int | None) -> int:
    """Give the bytes of the shards that ``audit`` tells of as it goes."""
    return sum(shard.bytes for _, shard in _chosen(manifest, only))


def audit(root: Path, manifest: Manifest, only: int | None, told: Told) -> Iterator[Report]:
    """Look at everything, shards in several threads; give a report of each file, in order.

    Args:
        root: The store's folder.
        manifest: What was written.
        only: The number of one shard; None: all.
        told: Called with the number of bytes that were looked at, from any thread.

    Raises:
        ConfigError: If there is no such shard.
    """
    chosen = _chosen(manifest, only)
    lengths_of: dict[str, NDArray[Any]] = {}
    for axis in manifest.lengths:
        report, lengths = _audit_lengths(root, manifest, axis)
        if lengths is not None:
            lengths_of[axis] = lengths
        yield report
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        reports = [
            pool.submit(_audit_shard, root, manifest, i, lengths_of, told) for i, _ in chosen
        ]
        try:
            for one in reports:
                yield one.result()  # ends: its thread only reads files
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def keep_bad(root: Path, finding: Finding, folder: Path) -> Path | None:
    """Copy the damaged bytes of a finding aside, at most 1 MiB; give the file, or None."""
    name, offset, length = (finding.facts.get(fact) for fact in ("file", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        return None
    path = root / name
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(min(length, _MOST_KEPT))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.{offset}-{offset + len(content)}.bad"
    target.write_bytes(content)
    return target


@dataclass(slots=True)
class _Findings:
    """What is being found of one file."""

    kept: list[Finding]
    damages: int = 0

    def add(self, make: Callable[[], None]) -> bool:
        """Call what raises an error, if something is wrong; whether nothing was."""
        try:
            make()
        except DataError as error:
            self.damages += 1
            self.kept.append(Finding(str(error), dict(error.facts)))
            return False
        return True

    def report(self, **facts: Any) -> Report:
        return Report(damages=self.damages, findings=tuple(self.kept), **facts)


def _chosen(manifest: Manifest, only: int | None) -> list[tuple[int, Shard]]:
    numbered = list(enumerate(manifest.shards))
    if only is None:
        return numbered
    if not 0 <= only < len(numbered):
        raise ConfigError(
            f"verify: no shard {only}, must be in [0, {len(numbered)}); choose one of these"
        )
    return [numbered[only]]


def _check_digest(content: Any, must: str, place: Place, told: Told, advice: str) -> None:
    """Compare the digest of all bytes of a file.

    Raises:
        CorruptShardError: If it is another.
    """
    view, made = memoryview(content), hashlib.sha256()
    for at in range(0, len(view), _PIECE):
        if len(view) > _PIECE:
            kernel().populate(content, at, at + _PIECE)
        made.update(view[at : at + _PIECE])
        told(len(view[at : at + _PIECE]))
    if made.hexdigest() != must:
        raise replace(place, offset=0, length=len(view)).error(
            CorruptShardError,
            f"sha256 is {made.hexdigest()[:16]}, must be {must[:16]}; {advice}",
            expected=must, found=made.hexdigest(),
        )  # fmt: skip


def _audit_lengths(root: Path, manifest: Manifest, axis: str) -> tuple[Report, NDArray[Any] | None]:
    one = manifest.lengths[axis]
    place = lengths_place(root, manifest, axis)
    found, mapped = _Findings([]), []
    advice = "restore the file or write the store again"

    def check() -> None:
        mapped.append(map_lengths(root, manifest, axis, kernel()))
        _check_digest(mapped[0].view(np.uint8), one.sha256, place, lambda _bytes: None, advice)

    good = found.add(check)
    size = manifest.sequences * np.dtype(one.dtype).itemsize
    report = found.report(
        file=one.file, shard=None, sequences=manifest.sequences, bytes=size, by="digest"
    )
    return report, mapped[0] if good else None


def _audit_shard(
    root: Path, manifest: Manifest, i: int, lengths_of: Mapping[str, NDArray[Any]], told: Told
) -> Report:
    shard, found = manifest.shards[i], _Findings([])
    place = replace(shard_place(root, i, shard), verify=False)
    sums = _sums(root, i, manifest, found)
    mapped: list[Any] = []
    there = found.add(
        lambda: mapped.append(map_whole(root, shard.file, shard.bytes, place, kernel()))
    )
    if not there:
        told(shard.bytes)
    else:
        outside = _Findings([])  # of sequences, unless some are found
        whole = outside.add(
            lambda: _check_digest(mapped[0], shard.sha256, place, told, _advice(sums is not None))
        )
        footer = found.add(lambda: check_footer(mapped[0], place, shard))
        if sums is not None and not (whole and found.damages):
            _audit_sequences(_Part(root, manifest, i, mapped[0], sums, lengths_of), found)
        if not whole and footer and not found.damages:
            found.damages, found.kept = outside.damages, outside.kept
    return found.report(
        file=shard.file, shard=i, sequences=shard.sequences, bytes=shard.bytes,
        by="digest" if sums is None else "checksums",
    )  # fmt: skip


def _advice(verified: bool) -> str:
    if verified:
        return "no sequence is damaged, but other readers may need the rest: restore it"
    return "restore it or write the store again"


def _sums(root: Path, i: int, manifest: Manifest, found: _Findings) -> Any | None:
    """Map the checksums of a shard; None where there are none that can be used."""
    file, how = manifest.shards[i].checksums, manifest.checksums
    if file is None or how is None or how.algorithm not in kernel().algorithms():
        return None
    place = replace(sums_place(root, i, file), verify=False)
    mapped: list[Any] = []

    def check() -> None:
        mapped.append(map_whole(root, file.file, file.bytes, place, kernel()))
        advice = "restore it or write the store again"
        _check_digest(mapped[0], file.sha256, place, lambda _bytes: None, advice)

    found.add(check)
    return mapped[0] if mapped else None


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One shard and what its sequences are compared with."""

    root: Path
    manifest: Manifest
    number: int
    content: Any
    sums: Any
    lengths_of: Mapping[str, NDArray[Any]]

    def sources(self) -> Iterator[Source | TextSource]:
        """Give each field over this shard alone; errors name the sequence's number in the store."""
        shard = self.manifest.shards[self.number]
        starts = [0, *itertools.accumulate(one.sequences for one in self.manifest.shards)]
        first, last = starts[self.number : self.number + 2]
        alone = replace(self.manifest, shards=(shard,), sequences=shard.sequences)
        recorded = {
            axis: self.lengths_of[axis][first:last]
            if axis in self.lengths_of
            else _lengths_in(self.content, alone, axis)
            for axis in alone.lengths
        }
        place = replace(shard_place(self.root, self.number, shard), verify=False)
        layout = Layout(
            str(self.root), (shard.file,), [0, shard.sequences], recorded, lambda _: place,
            first=first,
        )  # fmt: skip
        checks = checks_of(alone, Mapped([self.content], recorded, [self.sums]), None) or {}
        for name, one in checks.items():
            if alone.fields[name].axis not in self.lengths_of:
                checks[name] = replace(one, lengths=None)
        if alone.key is not None:
            ids = source_over(alone.key, alone, layout, [self.content], checks)
            layout = layout if isinstance(ids, Source) else keyed(layout, ids)
        for name in alone.fields:
            yield source_over(name, alone, layout, [self.content], checks)


def _lengths_in(content: Any, alone: Manifest, axis: str) -> NDArray[np.int64]:
    """Give the lengths that a shard's own offsets tell, where the file of lengths is damaged."""
    name = next(name for name, field in alone.fields.items() if field.axis == axis)
    place = alone.shards[0].buffers[name][1][0]
    offsets = np.frombuffer(content, np.int64, alone.sequences + 1, place)
    return np.maximum(np.diff(offsets), 0)


def _audit_sequences(part: _Part, found: _Findings) -> None:
    for source in part.sources():
        lengths = np.ones(len(source.layout), dtype=np.int64)
        if isinstance(source, TextSource):
            lengths = np.subtract(source.extents[0][1], source.extents[0][0])
        elif source.field.axis is not None:
            lengths = source.layout.lengths_of[source.field.axis].astype(np.int64)
        for first in range(0, len(lengths), _RUN):
            run = lengths[first : first + _RUN]
            numbers = np.arange(first, first + len(run))
            spans = np.stack([numbers, np.zeros_like(run), run], axis=1)
            for result, span in _wrong(source, spans):
                if found.damages < KEPT:
                    found.add(functools.partial(source.settle, result, span))
                else:
                    found.damages += 1


def _wrong(
    source: Source | TextSource, spans: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Give every span that is not right: what the kernel says of it, and it alone."""
    while len(spans):
        result = source.engine.verify(source.handle, spans)
        if result == -1:
            return
        at = result if result >= 0 else -2 - result
        if result >= 0:  # places come first: what lies before was not compared yet
            yield from _wrong(source, spans[:at])
        yield (0 if result >= 0 else -2), spans[at : at + 1]
        spans = spans[at + 1 :]

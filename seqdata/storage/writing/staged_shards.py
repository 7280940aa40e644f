"""Whole shards of a writing that may not be finished, and what is known of each.

A shard in a folder aside is whole when its facts are there, in a file of their own that is written
after it. Place in the flow: the writer makes shards by them, and goes on after them. Reads: packed
sequences. Makes: files and facts.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.errors import IncompleteDatasetError
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import ArrowShard, ChecksumFile
from seqdata.storage.arrow.shard_file import digest_file, write_shard
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.writing.packing import PackedFields
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX, find_staging_dirs, write_atomically

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGEST_THREADS = 4  # that look at digests
_COUNT_BYTES = 8  # bytes of a count in a digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedShard:
    """The sequences of one shard, packed.

    Attributes:
        part: The part that they are of.
        number: Of the shard, in its part.
        size: What they were counted as, bytes.
        packed: Field -> values and offsets.
        timesteps: Axis -> timesteps of all of them.
    """

    part: int
    number: int
    size: int
    packed: PackedFields
    timesteps: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """A shard in a folder aside.

    Attributes:
        part: The part that it is of.
        number: Its number in the part.
        size: What its sequences were counted as, bytes.
        first: Digest of its first sequence.
        last: Digest of its last one.
        shard: The files, by their names in the folder aside.
    """

    part: int
    number: int
    size: int
    first: str
    last: str
    shard: ArrowShard


def write_packed_shard(
    folder: Path, fields: Mapping[str, Field], packed_shard: PackedShard, algorithm: str
) -> FinishedShard:
    """Write a shard and its facts into a folder aside, all flushed to the disk.

    Args:
        folder: Where.
        fields: Name -> field.
        packed_shard: Its sequences.
        algorithm: That checksums are computed by.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    path = folder / f"{packed_shard.part:05d}-{packed_shard.number:05d}.arrow"
    note = {"part": packed_shard.part, "shard": packed_shard.number}
    with explain_full_disk(path, packed_shard.size):
        shard = write_shard(
            path, fields, packed_shard.packed, packed_shard.timesteps, note, algorithm
        )
        finished = FinishedShard(
            part=packed_shard.part,
            number=packed_shard.number,
            size=packed_shard.size,
            first=digest_sequence(fields, packed_shard.packed, 0),
            last=digest_sequence(fields, packed_shard.packed, shard.sequences - 1),
            shard=shard,
        )
        facts = path.with_suffix(FACTS_SUFFIX)
        write_atomically(facts, add_digest(json.dumps(asdict(finished)).encode(), facts.name))
    return finished


def digest_sequence(fields: Mapping[str, Field], packed: PackedFields, i: int) -> str:
    """Return the digest of the i-th of some packed sequences, and of what its fields are."""
    digest = hashlib.sha256(repr(list(fields.items())).encode())
    for name in fields:
        values, offsets = packed[name]
        first, stop = (i, i + 1) if offsets is None else (int(offsets[i]), int(offsets[i + 1]))
        digest.update((stop - first).to_bytes(_COUNT_BYTES, "little"))
        digest.update(np.ascontiguousarray(values[first:stop]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@contextmanager
def explain_full_disk(path: Path, size: int) -> Iterator[None]:
    """Turn the error of a full disk into one that says what is needed; no half file stays.

    Args:
        path: What is written.
        size: How many bytes it takes.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    try:
        yield
    except OSError as error:
        for partial in path.parent.glob(f"{path.stem}.*"):
            partial.unlink(missing_ok=True)
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        free = shutil.disk_usage(path.parent).free
        raise IncompleteDatasetError.at(
            f"{path}: cannot be written ({os.strerror(error.errno)}), needs about {size} bytes, "
            f"{free} are free; make room and write again: whole shards are kept",
            file=str(path),
            needed=size,
            free=free,
        ) from error


def read_finished_shards(folder: Path, part: int | None = None) -> list[FinishedShard]:
    """Return what is said of whole shards in a folder aside, in their order; reads no shard.

    Args:
        folder: The folder aside.
        part: Of this part only.
    """
    begin = "*" if part is None else f"{part:05d}-*"
    found = [_read_facts(path) for path in folder.glob(begin + FACTS_SUFFIX)]
    return sorted((one for one in found if one), key=lambda one: (one.part, one.number))


def count_unfinished(root: Path) -> tuple[int, int]:
    """Return how many shards, and sequences, an unfinished writing left; it may be going on."""
    found = [one for folder in find_staging_dirs(root) for one in read_finished_shards(folder)]
    return len(found), sum(one.shard.sequences for one in found)


def find_finished_shards(folder: Path, part: int) -> dict[int, FinishedShard]:
    """Return number -> whole shard of one part; their files are read and are what was written."""
    found = read_finished_shards(folder, part)
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        are_intact = pool.map(lambda one: _is_intact(folder, one), found)
        return {
            one.number: one for one, is_intact in zip(found, are_intact, strict=True) if is_intact
        }


def _is_intact(folder: Path, finished: FinishedShard) -> bool:
    checksums = finished.shard.checksums
    return (
        checksums is not None
        and _has_digest(folder / finished.shard.file, finished.shard.bytes, finished.shard.sha256)
        and _has_digest(folder / checksums.file, checksums.bytes, checksums.sha256)
    )


def _has_digest(path: Path, size: int, digest: str) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    return digest_file(path) == digest


def _read_facts(path: Path) -> FinishedShard | None:
    """Return facts; None where their file is damaged or gone: then the shard is written again."""
    try:
        facts = read_with_digest(path)
        return None if facts is None else _parse_facts(json.loads(facts))
    except (ValueError, KeyError, TypeError, AttributeError):  # of another release
        return None


def _parse_facts(facts: dict[str, Any]) -> FinishedShard:
    shard = facts.pop("shard")
    checksums = shard.pop("checksums")
    shard["buffers"] = _parse_ranges(shard["buffers"])
    checksums["places"] = _parse_ranges(checksums["places"])
    return FinishedShard(**facts, shard=ArrowShard(**shard, checksums=ChecksumFile(**checksums)))


def _parse_ranges(ranges_json: Mapping[str, Any]) -> dict[str, tuple[tuple[int, int], ...]]:
    return {name: tuple((at, size) for at, size in pairs) for name, pairs in ranges_json.items()}

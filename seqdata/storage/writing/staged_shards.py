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
from seqdata.storage.arrow.manifest import ChecksumFile, Shard
from seqdata.storage.arrow.shard_file import digest_of_file, write_shard
from seqdata.storage.digest_trailer import read_sealed, sealed
from seqdata.storage.writing.packing import Packed
from seqdata.storage.writing.staging_dir import FACTS, unfinished, write_whole

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_THREADS = 4  # that look at digests
_MANY = 8  # bytes of a count in a digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
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
    packed: Packed
    timesteps: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
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
    shard: Shard


def write_load(folder: Path, fields: Mapping[str, Field], load: Load, algorithm: str) -> Whole:
    """Write a shard and its facts into a folder aside, all flushed to the disk.

    Args:
        folder: Where.
        fields: Name -> field.
        load: Its sequences.
        algorithm: That checksums are computed by.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    path = folder / f"{load.part:05d}-{load.number:05d}.arrow"
    about = {"part": load.part, "shard": load.number}
    with room_for(path, load.size):
        shard = write_shard(path, fields, load.packed, load.timesteps, about, algorithm)
        whole = Whole(
            part=load.part,
            number=load.number,
            size=load.size,
            first=digest_of(fields, load.packed, 0),
            last=digest_of(fields, load.packed, shard.sequences - 1),
            shard=shard,
        )
        facts = path.with_suffix(FACTS)
        write_whole(facts, sealed(json.dumps(asdict(whole)).encode(), facts.name))
    return whole


def digest_of(fields: Mapping[str, Field], packed: Packed, i: int) -> str:
    """Give the digest of the i-th of some packed sequences, and of what its fields are."""
    digest = hashlib.sha256(repr(list(fields.items())).encode())
    for name in fields:
        values, offsets = packed[name]
        first, stop = (i, i + 1) if offsets is None else (int(offsets[i]), int(offsets[i + 1]))
        digest.update((stop - first).to_bytes(_MANY, "little"))
        digest.update(np.ascontiguousarray(values[first:stop]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@contextmanager
def room_for(path: Path, size: int) -> Iterator[None]:
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
        for half in path.parent.glob(f"{path.stem}.*"):
            half.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
        free = shutil.disk_usage(path.parent).free
        raise IncompleteDatasetError.at(
            f"{path}: cannot be written ({os.strerror(error.errno)}), needs about {size} bytes, "
            f"{free} are free; make room and write again: whole shards are kept",
            file=str(path),
            needed=size,
            free=free,
        ) from error


def facts_in(folder: Path, part: int | None = None) -> list[Whole]:
    """Give what is said of whole shards in a folder aside, in their order; reads no shard.

    Args:
        folder: The folder aside.
        part: Of this part only.
    """
    begin = "*" if part is None else f"{part:05d}-*"
    found = [_read_facts(path) for path in folder.glob(begin + FACTS)]
    return sorted((one for one in found if one), key=lambda one: (one.part, one.number))


def left_behind(root: Path) -> tuple[int, int]:
    """Give how many shards, and sequences, an unfinished writing left; it may be going on."""
    found = [one for folder in unfinished(root) for one in facts_in(folder)]
    return len(found), sum(one.shard.sequences for one in found)


def find_whole(folder: Path, part: int) -> dict[int, Whole]:
    """Give number -> whole shard of one part; their files are read and are what was written."""
    found = facts_in(folder, part)
    with ThreadPoolExecutor(_THREADS) as pool:
        good = pool.map(lambda one: _is_whole(folder, one), found)
        return {one.number: one for one, is_whole in zip(found, good, strict=True) if is_whole}


def _is_whole(folder: Path, whole: Whole) -> bool:
    checksums = whole.shard.checksums
    return (
        checksums is not None
        and _is_file(folder / whole.shard.file, whole.shard.bytes, whole.shard.sha256)
        and _is_file(folder / checksums.file, checksums.bytes, checksums.sha256)
    )


def _is_file(path: Path, size: int, digest: str) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    return digest_of_file(path) == digest


def _read_facts(path: Path) -> Whole | None:
    """Give facts; None where their file is damaged or gone: then the shard is written again."""
    try:
        facts = read_sealed(path)
        return None if facts is None else _whole(json.loads(facts))
    except (ValueError, KeyError, TypeError, AttributeError):  # of another release
        return None


def _whole(facts: dict[str, Any]) -> Whole:
    shard = facts.pop("shard")
    checksums = shard.pop("checksums")
    shard["buffers"] = _pairs(shard["buffers"])
    checksums["places"] = _pairs(checksums["places"])
    return Whole(**facts, shard=Shard(**shard, checksums=ChecksumFile(**checksums)))


def _pairs(places: Mapping[str, Any]) -> dict[str, tuple[tuple[int, int], ...]]:
    return {name: tuple((at, size) for at, size in both) for name, both in places.items()}

"""The files of a store of ours, mapped, and each found to be what the manifest names.

Place in the flow: opening maps them, sources lie over them. Reads: sizes, footers, lengths. Makes:
mappings and arrays over them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError
from seqdata.kernel.choose import Kernel
from seqdata.storage.bits import SharedBits
from seqdata.storage.location import open_inside
from seqdata.storage.manifest import Checking, ChecksumFile, Manifest, Shard
from seqdata.storage.places import Place, quoted
from seqdata.storage.verifying import Checks


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """The files of a store.

    Attributes:
        shards: Per shard, its bytes.
        lengths_of: Axis -> timesteps of each sequence, integers (sequences,).
        checksums: Per shard, the bytes of its checksums; None: they are not looked at.
    """

    shards: Sequence[Any]
    lengths_of: Mapping[str, NDArray[Any]]
    checksums: Sequence[Any] | None


def map_files(root: Path, manifest: Manifest, engine: Kernel, *, verified: bool) -> Mapped:
    """Map all files of a store.

    Args:
        root: Its folder.
        manifest: What was written.
        engine: The kernel that maps.
        verified: Whether checksums are looked at: now the lengths', the others when data is read.

    Raises:
        MissingShardError: If a file is not there.
        CorruptShardError: If one is not what was written.
    """
    how = manifest.checksums if verified else None
    shards = [_map_shard(root, i, shard, engine) for i, shard in enumerate(manifest.shards)]
    lengths_of = {
        axis: _map_lengths(root, manifest, axis, engine, how) for axis in manifest.lengths
    }
    checksums = None
    if how is not None:
        files = [(i, shard.checksums) for i, shard in enumerate(manifest.shards)]
        checksums = [_map_sums(root, i, one, engine) for i, one in files if one is not None]
    return Mapped(shards, lengths_of, checksums)


def count_checksums(manifest: Manifest) -> int:
    """Give the number of checksums of all fields and shards."""
    files = [shard.checksums for shard in manifest.shards if shard.checksums is not None]
    return sum(both[0][1] // 4 for one in files for both in one.places.values())


def checks_of(
    manifest: Manifest, mapped: Mapped, bits: SharedBits | None
) -> dict[str, Checks] | None:
    """Give what each field is verified by; None: nothing.

    Args:
        manifest: What was written.
        mapped: The files.
        bits: One for each checksum: field by field, shard by shard; None: verify each time.
    """
    how = manifest.checksums
    if how is None or mapped.checksums is None:
        return None
    files = [shard.checksums for shard in manifest.shards if shard.checksums is not None]
    begin, found = 0, {}
    for name, field in manifest.fields.items():
        lengths = None if field.axis is None else mapped.lengths_of[field.axis]
        found[name] = _checks(name, how, files, mapped.checksums, bits, begin, lengths)
        begin += sum(len(one) for one in found[name].sums)
    return found


def _checks(
    name: str,
    how: Checking,
    files: Sequence[ChecksumFile],
    mappings: Sequence[Any],
    bits: SharedBits | None,
    begin: int,
    lengths: NDArray[Any] | None,
) -> Checks:
    sums: list[NDArray[np.uint32]] = []
    firsts: list[NDArray[np.int64] | None] = []
    begins = []
    for file, mapping in zip(files, mappings, strict=True):
        (place, size), *more = file.places[name]
        begins.append(begin)
        sums.append(
            np.frombuffer(mapping, dtype="<u4", count=size // 4, offset=place if size else 0)
        )
        firsts.append(
            np.frombuffer(mapping, dtype="<i8", count=more[0][1] // 8, offset=more[0][0])
            if more
            else None
        )
        begin += size // 4
    return Checks(
        how.algorithm, how.block, tuple(sums), tuple(firsts), tuple(file.file for file in files),
        None if bits is None else bits.buffer, tuple(begins), lengths,
    )  # fmt: skip


def _map_shard(root: Path, i: int, shard: Shard, engine: Kernel) -> Any:
    """Map a shard whose size and footer are those that were written."""
    place = Place(dataset=str(root), shard=i, file=shard.file, verify=True)
    with open_inside(root, shard.file, replace(place, offset=0, length=shard.bytes)) as opened:
        descriptor, size = opened
        if size != shard.bytes:
            shorter, longer = sorted((size, shard.bytes))
            raise replace(place, offset=shorter, length=longer - shorter).error(
                CorruptShardError,
                f"has {size} bytes, must have {shard.bytes}; restore it or write the store again",
                expected=shard.bytes, found=size,
            )  # fmt: skip
        begin = size - shard.footer_bytes
        found = hashlib.sha256(os.pread(descriptor, shard.footer_bytes, begin)).hexdigest()
        if found != shard.footer_sha256:
            raise replace(place, offset=begin, length=shard.footer_bytes).error(
                CorruptShardError,
                f"has a footer of digest {found[:16]}, must be {shard.footer_sha256[:16]}; it is "
                "another file or damaged, restore it or write the store again",
                expected=shard.footer_sha256, found=found,
            )  # fmt: skip
        return _map(place, descriptor, size, engine)


def _map_sums(root: Path, i: int, file: ChecksumFile, engine: Kernel) -> Any:
    place = Place(
        dataset=str(root), shard=i, file=file.file, part=f"checksums of shard {i}", verify=True
    )
    with open_inside(root, file.file, place) as (descriptor, size):
        if size != file.bytes:
            shorter, longer = sorted((size, file.bytes))
            raise replace(place, offset=shorter, length=longer - shorter).error(
                CorruptShardError,
                f"have {size} bytes, must have {file.bytes}; restore them or write the store again",
                expected=file.bytes, found=size,
            )  # fmt: skip
        return _map(place, descriptor, size, engine) if size else b""


def _map_lengths(
    root: Path, manifest: Manifest, axis: str, engine: Kernel, how: Checking | None
) -> NDArray[Any]:
    one = manifest.lengths[axis]
    dtype = np.dtype(one.dtype).newbyteorder("<")
    must = manifest.sequences * dtype.itemsize
    place = Place(dataset=str(root), file=one.file, part=f"lengths of axis {quoted(axis)}")
    with open_inside(root, one.file, place) as (descriptor, size):
        if size != must:
            raise replace(place, offset=min(size, must), length=abs(size - must)).error(
                CorruptShardError,
                f"have {size} bytes, must have {must}; restore them or write the store again",
                expected=must, found=size,
            )  # fmt: skip
        lengths = np.frombuffer(_map(place, descriptor, size, engine), dtype=dtype)
    if how is not None and one.checksum is not None:
        found = np.empty(1, dtype=np.uint32)
        engine.checksums(lengths, np.array([0, must]), found, how.algorithm)
        if found[0] != one.checksum:
            raise replace(place, offset=0, length=must).error(
                CorruptShardError,
                f"have {how.algorithm} {int(found[0]):08x}, must have {one.checksum:08x}; restore "
                "them or write the store again",
                expected=f"{one.checksum:08x}", found=f"{int(found[0]):08x}",
            )  # fmt: skip
    return lengths


def _map(place: Place, descriptor: int, size: int, engine: Kernel) -> Any:
    try:
        return engine.map_file(descriptor, size)
    except OSError as error:
        limit = "`ulimit -n`" if error.errno == errno.EMFILE else "`sysctl vm.max_map_count`"
        raise place.error(
            DataError,
            f"cannot be mapped ({error.strerror}), must be; raise {limit}, or write the store "
            "again with larger shards",
        ) from error

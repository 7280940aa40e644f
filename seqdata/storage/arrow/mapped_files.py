"""The files of a store of ours, mapped, and each found to be what the manifest names.

Place in the flow: opening maps them, sources lie over them. Reads: sizes, footers, lengths. Makes:
mappings and arrays over them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError
from seqdata.kernel.dispatch import Kernel
from seqdata.storage.arrow.manifest import Checking, ChecksumFile, Manifest, Shard
from seqdata.storage.columns import Layout, Source
from seqdata.storage.data_location import Place, quoted
from seqdata.storage.fields import TEXTS, field_width
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import Checks
from seqdata.storage.local_files import limit_of, open_inside
from seqdata.storage.text_source import TextSource


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
    shards = []
    for i, shard in enumerate(manifest.shards):
        place = shard_place(root, i, shard)
        shards.append(map_whole(root, shard.file, shard.bytes, place, engine))
        check_footer(shards[-1], place, shard)
    lengths_of = {axis: map_lengths(root, manifest, axis, engine) for axis in manifest.lengths}
    if not verified:
        return Mapped(shards, lengths_of, None)
    for axis, lengths in lengths_of.items():
        check_lengths(lengths, root, manifest, axis, engine)
        check_total(lengths, root, manifest, axis)
    files = [(i, shard.checksums) for i, shard in enumerate(manifest.shards)]
    checksums = [
        map_whole(root, one.file, one.bytes, sums_place(root, i, one), engine)
        for i, one in files
        if one is not None
    ]
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


def source_over(
    name: str,
    manifest: Manifest,
    layout: Layout,
    mappings: Sequence[Any],
    checks: Mapping[str, Checks],
) -> Source | TextSource:
    """Lay arrays over one field's buffers, whose places the manifest's reader has checked."""
    field = manifest.fields[name]
    text = field.dtype in TEXTS
    dtype = np.dtype("uint8" if text else field.dtype)
    width = 1 if text else field_width(field)
    values: list[NDArray[Any]] = []
    offsets: list[NDArray[np.int64]] = []
    places = []
    for mapping, shard in zip(mappings, manifest.shards, strict=True):
        (place, size), *more = shard.buffers[name]
        count = size // width * (width // dtype.itemsize)
        flat = np.frombuffer(mapping, dtype=dtype, count=count, offset=place if count else 0)
        values.append(flat.reshape(size // width, *field.shape) if field.shape else flat)
        places.append(place)
        for at, _ in more:
            offsets.append(
                np.frombuffer(mapping, dtype=np.int64, count=shard.sequences + 1, offset=at)
            )
    if text:
        return TextSource.of(name, field, layout, values, offsets, places, checks.get(name))
    return Source.of(name, field, layout, values, offsets or None, places, checks.get(name))


def shard_place(root: Path | str, i: int, shard: Shard) -> Place:
    """Give the place of a shard, for an error."""
    return Place(dataset=str(root), shard=i, file=shard.file, verify=True)


def sums_place(root: Path | str, i: int, file: ChecksumFile) -> Place:
    """Give the place of a shard's checksums, for an error."""
    part = f"checksums of shard {i}"
    return Place(dataset=str(root), shard=i, file=file.file, part=part, verify=True)


def lengths_place(root: Path | str, manifest: Manifest, axis: str) -> Place:
    """Give the place of the lengths along an axis, for an error."""
    part = f"lengths of axis {quoted(axis)}"
    return Place(dataset=str(root), file=manifest.lengths[axis].file, part=part)


def map_whole(root: Path, name: str, bytes_: int, place: Place, engine: Kernel) -> Any:
    """Map a file that has the size that it must have.

    Args:
        root: The store's folder.
        name: The file's.
        bytes_: What the manifest says.
        place: Of the file, for errors.
        engine: The kernel that maps.

    Raises:
        MissingShardError: If it is not there.
        CorruptShardError: If it has another size.
    """
    with open_inside(root, name, replace(place, offset=0, length=bytes_)) as (descriptor, size):
        if size != bytes_:
            shorter, longer = sorted((size, bytes_))
            have, them = ("has", "it") if place.part is None else ("have", "them")
            raise replace(place, offset=shorter, length=longer - shorter).error(
                CorruptShardError,
                f"{have} {size} bytes, must have {bytes_}; restore {them} or write the store again",
                expected=bytes_, found=size,
            )  # fmt: skip
        try:
            return engine.map_file(descriptor, size) if size else b""
        except OSError as error:
            raise place.error(
                DataError,
                f"cannot be mapped ({error.strerror}), must be; raise {limit_of(error)}, or write "
                "the store again with larger shards",
            ) from error


def check_footer(mapping: Any, place: Place, shard: Shard) -> None:
    """Look at a shard's footer, whose digest is its own among all shards.

    Raises:
        CorruptShardError: If it is another.
    """
    begin = shard.bytes - shard.footer_bytes
    found = hashlib.sha256(memoryview(mapping)[begin:]).hexdigest()
    if found != shard.footer_sha256:
        raise replace(place, offset=begin, length=shard.footer_bytes).error(
            CorruptShardError,
            f"has a footer of digest {found[:16]}, must be {shard.footer_sha256[:16]}; it is "
            "another file or damaged, restore it or write the store again",
            expected=shard.footer_sha256, found=found,
        )  # fmt: skip


def map_lengths(root: Path, manifest: Manifest, axis: str, engine: Kernel) -> NDArray[Any]:
    """Map the lengths along an axis; what they are is not looked at."""
    one = manifest.lengths[axis]
    dtype = np.dtype(one.dtype).newbyteorder("<")
    place = lengths_place(root, manifest, axis)
    bytes_ = manifest.sequences * dtype.itemsize
    return np.frombuffer(map_whole(root, one.file, bytes_, place, engine), dtype=dtype)


def check_total(lengths: NDArray[Any], root: Path | str, manifest: Manifest, axis: str) -> None:
    """Refuse lengths that the shards do not hold: batches are made as large as they say.

    Raises:
        CorruptShardError: If they are such.
    """
    total = sum(shard.timesteps[axis] for shard in manifest.shards)
    longest, found = int(lengths.max(initial=0)), int(lengths.sum(dtype=np.uint64))
    if longest > total or found != total:
        raise lengths_place(root, manifest, axis).error(
            CorruptShardError,
            f"add up to {found} timesteps, the longest has {longest}, must add up to {total} as in "
            "the shards; restore them or write the store again",
            expected=total, found=found,
        )  # fmt: skip


def check_lengths(
    lengths: NDArray[Any], root: Path | str, manifest: Manifest, axis: str, engine: Kernel
) -> None:
    """Look at the checksum of the lengths along an axis.

    Raises:
        CorruptShardError: If it is another.
    """
    must, how = manifest.lengths[axis].checksum, manifest.checksums
    if how is None or must is None:
        return
    made = np.empty(1, dtype=np.uint32)
    engine.checksums(lengths, np.array([0, lengths.nbytes]), made, how.algorithm)
    found = int(made[0])
    if found != must:
        raise replace(lengths_place(root, manifest, axis), offset=0, length=lengths.nbytes).error(
            CorruptShardError,
            f"have {how.algorithm} {found:08x}, must have {must:08x}; restore them or write the "
            "store again",
            expected=f"{must:08x}", found=f"{found:08x}",
        )  # fmt: skip

"""Checksums of stored sequences: one each, or one per 64 KiB where a sequence is longer.

They are in one file next to each shard, so that a shard stays an ordinary Arrow file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.dispatch import get_kernel

CHECKSUM_BYTES = 1 << 16  # bytes
ALGORITHMS = ("crc32c", "crc32")
"""Known algorithms, the better one first."""

_ALIGNMENT = 8  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class ComputedChecksums:
    """The checksums of one field of one shard.

    Attributes:
        values: uint32 (k,).
        offsets: int64 (sequences+1,): sequence -> its first checksum; None: one per sequence.
    """

    values: NDArray[np.uint32]
    offsets: NDArray[np.int64] | None


def choose_algorithm() -> str:
    """Return the name of the best algorithm that this process can compute."""
    available = get_kernel().algorithms()
    return next(name for name in ALGORITHMS if name in available)


def compute_checksums(
    values: NDArray[Any],
    offsets: NDArray[np.int64] | None,
    width: int,
    algorithm_name: str | None = None,
) -> ComputedChecksums:
    """Return the checksums of all sequences of a packed field, in order.

    A sequence of more than ``CHECKSUM_BYTES`` bytes has one for each block, counted from its
    start; an empty one has the checksum of no bytes, which is 0.

    Args:
        values: (timesteps, *shape), contiguous.
        offsets: int64 (sequences+1,): sequence -> timesteps; None: one timestep each.
        width: Bytes per timestep.
        algorithm_name: The algorithm; None: the best available one.
    """
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if offsets is None:
        offsets = np.arange(len(values) + 1, dtype=np.int64)
    byte_offsets = offsets * width
    checksum_offsets = compute_checksum_offsets(np.diff(byte_offsets))
    checksums = np.empty(
        len(byte_offsets) - 1 if checksum_offsets is None else int(checksum_offsets[-1]),
        dtype=np.uint32,
    )
    get_kernel().checksums(
        data,
        checksum_byte_offsets(byte_offsets, checksum_offsets),
        checksums,
        algorithm_name or choose_algorithm(),
    )
    return ComputedChecksums(checksums, checksum_offsets)


def compute_checksum_offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return each sequence's first checksum, int64 (n+1,); None if each has exactly one."""
    if int(sizes.max(initial=0)) <= CHECKSUM_BYTES:
        return None
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(np.maximum(1, -(-sizes // CHECKSUM_BYTES)), out=offsets[1:])
    return offsets


def checksum_byte_offsets(
    byte_offsets: NDArray[np.int64], checksum_offsets: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the byte offsets of checksums, with the end of the last: int64 (k+1,).

    Args:
        byte_offsets: int64 (n+1,): sequence -> its first byte.
        checksum_offsets: int64 (n+1,): sequence -> its first checksum; None: one per sequence.
    """
    if checksum_offsets is None:
        return byte_offsets
    counts = np.diff(checksum_offsets)
    positions = np.arange(int(checksum_offsets[-1])) - np.repeat(checksum_offsets[:-1], counts)
    return np.append(
        np.repeat(byte_offsets[:-1], counts) + CHECKSUM_BYTES * positions, byte_offsets[-1]
    )


def write_checksums(path: Path, by_field: Mapping[str, ComputedChecksums]) -> ChecksumFile:
    """Write the checksums of one shard, flushed to the disk; return the file's entry.

    Raw arrays, little-endian, each at a multiple of 8 bytes.

    Args:
        path: The file to write: ``part-00000.crc`` next to ``part-00000.arrow``.
        by_field: Field -> its checksums.
    """
    digest = hashlib.sha256()
    ranges_of_fields: dict[str, tuple[tuple[int, int], ...]] = {}
    with open(path, "wb") as file:
        for name, checksums in by_field.items():
            ranges = []
            arrays: list[NDArray[Any]] = [checksums.values.astype("<u4", copy=False)]
            if checksums.offsets is not None:
                arrays.append(checksums.offsets.astype("<i8", copy=False))
            for array in arrays:
                ranges.append((file.tell(), array.nbytes))
                for content in (array.tobytes(), bytes(-array.nbytes % _ALIGNMENT)):
                    file.write(content)
                    digest.update(content)
            ranges_of_fields[name] = tuple(ranges)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return ChecksumFile(
        file=path.name, bytes=size, sha256=digest.hexdigest(), places=ranges_of_fields
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumFile:
    """The checksums of one shard's sequences.

    Attributes:
        file: Name in the store's folder.
        bytes: Size of the file.
        sha256: Digest of the whole file, compared by ``seqdata verify``.
        places: Field -> (position, bytes) of its checksums, then of their offsets if it has any.
    """

    file: str
    bytes: int
    sha256: str
    places: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumSpec:
    """Algorithm and block size of the checksums of a store.

    Attributes:
        algorithm: Name of the algorithm.
        bytes_per_checksum: A longer sequence has one checksum per block of this many bytes.
    """

    algorithm: str
    bytes_per_checksum: int

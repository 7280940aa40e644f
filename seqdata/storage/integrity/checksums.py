"""Checksums of stored sequences: one each, or one per 64 KiB where a sequence is longer.

They lie in one file beside each shard, so that a shard stays an ordinary Arrow file and is as it
would be without them. Place in the flow: the writer makes them, stores verify by them. Reads:
packed fields. Makes: numbers and a file of them.
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

from seqdata.kernel.dispatch import kernel
from seqdata.storage.arrow.manifest import ChecksumFile

BLOCK = 1 << 16  # bytes
ALGORITHMS = ("crc32c", "crc32")
"""Known algorithms, the better one first."""

_ALIGNED = 8  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Checksums:
    """The checksums of one field of one shard.

    Attributes:
        values: uint32 (k,).
        firsts: int64 (sequences+1,): sequence -> its first checksum; None: one per sequence.
    """

    values: NDArray[np.uint32]
    firsts: NDArray[np.int64] | None


def algorithm() -> str:
    """Give the name of the best algorithm that this process can compute."""
    have = kernel().algorithms()
    return next(name for name in ALGORITHMS if name in have)


def checksums_of(
    values: NDArray[Any], offsets: NDArray[np.int64] | None, width: int, name: str | None = None
) -> Checksums:
    """Give the checksums of all sequences of a packed field, in their order.

    A sequence of more than ``BLOCK`` bytes has one for each block, counted from its start; an empty
    one has that of no bytes, which is 0.

    Args:
        values: (timesteps, *shape), contiguous.
        offsets: int64 (sequences+1,): sequence -> timesteps; None: one timestep each.
        width: Bytes per timestep.
        name: The algorithm; None: the best there is.
    """
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if offsets is None:
        offsets = np.arange(len(values) + 1, dtype=np.int64)
    edges = offsets * width
    firsts = firsts_of(np.diff(edges))
    made = np.empty(len(edges) - 1 if firsts is None else int(firsts[-1]), dtype=np.uint32)
    kernel().checksums(data, piece_bounds(edges, firsts), made, name or algorithm())
    return Checksums(made, firsts)


def firsts_of(sizes: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Give each sequence's first checksum, int64 (n+1,), for its bytes; None: one per sequence."""
    if int(sizes.max(initial=0)) <= BLOCK:
        return None
    firsts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(np.maximum(1, -(-sizes // BLOCK)), out=firsts[1:])
    return firsts


def piece_bounds(edges: NDArray[np.int64], firsts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Give where the bytes of each checksum begin, and the last ends: int64 (k+1,).

    Args:
        edges: int64 (n+1,): sequence -> its first byte.
        firsts: int64 (n+1,): sequence -> its first checksum; None: one per sequence.
    """
    if firsts is None:
        return edges
    counts = np.diff(firsts)
    blocks = np.arange(int(firsts[-1])) - np.repeat(firsts[:-1], counts)
    return np.append(np.repeat(edges[:-1], counts) + BLOCK * blocks, edges[-1])


def write_checksums(path: Path, by_field: Mapping[str, Checksums]) -> ChecksumFile:
    """Write the checksums of one shard, flushed to the disk, and give the file's facts.

    Raw arrays, little-endian, each at a multiple of 8 bytes.

    Args:
        path: Where it is written: ``part-00000.crc`` beside ``part-00000.arrow``.
        by_field: Field -> its checksums.
    """
    digest = hashlib.sha256()
    places: dict[str, tuple[tuple[int, int], ...]] = {}
    with open(path, "wb") as file:
        for name, one in by_field.items():
            found = []
            arrays: list[NDArray[Any]] = [one.values.astype("<u4", copy=False)]
            if one.firsts is not None:
                arrays.append(one.firsts.astype("<i8", copy=False))
            for array in arrays:
                found.append((file.tell(), array.nbytes))
                for content in (array.tobytes(), bytes(-array.nbytes % _ALIGNED)):
                    file.write(content)
                    digest.update(content)
            places[name] = tuple(found)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return ChecksumFile(file=path.name, bytes=size, sha256=digest.hexdigest(), places=places)

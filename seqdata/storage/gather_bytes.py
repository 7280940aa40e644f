"""The concatenated bytes of many sequences, gathered by the kernel.

Recorded extents are untrusted: they must be inside of the buffers, and must not need more memory
than the shards hold. Place in the flow: sources of texts and bytes read through it. Reads: buffers.
Makes: bytes and offsets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError
from seqdata.storage.limits import UNCHECKED_BYTES
from seqdata.storage.text_bytes import TextBytes

if TYPE_CHECKING:
    from seqdata.storage.columns import BufferSource


def gather_bytes(source: BufferSource, numbers: NDArray[np.int64]) -> TextBytes:
    """Return the concatenated bytes of whole sequences.

    Raises:
        ConfigError: If there is no such sequence.
        CorruptSampleError: If a recorded place or a checksum is wrong.
        CorruptShardError: If values overlap.
    """
    offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.cumsum(compute_sizes(source, numbers), out=offsets[1:])
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    np.subtract(offsets[1:], offsets[:-1], out=spans[:, 2])
    if offsets[-1] > UNCHECKED_BYTES:
        _check_overlaps(source, numbers, int(offsets[-1]))
    values = np.empty(int(offsets[-1]), dtype=np.uint8)
    bad = source.engine.fill(source.handle, spans, offsets, values, None)
    if bad != -1:
        source.raise_for_result(bad, spans)
    return values, offsets


def compute_sizes(source: BufferSource, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of each sequence in bytes, int64 (n,), after checking its extent."""
    extents = source.extents
    if extents is None:
        raise ValueError(f"{source.name!r}: the bytes of fields without extents are not gathered")
    shard_offsets = np.array(source.layout.shard_offsets, dtype=np.int64)
    missing = (numbers < 0) | (numbers >= shard_offsets[-1])
    if missing.any():
        source.raise_for_span(int(numbers[missing][0]), 0, 0)
    sizes = np.empty(len(numbers), dtype=np.int64)
    shards = np.searchsorted(shard_offsets, numbers, side="right") - 1
    order = np.argsort(shards, kind="stable")
    breaks = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1)).tolist()
    for first, last in pairwise(breaks):
        rows = order[first:last]
        shard = int(shards[rows[0]])
        at = numbers[rows] - shard_offsets[shard]
        begins, ends = (each[at] for each in extents[shard])
        bad = (begins < 0) | (ends < begins) | (ends > len(source.values[shard]))
        if bad.any():
            source.raise_for_span(int(numbers[rows[bad][0]]), 0, 0)
        sizes[rows] = ends - begins
    return sizes


def _check_overlaps(source: BufferSource, numbers: NDArray[np.int64], total: int) -> None:
    """Raise if values together are longer than their shards.

    Raises:
        CorruptShardError: If they are: some overlap.
    """
    distinct, repeats = np.unique(numbers, return_counts=True)
    shards = np.searchsorted(np.array(source.layout.shard_offsets), distinct, side="right") - 1
    shard_bytes = sum(len(source.values[shard]) for shard in np.unique(shards).tolist())
    if total > shard_bytes * int(repeats.max()):
        raise source.layout.locate(int(numbers[0]), source.name).make_error(
            CorruptShardError,
            f"and {len(numbers) - 1} others must not overlap, but take {total} bytes of "
            f"{shard_bytes}. The shard is damaged: restore it, or write the store again",
        )


def make_value_spans(source: BufferSource, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the spans of whole sequences in bytes, int64 (n, 3), to verify them by.

    Raises:
        ConfigError: If there is no such sequence.
        CorruptSampleError: If a recorded place is wrong.
    """
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = compute_sizes(source, numbers)
    return spans

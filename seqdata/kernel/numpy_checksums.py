"""Verification of checksums in NumPy, as ``_fill.c`` does it while it copies.

Without the compiled kernel checksums are zlib's, and CRC-32C if ``crc32c`` is installed.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

ChecksumFn = Callable[[Any], int]


def algorithms() -> tuple[str, ...]:
    """Return the names of the checksums that can be computed."""
    return ("crc32",) if _load_crc32c() is None else ("crc32c", "crc32")


def get_checksum(name: str) -> ChecksumFn:
    """Return the function of an algorithm, from a buffer to its checksum.

    Raises:
        ValueError: If the checksum cannot be computed.
    """
    function = zlib.crc32 if name == "crc32" else _load_crc32c() if name == "crc32c" else None
    if function is None:
        known = " or ".join(map(repr, algorithms()))
        raise ValueError(f"checksums: `algorithm` must be {known}, but is {name!r}")
    return function


def checksums(data: Any, bounds: Any, out: Any, algorithm: str) -> None:
    """Write the checksum of every piece; see ``dispatch.Kernel.checksums``."""
    compute = get_checksum(algorithm)
    content = memoryview(data).cast("B") if memoryview(data).nbytes else b""
    offsets = np.frombuffer(bounds, dtype=np.int64).tolist()
    values = (
        np.frombuffer(out, dtype=np.uint32) if memoryview(out).nbytes else np.empty(0, np.uint32)
    )
    is_rising = len(offsets) == len(values) + 1 and offsets == sorted(offsets)
    if not is_rising or not 0 <= offsets[0] <= offsets[-1] <= len(content):
        raise ValueError(
            "checksums: `bounds` must rise inside `data`, one more than `out` has uint32"
        )
    for number in range(len(values)):
        values[number] = compute(content[offsets[number] : offsets[number + 1]])


@functools.cache
def _load_crc32c() -> ChecksumFn | None:
    try:
        return cast(ChecksumFn, importlib.import_module("crc32c").crc32c)
    except ImportError:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class NumpyChecksums:
    """The checksums of the sequences of one field; see ``dispatch.ChecksumBuffers``."""

    compute: ChecksumFn
    checksum_bytes: int
    checksums: tuple[NDArray[np.uint32], ...]
    offsets: tuple[NDArray[np.int64] | None, ...]
    bits: NDArray[np.uint8] | None
    first_bits: tuple[int, ...]
    lengths: NDArray[Any] | None
    width: int

    def check_span(
        self, shard: int, index: int, number: int, content: NDArray[np.uint8], span: slice
    ) -> bool:
        """Return whether the blocks of a span have the right checksums, and mark them as verified.

        Args:
            shard: Index of the sequence's shard.
            index: Index of the sequence in the shard.
            number: Index of the sequence in the store.
            content: All bytes of the sequence.
            span: Range of the requested bytes.
        """
        blocks = max(1, -(-len(content) // self.checksum_bytes))
        first, stop = index, index + 1
        offsets = self.offsets[shard]
        if offsets is not None:
            first, stop = offsets[index : index + 2].tolist()
        if not 0 <= first <= stop <= len(self.checksums[shard]) or stop - first != blocks:
            return False
        if not len(content):
            touched = range(1)
        elif span.start == span.stop:
            touched = range(0)
        else:
            touched = range(
                span.start // self.checksum_bytes, (span.stop - 1) // self.checksum_bytes + 1
            )
        return all(
            self._check_block(shard, first + block, block, number, content) for block in touched
        )

    def _check_block(
        self, shard: int, checksum_index: int, block: int, number: int, content: NDArray[np.uint8]
    ) -> bool:
        bit = self.first_bits[shard] + checksum_index
        if self.bits is not None and self.bits[bit // 8] >> bit % 8 & 1:
            return True
        piece = content[block * self.checksum_bytes : (block + 1) * self.checksum_bytes]
        if self.compute(piece.data) != self.checksums[shard][checksum_index]:
            return False
        if self.lengths is not None and len(content) // self.width != self.lengths[number]:
            return False
        if self.bits is not None:
            self.bits[bit // 8] |= 1 << bit % 8
        return True


def _as_array(buffer: Any, dtype: Any) -> NDArray[Any]:
    view = memoryview(buffer)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(view, dtype, view.nbytes // size) if view.nbytes else np.empty(0, dtype)


def make_checksums(checks: Any, starts: list[int], width: int, *, ragged: bool) -> NumpyChecksums:
    """Return the checksums of a source, validated as in the compiled kernel.

    Raises:
        ValueError: If checksums, offsets, bits or lengths are too few.
    """
    name, checksum_bytes, checksums, offsets, bits, first_bits, lengths = checks
    shards = len(starts) - 1
    if checksum_bytes < 1 or not len(checksums) == len(offsets) == len(first_bits) == shards:
        raise ValueError(
            "source: checks need a known algorithm, a block of at least 1 byte and an entry for "
            "each shard"
        )
    bit_array = None if bits is None else _as_array(bits, np.uint8)
    if bit_array is not None and not bit_array.flags.writeable:
        raise BufferError("source: `bits` are read-only")
    all_checksums = tuple(_as_array(buffer, np.uint32) for buffer in checksums)
    all_offsets = tuple(
        None if buffer is None else _as_array(buffer, np.int64) for buffer in offsets
    )
    for shard in range(shards):
        count, first = starts[shard + 1] - starts[shard], all_offsets[shard]
        if len(all_checksums[shard]) < count or (first is not None and len(first) <= count):
            raise ValueError(f"source: checksums of shard {shard} are too few")
        capacity = None if bit_array is None else 8 * len(bit_array) - first_bits[shard]
        if capacity is not None and (first_bits[shard] < 0 or len(all_checksums[shard]) > capacity):
            raise ValueError(f"source: `bits` of shard {shard} are too few")
    length_array = None
    if lengths is not None and starts[-1]:
        size = memoryview(lengths).nbytes // starts[-1]
        if not ragged or size not in (4, 8):
            raise ValueError(
                "source: `lengths` must be one uint32 or uint64 for each sequence of a ragged field"
            )
        length_array = _as_array(lengths, f"u{size}")
    return NumpyChecksums(
        get_checksum(name),
        checksum_bytes,
        all_checksums,
        all_offsets,
        bit_array,
        tuple(first_bits),
        length_array,
        width,
    )

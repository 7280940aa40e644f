"""Verifying by checksums in NumPy: what ``_fill.c`` does while it copies.

Place in the flow: the twin asks it about every span. Reads: buffers. Makes: verdicts, and bits that
keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.checksum_functions import Sum, sum_of


@dataclass(frozen=True, slots=True, eq=False)
class TwinChecks:
    """What the sequences of one field are verified by; see ``choose.Checks``."""

    compute: Sum
    block: int
    sums: tuple[NDArray[np.uint32], ...]
    firsts: tuple[NDArray[np.int64] | None, ...]
    bits: NDArray[np.uint8] | None
    begins: tuple[int, ...]
    lengths: NDArray[Any] | None
    width: int

    def good(self, shard: int, at: int, number: int, whole: NDArray[np.uint8], span: slice) -> bool:
        """Tell whether what a span touches is right, and mark it.

        Args:
            shard: Where the sequence lies.
            at: Its number there.
            number: Its number in the store.
            whole: All its bytes.
            span: Those that are asked for.
        """
        blocks = max(1, -(-len(whole) // self.block))
        first, next_ = at, at + 1
        firsts = self.firsts[shard]
        if firsts is not None:
            first, next_ = firsts[at : at + 2].tolist()
        if not 0 <= first <= next_ <= len(self.sums[shard]) or next_ - first != blocks:
            return False
        if not len(whole):
            touched = range(1)
        elif span.start == span.stop:
            touched = range(0)
        else:
            touched = range(span.start // self.block, (span.stop - 1) // self.block + 1)
        return all(self._right(shard, first + block, block, number, whole) for block in touched)

    def _right(
        self, shard: int, at: int, block: int, number: int, whole: NDArray[np.uint8]
    ) -> bool:
        bit = self.begins[shard] + at
        if self.bits is not None and self.bits[bit // 8] >> bit % 8 & 1:
            return True
        piece = whole[block * self.block : (block + 1) * self.block]
        if self.compute(piece.data) != self.sums[shard][at]:
            return False
        if self.lengths is not None and len(whole) // self.width != self.lengths[number]:
            return False
        if self.bits is not None:
            self.bits[bit // 8] |= 1 << bit % 8
        return True


def _array(buffer: Any, dtype: Any) -> NDArray[Any]:
    view = memoryview(buffer)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(view, dtype, view.nbytes // size) if view.nbytes else np.empty(0, dtype)


def checks_of(checks: Any, starts: list[int], width: int, *, ragged: bool) -> TwinChecks:
    """Hold what a source is verified by, as the compiled kernel does.

    Raises:
        ValueError: If there is too little of something.
    """
    name, block, sums, firsts, bits, begins, lengths = checks
    shards = len(starts) - 1
    if block < 1 or not len(sums) == len(firsts) == len(begins) == shards:
        raise ValueError(
            "source: checks need a known algorithm, a block of at least 1 byte and an entry for "
            "each shard"
        )
    marks = None if bits is None else _array(bits, np.uint8)
    if marks is not None and not marks.flags.writeable:
        raise BufferError("source: `bits` are read-only")
    all_sums = tuple(_array(one, np.uint32) for one in sums)
    all_firsts = tuple(None if one is None else _array(one, np.int64) for one in firsts)
    for shard in range(shards):
        count, first = starts[shard + 1] - starts[shard], all_firsts[shard]
        if len(all_sums[shard]) < count or (first is not None and len(first) <= count):
            raise ValueError(f"source: checksums of shard {shard} are too few")
        room = None if marks is None else 8 * len(marks) - begins[shard]
        if room is not None and (begins[shard] < 0 or len(all_sums[shard]) > room):
            raise ValueError(f"source: `bits` of shard {shard} are too few")
    recorded = None
    if lengths is not None and starts[-1]:
        size = memoryview(lengths).nbytes // starts[-1]
        if not ragged or size not in (4, 8):
            raise ValueError(
                "source: `lengths` must be one uint32 or uint64 for each sequence of a ragged field"
            )
        recorded = _array(lengths, f"u{size}")
    return TwinChecks(
        sum_of(name), block, all_sums, all_firsts, marks, tuple(begins), recorded, width
    )

"""One field of ``str`` or ``bytes`` over mapped or owned buffers.

The bytes of many sequences are gathered by the kernel, without Python per sequence; only ``take``
makes a Python object of each. Place in the flow: stores make sources, ``StoreFields`` reads from
them.
Reads: buffers. Makes: lists of values, or their bytes behind one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import CorruptSampleError, CorruptShardError, DecodeError
from seqdata.kernel.dispatch import Kernel, get_kernel
from seqdata.kernel.dispatch import KernelSource as KernelSource
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.extents import ShardExtents, extents_of
from seqdata.storage.integrity.verify import ChecksumMismatch, FieldChecksums, make_mismatch_error
from seqdata.storage.limits import UNCHECKED_BYTES
from seqdata.storage.text_bytes import TextBytes
from seqdata.storage.truncation import are_readable


@dataclass(frozen=True, slots=True, eq=False)
class TextSource:
    """One field of ``str`` or ``bytes`` over all shards.

    Attributes:
        name: The field's name.
        field: What it holds.
        layout: Where its sequences lie.
        values: Per shard, uint8.
        extents: Per shard, where each sequence's bytes begin and end.
        file_offsets: Per shard, where the values begin in the file, in bytes; None: in no file.
        engine: The kernel that copies.
        handle: The kernel's own hold on the buffers.
        checksums: What its sequences are verified by; None: nothing.
        advice: What to do where bytes are not UTF-8.
    """

    name: str
    field: Field
    layout: ShardLayout
    values: tuple[NDArray[np.uint8], ...]
    extents: tuple[ShardExtents, ...]
    file_offsets: tuple[int, ...] | None
    engine: Kernel
    handle: KernelSource
    checksums: FieldChecksums | None
    advice: str = "the shard is damaged, restore it or write the store again"

    @classmethod
    def of(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        values: Sequence[NDArray[np.uint8]],
        offsets: Sequence[NDArray[np.int64]],
        file_offsets: Sequence[int] | None = None,
        checksums: FieldChecksums | None = None,
    ) -> TextSource:
        """Return the source of texts that lie one behind another; see ``KernelSource.of``."""
        return cls.over(name, field, layout, values, extents_of(offsets), checksums, file_offsets)

    @classmethod
    def over(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        files: Sequence[NDArray[np.uint8]],
        extents: Sequence[ShardExtents],
        checks: FieldChecksums | None = None,
        places: Sequence[int] | None = None,
    ) -> TextSource:
        """Return the source of texts that lie anywhere in files; see ``KernelSource.over``."""
        engine = get_kernel()
        starts = np.array(layout.shard_offsets, dtype=np.int64)
        arguments = None if checks is None else checks.kernel_arguments
        handle = engine.source(tuple(files), tuple(extents), starts, 1, arguments)
        return cls(
            name, field, layout, tuple(files), tuple(extents),
            None if places is None else tuple(places), engine, handle,
            checks,
        )  # fmt: skip

    def find(self, number: int) -> tuple[int, int, int]:
        """Return (shard, first byte, one past the last) of a sequence's text; unchecked.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard = self.layout.find_shard(number)
        at = number - self.layout.shard_offsets[shard]
        begins, ends = self.extents[shard]
        return shard, int(begins[at]), int(ends[at])

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the values of sequences, a list of ``str`` or ``bytes``.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
            DecodeError: If the bytes are no text.
        """
        wanted = np.asarray(numbers, dtype=np.int64)
        values, offsets = self.read_bytes(wanted)
        content = values.tobytes()
        offset_list = offsets.tolist()
        pieces = [content[first:last] for first, last in pairwise(offset_list)]
        if self.field.dtype != "str":
            return pieces
        texts: list[str] = []
        try:
            texts.extend(piece.decode() for piece in pieces)
        except UnicodeDecodeError as error:
            number = int(wanted[len(texts)])
            raise self._locate(number).make_error(
                DecodeError,
                f"is no UTF-8 text ({error.reason} at byte {error.start}), must be; {self.advice}",
            ) from error
        return texts

    def is_readable(self, number: int) -> bool:
        """Return whether a value can be read at all: its file was not cut off since it was mapped.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard = self.layout.find_shard(number)
        arrays: list[NDArray[Any]] = [self.values[shard], *self.extents[shard]]
        if self.checksums is not None:
            firsts = self.checksums.offsets[shard]
            arrays += [self.checksums.values[shard], *(() if firsts is None else (firsts,))]
        return are_readable(*arrays)

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of sequences behind one another.

        Args:
            numbers: int64 (n,).

        Returns:
            The bytes, uint8, and where each sequence's begin, int64 (n+1,).

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
            CorruptShardError: If texts lie on one another.
        """
        return self.layout.retry_after_repair(lambda: self._read_bytes(numbers))

    def verify(self, numbers: NDArray[np.int64]) -> None:
        """Compare the checksums of whole sequences, int64 (n,).

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
        """
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        spans[:, 2] = self._compute_sizes(numbers)
        self.verify_spans(spans)

    def verify_spans(self, spans: NDArray[np.int64]) -> None:
        """Compare the checksums of the blocks that spans, int64 (n, 3) in bytes, touch.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
        """
        self.layout.retry_after_repair(
            lambda: self.raise_for_result(self.engine.verify(self.handle, spans), spans)
        )

    def _read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(self._compute_sizes(numbers), out=offsets[1:])
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        np.subtract(offsets[1:], offsets[:-1], out=spans[:, 2])
        if offsets[-1] > UNCHECKED_BYTES:
            self._check_overlaps(numbers, int(offsets[-1]))
        values = np.empty(int(offsets[-1]), dtype=np.uint8)
        bad = self.engine.fill(self.handle, spans, offsets, values, None)
        if bad != -1:
            self.raise_for_result(bad, spans)
        return values, offsets

    def _compute_sizes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each sequence, int64 (n,), of places that are inside the buffers."""
        shard_offsets = np.array(self.layout.shard_offsets, dtype=np.int64)
        missing = (numbers < 0) | (numbers >= shard_offsets[-1])
        if missing.any():
            self.raise_for_sequence(int(numbers[missing][0]))
        sizes = np.empty(len(numbers), dtype=np.int64)
        shards = np.searchsorted(shard_offsets, numbers, side="right") - 1
        order = np.argsort(shards, kind="stable")
        breaks = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1)).tolist()
        for first, last in pairwise(breaks):
            rows = order[first:last]
            shard = int(shards[rows[0]])
            at = numbers[rows] - shard_offsets[shard]
            begins, ends = (each[at] for each in self.extents[shard])
            bad = (begins < 0) | (ends < begins) | (ends > len(self.values[shard]))
            if bad.any():
                self.raise_for_sequence(int(numbers[rows[bad][0]]))
            sizes[rows] = ends - begins
        return sizes

    def _check_overlaps(self, numbers: NDArray[np.int64], total: int) -> None:
        """Refuse texts that together are longer than the shards that they lie in.

        Raises:
            CorruptShardError: If they are; some lie on one another.
        """
        distinct, repeats = np.unique(numbers, return_counts=True)
        shards = np.searchsorted(np.array(self.layout.shard_offsets), distinct, side="right") - 1
        shard_bytes = sum(len(self.values[shard]) for shard in np.unique(shards).tolist())
        if total > shard_bytes * int(repeats.max()):
            raise self.layout.locate(int(numbers[0]), self.name).make_error(
                CorruptShardError,
                f"and {len(numbers) - 1} others take {total} bytes of {shard_bytes}, must not lie "
                "on one "
                "another; the shard is damaged, restore it or write the store again",
            )

    def raise_for_result(self, result: int, spans: NDArray[np.int64]) -> None:
        """Raise what a result of the kernel means, if it means an error."""
        if result >= 0:
            self.raise_for_sequence(int(spans[result, 0]))
        if result < -1:
            raise self.make_mismatch_error(int(spans[-2 - result, 0]))

    def make_mismatch_error(self, number: int) -> CorruptSampleError:
        """Make the error about a sequence whose checksum is another."""
        shard, first, last = self.find(number)
        index_in_shard = number - self.layout.shard_offsets[shard]

        def locate(start: int, stop: int) -> DataLocation:
            if self.file_offsets is None:
                return self.layout.locate(number, self.name)
            offset = self.file_offsets[shard] + first + start
            return self.layout.locate(number, self.name, offset, stop - start)

        content = self.values[shard][first:last]
        mismatched = ChecksumMismatch(
            shard, index_in_shard, number, content, 1, 0, len(content), locate
        )
        return make_mismatch_error(self.checksums, self.engine, mismatched)

    def raise_for_sequence(self, number: int) -> NoReturn:
        """Say why a sequence cannot be read.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If its recorded place is wrong; ``facts`` has shard and offset.
        """
        shard, first, last = self.find(number)
        raise self._locate(number).make_error(
            CorruptSampleError,
            f"lies at bytes {first}..{last} of {len(self.values[shard])}, must lie inside; the "
            "shard is damaged, restore it or write the store again",
        )

    def _locate(self, number: int) -> DataLocation:
        """Return the place of a sequence, for an error."""
        layout = self.layout
        if self.file_offsets is None:
            return layout.locate(number, self.name)
        shard, first, last = self.find(number)
        size = len(self.values[shard])
        first, last = (min(max(each, 0), size) for each in (first, last))
        return layout.locate(
            number, self.name, self.file_offsets[shard] + first, max(0, last - first)
        )

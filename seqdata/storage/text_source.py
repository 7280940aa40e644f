"""One field of ``str`` or ``bytes`` over mapped or owned buffers.

The bytes of many sequences are gathered by the kernel, without Python per sequence; only ``take``
makes a Python object of each. Place in the flow: stores make sources, ``Sources`` reads from them.
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
from seqdata.kernel.dispatch import Kernel, kernel
from seqdata.kernel.dispatch import Source as KernelSource
from seqdata.protocols import Field
from seqdata.storage.columns import Layout
from seqdata.storage.data_location import Place
from seqdata.storage.extents import ShardExtents, extents_of
from seqdata.storage.integrity.verify import Checks, Suspect, mismatch
from seqdata.storage.limits import FREE_BYTES
from seqdata.storage.text_bytes import Raw
from seqdata.storage.truncation import are_there


@dataclass(frozen=True, slots=True, eq=False)
class TextSource:
    """One field of ``str`` or ``bytes`` over all shards.

    Attributes:
        name: The field's name.
        field: What it holds.
        layout: Where its sequences lie.
        values: Per shard, uint8.
        extents: Per shard, where each sequence's bytes begin and end.
        places: Per shard, where the values begin in the file, in bytes; None: in no file.
        engine: The kernel that copies.
        handle: The kernel's own hold on the buffers.
        checks: What its sequences are verified by; None: nothing.
        advice: What to do where bytes are not UTF-8.
    """

    name: str
    field: Field
    layout: Layout
    values: tuple[NDArray[np.uint8], ...]
    extents: tuple[ShardExtents, ...]
    places: tuple[int, ...] | None
    engine: Kernel
    handle: KernelSource
    checks: Checks | None
    advice: str = "the shard is damaged, restore it or write the store again"

    @classmethod
    def of(
        cls,
        name: str,
        field: Field,
        layout: Layout,
        values: Sequence[NDArray[np.uint8]],
        offsets: Sequence[NDArray[np.int64]],
        places: Sequence[int] | None = None,
        checks: Checks | None = None,
    ) -> TextSource:
        """Return the source of texts that lie one behind another; see ``Source.of``."""
        return cls.over(name, field, layout, values, extents_of(offsets), checks, places)

    @classmethod
    def over(
        cls,
        name: str,
        field: Field,
        layout: Layout,
        files: Sequence[NDArray[np.uint8]],
        extents: Sequence[ShardExtents],
        checks: Checks | None = None,
        places: Sequence[int] | None = None,
    ) -> TextSource:
        """Return the source of texts that lie anywhere in files; see ``Source.over``."""
        engine = kernel()
        starts = np.array(layout.starts, dtype=np.int64)
        arguments = None if checks is None else checks.arguments
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
        shard = self.layout.shard_of(number)
        at = number - self.layout.starts[shard]
        begins, ends = self.extents[shard]
        return shard, int(begins[at]), int(ends[at])

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Give the values of sequences, a list of ``str`` or ``bytes``.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
            DecodeError: If the bytes are no text.
        """
        wanted = np.asarray(numbers, dtype=np.int64)
        values, offsets = self.raw(wanted)
        whole = values.tobytes()
        edges = offsets.tolist()
        pieces = [whole[first:last] for first, last in pairwise(edges)]
        if self.field.dtype != "str":
            return pieces
        texts: list[str] = []
        try:
            texts.extend(piece.decode() for piece in pieces)
        except UnicodeDecodeError as error:
            number = int(wanted[len(texts)])
            raise self._place(number).error(
                DecodeError,
                f"is no UTF-8 text ({error.reason} at byte {error.start}), must be; {self.advice}",
            ) from error
        return texts

    def is_there(self, number: int) -> bool:
        """Tell whether a value can be read at all: its file was not cut off since it was mapped.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard = self.layout.shard_of(number)
        parts: list[NDArray[Any]] = [self.values[shard], *self.extents[shard]]
        if self.checks is not None:
            firsts = self.checks.firsts[shard]
            parts += [self.checks.sums[shard], *(() if firsts is None else (firsts,))]
        return are_there(*parts)

    def raw(self, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of sequences behind one another.

        Args:
            numbers: int64 (n,).

        Returns:
            The bytes, uint8, and where each sequence's begin, int64 (n+1,).

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
            CorruptShardError: If texts lie on one another.
        """
        return self.layout.mended(lambda: self._raw(numbers))

    def verify(self, numbers: NDArray[np.int64]) -> None:
        """Compare the checksums of whole sequences, int64 (n,).

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
        """
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        spans[:, 2] = self._sizes(numbers)
        self.layout.mended(lambda: self.settle(self.engine.verify(self.handle, spans), spans))

    def _raw(self, numbers: NDArray[np.int64]) -> Raw:
        offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(self._sizes(numbers), out=offsets[1:])
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        np.subtract(offsets[1:], offsets[:-1], out=spans[:, 2])
        if offsets[-1] > FREE_BYTES:
            self._refuse_overlaps(numbers, int(offsets[-1]))
        values = np.empty(int(offsets[-1]), dtype=np.uint8)
        bad = self.engine.fill(self.handle, spans, offsets, values, None)
        if bad != -1:
            self.settle(bad, spans)
        return values, offsets

    def _sizes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the bytes of each sequence, int64 (n,), of places that are inside the buffers."""
        starts = np.array(self.layout.starts, dtype=np.int64)
        missing = (numbers < 0) | (numbers >= starts[-1])
        if missing.any():
            self.refuse(int(numbers[missing][0]))
        sizes = np.empty(len(numbers), dtype=np.int64)
        shards = np.searchsorted(starts, numbers, side="right") - 1
        order = np.argsort(shards, kind="stable")
        edges = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1)).tolist()
        for first, last in pairwise(edges):
            these = order[first:last]
            shard = int(shards[these[0]])
            at = numbers[these] - starts[shard]
            begins, ends = (each[at] for each in self.extents[shard])
            bad = (begins < 0) | (ends < begins) | (ends > len(self.values[shard]))
            if bad.any():
                self.refuse(int(numbers[these[bad][0]]))
            sizes[these] = ends - begins
        return sizes

    def _refuse_overlaps(self, numbers: NDArray[np.int64], total: int) -> None:
        """Refuse texts that together are longer than the shards that they lie in.

        Raises:
            CorruptShardError: If they are; some lie on one another.
        """
        distinct, repeats = np.unique(numbers, return_counts=True)
        shards = np.searchsorted(np.array(self.layout.starts), distinct, side="right") - 1
        most = sum(len(self.values[shard]) for shard in np.unique(shards).tolist())
        if total > most * int(repeats.max()):
            raise self.layout.place(int(numbers[0]), self.name).error(
                CorruptShardError,
                f"and {len(numbers) - 1} others take {total} bytes of {most}, must not lie on one "
                "another; the shard is damaged, restore it or write the store again",
            )

    def settle(self, result: int, spans: NDArray[np.int64]) -> None:
        """Raise what a result of the kernel means, if it means an error."""
        if result >= 0:
            self.refuse(int(spans[result, 0]))
        if result < -1:
            raise self.mismatch(int(spans[-2 - result, 0]))

    def mismatch(self, number: int) -> CorruptSampleError:
        """Make the error about a sequence whose checksum is another."""
        shard, first, last = self.find(number)
        at = number - self.layout.starts[shard]

        def place(begin: int, end: int) -> Place:
            if self.places is None:
                return self.layout.place(number, self.name)
            offset = self.places[shard] + first + begin
            return self.layout.place(number, self.name, offset, end - begin)

        content = self.values[shard][first:last]
        suspect = Suspect(shard, at, number, content, 1, 0, len(content), place)
        return mismatch(self.checks, self.engine, suspect)

    def refuse(self, number: int) -> NoReturn:
        """Say why a sequence cannot be read.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If its recorded place is wrong; ``facts`` has shard and offset.
        """
        shard, first, last = self.find(number)
        raise self._place(number).error(
            CorruptSampleError,
            f"lies at bytes {first}..{last} of {len(self.values[shard])}, must lie inside; the "
            "shard is damaged, restore it or write the store again",
        )

    def _place(self, number: int) -> Place:
        """Give the place of a sequence, for an error."""
        layout = self.layout
        if self.places is None:
            return layout.place(number, self.name)
        shard, first, last = self.find(number)
        most = len(self.values[shard])
        first, last = (min(max(each, 0), most) for each in (first, last))
        return layout.place(number, self.name, self.places[shard] + first, max(0, last - first))

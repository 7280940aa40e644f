"""Fields whose values lie anywhere in the shards: columns over mapped bytes, filled by the kernel.

The kernel takes values that lie behind one another. Here every second of its sequences is one of
ours, and those between are what lies between: headers, other fields, room. So one array of edges
tells all, and checksums, bits and bounds work as in any store. Place in the flow: the store makes
sources, a read makes columns of them. Reads: mapped shards. Makes: views and filled output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, CorruptSampleError, DecodeError
from seqdata.kernel.dispatch import Kernel, kernel
from seqdata.kernel.dispatch import Source as KernelSource
from seqdata.protocols import Field
from seqdata.storage.columns import Layout
from seqdata.storage.data_location import Place
from seqdata.storage.fields import field_width
from seqdata.storage.integrity.verify import Checks, Suspect, mismatch
from seqdata.storage.text_bytes import Raw


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Where the values of one field lie.

    Attributes:
        begins: Per shard, int64 (sequences,): the first byte of each.
        sizes: Per shard, int64 (sequences,): their bytes.
    """

    begins: tuple[NDArray[np.int64], ...]
    sizes: tuple[NDArray[np.int64], ...]

    def unit(self, width: int) -> int:
        """Give the largest number of bytes that divides a width and every first byte."""
        unit = width
        for begins in self.begins:
            unit = math.gcd(unit, int(np.gcd.reduce(begins)) if len(begins) else 0)
        return unit

    def edges(self, unit: int) -> tuple[NDArray[np.int64], ...]:
        """Give where values begin and end, in turn: int64 (2 sequences+1,) per shard, in units."""
        made = []
        for begins, sizes in zip(self.begins, self.sizes, strict=True):
            both = np.empty(2 * len(begins) + 1, dtype=np.int64)
            both[0:-1:2] = begins // unit
            both[1::2] = (begins + sizes) // unit
            both[-1] = both[-2] if len(begins) else 0
            made.append(both)
        return tuple(made)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSource:
    """One field over all shards.

    Attributes:
        name: Of the field.
        field: What it holds.
        layout: Where its sequences lie.
        content: Per shard, its bytes, uint8.
        runs: Where the values lie.
        steps: Units in a timestep.
        checks: What it is verified by, of the kernel's sequences; None: nothing.
        engine: The kernel that copies.
        handle: The kernel's own hold on all of this.
        dtype: Of one element.
    """

    name: str
    field: Field
    layout: Layout
    content: tuple[NDArray[np.uint8], ...]
    runs: Runs
    steps: int
    checks: Checks | None
    engine: Kernel
    handle: KernelSource
    dtype: np.dtype[Any]

    @classmethod
    def of(
        cls,
        name: str,
        field: Field,
        layout: Layout,
        content: Sequence[NDArray[np.uint8]],
        runs: Runs,
        checks: Checks | None,
    ) -> PlacedSource:
        """Make a source and give its places to the kernel of this process."""
        text = field.dtype in ("str", "bytes")
        dtype = np.dtype("uint8" if text else field.dtype)
        width = 1 if text else field_width(field)
        unit, engine = runs.unit(width), kernel()
        handle = engine.source(
            tuple(content), runs.edges(unit), 2 * np.array(layout.starts, dtype=np.int64), unit,
            None if checks is None else checks.arguments,
        )  # fmt: skip
        return cls(
            name, field, layout, tuple(content), runs, width // unit, checks, engine, handle, dtype
        )

    def take(self, spans: NDArray[np.int64]) -> PlacedColumn:
        """Give the column of spans, int64 (n, 3) in timesteps; nothing is copied yet."""
        return PlacedColumn(self, spans)

    def scaled(self, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give spans as the kernel counts them."""
        if self.steps != 1:
            return np.multiply(spans, np.array([2, self.steps, self.steps], dtype=np.int64))
        made = spans.copy()
        numbers = made[:, 0]
        np.add(numbers, numbers, out=numbers)  # a tenth of a small batch's time less
        return made

    def find(self, number: int) -> tuple[int, int, int]:
        """Give (shard, first byte, bytes) of a sequence's values."""
        shard = self.layout.shard_of(number)
        at = number - self.layout.starts[shard]
        return shard, int(self.runs.begins[shard][at]), int(self.runs.sizes[shard][at])

    def piece(self, number: int, start: int, stop: int) -> NDArray[Any]:
        """Give timesteps of one sequence, (stop - start, *shape): a view, not verified.

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If its recorded place is wrong.
        """
        shard, begin, size = self.find(number)
        width = field_width(self.field)
        if 0 <= start <= stop and stop * width <= size and begin + size <= len(self.content[shard]):
            raw = self.content[shard][begin + start * width : begin + stop * width]
            if begin % self.dtype.itemsize == 0:
                return raw.view(self.dtype).reshape(stop - start, *self.field.shape)
            return np.frombuffer(raw.tobytes(), self.dtype).reshape(stop - start, *self.field.shape)
        self.refuse(number, start, stop)

    def verify(self, spans: NDArray[np.int64]) -> None:
        """Look at the checksums of what spans, int64 (n, 3) in timesteps, touch.

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If a recorded place or a checksum is wrong.
        """
        scaled = self.scaled(spans)
        self.layout.mended(lambda: self.settle(self.engine.verify(self.handle, scaled), spans))

    def settle(self, result: int, spans: NDArray[np.int64]) -> None:
        """Raise what a result of the kernel means, if it means an error."""
        if result >= 0:
            self.refuse(*spans[result].tolist())
        if result < -1:
            raise self.mismatch(*spans[-2 - result].tolist())

    def mismatch(self, number: int, start: int, stop: int) -> CorruptSampleError:
        """Make the error about a sequence whose checksum is another."""
        shard, begin, size = self.find(number)
        at = number - self.layout.starts[shard]
        width = self.width

        def place(first: int, last: int) -> Place:
            return self.layout.place(number, self.name, begin + first, last - first)

        content = self.content[shard][begin : begin + size]
        suspect = Suspect(
            shard, 2 * at, 2 * number, content, width, start * width, stop * width, place
        )
        return mismatch(self.checks, self.engine, suspect)

    @property
    def width(self) -> int:
        """Bytes of a timestep; of a text 1."""
        return 1 if self.field.dtype in ("str", "bytes") else field_width(self.field)

    def refuse(self, number: int, start: int, stop: int) -> NoReturn:
        """Say why a span cannot be read.

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If its recorded place is wrong.
        """
        shard, begin, size = self.find(number)
        length, most = size // self.width, len(self.content[shard])
        if not 0 <= start <= stop <= length:
            raise ConfigError(
                f"{self.layout.location}: sequence {number}, field {self.name!r}: no timesteps "
                f"{start}..{stop}, must lie in 0..{length}; was the plan made for other data?"
            )
        raise self.layout.place(number, self.name, begin, size).error(
            CorruptSampleError,
            f"ends at byte {begin + size} of {most}, must lie in the shard; it was cut off or the "
            "index is another shard's, make the index anew",
            expected=begin + size, found=most,
        )  # fmt: skip


class PlacedColumn:
    """One field of the spans that were read: a ``Column``.

    Args:
        source: The field.
        spans: int64 (n, 3), in timesteps.
    """

    __slots__ = ("_source", "_spans", "_verified")

    def __init__(self, source: PlacedSource, spans: NDArray[np.int64]) -> None:
        self._source = source
        self._spans = spans
        self._verified = source.checks is None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one element."""
        return self._source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one timestep."""
        return self._source.field.shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each piece, int64 (n,)."""
        lengths: NDArray[np.int64] = self._spans[:, 2] - self._spans[:, 1]
        return lengths

    def __len__(self) -> int:
        return len(self._spans)

    def part(self, first: int, stop: int) -> PlacedColumn:
        """Give the column of pieces ``first:stop``."""
        return PlacedColumn(self._source, self._spans[first:stop])

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Give one piece, (length, *shape): a view, not for writing.

        Raises:
            ConfigError: If a span asks for what is not there.
            CorruptSampleError: If a recorded place or a checksum of any piece is wrong.
        """
        source = self._source
        if not self._verified:
            source.verify(self._spans)
            self._verified = True
        return source.piece(*self._spans[number].tolist())

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad; see ``protocols.Column.fill``.

        Raises:
            ConfigError: If a span asks for what is not there.
            CorruptSampleError: If a sequence's recorded place or its checksum is wrong.
            ValueError: If ``bounds`` do not fit ``out``, or its dtype is another.
        """
        source = self._source
        if out.dtype != source.dtype:
            raise ValueError(
                f"{source.layout.location}: field {source.name!r}: `out` is {out.dtype}, must be "
                f"{source.dtype}; make it so"
            )
        scaled = bounds if source.steps == 1 else bounds * source.steps
        result = source.engine.fill(source.handle, source.scaled(self._spans), scaled, out, padding)
        if result != -1:
            self._settle(result, out, scaled, padding)

    def _settle(
        self, result: int, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None
    ) -> None:
        """Raise what a result of the kernel means; or copy again, once a copy is mended."""
        source = self._source
        spans = source.scaled(self._spans)
        fill = partial(source.engine.fill, source.handle, spans, bounds, out, padding)
        results = chain((result,), iter(fill, None))
        source.layout.mended(lambda: source.settle(next(results), self._spans))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTexts:
    """A field of ``str`` or ``bytes``: whole members as they are.

    Attributes:
        source: Their bytes.
        field: What it holds.
    """

    source: PlacedSource
    field: Field

    def raw(self, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of sequences behind one another; see ``raw.RawTexts``.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
        """
        sizes = np.array([self.source.find(one)[2] for one in numbers.tolist()], dtype=np.int64)
        offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        spans = np.stack([numbers, np.zeros_like(sizes), sizes], axis=1)
        values = np.empty(int(offsets[-1]), dtype=np.uint8)
        self.source.take(spans).fill(values, offsets, None)
        return values, offsets

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Give the values of sequences, a list of ``str`` or ``bytes``.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded place or a checksum is wrong.
            DecodeError: If the bytes are no text.
        """
        wanted = np.asarray(numbers, dtype=np.int64)
        values, offsets = self.raw(wanted)
        whole, edges = values.tobytes(), offsets.tolist()
        pieces: list[Any] = []
        for number, first, last in zip(wanted.tolist(), edges[:-1], edges[1:], strict=True):
            piece = whole[first:last]
            try:
                pieces.append(piece if self.field.dtype == "bytes" else piece.decode())
            except UnicodeDecodeError as error:
                _, begin, size = self.source.find(number)
                raise self.source.layout.place(number, self.source.name, begin, size).error(
                    DecodeError,
                    f"is no UTF-8 text ({error.reason} at byte {error.start}), must be; read it as "
                    f"bytes with `schema`={{{self.source.name!r}: bytes}}",
                ) from error
        return pieces


def doubled(checks: Checks) -> Checks:
    """Give the checks of the kernel's sequences, of which every second one is ours.

    Args:
        checks: Of ours, with bits from 0 on.
    """
    sums: list[NDArray[np.uint32]] = []
    firsts: list[NDArray[np.int64] | None] = []
    begins: list[int] = []
    bit = 0
    for values, ours in zip(checks.sums, checks.firsts, strict=True):
        count = len(values) if ours is None else len(ours) - 1
        begins.append(bit)
        if ours is None:
            both = np.zeros(2 * count, dtype=np.uint32)
            both[::2] = values
            sums.append(both)
            firsts.append(None)
        else:
            room = max(0, 2 * count - len(values))  # the kernel asks for one for each of its own
            sums.append(np.concatenate([values, np.zeros(room, dtype=np.uint32)]))
            edges = np.empty(2 * count + 1, dtype=np.int64)
            edges[::2], edges[1::2] = ours, ours[1:]
            firsts.append(edges)
        bit += len(sums[-1])
    return replace(checks, sums=tuple(sums), firsts=tuple(firsts), begins=tuple(begins))

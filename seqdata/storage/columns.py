"""Fields over mapped or owned buffers, and columns of their spans: the result of a read.

A ``BufferSource`` is one field over all shards, of any kind. For arrays it returns a column that is
not copied yet, for strings and bytes the values themselves. Place in the flow: stores create
sources, collators fill from columns. Reads: buffers. Makes: views, values and filled output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, CorruptSampleError, CorruptShardError, DecodeError
from seqdata.kernel.dispatch import Kernel, get_kernel
from seqdata.kernel.dispatch import KernelSource as KernelSource
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import ShardExtents, ValueKind, extents_of, kind_of
from seqdata.storage.integrity.verify import ChecksumMismatch, FieldChecksums, make_mismatch_error
from seqdata.storage.limits import UNCHECKED_BYTES
from seqdata.storage.local_files import are_readable
from seqdata.storage.text_bytes import TextBytes


@dataclass(frozen=True, slots=True, eq=False)
class BufferSource:
    """One field over all shards.

    Attributes:
        name: Name of the field.
        field: Dtype, shape and axis of the values.
        kind: Kind of the field.
        layout: The shards and lengths of its sequences.
        values: Per shard, (timesteps, *shape); or its bytes, uint8, where extents count bytes.
        extents: Per shard, begins and ends of each sequence's values; None: one timestep each.
        extent_bytes: Bytes that extents count in: the size of a timestep, or 1.
        width: Bytes of a timestep, or 1.
        file_offsets: Per shard, the offset of the values in the file, in bytes; None if they are
            not in a file.
        engine: The kernel that copies.
        handle: The kernel's handle of the buffers.
        dtype: Type of one element; uint8 for strings and bytes.
        checksums: The checksums to verify by; None: no verification.
        advice: Remedy for bytes that are not a value.
    """

    name: str
    field: Field
    kind: ValueKind
    layout: ShardLayout
    values: tuple[NDArray[Any], ...]
    extents: tuple[ShardExtents, ...] | None
    extent_bytes: int
    width: int
    file_offsets: tuple[int, ...] | None
    engine: Kernel
    handle: KernelSource
    dtype: np.dtype[Any]
    checksums: FieldChecksums | None
    advice: str = "The shard is damaged: restore it, or write the store again"

    @classmethod
    def from_arrays(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        values: Sequence[NDArray[Any]],
        offsets: Sequence[NDArray[np.int64]] | None = None,
        file_offsets: Sequence[int] | None = None,
        checksums: FieldChecksums | None = None,
    ) -> BufferSource:
        """Return the source of contiguous values.

        Args:
            name: Name of the field.
            field: Dtype, shape and axis of the values.
            layout: The shards and lengths of its sequences.
            values: Per shard, (timesteps, *shape), or bytes, uint8.
            offsets: Per shard, int64 (sequences+1,): sequence -> timesteps; None: one value each.
            file_offsets: Per shard, the offset of the values in the file, in bytes; None if they
                are not in a file.
            checksums: The checksums to verify by; None: no verification.
        """
        extents = None if offsets is None else extents_of(offsets)
        return cls._make(name, field, layout, values, extents, None, file_offsets, checksums)

    @classmethod
    def from_files(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        files: Sequence[NDArray[np.uint8]],
        extents: Sequence[ShardExtents],
        checksums: FieldChecksums | None = None,
    ) -> BufferSource:
        """Return the source of values in files, at the bytes that extents give."""
        file_offsets = [0] * len(files)
        return cls._make(name, field, layout, files, tuple(extents), 1, file_offsets, checksums)

    @classmethod
    def _make(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        values: Sequence[NDArray[Any]],
        extents: tuple[ShardExtents, ...] | None,
        extent_bytes: int | None,
        file_offsets: Sequence[int] | None,
        checksums: FieldChecksums | None,
    ) -> BufferSource:
        """Return a source with a handle of this process's kernel."""
        engine, starts = get_kernel(), np.array(layout.shard_offsets, dtype=np.int64)
        kind = kind_of(field)
        width = kind.width(field)
        extent_bytes = width if extent_bytes is None else extent_bytes
        kernel_checksums = None if checksums is None else checksums.kernel_arguments
        handle = engine.source(
            tuple(values), extents, starts, width, kernel_checksums, extent_bytes
        )
        return cls(
            name, field, kind, layout, tuple(values), extents, extent_bytes, width,
            None if file_offsets is None else tuple(file_offsets), engine, handle,
            kind.stored_dtype(field), checksums,
        )  # fmt: skip

    @property
    def stored(self) -> BufferSource:
        """This source: it reads the bytes as they are stored."""
        return self

    @property
    def texts(self) -> BufferSource | None:
        """This source if it holds strings or bytes; None for arrays."""
        return None if self.kind.is_array else self

    def column(self, spans: NDArray[np.int64]) -> SpanColumn | list[Any]:
        """Return the column of spans, or the objects of whole sequences; see ``FieldSource``."""
        return SpanColumn(self, spans) if self.kind.is_array else self.take(spans[:, 0])

    def find(self, number: int) -> tuple[int, int, int]:
        """Return (shard, begin, end) of a sequence's values, in units of ``extent_bytes``.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard = self.layout.find_shard(number)
        at = number - self.layout.shard_offsets[shard]
        if self.extents is None:
            return shard, at, at + 1
        begins, ends = self.extents[shard]
        return shard, int(begins[at]), int(ends[at])

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the objects of whole sequences, a list of ``str`` or ``bytes``.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a recorded offset or a checksum is wrong.
            DecodeError: If the bytes are not text.
        """
        sequence_numbers = np.asarray(numbers, dtype=np.int64)
        values, offsets = self.read_bytes(sequence_numbers)
        content = values.tobytes()
        pieces = [content[first:last] for first, last in pairwise(offsets.tolist())]
        found: list[Any] = []
        try:
            found.extend(map(self.kind.decode, pieces))
        except UnicodeDecodeError as error:
            number = int(sequence_numbers[len(found)])
            raise self.locate(number, *self.find(number)[1:]).make_error(
                DecodeError,
                f"must be UTF-8 text, but is not ({error.reason} at byte {error.start}). "
                f"{self.advice}",
            ) from error
        return found

    def is_readable(self, number: int) -> bool:
        """Return whether a value can be read: its file was not truncated since it was mapped.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard = self.layout.find_shard(number)
        extents = () if self.extents is None else self.extents[shard]
        arrays: list[NDArray[Any]] = [self.values[shard], *extents]
        if self.checksums is not None:
            firsts = self.checksums.offsets[shard]
            arrays += [self.checksums.values[shard], *(() if firsts is None else (firsts,))]
        return are_readable(*arrays)

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the concatenated bytes of whole sequences; see ``gather_bytes``."""
        return gather_bytes(self, numbers)

    def slice_sequence(self, number: int, start: int, stop: int) -> NDArray[Any]:
        """Return timesteps ``start:stop`` of one sequence, (stop - start, *shape): a view.

        The values are not verified: see ``verify``.

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If its recorded offset is wrong.
        """
        # `values` may be the bytes of a file, also where a timestep is one byte
        if self.extent_bytes == 1:
            return self._piece_of_bytes(number, start, stop)
        shard, first, last = self.find(number)
        values = self.values[shard]
        if 0 <= first <= last <= len(values) and 0 <= start <= stop <= last - first:
            return values[first + start : first + stop]
        self.raise_for_span(number, start, stop)

    def _piece_of_bytes(self, number: int, start: int, stop: int) -> NDArray[Any]:
        (shard, begin, end), width = self.find(number), self.width
        low, high = begin + start * width, begin + stop * width
        if not 0 <= begin <= low <= high <= end <= len(self.values[shard]):
            self.raise_for_span(number, start, stop)
        raw = self.values[shard][low:high]
        if low % self.dtype.itemsize:  # not at a valid position for numbers of this size
            raw = raw.copy()
        return raw.view(self.dtype).reshape(stop - start, *self.field.shape)

    def verify(self, spans: NDArray[np.int64]) -> None:
        """Compare the checksums of the values of spans, int64 (n, 3).

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If a recorded offset or a checksum is wrong.
        """
        if self.checksums is not None:
            result = self.engine.verify(self.handle, spans)
            if result != -1:
                self.raise_for_result(result, spans)

    def raise_for_result(self, result: int, spans: NDArray[np.int64]) -> NoReturn:
        """Raise the error for a result of the kernel other than -1, which is success."""
        if result >= 0:
            self.raise_for_span(*spans[result].tolist())
        raise self.make_mismatch_error(*spans[-2 - result].tolist())

    def make_mismatch_error(self, number: int, start: int, stop: int) -> CorruptSampleError:
        """Return the error about a span with another checksum."""
        shard, first, last = self.find(number)
        index_in_shard = number - self.layout.shard_offsets[shard]
        content = self.values[shard][first:last].reshape(-1).view(np.uint8)

        def locate(start: int, stop: int) -> DataLocation:
            if self.file_offsets is None:
                return self.layout.locate(number, self.name)
            offset = self.file_offsets[shard] + first * self.extent_bytes + start
            return self.layout.locate(number, self.name, offset, stop - start)

        span = (start * self.width, stop * self.width)
        if not self.kind.is_array:
            span = (0, len(content))
        mismatched = ChecksumMismatch(
            shard, index_in_shard, number, content, self.width, *span, locate
        )
        error = make_mismatch_error(self.checksums, self.engine, mismatched)
        return self.layout.explain_damage(error, shard)

    def raise_for_span(self, number: int, start: int, stop: int) -> NoReturn:
        """Raise the error about a span that cannot be read.

        Raises:
            ConfigError: If there is no such sequence or span.
            CorruptSampleError: If its recorded offset is wrong.
        """
        layout = self.layout
        shard, first, last = self.find(number)
        count, width = len(self.values[shard]), self.width
        unit_name = "timesteps" if self.extent_bytes == width and self.kind.is_array else "bytes"
        needed, details = f"be inside the shard's {count} {unit_name}", {}
        if self.kind.is_array:
            axis = self.field.axis
            length = 1 if axis is None else int(layout.lengths_of[axis][number])
            if not 0 <= start <= stop <= length:
                raise ConfigError(
                    f"{layout.location}: sequence {layout.locate(number).sequence}, field "
                    f"{self.name!r}: timesteps must be in 0..{length}, but {start}..{stop} were "
                    "requested. Use a plan that was made for this data."
                )
            needed = f"have {length * width // self.extent_bytes} {unit_name}"
            details = {"expected": length, "found": (last - first) * self.extent_bytes // width}
        error = self.locate(number, first, last).make_error(
            CorruptSampleError,
            f"must {needed}, but is at {first}..{last} of {count}. The shard is damaged: restore "
            "it, or write the store again", **details,
        )  # fmt: skip
        raise layout.explain_damage(error, shard)

    def locate(self, number: int, first: int, last: int) -> DataLocation:
        """Return the location of some of a sequence's values, for an error.

        Args:
            number: The sequence.
            first: The first value, in units of ``extent_bytes`` from the shard's start.
            last: One past the last.
        """
        if self.file_offsets is None:
            return self.layout.locate(number, self.name)
        shard = self.layout.find_shard(number)
        timesteps = len(self.values[shard])
        first = min(max(first, 0), timesteps)  # the location of the damage may be these bytes
        last = min(max(last, first), timesteps)
        begin = self.file_offsets[shard] + first * self.extent_bytes
        return self.layout.locate(number, self.name, begin, (last - first) * self.extent_bytes)


class SpanColumn:
    """One field of the spans that were read.

    Implements ``Column``.

    Args:
        source: The field.
        spans: int64 (n, 3), C-contiguous.
    """

    __slots__ = ("_is_verified", "_source", "_spans", "dtype", "shape")

    def __init__(self, source: BufferSource, spans: NDArray[np.int64]) -> None:
        self._source = source
        self._spans = spans
        self._is_verified = source.checksums is None  # pieces; `fill` verifies what it copies
        self.dtype: np.dtype[Any] = source.dtype  # of an element
        self.shape: tuple[int, ...] = source.field.shape  # of a timestep

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        lengths: NDArray[np.int64] = self._spans[:, 2] - self._spans[:, 1]
        return lengths

    def __len__(self) -> int:
        return len(self._spans)

    def slice(self, first: int, stop: int) -> SpanColumn:
        """Return the column of pieces ``first:stop``."""
        return SpanColumn(self._source, self._spans[first:stop])

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape): a read-only view.

        Raises:
            ConfigError: If a span does not exist.
            CorruptSampleError: If a recorded offset or a checksum of any piece is wrong.
        """
        if not self._is_verified:
            self._source.verify(self._spans)
            self._is_verified = True
        return self._source.slice_sequence(*self._spans[number].tolist())

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (n+1,), ascending.
            padding: The bytes of one element; None: zeros.

        Raises:
            ConfigError: If a span does not exist.
            CorruptSampleError: If a sequence's recorded offset or its checksum is wrong.
            ValueError: If ``bounds`` do not fit ``out``, or its dtype differs.
        """
        source = self._source
        if out.dtype != source.dtype:
            raise ValueError(
                f"{source.layout.location}: field {source.name!r}: `out` must be {source.dtype}, "
                f"but is {out.dtype}. Pass such an array"
            )
        result = source.engine.fill(source.handle, self._spans, bounds, out, padding)
        if result != -1:
            source.raise_for_result(result, self._spans)


def gather_bytes(source: BufferSource, numbers: NDArray[np.int64]) -> TextBytes:
    """Return the concatenated bytes of whole sequences.

    Raises:
        ConfigError: If there is no such sequence.
        CorruptSampleError: If a recorded offset or a checksum is wrong.
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
        raise ValueError(f"{source.name!r}: must have extents to gather its bytes, but has none")
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
        error = source.layout.locate(int(numbers[0]), source.name).make_error(
            CorruptShardError,
            f"and {len(numbers) - 1} others must not overlap, but take {total} bytes of "
            f"{shard_bytes}. The shard is damaged: restore it, or write the store again",
        )
        raise source.layout.explain_damage(error, source.find(int(numbers[0]))[0])


def make_value_spans(source: BufferSource, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the spans of whole sequences in bytes, int64 (n, 3), to verify them by.

    Raises:
        ConfigError: If there is no such sequence.
        CorruptSampleError: If a recorded offset is wrong.
    """
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = compute_sizes(source, numbers)
    return spans


_FIRST_BYTE = np.array([[0, 1]])


@dataclass(frozen=True, slots=True, eq=False)
class IndexedValues:
    """One field of numbers over all files.

    Attributes:
        values: The numbers, from the indexes.
        stored: The source of their bytes, with checksums; None if they are not compared.
        is_one_block: Whether each value has bytes, in one checksum block.
    """

    values: BufferSource
    stored: BufferSource | None
    is_one_block: bool

    @classmethod
    def from_index(
        cls,
        name: str,
        field: Field,
        layout: ShardLayout,
        values: Sequence[NDArray[Any]],
        source: BufferSource,
    ) -> IndexedValues:
        """Return the source of a field.

        Args:
            name: Name of the field.
            field: The field.
            layout: The files and lengths of its sequences.
            values: Per file, the values in its index.
            source: The source of their bytes.
        """
        stored_values = [array.astype(np.dtype(field.dtype)) for array in values]
        for array in stored_values:
            array.flags.writeable = False  # pieces are views of it
        checked = None if source.checksums is None else source
        return cls(
            BufferSource.from_arrays(name, field, layout, stored_values),
            checked,
            _is_one_block(checked),
        )

    @property
    def field(self) -> Field:
        """The field."""
        return self.values.field

    @property
    def texts(self) -> None:
        """None: it holds numbers."""
        return None

    def column(self, spans: NDArray[np.int64]) -> SpanColumn:
        """Return the column of spans, int64 (n, 3), after comparing the checksums of the bytes.

        Raises:
            ConfigError: If there is no such sequence.
            CorruptSampleError: If a checksum of their bytes differs.
        """
        if self.stored is not None:
            self._verify(self.stored, spans)
        return SpanColumn(self.values, spans)

    def _verify(self, source: BufferSource, spans: NDArray[np.int64]) -> None:
        if not self.is_one_block:
            source.verify(make_value_spans(source, spans[:, 0]))
            return
        members = spans.copy()
        members[:, 1:] = _FIRST_BYTE
        source.verify(members)


def _is_one_block(source: BufferSource | None) -> bool:
    if source is None or source.checksums is None:
        return True
    block = source.checksums.bytes_per_checksum
    sizes = [ends - begins for begins, ends in source.extents or ()]
    return all(bool(((size >= 1) & (size <= block)).all()) for size in sizes)

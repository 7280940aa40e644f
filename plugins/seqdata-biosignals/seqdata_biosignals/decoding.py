"""Decoding of stored bytes to samples, written in place, for only the blocks of a window.

A block stores samples channel by channel; a field has them timestep by timestep. Reads: bytes of
spans. Makes: a column that fills the tensors of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Column
from seqdata_biosignals.recording import Encoding

_CHANNELS = 64  # of a step of transposing, so that what is read stays in the cache
_FLOAT32_BITS = 16  # of samples that float32 scales with no more than its own rounding
Runs = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a field that is stored in one file.

    Attributes:
        slot: Index of the file in ``Recording.files``.
        encoding: How samples are stored.
        begin: First byte of samples.
        block: Number of samples in a block, over all channels.
        per_block: Number of samples of each channel of the field in a block.
        is_by_channel: Whether the file is one block, in which the samples of a channel are
            contiguous.
        runs: (first sample in a block, number of channels, first column of the field) of each run
            of channels that are contiguous.
    """

    slot: int
    encoding: Encoding
    begin: int
    block: int
    per_block: int
    is_by_channel: bool
    runs: Runs

    @property
    def count(self) -> int:
        """Number of byte ranges that a span needs."""
        return sum(run[1] for run in self.runs) if self.is_by_channel else 1

    def find_bytes(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the byte ranges of spans: first byte and one past the last.

        Args:
            starts: int64 (n,), the first timestep of each span.
            stops: int64 (n,), one past the last timestep of each span.

        Returns:
            int64 (n, ``count``, 2).
        """
        edges = np.stack([starts, stops], axis=-1)[:, None, :]
        if self.is_by_channel:
            firsts = [first + at * self.per_block for first, count, _ in self.runs
                      for at in range(count)]  # fmt: skip
            samples = edges + np.array(firsts, np.int64)[None, :, None]
        else:
            blocks = np.stack([starts // self.per_block, -(-stops // self.per_block)], axis=-1)
            blocks[starts == stops, 1] = blocks[starts == stops, 0]
            samples = blocks[:, None, :] * self.block
        if self.encoding.stored != "p12":
            return self.begin + samples * (self.encoding.bits // 8)
        samples[..., 0] = samples[..., 0] // 2 * 3
        samples[..., 1] = (samples[..., 1] * 3 + 1) // 2
        return self.begin + samples

    def decode(
        self, raw: Sequence[NDArray[np.uint8]], start: int, stop: int, out: NDArray[Any]
    ) -> None:
        """Decode the stored numbers of a span into an array.

        Args:
            raw: Its byte ranges, in the order of ``find_bytes``.
            start: Its first timestep.
            stop: One past the last.
            out: The array to fill, (stop - start, columns of the field).
        """
        if self.is_by_channel:
            columns = [column + at for _, count, column in self.runs for at in range(count)]
            for column, those in zip(columns, raw, strict=True):
                out[:, column] = unpack(self.encoding, those[None])[0]
            return
        first = start // self.per_block
        count = -(-stop // self.per_block) - first
        within = start - first * self.per_block
        if self.encoding.stored == "p12":
            numbers = unpack_pairs(raw[0], first * self.block % 2, count * self.block)
            blocks, width, encoding = numbers.view(np.uint8).reshape(count, -1), 2, _INT16
        else:
            blocks, width = raw[0].reshape(count, -1), self.encoding.bits // 8
            encoding = self.encoding
        for offset, channels, column in self.runs:
            stop_at = offset + channels * self.per_block
            those = unpack(encoding, blocks[:, offset * width : stop_at * width])
            target = out[:, column : column + channels]
            if self.per_block == 1:
                target[...] = those
            else:
                _transpose(those.reshape(count, channels, self.per_block), within, target)


@dataclass(frozen=True)
class Layout:
    """The layout of the samples of a field in a recording.

    Attributes:
        parts: Its part in each file.
        gains: Gain of each channel; () for stored numbers.
        offsets: Offset of each channel.
    """

    parts: tuple[Part, ...]
    gains: tuple[float, ...]
    offsets: tuple[float, ...]

    @cached_property
    def count(self) -> int:
        """Number of byte ranges that a span needs."""
        return sum(part.count for part in self.parts)

    @cached_property
    def _scales(self) -> dict[str, tuple[NDArray[Any], NDArray[Any] | None]]:
        """Dtype -> gains and offsets, of one element if all are equal; None: offsets are 0."""
        gains, offsets = (
            each[:1] if len(set(each)) == 1 else each for each in (self.gains, self.offsets)
        )
        return {
            dtype: (np.array(gains, dtype), np.array(offsets, dtype) if any(offsets) else None)
            for dtype in ("float32", "float64")
        }

    @cached_property
    def _needs_float64(self) -> bool:
        """Whether stored numbers have more bits than float32 can scale exactly."""
        return any(part.encoding.bits > _FLOAT32_BITS and part.encoding.stored != "<f4"
                   for part in self.parts)  # fmt: skip

    def decode(
        self, raw: Sequence[NDArray[np.uint8]], start: int, stop: int, out: NDArray[Any]
    ) -> None:
        """Decode the samples of a span, scaled or as stored, into (stop - start, channels)."""
        if not self.gains:
            self._decode_parts(raw, start, stop, out)
            return
        is_wide = self._needs_float64 and out.dtype == np.float32
        target = np.empty(out.shape, np.float64) if is_wide else out
        self._decode_parts(raw, start, stop, target)
        missing = self._find_missing(target)
        gains, offsets = self._scales[target.dtype.name]
        np.multiply(target, gains, out=target)
        if offsets is not None:
            np.add(target, offsets, out=target)
        if missing is not None:
            target[missing] = np.nan
        if is_wide:
            out[...] = target

    def _decode_parts(
        self, raw: Sequence[NDArray[np.uint8]], start: int, stop: int, out: NDArray[Any]
    ) -> None:
        at = 0
        for part in self.parts:
            part.decode(raw[at : at + part.count], start, stop, out)
            at += part.count

    def _find_missing(self, numbers: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return a mask of stored numbers that mark missing samples; None: none is missing."""
        missing = None
        for part in self.parts:
            if part.encoding.invalid is None:
                continue
            for _, channels, column in part.runs:
                where = slice(column, column + channels)
                found = numbers[:, where] == part.encoding.invalid
                if found.any():
                    missing = np.zeros(numbers.shape, np.bool_) if missing is None else missing
                    missing[:, where] = found
        return missing


@dataclass(frozen=True, slots=True, eq=False)
class SignalColumn:
    """One field of samples of the spans that were read. Implements ``Column``.

    Attributes:
        dtype: Dtype of a sample.
        shape: ``()`` or (channels,).
        layouts: The layouts in which sequences are stored.
        layout_of: int32 (n,), the index of the layout of each span.
        spans: int64 (n, 3), columns sequence, start and stop.
        raw: The byte ranges of all spans.
        firsts: int64 (n,), the first range of each span.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    layouts: Sequence[Layout]
    layout_of: NDArray[np.int32]
    spans: NDArray[np.int64]
    raw: Column
    firsts: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        lengths: NDArray[np.int64] = self.spans[:, 2] - self.spans[:, 1]
        return lengths

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape).

        Raises:
            DataError: If its bytes are damaged.
        """
        number = range(len(self))[number]
        _, start, stop = self.spans[number].tolist()
        piece = np.empty((stop - start, *self.shape), self.dtype)
        layout, first = int(self.layout_of[number]), int(self.firsts[number])
        self._decode(layout, start, stop, first, piece)
        return piece

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Decode all pieces into an array and pad it; see ``protocols.Column.fill``.

        Raises:
            ValueError: If ``bounds`` do not match ``out``, or its dtype differs.
            DataError: If bytes are damaged.
        """
        room = np.diff(bounds)
        if (
            out.dtype != self.dtype or len(room) != len(self) or (room < self.lengths).any()
            or (len(bounds) and not 0 <= bounds[0] <= bounds[-1] <= len(out))
        ):  # fmt: skip
            raise ValueError(
                f"fill: `out` must be {self.dtype} with room for all pieces, but is {out.dtype} of "
                f"{len(out)} timesteps. Pass such an array"
            )
        value = 0 if padding is None else np.frombuffer(padding, self.dtype)[0]
        rows = zip(self.layout_of.tolist(), self.spans.tolist(), self.firsts.tolist(),
                   bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)  # fmt: skip
        for layout, (_, start, stop), first, begin, end in rows:
            last = begin + stop - start
            self._decode(layout, start, stop, first, out[begin:last])
            if last < end:
                out[last:end] = value

    def _decode(self, layout: int, start: int, stop: int, first: int, out: NDArray[Any]) -> None:
        if start == stop:
            return
        chosen = self.layouts[layout]
        raw = [self.raw[at] for at in range(first, first + chosen.count)]
        chosen.decode(raw, start, stop, out if self.shape else out[:, None])


_INT16 = Encoding("int16", "<i2", 16)


def find_runs(firsts: Sequence[int], columns: Sequence[int], per_block: int) -> Runs:
    """Return the runs of channels that are contiguous, in the file and in the field.

    Args:
        firsts: First sample of each channel in a block.
        columns: Column of each channel in the field.
        per_block: Number of samples of each channel in a block.
    """
    runs: list[tuple[int, int, int]] = []
    for first, column in zip(firsts, columns, strict=True):
        if runs:
            begin, count, at = runs[-1]
            if first == begin + count * per_block and column == at + count:
                runs[-1] = (begin, count + 1, at)
                continue
        runs.append((first, 1, column))
    return tuple(runs)


def unpack(encoding: Encoding, raw: NDArray[np.uint8]) -> NDArray[Any]:
    """Convert bytes, uint8 (rows, bytes), to the stored numbers, integers (rows, samples)."""
    if encoding.stored == "i3":
        wide = np.zeros((len(raw), raw.shape[1] // 3, 4), np.uint8)
        wide[..., 1:] = raw.reshape(len(raw), -1, 3)
        shifted: NDArray[Any] = wide.view("<i4")[..., 0] >> 8
        return shifted
    numbers = raw.view(encoding.stored)
    if encoding.zero == 0:
        return numbers
    shifted = numbers.astype(np.int32) - encoding.zero
    return shifted.astype(np.int16)


def unpack_pairs(raw: NDArray[np.uint8], skip: int, count: int) -> NDArray[np.int16]:
    """Unpack 12-bit numbers, two of which are packed in three bytes, to int16 (count,).

    Args:
        raw: The bytes, from the beginning of a pair.
        skip: Number of numbers to skip.
        count: Number of numbers to return.
    """
    pairs = -(-(skip + count) // 2)
    bytes_ = np.zeros(3 * pairs, np.int16)
    bytes_[: len(raw)] = raw[: 3 * pairs]
    low, middle, high = bytes_[0::3], bytes_[1::3], bytes_[2::3]
    numbers = np.empty(2 * pairs, np.int16)
    numbers[0::2] = low | (middle & 0x0F) << 8
    numbers[1::2] = high | (middle & 0xF0) << 4
    signed: NDArray[np.int16] = (numbers << 4) >> 4  # the 12th bit is the sign
    return np.ascontiguousarray(signed[skip : skip + count])


def _transpose(blocks: NDArray[Any], within: int, out: NDArray[Any]) -> None:
    """Write blocks, (count, channels, samples), as timesteps, (timesteps, channels).

    Args:
        blocks: The blocks.
        within: The first sample of the first block to write.
        out: The array to fill.
    """
    _, channels, per_block = blocks.shape
    for first in range(0, channels, _CHANNELS):
        those = blocks[:, first : first + _CHANNELS]
        target = out[:, first : first + _CHANNELS]
        at, begin = 0, 0
        if within or len(out) < per_block:
            at = min(per_block - within, len(out))
            target[:at] = those[0, :, within : within + at].T
            begin = 1
        whole = (len(out) - at) // per_block
        if whole:
            stop = at + whole * per_block
            shaped = target[at:stop].reshape(whole, per_block, -1)
            shaped[...] = those[begin : begin + whole].transpose(0, 2, 1)
            at, begin = stop, begin + whole
        if at < len(out):
            target[at:] = those[begin, :, : len(out) - at].T

"""WAV files: the position and the format of the samples.

RIFF, its big-endian form RIFX, and RF64 for more than 4 GiB. One reader for files in folders and
for members of tar shards. Sizes that cannot be true are errors, except those of a stream: a program
that writes into a pipe knows no size, and its samples go up to the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_RIFF, _RIFX, _RF64 = (b"RIFF",), (b"RIFX",), (b"RF64", b"BW64")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # of a subformat that is a plain tag
_IN_DS64 = 0xFFFFFFFF
_OF_STREAMS = (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFFFFFFFFFF)
_AHEAD = 4096  # bytes that are read at once: most headers are within
_MAX_FORMAT = 1 << 16
_MAX_CHUNKS = 4096
_DTYPES = {
    (_PCM, 8): "|u1",
    (_PCM, 16): "<i2",
    (_PCM, 24): "<i3",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
    (_FLOAT, 64): "<f8",
}
_NAMES = {stored[1:]: np.dtype(stored).name for stored in _DTYPES.values() if stored != "<i3"}


class Readable(Protocol):
    """Protocol of a file: see ``seqdata.backends.RandomAccessFile``."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        ...


@dataclass(frozen=True, slots=True)
class WavHeader:
    """Header of a WAV file.

    Attributes:
        rate: Sampling rate in samples per second.
        channels: Number of channels.
        stored: Dtype of one number with its byte order, ``<i3`` or ``>i3`` for 24 bits; None: the
            samples are compressed.
        begin: First byte of the samples.
        end: One past the last byte of the samples.
        frame_bytes: Bytes of one timestep, with one number per channel.
        tag: Code of the encoding; None: it is a private one.
        is_stream: Whether the header has no length, so that the samples end with the file.
    """

    rate: int
    channels: int
    stored: str | None
    begin: int
    end: int
    frame_bytes: int
    tag: int | None = None
    is_stream: bool = False

    @classmethod
    def read(cls, file: Readable) -> WavHeader:
        """Return the header of a file.

        Raises:
            ValueError: If the file is not WAV, is truncated, or has impossible sizes.
        """
        return _read_header(file)

    @property
    def dtype(self) -> str | None:
        """Dtype of one number in memory; numbers of 24 bits become the upper bits of int32."""
        if self.stored is None:
            return None
        return "int32" if self.is_24_bit else _NAMES[self.stored[1:]]

    @property
    def is_24_bit(self) -> bool:
        """Whether numbers have three bytes, so that NumPy cannot read them in place."""
        return self.stored in ("<i3", ">i3")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a timestep."""
        return () if self.channels == 1 else (self.channels,)

    @property
    def frames(self) -> int:
        """Number of timesteps, if the samples are not compressed."""
        return (self.end - self.begin) // self.frame_bytes

    @staticmethod
    def is_wav(head: bytes) -> bool:
        """Return whether a file is WAV, by its first bytes."""
        return head[:4] in (*_RIFF, *_RIFX, *_RF64) and head[8:12] == b"WAVE"

    @staticmethod
    def is_nist(head: bytes) -> bool:
        """Return whether a file is NIST SPHERE, by its first bytes; some are named ``.wav``."""
        return head.startswith(b"NIST_1A")

    @staticmethod
    def extend_24_bit(raw: NDArray[np.uint8], stored: str) -> NDArray[np.int32]:
        """Return numbers of three bytes as int32, multiplied by 256 to have the scale of int32.

        Args:
            raw: Bytes of the numbers.
            stored: ``<i3`` or ``>i3``.
        """
        extended = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        extended[:, 1:] = raw.reshape(-1, 3)[:, :: 1 if stored == "<i3" else -1]
        return extended.view("<i4").reshape(-1).astype(np.int32, copy=False)

    def decode(self, content: bytes) -> NDArray[Any]:
        """Return the samples of a whole file, (T, *shape).

        Raises:
            ValueError: If the samples are compressed.
        """
        if self.stored is None:
            raise ValueError(
                f"must hold samples that are not compressed, but has format {self.tag}"
            )
        raw = np.frombuffer(content, np.uint8, self.end - self.begin, self.begin)
        if self.is_24_bit:
            return self.extend_24_bit(raw, self.stored).reshape(-1, *self.shape)
        values: NDArray[Any] = raw.view(self.stored)
        return values.astype(values.dtype.newbyteorder("=")).reshape(-1, *self.shape)


def _read_header(file: Readable) -> WavHeader:
    head = file.read(0, min(_AHEAD, file.size))
    kind = head[:4]
    if not WavHeader.is_wav(head):
        raise ValueError(f"must begin with RIFF, a size and WAVE, but begins with {head[:12]!r}")
    order = ">" if kind in _RIFX else "<"
    (riff_size,) = struct.unpack_from(f"{order}I", head, 4)
    layout: _Layout | None = None
    long_size: int | None = None
    for name, at, size in _chunks(file, head, order):
        if name == b"ds64" and kind in _RF64:
            content = _content(file, head, at, 16)
            if len(content) == 16:
                riff_size, long_size = struct.unpack(f"{order}QQ", content)
        elif name == b"fmt ":
            layout = _read_layout(_content(file, head, at, min(size, _MAX_FORMAT)), order)
        elif name == b"data":
            if layout is None:
                raise ValueError("must have a chunk 'fmt ' before its data, but has none")
            size = long_size if size == _IN_DS64 and long_size is not None else size
            end, is_stream = _find_end(file, layout, at, (size, riff_size), order)
            return WavHeader(
                layout.rate, layout.channels, layout.stored, at, end, layout.frame_bytes,
                layout.tag, is_stream,
            )  # fmt: skip
    raise ValueError(f"must have a chunk 'data', but has none in {file.size} bytes")


def _chunks(file: Readable, head: bytes, order: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the first byte and the bytes of each chunk."""
    at = 12
    for _ in range(_MAX_CHUNKS):
        header = _content(file, head, at, 8)
        if len(header) < 8:
            return
        (size,) = struct.unpack_from(f"{order}I", header, 4)
        yield header[:4], at + 8, size
        at += 8 + size + size % 2  # a chunk of odd size has one byte behind it
    raise ValueError(f"must have at most {_MAX_CHUNKS} chunks before its data, but has more")


def _content(file: Readable, head: bytes, at: int, size: int) -> bytes:
    if at + size <= len(head):
        return head[at : at + size]
    return file.read(at, min(at + size, file.size)) if at < file.size else b""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Content of a chunk ``fmt``; see ``WavHeader``."""

    rate: int
    channels: int
    stored: str | None
    frame_bytes: int
    tag: int | None


def _read_layout(content: bytes, order: str) -> _Layout:
    if len(content) < 16:
        raise ValueError(
            f"must have a chunk 'fmt ' of at least 16 bytes, but has one of {len(content)}"
        )
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from(f"{order}HHIIHH", content)
    if tag == _EXTENSIBLE:
        if len(content) < 40:
            raise ValueError(
                f"must have an extensible chunk 'fmt ' of 40 bytes, but has one of {len(content)}"
            )
        tag = struct.unpack_from(f"{order}H", content, 24)[0]
        if content[26:40] != _GUID_TAIL:
            tag = None  # of somebody's own: perhaps the decoder knows it
    if channels == 0 or rate == 0 or frame_bytes == 0:
        raise ValueError(
            "must declare at least 1 channel, sample per second and byte per frame, but declares "
            f"{channels} channels, {rate} samples per second and {frame_bytes} bytes per frame"
        )
    stored = _DTYPES.get((tag, bits))
    if stored is not None and frame_bytes != channels * bits // 8:
        raise ValueError(
            f"must declare {channels * bits // 8} bytes per frame for {channels} channels of "
            f"{bits} bits, but declares {frame_bytes}"
        )
    return _Layout(rate, channels, stored and stored.replace("<", order), frame_bytes, tag)


def _find_end(
    file: Readable, layout: _Layout, begin: int, sizes: tuple[int, int], order: str
) -> tuple[int, bool]:
    """Return the end of the samples, and whether no size is known, so that the file ends them.

    Args:
        file: The file.
        layout: Layout of its samples.
        begin: The first byte of the samples.
        sizes: The bytes of samples that are declared, and those of the file without 8.
        order: The byte order of sizes.
    """
    (size, riff_size), available = sizes, file.size - begin
    is_stream = size > available and (size in _OF_STREAMS or riff_size in _OF_STREAMS)
    if size == 0 and available > 1:  # of a recorder that never came back to write it
        is_stream = not _is_chunk(file, begin, order)
    if is_stream:
        size = available
    if size > available:
        raise ValueError(
            f"must hold {size} bytes of samples by its header, but holds {available}: it was cut "
            "off, or its header was never finished"
        )
    if layout.stored is not None and size % layout.frame_bytes:
        found = "ends within a frame: it holds" if is_stream else "declares"
        raise ValueError(
            f"must declare a multiple of {layout.frame_bytes} bytes of samples, the size of a "
            f"frame, but {found} {size}"
        )
    if not is_stream:
        _check_rest(file, begin + size, 8 + riff_size)
    return begin + size, is_stream


def _is_chunk(file: Readable, at: int, order: str) -> bool:
    """Return whether a whole chunk begins at a byte, other than one of samples."""
    header = file.read(at, min(at + 8, file.size))
    if len(header) < 8 or header[:4] == b"data" or not _is_chunk_name(header[:4]):
        return False
    return at + 8 + int(struct.unpack_from(f"{order}I", header, 4)[0]) <= file.size


def _is_chunk_name(name: bytes) -> bool:
    """Return whether bytes may be the name of a chunk: printable, with blanks as in ``id3 ``."""
    return all(31 < byte < 127 for byte in name)


def _check_rest(file: Readable, end: int, riff_end: int) -> None:
    """Raise if the bytes after the samples, up to the end that RIFF declares, are not a chunk.

    The size of the samples is then too small: others follow, which would be lost.
    """
    if not end + 9 <= min(riff_end, file.size):
        return
    names = [file.read(at, at + 4) for at in sorted({end, end + end % 2})]
    if b"data" in names or not any(map(_is_chunk_name, names)):
        raise ValueError(
            f"must have another kind of chunk after its samples, which end at byte {end} of "
            f"{file.size} by its header, but has {names[-1]!r}"
        )

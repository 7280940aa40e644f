"""The header of a WAV file: where its samples lie, and what they are.

RIFF, its big-endian form RIFX, and RF64 for more than 4 GiB. Sizes that cannot be true are errors:
a recorder that was stopped leaves such headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from seqdata.errors import DataError

_RIFF, _RIFX, _RF64 = (b"RIFF",), (b"RIFX",), (b"RF64", b"BW64")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # of a subformat that is a plain tag
_UNKNOWN = 0xFFFFFFFF
_AHEAD = 4096  # bytes that are read at once: most headers are within
_MAX_FORMAT = 1 << 16
_MAX_CHUNKS = 4096
_DTYPES = {
    (_PCM, 8): "|u1",
    (_PCM, 16): "<i2",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
    (_FLOAT, 64): "<f8",
}


class Readable(Protocol):
    """What is asked of a file: see ``seqdata.backends.RandomAccessFile``."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        ...


@dataclass(frozen=True, slots=True)
class WavHeader:
    """What the header of a WAV file says.

    Attributes:
        rate: Samples per second.
        channels: Of each sample.
        dtype: Of one number, with its byte order; None: NumPy has none (24 bits, compressed).
        begin: The first byte of the samples.
        end: One past the last.
        frame_bytes: Bytes of one timestep: a number per channel.
    """

    rate: int
    channels: int
    dtype: str | None
    begin: int
    end: int
    frame_bytes: int

    @property
    def dtype_name(self) -> str | None:
        """The dtype without its byte order."""
        return None if self.dtype is None else np.dtype(self.dtype).name

    @property
    def frames(self) -> int:
        """Timesteps, where the samples are not compressed."""
        return (self.end - self.begin) // self.frame_bytes


def read_header(file: Readable) -> WavHeader:
    """Return what the header of a WAV file says.

    Raises:
        DataError: If the file is not WAV, was cut off, or has sizes that cannot be true.
    """
    head = file.read(0, min(_AHEAD, file.size))
    kind = head[:4]
    if kind not in (*_RIFF, *_RIFX, *_RF64) or head[8:12] != b"WAVE":
        raise make_broken_error(
            file, f"must begin with RIFF, a size and WAVE, but begins with {head[:12]!r}"
        )
    order = ">" if kind in _RIFX else "<"
    layout: tuple[int, int, str | None, int] | None = None
    long_size: int | None = None
    for name, at, size in _chunks(file, head, order):
        if name == b"ds64" and kind in _RF64:
            content = _content(file, head, at, 16)
            if len(content) == 16:
                long_size = struct.unpack(f"{order}QQ", content)[1]
        elif name == b"fmt ":
            layout = _layout(file, _content(file, head, at, min(size, _MAX_FORMAT)), order)
        elif name == b"data":
            if layout is None:
                raise make_broken_error(
                    file, "must have a chunk 'fmt ' before its data, but has none"
                )
            size = long_size if size == _UNKNOWN and long_size is not None else size
            header = _check_sizes(file, WavHeader(*layout[:3], at, at + size, layout[3]), order)
            if kind not in _RF64:
                _check_rest(file, header.end, 8 + struct.unpack_from(f"{order}I", head, 4)[0])
            return header
    raise make_broken_error(file, f"must have a chunk 'data', but has none in {file.size} bytes")


def make_broken_error(file: Readable, problem: str) -> DataError:
    """Return the error about a file that is not a whole recording."""
    ending = file.name.rpartition(".")[2].lower()
    lossless = "flac" if ending == "flac" else "wav"
    return DataError.at(
        f"{file.name}: {problem}. Restore the file; if it is the original, write it again with "
        f"`ffmpeg -i old.{ending} new.{lossless}`, or move it out of the folder.",
        file=file.name,
    )


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
    raise make_broken_error(
        file, f"must have at most {_MAX_CHUNKS} chunks before its data, but has more"
    )


def _content(file: Readable, head: bytes, at: int, size: int) -> bytes:
    if at + size <= len(head):
        return head[at : at + size]
    return file.read(at, min(at + size, file.size)) if at < file.size else b""


def _layout(file: Readable, content: bytes, order: str) -> tuple[int, int, str | None, int]:
    """Return (rate, channels, dtype, bytes of a frame) of a chunk ``fmt``."""
    if len(content) < 16:
        raise make_broken_error(
            file, (f"must have a chunk 'fmt ' of at least 16 bytes, but has one of {len(content)}")
        )
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from(f"{order}HHIIHH", content)
    if tag == _EXTENSIBLE:
        if len(content) < 40:
            raise make_broken_error(
                file,
                (
                    "must have an extensible chunk 'fmt ' of 40 bytes, but has one of "
                    f"{len(content)}"
                ),
            )
        tag = struct.unpack_from(f"{order}H", content, 24)[0]
        if content[26:40] != _GUID_TAIL:
            tag = None  # of somebody's own: perhaps the decoder knows it
    if channels == 0 or rate == 0 or frame_bytes == 0:
        raise make_broken_error(
            file,
            "must declare at least 1 channel, sample per second and byte per frame, but declares "
            f"{channels} channels, {rate} samples per second and {frame_bytes} bytes per frame",
        )
    dtype = _DTYPES.get((tag, bits))
    if dtype is not None and frame_bytes != channels * bits // 8:
        raise make_broken_error(
            file,
            f"must declare {channels * bits // 8} bytes per frame for {channels} channels of "
            f"{bits} bits, but declares {frame_bytes}",
        )
    return rate, channels, dtype and dtype.replace("<", order), frame_bytes


def _check_sizes(file: Readable, header: WavHeader, order: str) -> WavHeader:
    """Return a header whose data lies in the file, in whole frames."""
    size, available = header.end - header.begin, file.size - header.begin
    if size > available:
        raise make_broken_error(
            file,
            f"says {size} bytes of samples, but {available} are there: it was cut off, or its "
            "header was never finished",
        )
    if header.dtype is not None and size % header.frame_bytes:
        raise make_broken_error(
            file,
            f"must declare a multiple of {header.frame_bytes} bytes of samples, the size of a "
            f"frame, but declares {size}",
        )
    if size == 0 and available > 1 and not _is_chunk(file, header.begin, order):
        raise make_broken_error(
            file,
            f"says 0 bytes of samples, but {available} follow that are not another chunk: its "
            "header was never finished",
        )
    return header


def _is_chunk(file: Readable, at: int, order: str) -> bool:
    """Return whether a chunk that is as long as it says begins at a byte, and not of samples."""
    header = file.read(at, min(at + 8, file.size))
    if len(header) < 8 or header[:4] == b"data" or not _is_chunk_name(header[:4]):
        return False
    return at + 8 + int(struct.unpack_from(f"{order}I", header, 4)[0]) <= file.size


def _is_chunk_name(name: bytes) -> bool:
    """Return whether bytes may be the name of a chunk: printable, with blanks as in ``id3 ``."""
    return all(31 < byte < 127 for byte in name)


def _check_rest(file: Readable, end: int, riff_end: int) -> None:
    """Raise if what follows the samples, up to the end that RIFF declares, is not a chunk.

    The size of the samples is then too small: others follow, which would be lost.
    """
    if not end + 9 <= min(riff_end, file.size):
        return
    names = [file.read(at, at + 4) for at in sorted({end, end + end % 2})]
    if b"data" in names or not any(map(_is_chunk_name, names)):
        raise make_broken_error(
            file,
            f"says that its samples end at byte {end} of {file.size}, but what follows is "
            f"{names[-1]!r} and not another kind of chunk",
        )

"""Detection of files that are shorter than declared, which libsndfile reads without an error."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Protocol

_AU_UNKNOWN = 0xFFFFFFFF
_NIST_NUMBER = re.compile(rb"(sample_count|sample_n_bytes|channel_count) -\w+ (\d+)")
_NIST_HEADER = re.compile(rb"NIST_1A\n\s*(\d+)\n")
_W64 = b"riff\x2e\x91\xcf\x11"  # of the GUID that begins such files
_NO_SIZE = (0, (1 << 63) - 1, (1 << 64) - 1)  # of AIFF and W64 that were written into a pipe
_AHEAD = 4096  # bytes of a header
_MOST_CHUNKS = 4096


class Readable(Protocol):
    """A file that can be read at any offset: see ``seqdata.backends.RandomAccessFile``."""

    @property
    def name(self) -> str:
        """Name of the file in errors."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        ...


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Layout of the chunks of a file format.

    Attributes:
        first: Position of the first chunk.
        name: Size of a chunk's name in bytes.
        size: ``struct`` format of a chunk's size.
        is_inclusive: Whether a size includes the chunk's name and size.
        multiple: Alignment of chunks in bytes.
    """

    first: int
    name: int
    size: str
    is_inclusive: bool
    multiple: int

    def check(self, file: Readable, stop: int) -> None:
        """Raise a ValueError if the file ends before one of its chunks."""
        at, header = self.first, self.name + struct.calcsize(self.size)
        for _ in range(_MOST_CHUNKS):
            if at + header > stop:
                return
            head = file.read(at, at + header)
            (size,) = struct.unpack_from(self.size, head, self.name)
            if size == -1:  # of CAF: the samples of a stream end with the file
                return
            end = at + size + (0 if self.is_inclusive else header)
            _check_end(f"its chunk {head[:4]!r}", max(end, at + header), file.size)
            at = end + -end % self.multiple


_FORM = _Chunks(12, 4, ">I", is_inclusive=False, multiple=2)
_CAF = _Chunks(8, 4, ">q", is_inclusive=False, multiple=1)
_W64_CHUNKS = _Chunks(40, 16, "<Q", is_inclusive=True, multiple=8)


def check_declared_sizes(file: Readable) -> None:
    """Raise if an AIFF, AU, CAF, W64 or NIST file does not have the size in its header.

    Raises:
        ValueError: If the file was cut off, contradicts its header, or the header has no size.
    """
    head = file.read(0, min(_AHEAD, file.size))
    if head[:4] == b"FORM" and len(head) >= 12:
        stop = 8 + _check_size(int.from_bytes(head[4:8], "big"))
        _check_end("FORM", stop, file.size)
        _FORM.check(file, stop)
    elif head[:4] == b"caff":
        _CAF.check(file, file.size)
    elif head[:8] == _W64 and len(head) >= 40:
        stop = _check_size(int.from_bytes(head[16:24], "little"))
        _check_exact(stop, file.size)
        _W64_CHUNKS.check(file, stop)
    elif head[:4] in (b".snd", b"dns.") and len(head) >= 12:
        offset, size = struct.unpack_from(">II" if head[:4] == b".snd" else "<II", head, 4)
        if size != _AU_UNKNOWN:
            _check_exact(offset + size, file.size)
    elif header := _NIST_HEADER.match(head):
        numbers = {name: int(text) for name, text in _NIST_NUMBER.findall(head)}
        if len(numbers) == 3 and b"embedded" not in head:  # which is compressed
            size = numbers[b"sample_count"] * numbers[b"sample_n_bytes"]
            _check_exact(int(header[1]) + size * numbers[b"channel_count"], file.size)


def _check_size(size: int) -> int:
    if size in _NO_SIZE:
        raise ValueError("does not say how many samples it has: it was written as a stream")
    return size


def _check_end(what: str, end: int, size: int) -> None:
    if end > size:
        raise ValueError(
            f"says that {what} ends at byte {end}, but has {size} bytes: it was cut off"
        )


def _check_exact(end: int, size: int) -> None:
    if end != size:
        raise ValueError(
            f"says that its samples end at byte {end}, but has {size} bytes: it was cut off, or "
            "its header is wrong"
        )

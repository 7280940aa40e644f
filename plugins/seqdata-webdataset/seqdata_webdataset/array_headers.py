"""Headers of arrays and sound in members: the offset, dtype and shape of their values.

For ``.npy``, ``.wav`` and ``.flac``; without NumPy's own reader, so that everything is checked.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata.backends import MAX_WIDTH, NUMBER_DTYPES

_MAX_HEADER_BYTES = 1 << 16
_STREAM = 0xFFFFFFFF  # size of the samples of a stream: up to the end of the member
_COMMON_HEADER = re.compile(
    r"\{'descr': '([<>|=][biuf]\d)', 'fortran_order': (True|False), "
    r"'shape': \((\d+,(?: \d+,?)*)\), \} *\n"
)
_VALUE = r"'[^'\\]*'|\"[^\"\\]*\"|True|False|-?\d+|\([-\d,\s]*\)|\[[^\]]*\]"
_ENTRY = re.compile(rf"\s*['\"](\w+)['\"]\s*:\s*({_VALUE})\s*")
_ANY_HEADER = re.compile(rf"\s*\{{{_ENTRY.pattern}(?:,{_ENTRY.pattern})*,?\s*\}}\s*")
_DTYPE_PATTERN = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_WAVE_DTYPES = {(_PCM, 8): "|u1", (_PCM, 16): "<i2", (_PCM, 24): "<i3", (_PCM, 32): "<i4",
         (_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8"}  # fmt: skip


class BadHeaderError(ValueError):
    """The bytes do not match the extension; the text describes them."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The header of members; equal for most members of one extension.

    Attributes:
        kind: ``npy``, ``wav``, ``flac``, or ``bad``.
        descr: NumPy's text of the stored dtype; of ``bad``, the reason.
        shape: Shape of one timestep.
        scalar: Whether it is one number, without timesteps.
        fortran: Whether the array is in Fortran order.
    """

    kind: str
    descr: str
    shape: tuple[int, ...] = ()
    scalar: bool = False
    fortran: bool = False

    @property
    def width(self) -> int:
        """Stored bytes of one timestep."""
        item = 3 if self.descr == "<i3" else np.dtype(self.descr).itemsize
        return item * math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """Dtype of one element when it is read."""
        return "int32" if self.descr == "<i3" else np.dtype(self.descr).name

    @property
    def is_in_place(self) -> bool:
        """Whether the bytes are read in place."""
        if self.kind not in ("npy", "wav") or self.descr == "<i3":
            return False
        return not (self.fortran and self.shape) and np.dtype(self.descr).isnative


def is_dtype(descr: str) -> bool:
    """Return whether a text is a NumPy dtype of numbers that can be stored."""
    return descr == "<i3" or (
        _DTYPE_PATTERN.fullmatch(descr) is not None and np.dtype(descr).name in NUMBER_DTYPES
    )


HeaderAndValues = tuple[ArrayHeader, int, int, int]
"""A header, the offset of the values in the member, their bytes, and their timesteps."""


def read_npy_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of an array.

    Args:
        member: The whole member; little of it is read.

    Raises:
        BadHeaderError: If it is invalid.
    """
    first, size = bytes(member[:_MAX_HEADER_BYTES]), len(member)
    if first[:6] != b"\x93NUMPY" or len(first) < 12:
        raise BadHeaderError("does not begin as a .npy file")
    wide = first[6] >= 2
    length = int.from_bytes(first[8 : 12 if wide else 10], "little")
    begin = (12 if wide else 10) + length
    if first[6] not in (1, 2, 3) or begin > min(len(first), size):
        raise BadHeaderError(f"has a head of version {first[6]} and {length} bytes")
    descr, fortran, shape = _parse_header_text(first[begin - length : begin].decode("latin1"))
    if not isinstance(descr, str) or "O" in descr:
        raise BadHeaderError(f"holds Python objects or records (dtype {str(descr)[:40]})")
    is_valid_shape = isinstance(shape, tuple) and all(
        type(size) is int and size >= 0 for size in shape
    )
    if not is_valid_shape or not isinstance(fortran, bool):
        raise BadHeaderError(f"has the shape {str(shape)[:40]}")
    header = _make_array_header(descr, shape[1:], not shape, fortran and len(shape) > 1)
    values = header.width * (shape[0] if shape else 1)
    if values != size - begin:
        raise BadHeaderError(f"has {size - begin} bytes of values, its head says {values}")
    return header, begin, values, values // header.width


def _parse_header_text(text: str) -> tuple[Any, Any, Any]:
    """Return dtype, order and shape of the text of a header, unchecked.

    Not by ``ast.literal_eval``, as NumPy does: members are indexed by several threads, and in
    Python 3.11 two threads that build a syntax tree at once can end in ``SystemError``.
    """
    try:
        if match := _COMMON_HEADER.fullmatch(text):
            return match[1], match[2] == "True", _parse_shape(match[3])
        entries = _ENTRY.finditer(text if _ANY_HEADER.fullmatch(text) else "")
        parsed = {entry[1]: _parse_value(entry[2]) for entry in entries}
        return parsed["descr"], parsed["fortran_order"], parsed["shape"]
    except (KeyError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise BadHeaderError("has a head that cannot be read") from error


def _parse_value(text: str) -> Any:
    """Return a value of a header; a list, of which records are made, stays as text in a list."""
    if text[0] == "(":
        shape = _parse_shape(text[1:-1])
        return shape[0] if len(shape) == 1 and "," not in text else shape
    if text[0] == "[":
        return [text]
    return text[1:-1] if text[0] in "'\"" else text == "True" if text[0] in "TF" else int(text)


def _parse_shape(text: str) -> tuple[int, ...]:
    sizes = text.strip().removesuffix(",")
    return tuple(map(int, sizes.split(","))) if sizes else ()


@functools.lru_cache(maxsize=1024)
def _make_array_header(
    descr: str, shape: tuple[int, ...], scalar: bool, fortran: bool
) -> ArrayHeader:
    """Return the header of arrays; equal ones are the same object."""
    if descr == "<i3" or not is_dtype(descr):
        raise BadHeaderError(f"has dtype {descr[:40]!r}, which cannot be stored")
    header = ArrayHeader("npy", descr, shape, scalar, fortran)
    if not 0 < math.prod(shape) * np.dtype(descr).itemsize < MAX_WIDTH:
        raise BadHeaderError(f"has no numbers per timestep, or too many ({str(shape)[:40]})")
    return header


def read_wav_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of a WAVE file of plain samples; raise as ``read_npy_header`` does."""
    first, size = bytes(member[:_MAX_HEADER_BYTES]), len(member)
    if first[:4] != b"RIFF" or first[8:12] != b"WAVE":
        raise BadHeaderError("does not begin as a .wav file")
    at, header = 12, None
    while at + 8 <= len(first):
        name, length = first[at : at + 4], int.from_bytes(first[at + 4 : at + 8], "little")
        at += 8
        if name == b"fmt " and length >= 16 and at + length <= len(first):
            header = _parse_wave_format(first[at : at + length])
        elif name == b"data":
            if header is None:
                break
            length = size - at if length == _STREAM else length
            if length > size - at or length % header.width:
                raise BadHeaderError(f"has {size - at} bytes of samples, its head says {length}")
            _check_rest(member, at, at + length)
            return header, at, length, length // header.width
        at += length + length % 2
    raise BadHeaderError("has no plain samples in it")


def _check_rest(member: bytes | memoryview, begin: int, end: int) -> None:
    """Raise if what follows samples is not another chunk: their size is too small, or unfinished.

    Where samples are declared, only as far as the file's own size goes.
    """
    size, file_end = len(member), 8 + int.from_bytes(member[4:8], "little")
    if begin == end and size - end > 1 and not _is_chunk(bytes(member[end : end + 8]), size - end):
        raise BadHeaderError(
            f"says 0 bytes of samples, but {size - end} follow that are not another chunk: its "
            "head was never finished"
        )
    if end + 9 > min(file_end, size):
        return
    names = [bytes(member[at : at + 4]) for at in sorted({end, end + end % 2})]
    if b"data" in names or not any(map(_is_chunk_name, names)):
        raise BadHeaderError(
            f"says that its samples end at byte {end} of {size}, but what follows is "
            f"{names[-1]!r} and not another kind of chunk"
        )


def _is_chunk(head: bytes, available: int) -> bool:
    """Return whether bytes begin a chunk that is as long as it says, and not one of samples."""
    size = 8 + int.from_bytes(head[4:8], "little")
    return size <= available and head[:4] != b"data" and _is_chunk_name(head[:4])


def _is_chunk_name(name: bytes) -> bool:
    return all(31 < byte < 127 for byte in name)


def _parse_wave_format(chunk: bytes) -> ArrayHeader:
    code, channels, _, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if code == _EXTENSIBLE and len(chunk) >= 26:
        code = int.from_bytes(chunk[24:26], "little")
    descr = _WAVE_DTYPES.get((code, bits))
    if descr is None or not channels or align != channels * bits // 8:
        raise BadHeaderError(f"has samples of format {code}, {bits} bits, {channels} channels")
    return ArrayHeader("wav", descr, () if channels == 1 else (channels,))


def read_flac_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of a FLAC file, which is decoded whole; see ``read_npy_header``."""
    first = bytes(member[:42])
    if first[:4] != b"fLaC" or len(first) < 42 or first[4] & 127:
        raise BadHeaderError("does not begin as a .flac file")
    packed = int.from_bytes(first[18:26], "big")
    channels, samples = (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if not samples:
        raise BadHeaderError("does not say how many samples it has")
    return ArrayHeader("flac", "<i4", () if channels == 1 else (channels,)), 0, len(member), samples


HEADER_READERS: dict[str, Callable[[memoryview], HeaderAndValues]] = {
    "npy": read_npy_header,
    "wav": read_wav_header,
    "flac": read_flac_header,
}

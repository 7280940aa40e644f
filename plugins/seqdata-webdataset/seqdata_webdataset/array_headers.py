"""What the first bytes of a member say: where its values lie, and what they are.

Of ``.npy``, ``.wav`` and ``.flac``; without NumPy's own reader, so that nothing is believed that is
not looked at. Place in the flow: indexing asks once per member. Reads: the first bytes of a
member. Makes: heads.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata.backends import MAX_WIDTH, NUMBERS

FIRST = 1 << 16
"""Bytes of a member that are looked at; more is no head."""

_USUAL = re.compile(
    r"\{'descr': '([<>|=][biuf]\d)', 'fortran_order': (True|False), "
    r"'shape': \((\d+,(?: \d+,?)*)\), \} *\n"
)
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_WAVE = {(_PCM, 8): "|u1", (_PCM, 16): "<i2", (_PCM, 24): "<i3", (_PCM, 32): "<i4",
         (_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8"}  # fmt: skip


class NoHeadError(ValueError):
    """The bytes are not what the extension says; its text says what they are."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the members of one extension hold; equal for most of a data set.

    Attributes:
        kind: ``npy``, ``wav``, ``flac``, or ``bad``.
        descr: NumPy's text of the dtype, as stored; where it is bad, why.
        shape: Of one timestep.
        scalar: Whether it is one number, without any timesteps.
        fortran: Whether the first dimension runs fastest.
    """

    kind: str
    descr: str
    shape: tuple[int, ...] = ()
    scalar: bool = False
    fortran: bool = False

    @property
    def width(self) -> int:
        """Bytes of one timestep, as stored."""
        item = 3 if self.descr == "<i3" else np.dtype(self.descr).itemsize
        return item * math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """Of one element when it is read."""
        return "int32" if self.descr == "<i3" else np.dtype(self.descr).name

    @property
    def in_place(self) -> bool:
        """Whether the bytes are used as they lie."""
        if self.kind not in ("npy", "wav") or self.descr == "<i3":
            return False
        return not (self.fortran and self.shape) and np.dtype(self.descr).isnative


def is_dtype(descr: str) -> bool:
    """Tell whether a text is NumPy's for numbers that can be stored; NumPy would parse any."""
    return descr == "<i3" or (
        _DTYPE.fullmatch(descr) is not None and np.dtype(descr).name in NUMBERS
    )


Found = tuple[Head, int, int, int]
"""A head, where the values begin in the member, their bytes, and the timesteps that they are."""


def read_npy(first: bytes, size: int) -> Found:
    """Read the head of an array.

    Args:
        first: Its first bytes.
        size: Of the member.

    Raises:
        NoHeadError: If it is none.
    """
    if first[:6] != b"\x93NUMPY" or len(first) < 12:
        raise NoHeadError("does not begin as a .npy file")
    wide = first[6] >= 2
    length = int.from_bytes(first[8 : 12 if wide else 10], "little")
    begin = (12 if wide else 10) + length
    if first[6] not in (1, 2, 3) or begin > min(len(first), size):
        raise NoHeadError(f"has a head of version {first[6]} and {length} bytes")
    descr, fortran, shape = _told(first[begin - length : begin].decode("latin1"))
    if not isinstance(descr, str) or "O" in descr:
        raise NoHeadError(f"holds Python objects or records (dtype {str(descr)[:40]})")
    whole = isinstance(shape, tuple) and all(type(one) is int and one >= 0 for one in shape)
    if not whole or not isinstance(fortran, bool):
        raise NoHeadError(f"has the shape {str(shape)[:40]}")
    head = _array_head(descr, shape[1:], not shape, fortran and len(shape) > 1)
    values = head.width * (shape[0] if shape else 1)
    if values != size - begin:
        raise NoHeadError(f"has {size - begin} bytes of values, its head says {values}")
    return head, begin, values, values // head.width


def _told(text: str) -> tuple[Any, Any, Any]:
    """Give dtype, order and shape of the text of a head, whatever they are."""
    if usual := _USUAL.fullmatch(text):
        return usual[1], usual[2] == "True", tuple(map(int, usual[3].rstrip(", ").split(",")))
    try:
        told = ast.literal_eval(text.strip())
        return told["descr"], told["fortran_order"], told["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise NoHeadError("has a head that cannot be read") from error


@functools.lru_cache(maxsize=1024)
def _array_head(descr: str, shape: tuple[int, ...], scalar: bool, fortran: bool) -> Head:
    """Give the head of arrays; the same one for all that are alike."""
    if descr == "<i3" or not is_dtype(descr):
        raise NoHeadError(f"has dtype {descr[:40]!r}, which cannot be stored")
    head = Head("npy", descr, shape, scalar, fortran)
    if not 0 < math.prod(shape) * np.dtype(descr).itemsize < MAX_WIDTH:
        raise NoHeadError(f"has no numbers per timestep, or too many ({str(shape)[:40]})")
    return head


def read_wav(first: bytes, size: int) -> Found:
    """Read the head of a WAVE file of plain samples; raises as ``read_npy`` does."""
    if first[:4] != b"RIFF" or first[8:12] != b"WAVE":
        raise NoHeadError("does not begin as a .wav file")
    at, head = 12, None
    while at + 8 <= len(first):
        name, length = first[at : at + 4], int.from_bytes(first[at + 4 : at + 8], "little")
        at += 8
        if name == b"fmt " and length >= 16 and at + length <= len(first):
            head = _wave_format(first[at : at + length])
        elif name == b"data":
            if head is None:
                break
            length = (
                size - at if length in (0, 0xFFFFFFFF) else length
            )  # a stream that nobody ended
            if length > size - at or length % head.width:
                raise NoHeadError(f"has {size - at} bytes of samples, its head says {length}")
            return head, at, length, length // head.width
        at += length + length % 2
    raise NoHeadError("has no plain samples in it")


def _wave_format(chunk: bytes) -> Head:
    kind, channels, _, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = int.from_bytes(chunk[24:26], "little")
    descr = _WAVE.get((kind, bits))
    if descr is None or not channels or align != channels * bits // 8:
        raise NoHeadError(f"has samples of format {kind}, {bits} bits, {channels} channels")
    return Head("wav", descr, () if channels == 1 else (channels,))


def read_flac(first: bytes, size: int) -> Found:
    """Read the head of a FLAC file, which is decoded as a whole; raises as ``read_npy`` does."""
    if first[:4] != b"fLaC" or len(first) < 42 or first[4] & 127:
        raise NoHeadError("does not begin as a .flac file")
    packed = int.from_bytes(first[18:26], "big")
    channels, samples = (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if not samples:
        raise NoHeadError("does not say how many samples it has")
    return Head("flac", "<i4", () if channels == 1 else (channels,)), 0, size, samples


READERS: dict[str, Callable[[bytes, int], Found]] = {
    "npy": read_npy,
    "wav": read_wav,
    "flac": read_flac,
}

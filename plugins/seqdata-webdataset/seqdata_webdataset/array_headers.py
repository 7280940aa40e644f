"""Headers of arrays and audio in members: the offset, dtype and shape of their values.

For ``.npy``, ``.wav`` and ``.flac``. NumPy's reader is not used, so that everything is checked.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata import PluginError
from seqdata.backends import NUMBER_DTYPES, WavHeader

_MAX_HEADER_BYTES = 1 << 16
_MAX_WIDTH = 1 << 31  # bytes of one timestep
_COMMON_HEADER = re.compile(
    r"\{'descr': '([<>|=][biuf]\d)', 'fortran_order': (True|False), "
    r"'shape': \((\d+,(?: \d+,?)*)\), \} *\n"
)
_VALUE = r"'[^'\\]*'|\"[^\"\\]*\"|True|False|-?\d+|\([-\d,\s]*\)|\[[^\]]*\]"
_ENTRY = re.compile(rf"\s*['\"](\w+)['\"]\s*:\s*({_VALUE})\s*")
_ANY_HEADER = re.compile(rf"\s*\{{{_ENTRY.pattern}(?:,{_ENTRY.pattern})*,?\s*\}}\s*")
_DTYPE_PATTERN = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_THREE_BYTES = ("<i3", ">i3")  # of 24-bit sound
SOUND_DECODER = "seqdata_audio.sound_file"
"""Module that decodes audio, if its package is installed."""
WHOLE_SOUND = ("flac", "sound")
"""Kinds of headers whose members are decoded whole; the index has their number of timesteps."""


class BadHeaderError(ValueError):
    """Error about bytes that do not match the extension; its text continues "but one ..."."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Header of members; the same for most members of one extension.

    Attributes:
        kind: ``npy``, ``wav``, ``flac``, ``sound`` (WAV that is compressed), or ``bad``.
        descr: NumPy's string of the stored dtype; for ``bad``, the reason.
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
        """Stored size of one timestep in bytes."""
        item = 3 if self.descr in _THREE_BYTES else np.dtype(self.descr).itemsize
        return item * math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """Dtype of one element after it is read."""
        return "int32" if self.descr in _THREE_BYTES else np.dtype(self.descr).name

    @property
    def is_in_place(self) -> bool:
        """Whether values are read in place, without decoding."""
        if self.kind not in ("npy", "wav") or self.descr in _THREE_BYTES:
            return False
        return not (self.fortran and self.shape) and np.dtype(self.descr).isnative


def is_dtype(descr: str) -> bool:
    """Return whether a string is a NumPy dtype of numbers that can be stored."""
    return descr in _THREE_BYTES or (
        _DTYPE_PATTERN.fullmatch(descr) is not None and np.dtype(descr).name in NUMBER_DTYPES
    )


HeaderAndValues = tuple[ArrayHeader, int, int, int]
"""Header, offset of the values in the member, their size in bytes, and number of timesteps."""


def read_npy_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of an array.

    Args:
        member: The whole member; little of it is read.

    Raises:
        BadHeaderError: If it is invalid.
    """
    first, size = bytes(member[:_MAX_HEADER_BYTES]), len(member)
    if first[:6] != b"\x93NUMPY" or len(first) < 12:
        raise BadHeaderError("is not a .npy file: it does not begin with the header of one")
    wide = first[6] >= 2
    length = int.from_bytes(first[8 : 12 if wide else 10], "little")
    begin = (12 if wide else 10) + length
    if first[6] not in (1, 2, 3):
        raise BadHeaderError(f"has a header of version {first[6]}, but only 1 to 3 can be read")
    if begin > len(first):
        raise BadHeaderError(
            f"declares a header that ends at byte {begin}, but it must end within the {size} bytes "
            f"of the file and within {_MAX_HEADER_BYTES}"
        )
    descr, fortran, shape = _parse_header_text(first[begin - length : begin].decode("latin1"))
    if not isinstance(descr, str) or "O" in descr:
        raise BadHeaderError(f"holds Python objects or records (dtype {str(descr)[:40]})")
    is_valid_shape = isinstance(shape, tuple) and all(
        type(size) is int and size >= 0 for size in shape
    )
    if not is_valid_shape or not isinstance(fortran, bool):
        raise BadHeaderError(f"has the invalid shape or order {str(shape)[:40]}, {fortran}")
    header = _make_array_header(descr, shape[1:], not shape, fortran and len(shape) > 1)
    values = header.width * (shape[0] if shape else 1)
    if values != size - begin:
        raise BadHeaderError(f"has {size - begin} bytes of values, but declares {values}")
    return header, begin, values, values // header.width


def _parse_header_text(text: str) -> tuple[Any, Any, Any]:
    """Return dtype, order and shape from the text of a header, unchecked.

    NumPy's ``ast.literal_eval`` is not used: several threads index members, and in Python 3.11 two
    threads that build a syntax tree at the same time can fail with a ``SystemError``.

    Raises:
        BadHeaderError: If the text cannot be parsed.
    """
    try:
        if match := _COMMON_HEADER.fullmatch(text):
            return match[1], match[2] == "True", _parse_shape(match[3])
        entries = _ENTRY.finditer(text if _ANY_HEADER.fullmatch(text) else "")
        parsed = {entry[1]: _parse_value(entry[2]) for entry in entries}
        return parsed["descr"], parsed["fortran_order"], parsed["shape"]
    except (KeyError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise BadHeaderError("has a header that cannot be read") from error


def _parse_value(text: str) -> Any:
    """Return a value of a header; a list (the dtype of records) stays a string, in a list."""
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
    """Return the header of arrays, cached; raise a BadHeaderError if they cannot be stored."""
    if descr in _THREE_BYTES or not is_dtype(descr):
        raise BadHeaderError(f"has dtype {descr[:40]!r}, which cannot be stored")
    header = ArrayHeader("npy", descr, shape, scalar, fortran)
    size = math.prod(shape) * np.dtype(descr).itemsize
    if size == 0:
        raise BadHeaderError(f"has timesteps of shape {str(shape)[:40]}, without numbers")
    if size >= _MAX_WIDTH:
        raise BadHeaderError(
            f"has timesteps of {size} bytes ({descr[:40]} {str(shape)[:40]}), but must have less "
            f"than {_MAX_WIDTH}"
        )
    return header


@dataclass(frozen=True, slots=True)
class _Member:
    """A member as a file that ``WavHeader`` reads."""

    content: bytes | memoryview
    name: str = "member.wav"

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, first: int, stop: int) -> bytes:
        return bytes(self.content[first:stop])


def read_wav_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of a WAV file; see ``read_npy_header``."""
    file = _Member(member)
    try:
        wav = None if WavHeader.is_nist(file.read(0, 7)) else WavHeader.read(file)
    except ValueError as error:
        raise BadHeaderError(str(error)) from error
    if wav is None or wav.stored is None:
        return _read_compressed_header(file)
    header = ArrayHeader("wav", wav.stored, wav.shape)
    return header, wav.begin, wav.end - wav.begin, wav.frames


def _read_compressed_header(file: _Member) -> HeaderAndValues:
    """Return the header of a compressed audio file, which seqdata-audio decodes as a whole.

    Raises:
        BadHeaderError: If it cannot be decoded, or the plugin is not installed.
    """
    try:
        sound_file = importlib.import_module(SOUND_DECODER)
    except ImportError as error:
        raise BadHeaderError(
            f"is compressed audio, which needs the package seqdata-audio ({error}): run "
            "`pip install seqdata-audio`, then `seqdata index --rebuild`"
        ) from error
    try:
        info = sound_file.read_info(file)
    except ValueError as error:
        raise BadHeaderError(str(error)) from error
    except PluginError as error:
        raise BadHeaderError(f"cannot be decoded ({error})") from error
    return ArrayHeader("sound", np.dtype(info.dtype).str, info.shape), 0, file.size, info.frames


def read_flac_header(member: bytes | memoryview) -> HeaderAndValues:
    """Parse the header of a FLAC file, which is decoded whole; see ``read_npy_header``."""
    first = bytes(member[:42])
    if first[:4] != b"fLaC" or len(first) < 42 or first[4] & 127:
        raise BadHeaderError("is not a .flac file: it does not begin with the header of one")
    packed = int.from_bytes(first[18:26], "big")
    channels, samples = (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if not samples:
        raise BadHeaderError("does not declare its number of samples")
    return ArrayHeader("flac", "<i4", () if channels == 1 else (channels,)), 0, len(member), samples


HEADER_READERS: dict[str, Callable[[memoryview], HeaderAndValues]] = {
    "npy": read_npy_header,
    "wav": read_wav_header,
    "flac": read_flac_header,
}

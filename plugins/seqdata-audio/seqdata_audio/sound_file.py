"""What soundfile says of a file, and its samples: FLAC, Ogg, MP3, and the rest of WAV."""

from __future__ import annotations

import importlib
import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from seqdata.errors import PluginError
from seqdata_audio.wav import Readable, make_broken_error

_STORED = {"PCM_S8": "int16", "PCM_U8": "int16", "PCM_16": "int16", "PCM_24": "int32",
           "PCM_32": "int32", "DOUBLE": "float64"}  # fmt: skip
_PAGE_BEGIN = re.compile(rb"OggS\x00[\x00-\x07]")
_PAGE = 27  # bytes of the header of an Ogg page, without its table
_LONGEST_PAGE = _PAGE + 255 + 255 * 255
_CHECKSUM_AT = 22  # in that header, 4 bytes
_FLAGS_AT, _IS_LAST = 5, 0x04  # in that header: "eos", set on the last page of a stream
_UNKNOWN = (1 << 63) - 1  # libsndfile's SF_COUNT_MAX: frames of a FLAC file that says no number
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # byte -> its bits reversed


@dataclass(frozen=True, slots=True)
class SoundInfo:
    """What the header of a file says.

    Attributes:
        rate: Samples per second.
        channels: Of each sample.
        frames: Timesteps.
        dtype: What its samples are decoded to: what holds them without loss, float32 where they
            were compressed with loss.
    """

    rate: int
    channels: int
    frames: int
    dtype: str


def read_info(file: Readable) -> SoundInfo:
    """Return what the header of a file says.

    Raises:
        DataError: If it is not a whole file that libsndfile reads, or its header does not say how
            many samples it has.
        PluginError: If soundfile is not installed.
    """
    if file.name.lower().endswith(".ogg"):
        _check_last_page(file)
    with _open_sound(io.BufferedReader(_RawFile(file)), file) as sound:
        if sound.frames >= _UNKNOWN:
            raise make_broken_error(
                file, "does not say how many samples it has: it was written as a stream"
            )
        dtype = _STORED.get(sound.subtype, "float32")
        return SoundInfo(sound.samplerate, sound.channels, sound.frames, dtype)


def read_samples(content: bytes, dtype: str) -> NDArray[Any]:
    """Return the samples of a whole file, (T,) or (T, channels).

    Raises:
        ValueError: If it holds fewer than its header says, this says no number, or it cannot be
            decoded.
        PluginError: If soundfile is not installed.
    """
    soundfile = _library()
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            frames = sound.frames
            if frames >= _UNKNOWN:
                raise ValueError("does not say how many samples it has")
            samples: NDArray[Any] = sound.read(frames, dtype=dtype)  # -1 needs a seekable encoding
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error
    if len(samples) != frames:
        raise ValueError(f"holds {len(samples)} samples of the {frames} that its header says")
    return samples


@contextmanager
def _open_sound(stream: io.BufferedIOBase, file: Readable) -> Iterator[Any]:
    soundfile = _library()
    try:
        with soundfile.SoundFile(stream) as sound:
            yield sound
    except soundfile.LibsndfileError as error:
        raise make_broken_error(
            file, f"cannot be read by libsndfile ({error.error_string})"
        ) from error


def _library() -> ModuleType:
    try:
        soundfile: ModuleType = importlib.import_module("soundfile")
    except (ImportError, OSError) as error:  # without its library: OSError
        raise PluginError(
            f"seqdata-audio: soundfile must be installed, but cannot be imported ({error}). Run "
            "`pip install soundfile`; on other systems than usual install libsndfile, too."
        ) from error
    return soundfile


def _check_last_page(file: Readable) -> None:
    """Raise if an Ogg file does not end with an undamaged last page (RFC 3533, section 6).

    libsndfile passes over anything else, over a page whose checksum is wrong, and over a last page
    that is not marked as such: samples would be missing.
    """
    first = max(0, file.size - 2 * _LONGEST_PAGE)
    tail = file.read(first, file.size)
    begins = [match.start() for match in _PAGE_BEGIN.finditer(tail)]
    page = tail[begins[-1] :] if begins else b""
    segments = page[_PAGE - 1] if len(page) >= _PAGE else 255
    size = _PAGE + segments + sum(page[_PAGE:][:segments])
    if len(page) < _PAGE + segments or len(page) < size:
        raise make_broken_error(
            file, "must end with a whole Ogg page, but ends within one: it was cut off"
        )
    if len(page) > size:
        raise make_broken_error(
            file,
            f"must end with a whole Ogg page, but has {len(page) - size} other bytes behind its "
            "last one: it is damaged, or something was added",
        )
    if _compute_checksum(page) != struct.unpack_from("<I", page, _CHECKSUM_AT)[0]:
        raise make_broken_error(file, "has a last Ogg page whose checksum is not that of its bytes")
    if not page[_FLAGS_AT] & _IS_LAST:
        raise make_broken_error(
            file,
            "must end with an Ogg page that is marked as the last of its stream, but this one is "
            "not: the file was cut off between two pages, or its recording was never ended",
        )


def _compute_checksum(page: bytes) -> int:
    """Return the CRC of a page with zeros in place of its checksum.

    Ogg's is zlib's polynomial with the highest bit first, from 0 and without a last inversion.
    """
    plain = page[:_CHECKSUM_AT] + bytes(4) + page[_CHECKSUM_AT + 4 :]
    found = zlib.crc32(plain.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{found:032b}"[::-1], 2)


class _RawFile(io.RawIOBase):
    """A file of the engine as Python's, for libsndfile."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._file.size)
        content = self._file.read(self._at, stop) if self._at < stop else b""
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

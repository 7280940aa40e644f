"""Reading of headers and samples of sound files: WAV by the core, others by libsndfile."""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from seqdata.backends import WavHeader
from seqdata.errors import DataError, PluginError
from seqdata_audio.declared_sizes import Readable, check_declared_sizes
from seqdata_audio.mpeg import MpegFrames, count_frames
from seqdata_audio.ogg import check_pages

_STORED = {"PCM_S8": "int16", "PCM_U8": "int16", "PCM_16": "int16", "PCM_24": "int32",
           "PCM_32": "int32", "DOUBLE": "float64", "ALAC_16": "int16", "ALAC_20": "int32",
           "ALAC_24": "int32", "ALAC_32": "int32"}  # fmt: skip
_UNKNOWN = (1 << 63) - 1  # libsndfile's SF_COUNT_MAX: frames of a FLAC file that says no number
_MPEG = ("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III")
_WAV_OF_MPEG = (0x50, 0x55)  # tags of WAV whose samples are MPEG frames
_HEAD = 12


@dataclass(frozen=True, slots=True)
class SoundInfo:
    """Description of the samples of a file.

    Attributes:
        rate: Samples per second.
        channels: Number of channels.
        frames: Number of timesteps.
        dtype: Dtype that holds its samples without loss; float32 if their compression is lossy.
    """

    rate: int
    channels: int
    frames: int
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a timestep."""
        return () if self.channels == 1 else (self.channels,)


@dataclass(frozen=True, slots=True)
class Content:
    """A file in memory; see ``RandomAccessFile``."""

    content: bytes
    name: str = ""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.content)

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        return self.content[first:stop]


def read_wav(file: Readable) -> WavHeader | None:
    """Return the header of a WAV file; None if the file is of another kind.

    Raises:
        ValueError: If it is damaged, or was cut off.
    """
    head = file.read(0, min(_HEAD, file.size))
    is_named = file.name.lower().endswith(".wav") and not WavHeader.is_nist(head)
    return WavHeader.read(file) if WavHeader.is_wav(head) or is_named else None


def read_info(file: Readable) -> SoundInfo:
    """Return the description of the samples of a file.

    Raises:
        ValueError: If it is not a complete file that libsndfile reads, or its header does not
            declare the number of samples.
        PluginError: If soundfile is not installed.
    """
    wav = read_wav(file)
    if wav is not None and wav.dtype is not None:
        return SoundInfo(wav.rate, wav.channels, wav.frames, wav.dtype)
    if wav is not None:
        file = Content(_take_compressed(file.read(0, file.size), wav))
    check_declared_sizes(file)
    if file.read(0, 4) == b"OggS":
        check_pages(file.read(0, file.size))
    with _open_sound(io.BufferedReader(_RawFile(file))) as sound:
        return _describe(sound, _find_mpeg(sound, file))


def read_samples(content: bytes, dtype: str) -> NDArray[Any]:
    """Return all samples of a file in a dtype, (T,) or (T, channels).

    Raises:
        ValueError: If there are fewer samples than the header declares, it declares no number, or
            the samples cannot be decoded.
        PluginError: If soundfile is not installed.
    """
    wav = WavHeader.read(Content(content)) if WavHeader.is_wav(content[:_HEAD]) else None
    if wav is not None and wav.dtype is not None and dtype in (wav.dtype, "float32", "float64"):
        return convert(wav.decode(content), dtype)
    if wav is not None and wav.dtype is None:
        content = _take_compressed(content, wav)
    with _open_sound(io.BytesIO(content)) as sound:
        mpeg = _find_mpeg(sound, Content(content))
        if mpeg is None:
            return _read(sound, sound.frames, dtype)
    with _open_sound(io.BytesIO(mpeg.take(content))) as sound:
        return _read(sound, mpeg.length, dtype)


def convert(samples: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert samples to ``dtype``; integers that become floats are scaled to [-1, 1)."""
    if samples.dtype == dtype:
        return samples
    return scale_samples(samples).astype(dtype, copy=False)


def scale_samples(samples: NDArray[Any]) -> NDArray[Any]:
    """Scale integer samples to float64 in [-1, 1); return floats unchanged."""
    if samples.dtype.kind == "f":
        return samples
    scale = 2.0 ** (8 * samples.dtype.itemsize - 1)
    shift = scale if samples.dtype.kind == "u" else 0.0  # 8-bit WAV is silent at 128
    scaled: NDArray[Any] = (samples - shift) / scale
    return scaled


def make_broken_error(file: Readable, problem: str) -> DataError:
    """Return the error about a file that is not a complete recording."""
    ending = file.name.rpartition(".")[2].lower()
    lossless = "flac" if ending == "flac" else "wav"
    return DataError.at(
        f"{file.name}: {problem}. Restore the file; if it is the original, write it again with "
        f"`ffmpeg -i old.{ending} new.{lossless}`, or move it out of the folder.",
        file=file.name,
    )


def _take_compressed(content: bytes, wav: WavHeader) -> bytes:
    """Return the bytes from which libsndfile decodes all samples of a compressed WAV file.

    These are the MPEG frames in it, or the file itself, with the true size in its header.
    """
    if wav.tag in _WAV_OF_MPEG:
        return content[wav.begin : wav.end]
    if not wav.is_stream:
        return content
    size = struct.pack(">I" if content[:4] == b"RIFX" else "<I", wav.end - wav.begin)
    return content[: wav.begin - 4] + size + content[wav.begin : wav.end]


def _find_mpeg(sound: Any, file: Readable) -> MpegFrames | None:
    """Return the frames of an MPEG file; None if libsndfile knows their number, or for others."""
    return count_frames(file.read(0, file.size)) if sound.subtype in _MPEG else None


def _describe(sound: Any, mpeg: MpegFrames | None) -> SoundInfo:
    frames = sound.frames if mpeg is None else mpeg.length
    if frames >= _UNKNOWN:
        raise ValueError("does not say how many samples it has: it was written as a stream")
    dtype = _STORED.get(sound.subtype, "float32")
    return SoundInfo(sound.samplerate, sound.channels, frames, dtype)


def _read(sound: Any, frames: int, dtype: str) -> NDArray[Any]:
    if frames >= _UNKNOWN:
        raise ValueError("does not say how many samples it has")
    samples: NDArray[Any] = sound.read(frames, dtype=dtype)  # -1 needs a seekable encoding
    if len(samples) != frames:
        raise ValueError(f"holds {len(samples)} samples of the {frames} that its header says")
    return samples


@contextmanager
def _open_sound(stream: io.BufferedIOBase) -> Iterator[Any]:
    soundfile = _library()
    try:
        with soundfile.SoundFile(stream) as sound:
            yield sound
    except soundfile.LibsndfileError as error:
        raise ValueError(f"cannot be read by libsndfile ({error.error_string})") from error


def _library() -> ModuleType:
    try:
        soundfile: ModuleType = importlib.import_module("soundfile")
    except (ImportError, OSError) as error:  # without its library: OSError
        raise PluginError(
            f"seqdata-audio: soundfile must be installed, but cannot be imported ({error}). Run "
            "`pip install soundfile`; if its wheel has no libsndfile, install that, too."
        ) from error
    return soundfile


class _RawFile(io.RawIOBase):
    """File object over a ``Readable``, for libsndfile."""

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

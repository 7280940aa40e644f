"""Audio files as a format of seqdata: one sequence per file, field ``audio`` and its ``rate``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileIndex, FormatBackend, RandomAccessFile, hookimpl
from seqdata.errors import ConfigError, check_flags
from seqdata.protocols import Store
from seqdata_audio.kaldi import KaldiArchive
from seqdata_audio.sound_file import make_broken_error, read_info, read_samples, read_wav
from seqdata_audio.transcript import join_transcript

_DTYPES = (None, "float32", "float64")


@dataclass(frozen=True)
class Audio:
    """Backend for audio files; each file is a sequence, with its path below the folder as id.

    It reads the formats of libsndfile: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF, AU, CAF, W64 and
    NIST; see ``suffixes``.

    Fields: ``audio``, (T,) for mono files, (T, channels) for others, in the stored dtype; ``rate``,
    int64, samples per second of each sequence. WAV of 8, 16, 32 and 64 bits is read in place, by
    slices; other files are decoded whole.

    Args:
        dtype: None: as stored. ``"float32"``, ``"float64"``: all files are decoded to it, in
            [-1, 1], for any stored format.
        allow_empty: Whether a file may hold no samples; it is then a sequence of length 0.
        transcript: Table of transcripts, joined with the recordings by the names of their files: a
            path (CSV, TSV, Parquet, JSON lines) or a pandas, Polars or Arrow table. It has a column
            ``file``, ``path`` or ``audio_filepath``, and one of ``text``, ``sentence`` or
            ``transcript``, which becomes the field ``text``; its other columns become fields, too.
            With ``offset`` and ``duration`` (seconds) each row is a sequence, a part of its
            recording, as in manifests of NeMo; a manifest of cuts or supervisions of lhotse
            (``.jsonl.gz``) and a data folder of Kaldi (``wav.scp``, ``segments``, ``text``) are
            read, too. A column ``id`` names the sequences. Recordings without a row are dropped;
            they, and rows without a recording, are counted in a warning.

    Examples:
        >>> store = open_store("recordings/", backend=Audio(dtype="float32"))  # doctest: +SKIP
        >>> Audio(transcript="validated.tsv")("clips/").fields  # doctest: +SKIP
    """

    dtype: str | None = None
    allow_empty: bool = False
    transcript: Any = field(default=None, compare=False, repr=False)

    suffixes: ClassVar[tuple[str, ...]] = (
        ".wav", ".wave", ".bwf", ".rf64", ".w64", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".mp2",
        ".aiff", ".aif", ".aifc", ".au", ".snd", ".caf", ".nist", ".sph",
    )  # fmt: skip
    version: ClassVar[int] = 1
    remedy_for_dtypes: ClassVar[str] = (
        "Pass `backend=Audio(dtype='float32')` of seqdata_audio, which decodes all files to floats "
        "in [-1, 1], or open them as two stores"
    )

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError(
                f"Audio: `dtype` must be one of {', '.join(map(repr, _DTYPES))}, but is "
                f"{self.dtype!r}. Leave it out for the stored dtype."
            )
        check_flags("Audio", allow_empty=self.allow_empty)

    def __call__(
        self,
        location: Any,
        *,
        verify: str | None = None,
        index: str | None = None,
        remote: Any = None,
        keys: str = "unique",
        progress: bool | None = None,
    ) -> Store:
        """Open recordings, with their transcripts; options are those of ``FormatBackend``.

        Raises:
            ConfigError: If there are no files at the location, or an option or the table is
                invalid.
            DataError: If a file is damaged, or rows and recordings do not match.
        """
        store = self._backend(
            location, verify=verify, index=index, remote=remote, keys=keys, progress=progress
        )
        if self.transcript is None:
            return store
        is_local = isinstance(location, str | os.PathLike) and os.path.isdir(location)
        return join_transcript(store, self.transcript, os.fspath(location) if is_local else "")

    def build_index(self, location: Any, **options: Any) -> Mapping[str, Any]:
        """Make the index of recordings; see ``FormatBackend``."""
        return self._backend.build_index(location, **options)

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[Any]]:
        """Compare every byte; see ``FormatBackend``."""
        return self._backend.audit(location, shard=shard, repair=repair, on_progress=on_progress)

    @property
    def _backend(self) -> FormatBackend:
        return FormatBackend(self if self.transcript is None else replace(self, transcript=None))

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the positions of the samples of a file.

        Raises:
            DataError: If it is not a complete audio file.
        """
        try:
            return self._index(file)
        except ValueError as problem:
            raise make_broken_error(file, str(problem)) from problem

    def _index(self, file: RandomAccessFile) -> FileIndex:
        wav = read_wav(file)
        in_place = None if wav is None or wav.is_24_bit else wav.stored
        if wav is not None and in_place is not None and self.dtype in (None, wav.dtype):
            audio = Extents(np.array([wav.begin]), np.array([wav.end]), in_place, wav.shape)
            return self._make_index(file, audio, wav.frames, wav.rate)
        info = read_info(file)
        dtype = self.dtype or info.dtype
        audio = Extents(
            np.array([0]), np.array([file.size]), dtype, info.shape,
            decoder=getattr(self, f"decode_{dtype}"), lengths=np.array([info.frames]),
        )  # fmt: skip
        return self._make_index(file, audio, info.frames, info.rate)

    def decode_int16(self, content: bytes) -> NDArray[Any]:
        """Return the samples of a file, int16."""
        return read_samples(content, "int16")

    def decode_int32(self, content: bytes) -> NDArray[Any]:
        """Return the samples of a file, int32; those of 24 bits are multiples of 256."""
        return read_samples(content, "int32")

    def decode_float32(self, content: bytes) -> NDArray[Any]:
        """Return the samples of a file, float32."""
        return read_samples(content, "float32")

    def decode_float64(self, content: bytes) -> NDArray[Any]:
        """Return the samples of a file, float64."""
        return read_samples(content, "float64")

    def _make_index(
        self, file: RandomAccessFile, audio: Extents, frames: int, rate: int
    ) -> FileIndex:
        if frames == 0 and not self.allow_empty:
            raise make_broken_error(
                file,
                "must hold at least one sample (or be opened with Audio(allow_empty=True)), but "
                "holds none",
            )
        head = np.array([min(file.size, int(audio.begins[0]) or _HEAD)])
        values = Extents(np.array([0]), head, "int64", (), None, values=np.array([rate]))
        return FileIndex({"audio": audio, "rate": values})


_HEAD = 64  # bytes of a file without a known header that the rate is believed with


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backends ``audio`` and ``kaldi``."""
    return {"audio": Audio(), "kaldi": KaldiArchive()}

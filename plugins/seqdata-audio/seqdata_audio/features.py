"""Spectra, log-mel spectrograms and MFCC: columnar transforms with lengths known in advance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from seqdata import ConfigError, Ragged, columnar
from seqdata.errors import DecodeError, as_integer, check_flags, warn
from seqdata_audio.mel import Floats, cosines, hann, mel_filters
from seqdata_audio.sound_file import scale_samples

_AT_ONCE = 1 << 22  # numbers that are windowed at once
_AMIN = 1e-10  # the least power: -100 dB
_RATE = "rate"  # the field of the samples per second


class _FrameTransform:
    """Base class of transforms of samples to frames."""

    field: str
    to: str
    n_fft: int
    hop_length: int | None
    win_length: int | None
    center: bool
    pad_mode: ClassVar[Literal["constant", "reflect"]] = "constant"

    def __getstate__(self) -> dict[str, Any]:
        """Return the options only; windows and filters are computed again when needed."""
        return {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}

    def lengths(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of frames of each sequence, int64; 0 for a sequence without samples.

        Args:
            lengths: int64, number of samples of each sequence.
        """
        padding = 2 * (self.n_fft // 2) if self.center else 0
        frames = 1 + (lengths + padding - self.n_fft) // self._hop
        return np.where(lengths > 0, np.maximum(frames, 0), 0)

    @property
    def _hop(self) -> int:
        """Number of samples from one frame to the next."""
        return self.hop_length or self.n_fft // 4

    def _get_samples(self, columns: dict[str, Any]) -> Ragged:
        """Return the samples of a batch.

        Raises:
            ConfigError: If ``field`` does not name a field along time.
        """
        audio = columns.get(self.field)
        if not isinstance(audio, Ragged):
            raise ConfigError(
                f"{type(self).__name__}: `field` must name a field along time, one of "
                f"{', '.join(columns)}, but is {self.field!r}. Pass field='...'."
            )
        return audio

    def _replace_samples(self, columns: dict[str, Any], features: Ragged) -> dict[str, Any]:
        """Return the columns with features in place of samples.

        Raises:
            ConfigError: If another field has the name of the features.
        """
        others = {name: column for name, column in columns.items() if name != self.field}
        if self.to in others:
            raise ConfigError(
                f"{type(self).__name__}: `to` must be a name that no other field has, but is "
                f"{self.to!r}. Pass another one, or leave the field out of `fields`."
            )
        return {**others, self.to: features}

    def _windows(
        self, audio: Ragged, lengths: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield blocks of frames: index of the first frame, and samples, (n, *channels, n_fft)."""
        samples, begins = self._pad(audio)
        before = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
        at = np.repeat(begins, lengths) + within * self._hop
        if not len(at):
            return
        windows = np.lib.stride_tricks.sliding_window_view(samples, self.n_fft, axis=0)
        step = max(1, _AT_ONCE // windows[0].size)
        for first in range(0, len(at), step):
            yield first, windows[at[first : first + step]]

    def _pad(self, audio: Ragged) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return samples in [-1, 1], padded, and the first row of each padded sequence."""
        values, gap = np.asarray(audio.values), self.n_fft // 2 if self.center else 0
        lengths = np.asarray(audio.lengths)
        begins = np.cumsum(lengths) - lengths
        spread = begins + 2 * gap * np.arange(len(lengths))
        samples = np.zeros((len(values) + 2 * gap * len(lengths), *values.shape[1:]))
        rows = np.arange(len(values)) + np.repeat(spread - begins + gap, lengths)
        samples[rows] = scale_samples(values)
        if gap and self.pad_mode == "reflect":
            _reflect(samples, spread, lengths, gap)
        return samples, spread

    @cached_property
    def _window(self) -> Floats:
        return hann(self.win_length or self.n_fft, self.n_fft)


def _reflect(
    samples: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64], gap: int
) -> None:
    """Fill ``gap`` samples beyond both ends of each sequence with its samples, mirrored.

    Raises:
        DecodeError: If a sequence is not longer than the gap.
    """
    short = lengths[(lengths > 0) & (lengths <= gap)]
    if len(short):
        raise DecodeError.at(
            f"STFT: all sequences must have more than {gap} samples to be mirrored at their ends, "
            f"half of `n_fft`, but one has {short[0]}. Pass pad_mode='constant', or drop short "
            "sequences with `store.where(...)`",
        )
    having = lengths > 0
    first, stop = (begins + gap)[having, None], (begins + gap + lengths)[having, None]
    steps = np.arange(1, gap + 1)
    samples[first - steps] = samples[first + steps]
    samples[stop - 1 + steps] = samples[stop - 1 - steps]


@columnar
@dataclass(frozen=True, kw_only=True)
class LogMel(_FrameTransform):
    """Log-mel spectrogram: ``audio`` (T,) becomes ``mel``, float32 (frames, n_mels), in dB.

    Equal to ``librosa.power_to_db(librosa.feature.melspectrogram(...))`` within 1e-4, with time as
    the first dimension. Integers are scaled to [-1, 1) first. With several channels the shape is
    (frames, channels, n_mels). With ``center`` and an even ``n_fft`` there are 1 + T // hop_length
    frames, and none without samples; a plan knows their number in advance.

    Args:
        rate: Samples per second that all sequences must have.
        n_mels: Number of mel bands.
        n_fft: Number of samples of the Fourier transform of a frame.
        hop_length: Number of samples from one frame to the next.
        win_length: Number of samples of the window, which is centered in ``n_fft`` samples; None:
            ``n_fft``.
        fmin: Lower frequency of the first band, Hz.
        fmax: Upper frequency of the last band, Hz; None: half of the rate.
        center: Whether frame ``t`` is centered at sample ``t * hop_length``, with zeros beyond both
            ends; otherwise it begins there.
        htk: Whether to use the mel scale of HTK (default of torchaudio) instead of Slaney's.
        norm: ``"slaney"``: bands have the same area; None: the same height (torchaudio's default).
        top_db: Values more than ``top_db`` dB below the maximum of a sequence are raised to that
            level; None: no limit.
        field: Name of the field to transform.
        to: Name of the resulting field, which must not be that of another field.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> mel = LogMel(rate=16000, n_mels=80, n_fft=400, hop_length=160)
        >>> mel.lengths(np.array([0, 1, 160, 16000])).tolist()
        [0, 1, 2, 101]
    """

    rate: int
    n_mels: int = 128
    n_fft: int = 2048
    hop_length: int = 512
    win_length: int | None = None
    fmin: float = 0.0
    fmax: float | None = None
    center: bool = True
    htk: bool = False
    norm: str | None = "slaney"
    top_db: float | None = 80.0
    field: str = "audio"
    to: str = "mel"

    def __post_init__(self) -> None:
        for name in ("rate", "n_mels", "n_fft", "hop_length"):
            _store_number(self, name)
            _check(self, name, _is_count(getattr(self, name)), "an integer of at least 1")
        for name in ("win_length", "fmin", "fmax", "top_db"):
            _store_number(self, name)
        window = self.win_length
        good = window is None or (_is_count(window) and window <= self.n_fft)
        _check(self, "win_length", good, f"an integer in [1, {self.n_fft}], or None")
        half = self.rate / 2
        good = _is_number(self.fmin) and 0 <= self.fmin < half
        _check(self, "fmin", good, f"in [0, {half:g}), in Hz")
        good = self.fmax is None or (_is_number(self.fmax) and self.fmin < self.fmax <= half)
        _check(self, "fmax", good, f"above fmin, at most {half:g} (half of the rate), or None")
        check_flags(type(self).__name__, center=self.center, htk=self.htk)
        _check(self, "norm", self.norm in ("slaney", None), "'slaney' or None")
        good = self.top_db is None or (_is_number(self.top_db) and self.top_db >= 0)
        _check(self, "top_db", good, "at least 0, or None")
        _check(self, "field", _is_name(self.field), "a string that is not empty")
        good = _is_name(self.to) and self.to != _RATE
        _check(self, "to", good, f"a string that is not empty, and not {_RATE!r}")

    def __call__(self, columns: dict[str, Any], seeds: NDArray[np.uint64]) -> dict[str, Any]:
        """Return the columns with frames in place of samples."""
        del seeds
        return self._replace_samples(columns, self._decibels(columns))

    def _decibels(self, columns: dict[str, Any]) -> Ragged:
        """Return the log-mel spectrogram of a batch."""
        audio = self._get_samples(columns)
        self._check_rates(columns)
        lengths = self.lengths(np.asarray(audio.lengths))
        channels = audio.values.shape[1:]
        features = np.empty((int(lengths.sum()), *channels, self.n_mels), dtype=np.float32)
        for at, frames in self._windows(audio, lengths):
            spectrum = np.fft.rfft(frames * self._window, axis=-1)
            power = spectrum.real**2 + spectrum.imag**2
            decibels = 10 * np.log10(np.maximum(power @ self._filters, _AMIN))
            features[at : at + len(frames)] = decibels
        self._raise_floor(features, lengths)
        return Ragged(features, lengths)

    def _check_rates(self, columns: dict[str, Any]) -> None:
        if _RATE not in columns:
            warn(
                f"{type(self).__name__}: all sequences must have {self.rate} samples per second, "
                f"but they have no field {_RATE!r} that says so. Name it in `fields`, or store it.",
            )
            return
        rates = np.asarray(columns[_RATE])
        wrong = rates[rates != self.rate]
        if len(wrong):
            raise DecodeError.at(
                f"{type(self).__name__}: all sequences must have {self.rate} samples per second, "
                f"but one has {wrong[0]}. Resample its file, drop such sequences with "
                "`store.where(...)`, or pass another `rate`.",
                field=_RATE,
            )

    def _raise_floor(self, decibels: NDArray[np.float32], lengths: NDArray[np.int64]) -> None:
        """Raise values to at least ``top_db`` dB below the maximum of their sequence, in place."""
        having = lengths[lengths > 0]
        if self.top_db is None or not len(having):
            return
        loudest = decibels.reshape(len(decibels), -1).max(axis=1)
        loudest = np.maximum.reduceat(loudest, np.cumsum(having) - having)
        floor = np.repeat(loudest - np.float32(self.top_db), having)
        np.maximum(decibels, floor.reshape(-1, *[1] * (decibels.ndim - 1)), out=decibels)

    @cached_property
    def _filters(self) -> Floats:
        return mel_filters(
            self.rate, self.n_fft, self.n_mels, self.fmin, self.fmax or self.rate / 2,
            htk=self.htk, normalized=self.norm is not None,
        )  # fmt: skip


@columnar
@dataclass(frozen=True, kw_only=True)
class MFCC(LogMel):
    """Mel-frequency cepstral coefficients: ``audio`` becomes ``mfcc``, float32 (frames, n_mfcc).

    Equal to ``librosa.feature.mfcc`` within 1e-4, with time as the first dimension.

    Args:
        n_mfcc: Number of coefficients.

    The other arguments are those of ``LogMel``.

    Examples:
        >>> MFCC(rate=16000, n_mfcc=13).lengths(np.array([16000])).tolist()
        [32]
    """

    n_mfcc: int = 20
    to: str = "mfcc"

    def __post_init__(self) -> None:
        super().__post_init__()
        _store_number(self, "n_mfcc")
        good = _is_count(self.n_mfcc) and self.n_mfcc <= self.n_mels
        _check(self, "n_mfcc", good, f"an integer in [1, {self.n_mels}] (n_mels)")

    def __call__(self, columns: dict[str, Any], seeds: NDArray[np.uint64]) -> dict[str, Any]:
        """Return the columns with coefficients in place of samples."""
        del seeds
        mel = self._decibels(columns)
        values = (mel.values @ self._cosines).astype(np.float32)
        return self._replace_samples(columns, Ragged(values, mel.lengths))

    @cached_property
    def _cosines(self) -> Floats:
        return cosines(self.n_mels, self.n_mfcc)


@columnar
@dataclass(frozen=True, kw_only=True)
class STFT(_FrameTransform):
    """Short-time Fourier transform: ``audio`` (T,) becomes ``spectrum`` (frames, n_fft // 2 + 1).

    Equal to torch's function of this name within 1e-5, with time as the first dimension: complex64,
    or float32 with ``power``. Integers are scaled to [-1, 1) first. With several channels the shape
    is (frames, channels, n_fft // 2 + 1). With ``center`` and an even ``n_fft`` there are
    1 + T // hop_length frames, and none without samples; a plan knows their number in advance.

    Args:
        n_fft: Number of samples of the Fourier transform of a frame.
        hop_length: Number of samples from one frame to the next; None: ``n_fft // 4``.
        win_length: Number of samples of the window, which is centered in ``n_fft`` samples; None:
            ``n_fft``.
        window: ``"hann"``, periodic like torch's, or None: a rectangular window.
        center: Whether frame ``t`` is centered at sample ``t * hop_length``; otherwise it begins
            there.
        pad_mode: Padding beyond both ends with ``center``: ``"reflect"`` mirrors the samples, so a
            sequence must have more than ``n_fft // 2``; ``"constant"`` adds zeros.
        normalized: Whether values are divided by the square root of ``n_fft``.
        power: None: complex values; 1: magnitudes; 2: powers; or another exponent of magnitudes.
        field: Name of the field to transform.
        to: Name of the resulting field, which must not be that of another field.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> STFT(n_fft=400, hop_length=160).lengths(np.array([0, 1, 160, 16000])).tolist()
        [0, 1, 2, 101]
    """

    n_fft: int = 400
    hop_length: int | None = None
    win_length: int | None = None
    window: Literal["hann"] | None = "hann"
    center: bool = True
    pad_mode: Literal["constant", "reflect"] = "reflect"  # type: ignore[misc]
    normalized: bool = False
    power: float | None = None
    field: str = "audio"
    to: str = "spectrum"

    def __post_init__(self) -> None:
        for name in ("n_fft", "hop_length", "win_length", "power"):
            _store_number(self, name)
        _check(self, "n_fft", _is_count(self.n_fft), "an integer of at least 1")
        good = self.hop_length is None or _is_count(self.hop_length)
        _check(self, "hop_length", good and self._hop > 0, "an integer of at least 1, or None")
        size = self.win_length
        good = size is None or (_is_count(size) and size <= self.n_fft)
        _check(self, "win_length", good, f"an integer in [1, {self.n_fft}], or None")
        _check(self, "window", self.window in ("hann", None), "'hann' or None")
        check_flags("STFT", center=self.center, normalized=self.normalized)
        good = self.pad_mode in ("constant", "reflect")
        _check(self, "pad_mode", good, "'reflect' or 'constant'")
        good = self.power is None or (_is_number(self.power) and self.power > 0)
        _check(self, "power", good, "above 0, or None for complex values")
        _check(self, "field", _is_name(self.field), "a string that is not empty")
        _check(self, "to", _is_name(self.to), "a string that is not empty")

    def __call__(self, columns: dict[str, Any], seeds: NDArray[np.uint64]) -> dict[str, Any]:
        """Return the columns with frames of spectra in place of samples."""
        del seeds
        audio = self._get_samples(columns)
        lengths = self.lengths(np.asarray(audio.lengths))
        shape = (int(lengths.sum()), *audio.values.shape[1:], self.n_fft // 2 + 1)
        values = np.empty(shape, dtype=np.complex64 if self.power is None else np.float32)
        scale = self.n_fft**-0.5 if self.normalized else 1.0
        for at, frames in self._windows(audio, lengths):
            spectrum = np.fft.rfft(frames * self._window, axis=-1) * scale
            if self.power is not None:
                spectrum = np.abs(spectrum) ** self.power
            values[at : at + len(frames)] = spectrum
        return self._replace_samples(columns, Ragged(values, lengths))

    @cached_property
    def _window(self) -> Floats:
        size = self.win_length or self.n_fft
        if self.window == "hann":
            return hann(size, self.n_fft)
        first = (self.n_fft - size) // 2
        found = np.zeros(self.n_fft)
        found[first : first + size] = 1
        return found


def _store_number(owner: object, name: str) -> None:
    """Replace a NumPy number by a Python number; leave anything else, which is checked later."""
    value = getattr(owner, name)
    whole = as_integer(value)
    if whole is not None:
        object.__setattr__(owner, name, whole)  # the dataclass is frozen
    elif isinstance(value, np.floating):
        object.__setattr__(owner, name, float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check(owner: object, name: str, good: bool, must: str) -> None:
    if not good:
        raise ConfigError(
            f"{type(owner).__name__}: `{name}` must be {must}, but is {getattr(owner, name)!r}."
        )

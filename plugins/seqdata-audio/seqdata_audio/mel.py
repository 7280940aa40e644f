"""Mel filters, windows and the discrete cosine transform, as matrices; the same as librosa's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HZ_PER_MEL = 200 / 3  # Slaney's scale is linear below 1 kHz,
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27  # and logarithmic above

Floats = NDArray[np.float64]


def mel_filters(
    rate: int, n_fft: int, n_mels: int, low: float, high: float, *, htk: bool, normalized: bool
) -> Floats:
    """Return the weights of triangular filters, float64 (n_fft // 2 + 1, n_mels).

    Args:
        rate: Samples per second.
        n_fft: Number of samples of the Fourier transform.
        n_mels: Number of filters.
        low: Lower frequency of the first filter, Hz.
        high: Upper frequency of the last filter, Hz.
        htk: Whether to use the mel scale of HTK instead of Slaney's.
        normalized: Whether filters have the same area; otherwise they have the same height.
    """
    bins = np.fft.rfftfreq(n_fft, 1 / rate)
    first, last = _mels_of(np.array([low, high]), htk).tolist()
    edges = _hz_of(np.linspace(first, last, n_mels + 2), htk)
    widths = np.diff(edges)
    rising = (bins[:, None] - edges[:-2]) / widths[:-1]
    falling = (edges[2:] - bins[:, None]) / widths[1:]
    weights: Floats = np.maximum(0, np.minimum(rising, falling))
    return weights * (2 / (edges[2:] - edges[:-2])) if normalized else weights


def hann(size: int, padded: int) -> Floats:
    """Return a periodic Hann window of ``size`` samples, centered in zeros, float64 (padded,)."""
    window = np.zeros(padded)
    first = (padded - size) // 2
    window[first : first + size] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window


def cosines(n_mels: int, n_mfcc: int) -> Floats:
    """Return the orthonormal discrete cosine transform (II), float64 (n_mels, n_mfcc)."""
    angles = np.pi / n_mels * (np.arange(n_mels)[:, None] + 0.5) * np.arange(n_mfcc)
    matrix: Floats = np.sqrt(2 / n_mels) * np.cos(angles)
    matrix[:, 0] /= np.sqrt(2)
    return matrix


def _mels_of(hz: Floats, htk: bool) -> Floats:
    if htk:
        return np.asarray(2595 * np.log10(1 + hz / 700))
    above = _LOG_FROM_MEL + np.log(np.maximum(hz, 1e-9) / _LOG_FROM_HZ) / _LOG_STEP
    return np.where(hz < _LOG_FROM_HZ, hz / _HZ_PER_MEL, above)


def _hz_of(mels: Floats, htk: bool) -> Floats:
    if htk:
        return np.asarray(700 * (10 ** (mels / 2595) - 1))
    above = _LOG_FROM_HZ * np.exp(_LOG_STEP * (mels - _LOG_FROM_MEL))
    return np.where(mels < _LOG_FROM_MEL, mels * _HZ_PER_MEL, above)

"""Japanese Vowels: 640 utterances of nine speakers, packed into one file of the package."""

from __future__ import annotations

from importlib import resources

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.errors import ConfigError, must_be
from seqdata.storage.views import SequenceStore

_FILE = "japanese_vowels.npz"
_SPLITS = {"train": slice(0, 270), "test": slice(270, 640)}
_SCALE = 1_000_000  # the values are published with six digits after the point


def load_japanese_vowels(split: str = "train") -> SequenceStore:
    """Return utterances of nine speakers, 7 to 29 frames each, to classify the speaker.

    Nine male speakers said the vowels /a/ and /e/ in succession. Each frame has 12 coefficients of
    a linear prediction analysis (LPC cepstrum) of the sound.

    Source: M. Kudo, J. Toyama, M. Shimbo (1999), *Multidimensional curve classification using
    passing-through regions*, Pattern Recognition Letters 20; UCI Machine Learning Repository,
    https://doi.org/10.24432/C5NS47. Licence: CC BY 4.0. The values are those of the published
    files, packed without loss.

    Args:
        split: ``"train"``: 270 utterances, 30 of each speaker; ``"test"``: 370, 24 to 88 of each.

    Returns:
        A store with ``id`` (str, such as ``"train-0"``), ``x`` (float32 (time, 12), without a unit)
        and ``y`` (int64, 0 to 8: the speaker), in the order of the published files.

    Raises:
        ConfigError: If there is no such split.

    Examples:
        >>> store = load_japanese_vowels("train")
        >>> len(store), store[0]["x"].shape, int(store[0]["y"])
        (270, (20, 12), 0)
    """
    if not isinstance(split, str) or split not in _SPLITS:
        needed = " or ".join(map(repr, _SPLITS))
        raise ConfigError(must_be("load_japanese_vowels: `split`", needed, repr(split)))
    frames, lengths, speakers = _read()
    chosen = _SPLITS[split]
    stops = np.cumsum(lengths)
    rows = [
        {
            "id": f"{split}-{number}",
            "x": frames[stop - length : stop],
            "y": int(speaker),
        }
        for number, (stop, length, speaker) in enumerate(
            zip(stops[chosen], lengths[chosen], speakers[chosen], strict=True)
        )
    ]
    return open_store(rows, axes={"x": "time"})


def pack(
    frames: NDArray[np.float64], lengths: NDArray[np.int64], speakers: NDArray[np.int64]
) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays of the packed file, which deflate makes small.

    Args:
        frames: Values of all utterances, float64 (frames, 12), with six digits after the point.
        lengths: Frames of each utterance, int64 (utterances,).
        speakers: Speaker of each utterance, int64 (utterances,), from 0.

    Returns:
        ``frames``: uint8 (3, 12 * frames), the low, middle and high byte of the differences of
        successive frames in millionths, with the sign in the lowest bit, one coefficient after the
        other; ``lengths`` and ``speakers``: uint8 (utterances,).
    """
    millionths = np.rint(frames * _SCALE).astype(np.int64)
    differences = np.diff(millionths, axis=0, prepend=0).T.ravel()
    unsigned = (differences << 1) ^ (differences >> 63)
    planes = unsigned.astype("<u4").view(np.uint8).reshape(-1, 4).T[:3]
    return {
        "frames": np.ascontiguousarray(planes),
        "lengths": lengths.astype(np.uint8),
        "speakers": speakers.astype(np.uint8),
    }


def _read() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8]]:
    """Return float32 (frames, 12) of all utterances, their lengths, and their speakers."""
    with (
        resources.files(__package__).joinpath(_FILE).open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        low, middle, high = arrays["frames"].astype(np.int64)
        lengths, speakers = arrays["lengths"].astype(np.int64), arrays["speakers"]
    unsigned = low | middle << 8 | high << 16
    differences = (unsigned >> 1) ^ -(unsigned & 1)
    millionths = np.cumsum(differences.reshape(-1, lengths.sum()), axis=1).T
    return (millionths / _SCALE).astype(np.float32), lengths, speakers

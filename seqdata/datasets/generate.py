"""Generated sequences: token documents, flip-flops, speech-like sounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.datasets.arguments import check_number, draw_lengths, make_generator
from seqdata.errors import check_count
from seqdata.storage.views import SequenceStore

RATE = 16_000  # samples per second of speech
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FORMANTS = {  # first three resonances of vowels, Hz
    "a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010),
    "o": (570, 840, 2410), "u": (300, 870, 2240), "r": (420, 1300, 1600),
    "n": (280, 1100, 2200), "v": (300, 1200, 2300), "w": (300, 700, 2200), "g": (260, 1500, 2300),
}  # fmt: skip
_NOISE = {  # band of hissing and popping sounds, Hz, and their seconds
    "f": (1500, 7500, 0.09), "s": (4000, 7800, 0.11), "t": (3000, 7000, 0.04),
    "h": (800, 4500, 0.06), "x": (3500, 7500, 0.12), "z": (3000, 7500, 0.09),
}  # fmt: skip
_SILENT_END = ("one", "five", "nine")  # words whose last letter is not heard


def make_documents(
    count: int = 1_000,
    *,
    median: float = 200.0,
    sigma: float = 0.8,
    vocabulary: int = 1_000,
    topics: int = 8,
    seed: int = 0,
) -> SequenceStore:
    """Return documents of tokens, with log-normal lengths, like those of real documents.

    Few tokens are frequent and most are rare. The frequent tokens depend on the topic of a
    document: a model can learn to tell topics apart, and to predict tokens better than by their
    frequencies. Licence: generated, free to use.

    Args:
        count: Number of documents.
        median: Median length in tokens, in [2, 1e9]; each document has at least 2.
        sigma: Standard deviation of the logarithm of lengths, in [0, 5]; 0: all are equally long.
        vocabulary: Number of different tokens; 0 is only the last token of each document.
        topics: Number of topics.
        seed: Another seed gives other documents.

    Returns:
        A store with ``id`` (str), ``tokens`` (int32 (time,), in [0, vocabulary)) and ``topic``
        (int64, in [0, topics)).

    Raises:
        ConfigError: If an argument is out of its range.

    Examples:
        >>> store = make_documents(100, seed=1)
        >>> store[0]["tokens"].dtype.name, int(store[0]["tokens"][-1])
        ('int32', 0)
        >>> lengths = make_documents(1_000).lengths
        >>> bool(150 < np.median(lengths) < 250), bool(lengths.max() > 5 * np.median(lengths))
        (True, True)
    """
    owner = "make_documents"
    check_count(owner, count=count, topics=topics)
    check_count(owner, 2, vocabulary=vocabulary)
    check_number(owner, 2, 1e9, median=median)
    check_number(owner, 0, 5, sigma=sigma)
    rng = make_generator(owner, seed)
    words = vocabulary - 1
    rows = []
    for number, length in enumerate(draw_lengths(rng, count, median, sigma, 2)):
        topic = int(rng.integers(topics))
        ranks = (words * rng.random(length) ** 3).astype(np.int64)
        tokens = 1 + (ranks + topic * words // topics) % words
        tokens[-1] = 0
        rows.append({"id": f"doc-{number}", "tokens": tokens.astype(np.int32), "topic": topic})
    return open_store(rows, axes={"tokens": "time"})


def make_flip_flops(
    count: int = 32,
    *,
    bits: int = 2,
    median: float = 1_000.0,
    sigma: float = 0.5,
    pulses: float = 0.02,
    seed: int = 0,
) -> SequenceStore:
    """Return flip-flops: a model must remember the last pulse of each line, for any time.

    A pulse of +1 sets its bit, one of -1 clears it, and between pulses the input is 0. The answer
    at each timestep is the state of all bits. A model that does not carry its state from chunk to
    chunk cannot know it before the next pulse. After D. Sussillo and O. Barak (2013), *Opening the
    black box*, Neural Computation 25. Licence: generated, free to use.

    Args:
        count: Number of sequences.
        bits: Number of lines, at most 16.
        median: Median length in timesteps, in [2, 1e9]; each sequence has at least 2.
        sigma: Standard deviation of the logarithm of lengths, in [0, 5].
        pulses: Probability of a pulse on each line at each timestep, in [0, 1].
        seed: Another seed gives other sequences.

    Returns:
        A store with ``id`` (str), ``x`` (float32 (time, bits), -1, 0 or 1) and ``y`` (int64
        (time,), in [0, 2**bits): the bits, line 0 in the lowest one).

    Raises:
        ConfigError: If an argument is out of its range.

    Examples:
        >>> sequence = make_flip_flops(4, bits=1, median=50, pulses=0.2)[1]
        >>> sequence["x"][:14, 0].astype(int).tolist()
        [0, 0, 0, 0, 1, 0, 0, 0, -1, 0, 0, 0, 1, 0]
        >>> sequence["y"][:14].tolist()
        [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    """
    owner = "make_flip_flops"
    check_count(owner, count=count, bits=bits)
    check_number(owner, 1, 16, bits=bits)
    check_number(owner, 2, 1e9, median=median)
    check_number(owner, 0, 5, sigma=sigma)
    check_number(owner, 0, 1, pulses=pulses)
    rng = make_generator(owner, seed)
    rows = []
    for number, length in enumerate(draw_lengths(rng, count, median, sigma, 2)):
        is_pulse = rng.random((length, bits)) < pulses
        signs = rng.integers(0, 2, (length, bits)) * 2 - 1
        x = np.where(is_pulse, signs, 0)
        latest = np.maximum.accumulate(np.where(is_pulse, np.arange(length)[:, None], -1), axis=0)
        is_set = (np.take_along_axis(x, np.maximum(latest, 0), axis=0) > 0) & (latest >= 0)
        y = (is_set * (1 << np.arange(bits))).sum(axis=1)
        rows.append({"id": f"flips-{number}", "x": x.astype(np.float32), "y": y})
    return open_store(rows, axes={"x": "time", "y": "time"})


def make_speech(
    count: int = 60, *, speakers: int = 6, max_words: int = 6, seed: int = 0
) -> SequenceStore:
    """Return sounds that look like speech: spoken digits, made of a buzzing voice and of noise.

    Each letter of a digit's name is a resonance of the voice or a burst of noise, so that a
    spectrogram shows the words; nobody would take it for a person. Licence: generated, free to use.

    Args:
        count: Number of utterances.
        speakers: Number of speakers; each has a pitch and a pace of its own.
        max_words: Largest number of digits of an utterance; the smallest is 1.
        seed: Another seed gives other utterances.

    Returns:
        A store with ``id`` (str), ``audio`` (float32 (time,), in [-1, 1], 16,000 samples per
        second), ``rate`` (int64, 16000), ``text`` (str, such as ``"two five"``), ``tokens`` (int64
        (tokens,), the digits plus 1: 0 is left for the blank of a CTC loss) and ``speaker`` (str).

    Raises:
        ConfigError: If an argument is out of its range.

    Examples:
        >>> store = make_speech(10)
        >>> store[0]["text"], store[0]["tokens"].tolist()
        ('five zero seven seven eight one', [6, 1, 8, 8, 9, 2])
    """
    owner = "make_speech"
    check_count(owner, count=count, speakers=speakers, max_words=max_words)
    rng = make_generator(owner, seed)
    pitches, paces = rng.uniform(90, 230, speakers), rng.uniform(0.85, 1.25, speakers)
    rows = []
    for number in range(count):
        speaker = int(rng.integers(speakers))
        digits = rng.integers(0, 10, int(rng.integers(1, max_words + 1)))
        text = " ".join(WORDS[digit] for digit in digits)
        audio = _speak(text, float(pitches[speaker]), float(paces[speaker]), rng)
        rows.append(
            {
                "id": f"utt-{number}", "audio": audio, "rate": RATE, "text": text,
                "tokens": digits + 1, "speaker": f"speaker-{speaker}",
            }
        )  # fmt: skip
    axes = {"audio": "time", "rate": None, "text": None, "tokens": "tokens", "speaker": None}
    return open_store(rows, axes=axes, rates={"audio": RATE})


def _speak(text: str, pitch: float, pace: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the sound of a text, float32 (samples,), with silence around its words."""
    pieces = [_silence(0.12, rng)]
    for word in text.split():
        for letter in word[:-1] if word in _SILENT_END else word:
            band = _NOISE.get(letter)
            if band is not None:
                pieces.append(_hiss(band[0], band[1], band[2] * pace, rng))
            else:
                pieces.append(_hum(_FORMANTS[letter], 0.1 * pace, pitch, rng))
        pieces.append(_silence(0.1 * pace, rng))
    sound = np.concatenate(pieces)
    loudest = float(np.abs(sound).max())
    return (0.7 * sound / loudest).astype(np.float32)


def _hum(
    formants: tuple[int, ...], seconds: float, pitch: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return a vowel: harmonics of a gliding pitch, loud near the formants."""
    times = np.arange(int(seconds * RATE)) / RATE
    glide = pitch * (1 + rng.normal(0, 0.03) + rng.normal(0, 0.05) * times / seconds)
    phase = 2 * np.pi * np.cumsum(glide) / RATE
    sound = np.zeros(len(times))
    for harmonic in range(1, int(4_000 / pitch)):
        frequency = harmonic * pitch
        gains = [0.6**k / (1 + ((frequency - f) / 90) ** 2) for k, f in enumerate(formants)]
        sound += (sum(gains) + 0.01) * np.sin(harmonic * phase)
    return sound * _fade(len(times))


def _hiss(low: int, high: int, seconds: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return noise of a band of frequencies."""
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequencies = np.fft.rfftfreq(count, 1 / RATE)
    spectrum[(frequencies < low) | (frequencies > high)] = 0
    noise: NDArray[np.float64] = np.fft.irfft(spectrum, count)
    return 0.5 * noise * _fade(count)


def _silence(seconds: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a pause, with the little noise of a microphone."""
    return 0.003 * rng.standard_normal(int(seconds * RATE))


def _fade(count: int) -> NDArray[np.float64]:
    """Return a window that rises and falls over 15 ms, float64 (count,)."""
    edge = np.minimum(np.arange(count) + 1, np.arange(count)[::-1] + 1) / (0.015 * RATE)
    return np.minimum(edge, 1.0)

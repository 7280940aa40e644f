"""Generated recordings of several sensors, each with a sampling rate of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.datasets.arguments import check_number, make_generator
from seqdata.errors import check_count
from seqdata.storage.views import SequenceStore

RATES = {"acc": 100, "ecg": 250, "temp": 4, "activity": 1}  # samples per second
_STEPS_PER_SECOND = np.array([0.0, 1.8, 2.8])  # at rest, walking, running
_SWING = np.array([0.05, 1.5, 5.0])  # m/s2
_PULSE = np.array([62.0, 95.0, 150.0])  # beats per minute


def make_recordings(count: int = 8, *, minutes: float = 10.0, seed: int = 0) -> SequenceStore:
    """Return long recordings of a person's motion, heart and temperature, at four sampling rates.

    A person rests, walks and runs for a minute or so each. The axes are linked: a window or chunk
    covers the same time on each of them. Licence: generated, free to use.

    Args:
        count: Number of recordings.
        minutes: Median duration in minutes, in [0.1, 1440]; durations are between half and twice
            this value.
        seed: Another seed gives other recordings.

    Returns:
        A store with ``id`` (str), ``acc`` (float32 (time, 3), 100 Hz, m/s2), ``ecg`` (float32
        (ecg,), 250 Hz, mV), ``temp`` (float32 (temp,), 4 Hz, degrees Celsius), ``activity`` (int64
        (activity,), 1 Hz; 0: rest, 1: walk, 2: run) and ``person`` (str).

    Raises:
        ConfigError: If an argument is out of its range.

    Examples:
        >>> from seqdata import Loader, Windows
        >>> store = make_recordings(2, minutes=1)
        >>> batch = next(iter(Loader(store, Windows(seconds=2, batch_size=16))))
        >>> batch["acc"].shape, batch["ecg"].shape, batch["activity"].shape
        (torch.Size([16, 200, 3]), torch.Size([16, 500]), torch.Size([16, 2]))
    """
    check_count("make_recordings", count=count)
    check_number("make_recordings", 0.1, 1_440, minutes=minutes)
    rng = make_generator("make_recordings", seed)
    rows = []
    for number in range(count):
        seconds = int(np.rint(60 * minutes * 2 ** rng.uniform(-1, 1)))
        activity = _draw_activity(seconds, rng)
        rows.append(
            {
                "id": f"recording-{number}",
                "acc": _accelerate(activity, rng),
                "ecg": _beat(activity, rng),
                "temp": _warm(activity, rng),
                "activity": activity,
                "person": f"person-{number // 2}",
            }
        )
    axes = {"acc": "time", "ecg": "ecg", "temp": "temp", "activity": "activity", "person": None}
    return open_store(rows, axes=axes, rates=RATES)


def _draw_activity(seconds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the activity of each second: bouts of about a minute."""
    bouts = rng.integers(20, 90, seconds // 20 + 1)
    kinds = np.cumsum(rng.integers(1, 3, len(bouts))) % 3  # never the same twice in a row
    return np.repeat(kinds, bouts)[:seconds].astype(np.int64)


def _accelerate(activity: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the acceleration, gravity included, float32 (samples, 3)."""
    each = np.repeat(activity, RATES["acc"])
    phase = 2 * np.pi * np.cumsum(_STEPS_PER_SECOND[each]) / RATES["acc"]
    axes = [np.sin(phase / 2), np.sin(phase), np.cos(phase)]
    swings = np.stack([g * wave for g, wave in zip((0.4, 0.6, 1.0), axes, strict=True)], axis=1)
    motion = _SWING[each][:, None] * swings + rng.normal(0, 0.1, (len(each), 3))
    motion[:, 2] += 9.81
    return motion.astype(np.float32)


def _beat(activity: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return an ECG: a sharp wave with each heartbeat, and a round one after it."""
    pulse = _follow(_PULSE[activity], 20)  # the heart follows within about 20 seconds
    phase = np.cumsum(np.repeat(pulse, RATES["ecg"]) / 60 / RATES["ecg"]) % 1.0
    sharp = np.exp(-(((phase - 0.3) / 0.012) ** 2))
    round_wave = np.exp(-(((phase - 0.6) / 0.06) ** 2))
    return (sharp + 0.25 * round_wave + rng.normal(0, 0.02, len(phase))).astype(np.float32)


def _warm(activity: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the skin temperature, °C, which follows the activity within about two minutes."""
    warm = np.repeat(_follow(33.0 + 0.8 * activity.astype(np.float64), 120), RATES["temp"])
    return (warm + rng.normal(0, 0.02, len(warm))).astype(np.float32)


def _follow(target: NDArray[np.floating[Any]], seconds: float) -> NDArray[np.float64]:
    """Return values, one a second, that approach a target exponentially."""
    followed, value = np.empty(len(target)), float(target[0])
    for second, goal in enumerate(target.tolist()):
        value += (goal - value) / seconds
        followed[second] = value
    return followed

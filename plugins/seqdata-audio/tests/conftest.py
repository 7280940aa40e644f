"""Recordings for the tests: sounds that formulas make."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.wav_files import Bytes, wav


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


def sound(count, number=0):
    """Samples of a sound, int16: a tone that rises, other for each number."""
    at = np.arange(count) / 16000
    rising = 0.4 * np.sin(2 * np.pi * (150 + 40 * number + 900 * at) * at)
    return (32767 * rising).astype(np.int16)


@pytest.fixture(scope="session")
def made():
    """What makes recordings."""
    names = (Bytes, wav, sound)
    return SimpleNamespace(**{one.__name__.lower(): one for one in names})

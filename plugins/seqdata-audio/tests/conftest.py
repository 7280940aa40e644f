"""Recordings for the tests: sounds that formulas make, and files written byte by byte."""

import struct
import wave
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


class Bytes:
    """A file in memory, as the engine shows one to a format; it notes what was read."""

    def __init__(self, content, name="a/b.wav"):
        self.content, self.name, self.size = bytes(content), name, len(content)
        self.reads = []

    def read(self, first, stop):
        assert 0 <= first <= stop
        self.reads.append((first, stop))
        return self.content[first:stop]


def chunk(name, content, order="<", size=None):
    """A chunk of RIFF, with its byte of padding."""
    size = len(content) if size is None else size
    return name + struct.pack(f"{order}I", size) + content + b"\0" * (len(content) % 2)


def layout(tag=1, channels=1, rate=16000, bits=16, frame=None, order="<", extra=b""):
    """The content of a chunk ``fmt``."""
    frame = channels * bits // 8 if frame is None else frame
    head = struct.pack(f"{order}HHIIHH", tag, channels, rate, rate * frame, frame, bits)
    return head + extra


def extensible(tag, **options):
    """The content of an extensible chunk ``fmt``."""
    order = options.get("order", "<")
    guid = struct.pack(f"{order}H", tag) + bytes.fromhex("000000001000800000aa00389b71")
    extra = struct.pack(f"{order}HHI", 22, options.get("bits", 16), 4) + guid
    return layout(tag=0xFFFE, extra=extra, **options)


def riff(*chunks, kind=b"RIFF", order="<"):
    """A file of chunks."""
    body = b"WAVE" + b"".join(chunks)
    return kind + struct.pack(f"{order}I", min(len(body), 0xFFFFFFFF)) + body


def wav(samples, rate=16000, path=None, **options):
    """The bytes of a WAV file of an array (T,) or (T, channels); written to a path, too."""
    samples = np.asarray(samples)
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    tag = 3 if samples.dtype.kind == "f" else 1
    bits = 8 * samples.dtype.itemsize
    fmt = layout(tag=tag, channels=channels, rate=rate, bits=bits)
    content = riff(chunk(b"fmt ", fmt), chunk(b"data", samples.tobytes()), **options)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return content


def sound(count, number=0):
    """Samples of a sound, int16: a tone that rises, other for each number."""
    at = np.arange(count) / 16000
    rising = 0.4 * np.sin(2 * np.pi * (150 + 40 * number + 900 * at) * at)
    return (32767 * rising).astype(np.int16)


def write_wave(path, samples, rate=16000):
    """Write a WAV file with the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


@pytest.fixture(scope="session")
def made():
    """What makes recordings."""
    names = (Bytes, chunk, layout, extensible, riff, wav, sound, write_wave)
    return SimpleNamespace(**{one.__name__.lower(): one for one in names})

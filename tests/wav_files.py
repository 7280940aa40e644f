"""WAV files for tests, byte by byte: the reader of the core and the plugin for audio read them."""

import struct

import numpy as np


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

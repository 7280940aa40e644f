"""Counting of frames in MPEG audio without a number of samples in its header.

``lame -t``, streams and speech services write no Xing or Info frame. libsndfile then guesses a
length from the size of the first frame, and reads no further.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

_TABLE = {  # kbit/s by index: (MPEG-1?, layer); MPEG-2.5 has those of MPEG-2
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_MONO = 3
_ID3, _ID3_HEAD = b"ID3", 10
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", _ID3)  # what players write behind the last frame
_XING = (b"Xing", b"Info")
_HAS_FRAMES, _HAS_BYTES = 1, 2  # flags of a Xing frame
_MOST_ID3 = (1 << 28) - 1


@dataclass(frozen=True, slots=True)
class MpegFrames:
    """The frames of a file.

    Attributes:
        begin: First byte of the first frame.
        end: One past the last byte of the last frame.
        count: Number of frames.
        samples: Number of timesteps of each frame.
        longest: Size of the longest frame in bytes.
    """

    begin: int
    end: int
    count: int
    samples: int
    longest: int

    @property
    def length(self) -> int:
        """Number of timesteps of all frames."""
        return self.count * self.samples

    def take(self, content: bytes) -> bytes:
        """Return the bytes of all frames, after tags that make libsndfile read all of them.

        libsndfile guesses at most as many frames as the size of the file divided by that of a
        frame.
        """
        missing = max(0, self.count * self.longest - (self.end - self.begin)) + 2 * self.longest
        tags = []
        while missing > 0:
            size = min(missing, _MOST_ID3)
            sizes = bytes(size >> bits & 127 for bits in (21, 14, 7, 0))
            tags += [_ID3 + b"\x03\0\0" + sizes, bytes(size)]
            missing -= size
        return b"".join([*tags, content[self.begin : self.end]])


def count_frames(content: bytes) -> MpegFrames | None:
    """Return the frames of a file; None if a Xing or Info frame has their number.

    Raises:
        ValueError: If the number of frames is not that of the Xing or Info frame, there are other
            bytes between frames, frames differ in kind, or the file was cut off.
    """
    begin = _skip_tags(content, 0)
    first = _Kind.read(content, begin)
    said, said_bytes = _read_xing(content, begin, first)
    if said and said_bytes and abs(len(content) - begin - said_bytes) <= first.size:
        return None
    if said is not None:  # an Info frame without a number: it is not sound
        begin += first.size
    frames = _walk(content, begin, _Kind.read(content, begin), is_counted=bool(said))
    if not said:
        return frames
    if frames.count not in (said, said - 1):  # some count the Info frame itself
        raise ValueError(
            f"says {said} frames in its Xing or Info frame, but has {frames.count}: it was cut "
            "off, or another file was joined to it"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties that all frames of a file share, and the size of one.

    Attributes:
        head: The second byte of their headers, without the bit for a checksum.
        is_mono: Whether they have one channel.
        samples: Number of timesteps of each frame.
        sizes: Third byte of a header -> size of the frame in bytes; 0 if it is of another kind.
        side: Number of bytes between the header and the content of a Xing frame.
        size: Size in bytes of the frame that was read.
    """

    head: int
    is_mono: bool
    samples: int
    sizes: tuple[int, ...]
    side: int
    size: int

    @classmethod
    def read(cls, content: bytes, at: int) -> _Kind:
        """Return the kind of the frame at a byte.

        Raises:
            ValueError: If there is no such frame.
        """
        head = content[at : at + 4]
        version, layer = (head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)) if len(head) == 4 else (1, 4)
        if head[:1] != b"\xff" or head[1] < 0xE0 or version == 1 or layer == 4:
            raise ValueError(f"must have an MPEG frame at byte {at}, but has {head!r}")
        if head[2] >> 4 == 0:
            raise ValueError(
                f"must say its bit rate in each frame, but is of free format (byte {at})"
            )
        sizes = _sizes_of(version, layer, head[2] >> 2 & 3)
        if not sizes[head[2]]:
            raise ValueError(f"must have an MPEG frame at byte {at}, but has {head!r}")
        is_mono, is_first = head[3] >> 6 == _MONO, version == 3
        side = (17 if is_mono else 32) if is_first else (9 if is_mono else 17)
        return cls(
            head[1] & 0xFE, is_mono, _samples_of(version, layer), sizes, side, sizes[head[2]]
        )


def _samples_of(version: int, layer: int) -> int:
    """Return the number of timesteps of a frame."""
    return {1: 384, 2: 1152, 3: 1152 if version == 3 else 576}[layer]


@functools.lru_cache(maxsize=64)
def _sizes_of(version: int, layer: int, rate_index: int) -> tuple[int, ...]:
    """Return the size of a frame by the third byte of its header; 0 for other sampling rates."""
    if rate_index == 3:
        return (0,) * 256
    rate, samples = _RATES[version][rate_index], _samples_of(version, layer)
    sizes = []
    for third in range(256):
        bits, padding = third >> 4, third >> 1 & 1
        if third >> 2 & 3 != rate_index or bits in (0, 15):
            sizes.append(0)
            continue
        bit_rate = 1000 * _TABLE[version == 3, layer][bits]
        if layer == 1:
            sizes.append((12 * bit_rate // rate + padding) * 4)
        else:
            sizes.append(samples // 8 * bit_rate // rate + padding)
    return tuple(sizes)


def _skip_tags(content: bytes, at: int) -> int:
    """Return the first byte after the ID3v2 tags that begin at a byte."""
    while content[at : at + 3] == _ID3 and len(content) >= at + _ID3_HEAD:
        sizes = content[at + 6 : at + _ID3_HEAD]
        size = sum((byte & 127) << bits for byte, bits in zip(sizes, (21, 14, 7, 0), strict=True))
        at += _ID3_HEAD + size
    return at


def _read_xing(content: bytes, begin: int, first: _Kind) -> tuple[int | None, int]:
    """Return numbers of frames and bytes in a Xing frame, 0 if absent; None: not a Xing frame."""
    at = begin + 4 + first.side
    if content[at : at + 4] not in _XING:
        return None, 0
    flags = int.from_bytes(content[at + 4 : at + 8], "big")
    numbers = [int.from_bytes(content[at + 8 + 4 * n : at + 12 + 4 * n], "big") for n in (0, 1)]
    said = numbers.pop(0) if flags & _HAS_FRAMES else 0
    return said, numbers[0] if flags & _HAS_BYTES else 0


def _walk(content: bytes, begin: int, kind: _Kind, *, is_counted: bool) -> MpegFrames:
    """Count the frames from a byte on.

    Args:
        content: The file.
        begin: The first byte of the first frame.
        kind: Kind of that frame.
        is_counted: Whether the file declares their number, so that anything may follow the last
            one.

    Raises:
        ValueError: If other bytes follow the last frame.
    """
    at, count, longest, sizes, stop = begin, 0, 0, kind.sizes, len(content)
    while at + 4 <= stop:
        size = sizes[content[at + 2]]
        is_frame = content[at] == 0xFF and content[at + 1] & 0xFE == kind.head and size
        if not is_frame or (content[at + 3] >> 6 == _MONO) != kind.is_mono or at + size > stop:
            behind = _skip_tags(content, at)
            if behind == at or behind + 4 > stop:
                break
            at = behind
            continue
        longest = max(longest, size)
        at += size
        count += 1
    if not is_counted:
        _check_tail(content, at, kind)
    return MpegFrames(begin, at, count, kind.samples, longest)


def _check_tail(content: bytes, at: int, kind: _Kind) -> None:
    """Raise a ValueError if the bytes after the last frame are not a tag."""
    tail = content[at:]
    if not tail.strip(b"\0") or tail.lstrip(b"\0").startswith(_TAGS):
        return
    try:
        other = _Kind.read(content, at)
    except ValueError:
        raise ValueError(
            f"must have an MPEG frame or a tag at byte {at} of {len(content)}, but has "
            f"{tail[:8]!r}: it was cut off, or is damaged"
        ) from None
    if (other.head, other.is_mono, other.samples) != (kind.head, kind.is_mono, kind.samples) or (
        other.sizes != kind.sizes
    ):
        raise ValueError(
            "must have frames of one rate, layer and number of channels, but has others from "
            f"byte {at} on: files of several kinds were joined"
        )
    raise ValueError(f"ends within the MPEG frame at byte {at}: it was cut off")

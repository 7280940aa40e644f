"""The description of a recording, the same for all formats: files, channels, facts, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

FACTS = ("patient", "recording", "start", "comments")
"""The values of a header that become strings per sequence; "" if a format does not have one."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The layout of the samples of a file.

    Attributes:
        name: Name for messages.
        stored: NumPy dtype of a sample in the file; ``"i3"``: 24 bits, little-endian; ``"p12"``:
            two samples of 12 bits in three bytes.
        bits: Bits of a sample.
        zero: Number that is subtracted from stored numbers, as in offset binary.
        invalid: The number that marks a missing sample; None: there is no such number.
    """

    name: str
    stored: str
    bits: int
    zero: int = 0
    invalid: int | None = None

    @property
    def dtype(self) -> str:
        """NumPy name of the smallest dtype of a field that holds its samples."""
        if self.stored.endswith("f4"):
            return "float32"
        return "int16" if self.bits <= np.iinfo(np.int16).bits else "int32"

    def count_bytes(self, samples: int) -> int:
        """Return the size of ``samples`` samples in bytes, rounded up."""
        return -(-samples * self.bits // 8)


@dataclass(frozen=True, slots=True)
class SignalFile:
    """The samples of a recording in one file, in blocks that have samples of every channel.

    Attributes:
        name: Path of the file below the location.
        begin: Its first byte of samples, counted from the beginning of the indexed bytes.
        encoding: How samples are stored.
        block: Number of samples in a block, over all channels.
        blocks: Number of blocks.
        is_by_channel: Whether all samples of a channel are contiguous; then there is one block.
    """

    name: str
    begin: int
    encoding: Encoding
    block: int
    blocks: int
    is_by_channel: bool = False


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel, with ``value = gain * stored + offset``.

    Attributes:
        name: Its label.
        unit: Unit of its values; "" if the header has none.
        gain: Difference in value of one stored step.
        offset: Value of a stored 0.
        rate: Samples per second.
        file: Index of its file in ``Recording.files``.
        first: Its first sample in a block.
        per_block: Number of its samples in a block.
        problem: Reason why its numbers cannot be converted to the unit; "" if they can.
    """

    name: str
    unit: str
    gain: float
    offset: float
    rate: Fraction
    file: int
    first: int
    per_block: int
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The annotations of a recording, in the order of their onsets.

    Attributes:
        onsets: float64 (n,), seconds from the first sample.
        durations: float64 (n,), seconds; 0 if none is given.
        texts: Text of each annotation.
    """

    onsets: NDArray[np.float64]
    durations: NDArray[np.float64]
    texts: Sequence[str]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[float, float, str]]) -> Events:
        """Make events from (onset, duration, text) of each, and sort them by onset."""
        rows = sorted(rows, key=lambda row: row[0])
        onsets, durations = [row[0] for row in rows], [row[1] for row in rows]
        texts = [row[2] for row in rows]
        return cls(np.array(onsets, np.float64), np.array(durations, np.float64), texts)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One recording: a sequence of the store.

    Attributes:
        name: Path below the location of the file that describes it; its id.
        files: The files that have its samples.
        rows: Row of each of ``files`` in the store of bytes.
        channels: Its channels, in the order of the header.
        facts: Values of ``FACTS``.
        events: The separate file of its events; "" if there is none.
        start: Seconds from the start in the header to its first sample.
        part: Index of this piece of a recording with gaps; None: it has no gaps.
    """

    name: str
    files: Sequence[SignalFile]
    channels: Sequence[Channel]
    facts: Mapping[str, str]
    events: str = ""
    rows: Sequence[int] = ()
    start: float = 0.0
    part: int | None = None

"""The header of a recording, alike for every format: files, channels, facts, events.

Reads: nothing. Makes: the classes that the parsers of formats fill in, and that fields are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

FACTS = ("patient", "recording", "start", "comments")
"""The facts of a header that are strings; "" where a format has none."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The layout of the samples of a file.

    Attributes:
        name: Name for messages.
        stored: NumPy dtype of a sample in the file; ``"i3"``: 24 bits, little-endian; ``"p12"``:
            two samples of 12 bits in three bytes.
        bits: Bits of a sample.
        zero: Number that is subtracted from stored ones, as in offset binary.
        invalid: The number that means that there is no sample; None: there is none.
    """

    name: str
    stored: str
    bits: int
    zero: int = 0
    invalid: int | None = None

    @property
    def dtype(self) -> str:
        """The NumPy name of the smallest dtype of a field that holds its samples."""
        if self.stored.endswith("f4"):
            return "float32"
        return "int16" if self.bits <= np.iinfo(np.int16).bits else "int32"

    def count_bytes(self, samples: int) -> int:
        """Return the bytes of so many samples; those that a last one begins count."""
        return -(-samples * self.bits // 8)


@dataclass(frozen=True, slots=True)
class SignalFile:
    """The samples of a recording in one file: blocks, in each of which every channel has some.

    Attributes:
        name: Path of the file below the location.
        begin: Its first byte of samples, counted from the start of the indexed bytes.
        encoding: How samples are stored.
        block: Samples of a block, over all channels.
        blocks: Number of blocks.
        is_by_channel: Whether all samples of a channel lie together; there is one block then.
    """

    name: str
    begin: int
    encoding: Encoding
    block: int
    blocks: int
    is_by_channel: bool = False


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel: value = gain * stored + offset.

    Attributes:
        name: Its label.
        unit: Unit of its values; "" if the header says none.
        gain: Value of one step.
        offset: Value of a stored 0.
        rate: Samples per second.
        file: Position of its file in ``Recording.files``.
        first: Its first sample in a block.
        per_block: Number of its samples in a block.
        problem: Why its values have no unit; "" if nothing is wrong.
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
        durations: float64 (n,), seconds; 0 where none is given.
        texts: Text of each annotation.
    """

    onsets: NDArray[np.float64]
    durations: NDArray[np.float64]
    texts: Sequence[str]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[float, float, str]]) -> Events:
        """Return events of (onset, duration, text), sorted by onset."""
        rows = sorted(rows, key=lambda row: row[0])
        onsets, durations = [row[0] for row in rows], [row[1] for row in rows]
        texts = [row[2] for row in rows]
        return cls(np.array(onsets, np.float64), np.array(durations, np.float64), texts)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One recording: a sequence of the store.

    Attributes:
        name: The file that describes it, below the location; its id.
        files: The files that have its samples.
        rows: Number of each of ``files`` in the store of files.
        channels: Its channels, in the order of the header.
        facts: Values of ``FACTS``.
        events: The file of its events, if it has one of its own; "" if it has none.
        start: Seconds of its first sample after the start that the header says.
        part: Number of this piece of a recording with gaps; None if it has none.
    """

    name: str
    files: Sequence[SignalFile]
    channels: Sequence[Channel]
    facts: Mapping[str, str]
    events: str = ""
    rows: Sequence[int] = ()
    start: float = 0.0
    part: int | None = None

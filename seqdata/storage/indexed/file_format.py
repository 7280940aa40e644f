"""What the author of a format writes: where the values of each sequence lie in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Decoder = Callable[[bytes], NDArray[Any]]
"""The bytes of one sequence's value -> (timesteps, *shape), or shape where there is no axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Where the values of one field lie in one file.

    Attributes:
        begins: int64 (n,), the first byte of each sequence's values; -1: it has none.
        ends: int64 (n,), one past the last.
        dtype: As stored, byte order included: ``"<f4"``; or ``"str"``, ``"bytes"``. Of decoded
            values: what the decoder returns.
        shape: Of one timestep, or of the whole value where there is no axis.
        axis: The timeline that it runs along; None: one value per sequence.
        decoder: None: raw values, which are read in place. Else what turns the bytes of one
            sequence into an array: a method of the format whose name begins with ``decode``.
        lengths: int64 (n,), timesteps; None: they follow from the extents, and of decoded values
            they are counted once, by decoding.
        values: (n, *shape), small values that the index keeps, of fields without an axis. They are
            returned only after the checksum of the bytes was compared.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    dtype: str
    shape: tuple[int, ...] = ()
    axis: str | None = "time"
    decoder: Decoder | None = None
    lengths: NDArray[np.int64] | None = None
    values: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """What one file holds.

    Attributes:
        fields: Name -> where its values lie; of all sequences, in the same order.
        ids: Of the sequences; None: the file's name, with a number where it holds several.
    """

    fields: Mapping[str, Extents]
    ids: Sequence[str] | None = None


class RandomAccessFile(Protocol):
    """A file that is being indexed, wherever it lies."""

    @property
    def name(self) -> str:
        """Its path below the folder that was opened."""
        ...

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        ...

    def sibling(self, name: str) -> RandomAccessFile:
        """Return a file next to it, such as ``x.idx`` of ``x.bin``.

        Raises:
            MissingShardError: If it is not there.
        """
        ...


@runtime_checkable
class FileFormat(Protocol):
    """A format of files: all that most backends write. It goes through pickle.

    What it is made with (the fields of a dataclass) tells its indexes from those of another; a
    changed ``version`` makes them again.
    """

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What names of such files end with, in small letters."""
        ...

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return where everything lies in a file.

        Raises:
            DataError: If it is damaged or not of this format; ``ValueError`` becomes one.
        """
        ...

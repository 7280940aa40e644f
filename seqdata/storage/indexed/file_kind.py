"""What the engine asks of a kind of files: which they are, their index, and the fields in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.field_axes import OpenedFiles
from seqdata.storage.indexed.shard_index import Kind, ShardIndex

Decode = Callable[[NDArray[np.uint8], int, int, DataLocation], NDArray[Any]]
"""``decode(raw, shard, number, place)``: the bytes of a value -> (timesteps, *shape)."""
Neighbour = Callable[[str, DataLocation], NDArray[np.uint8]]
"""Returns the bytes of a file, by its path below the folder of a data set."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedField:
    """One field of a data set, and how it is read.

    Attributes:
        name: Of the field.
        member: What indexes call its values; several fields may be decoded from the same.
        field: What it holds.
        how: ``place``: the bytes as they lie; ``text``: the same, as ``str`` or ``bytes``;
            ``values``: from the index, where the bytes are as they were; ``decode``: decoded.
        lengths: int64 (sequences,), timesteps of each; None: there is no axis, or they are counted
            by decoding.
        decode: What decodes.
        is_named: Whether somebody said its axis; else it may get one of its own.
        advice: What to do about bytes that are not UTF-8.
    """

    name: str
    member: str
    field: Field
    how: str
    lengths: NDArray[np.int64] | None = None
    decode: Decode | None = None
    is_named: bool = True
    advice: str | None = None


class FileKind(Kind, Protocol):
    """A kind of files that are read by indexes; goes through pickle."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What names of such files end with."""
        ...

    @property
    def packed(self) -> tuple[str, ...]:
        """What names of compressed ones end with, which cannot be read in place."""
        ...

    @property
    def is_nested(self) -> bool:
        """Whether folders below a folder are looked through, too."""
        ...

    @property
    def item(self) -> str:
        """What they must hold, for the message about files that hold nothing."""
        ...

    @property
    def needs_command(self) -> bool:
        """Whether indexes are made only where somebody asks for them."""
        ...

    def make_index(
        self,
        content: NDArray[np.uint8],
        name: str,
        place: DataLocation,
        neighbour: Neighbour | None = None,
    ) -> ShardIndex:
        """Return the index of a file.

        Args:
            content: Its bytes.
            name: Its name.
            place: Its place, for errors.
            neighbour: Returns the bytes of a file below the same folder.

        Raises:
            DataError: If it is damaged, or not of this kind.
        """
        ...

    def is_header(self, block: bytes) -> bool:
        """Return whether bytes at a place that was noted may be of such a file at all."""
        ...

    def scan(self, content: NDArray[np.uint8], place: DataLocation) -> None:
        """Look at the structure of a file of which the digest is another.

        Raises:
            DataError: If it is damaged.
        """
        ...

    def fields(self, opened: OpenedFiles) -> Sequence[IndexedField]:
        """Return the fields of files.

        Raises:
            DataError: If files hold different things.
        """
        ...

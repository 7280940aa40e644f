"""The interface of a file format to the engine: suffixes, indexing and fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.opened_files import OpenedFiles
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex

Decode = Callable[[NDArray[np.uint8], int, int, DataLocation], NDArray[Any]]
"""``decode(raw, shard, number, place)``: the bytes of a value -> (timesteps, *shape)."""
ReadSibling = Callable[[str, DataLocation], NDArray[np.uint8]]
"""Returns the bytes of a file, by its path below the folder of a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedField:
    """One field of a dataset, and how it is read.

    Attributes:
        name: Name of the field.
        member: Name of its values in indexes; several fields may be decoded from the same values.
        field: Dtype, shape and axis of the values.
        access: ``place``: numbers in place; ``text``: ``str`` or ``bytes`` in place; ``values``:
            from the index, if the bytes are unchanged; ``decode``: by a decoder.
        lengths: int64 (sequences,), number of timesteps of each; None: no axis, or they are counted
            by decoding.
        decode: The decoder.
        is_named: Whether its axis was given; otherwise it may get one of its own.
        advice: The remedy for bytes that are not UTF-8.
        is_chosen_by_schema: Whether `schema` may leave it out.
    """

    name: str
    member: str
    field: Field
    access: str
    lengths: NDArray[np.int64] | None = None
    decode: Decode | None = None
    is_named: bool = True
    advice: str | None = None
    is_chosen_by_schema: bool = False


class IndexedFormat(FormatIdentity, Protocol):
    """A format of files that are read by indexes; must be picklable."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of such files."""
        ...

    @property
    def packed(self) -> tuple[str, ...]:
        """The suffixes of compressed files, which cannot be read in place."""
        ...

    @property
    def is_nested(self) -> bool:
        """True if names and indexes belong to the opened folder, False if to each below it."""
        ...

    @property
    def item(self) -> str:
        """The required content, for the message about files without any."""
        ...

    @property
    def needs_command(self) -> bool:
        """True if indexes are built only on request."""
        ...

    def make_index(
        self,
        content: NDArray[np.uint8],
        name: str,
        place: DataLocation,
        read_sibling: ReadSibling | None = None,
    ) -> ShardIndex:
        """Return the index of a file.

        Args:
            content: Its bytes.
            name: Its name.
            place: Its place, for errors.
            read_sibling: Returns the bytes of a file below the same folder.

        Raises:
            DataError: If it is damaged, or not of this format.
        """
        ...

    def scan(self, content: NDArray[np.uint8], place: DataLocation) -> None:
        """Check the structure of a file with another digest.

        Raises:
            DataError: If it is damaged.
        """
        ...

    def fields(self, opened: OpenedFiles) -> Sequence[IndexedField]:
        """Return the fields of files.

        Raises:
            DataError: If files have different fields.
        """
        ...


@runtime_checkable
class ComparesHeaders(Protocol):
    """An optional part of a format: comparison of its indexes with files written to later."""

    @property
    def reads_only_headers(self) -> bool:
        """True if this reads little of a file, so that it is done when files are opened."""
        ...

    def has_same_headers(
        self,
        content: NDArray[np.uint8],
        index: ShardIndex,
        place: DataLocation,
        read_sibling: ReadSibling | None = None,
    ) -> bool:
        """Return whether an index has the ids, fields, extents and kept values of a file.

        Args:
            content: Its bytes.
            index: Its index.
            place: Its place, for errors.
            read_sibling: Returns the bytes of a file below the same folder.

        Raises:
            DataError: If it is damaged, or not of this format.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class UnindexedFile:
    """A file that has no index yet.

    Attributes:
        name: Its name.
        content: Its bytes, uint8.
        place: Its place, for errors.
        read_sibling: Returns the bytes of a file below the same folder.
        modified: The time that its index records; 0: none.
    """

    name: str
    content: NDArray[np.uint8]
    place: DataLocation
    read_sibling: ReadSibling
    modified: int = 0


@runtime_checkable
class IndexesTogether(Protocol):
    """An optional part of a format: indexing of many small files at once, which is faster."""

    def make_indexes(self, files: Sequence[UnindexedFile]) -> list[ShardIndex]:
        """Return the index of each file, as ``make_index`` returns it.

        Raises:
            DataError: If one is damaged, or not of this format.
        """
        ...

"""The interface for authors of formats: extents of the values of each sequence in a file.

The files that a format reads while it indexes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import MissingShardError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import ENDS, digest_ends

ABSENT = "absent"
"""In place of the digest of a sibling that is not there."""
Decoder = Callable[[bytes], NDArray[Any]]
"""The bytes of one sequence's value -> (timesteps, *shape), or shape if there is no axis."""


@dataclass(frozen=True, slots=True, eq=False)
class FileReader:
    """A file whose bytes are mapped: a ``RandomAccessFile``.

    Attributes:
        name: Its path below the folder that was opened.
        content: Its bytes, uint8.
        place: Its place, for errors.
        read_sibling: Returns the bytes of a file next to it; None: there are none.
        siblings: The siblings that were read, by path; None for one that is not there.
    """

    name: str
    content: NDArray[np.uint8]
    place: DataLocation
    read_sibling: Callable[[str, DataLocation], NDArray[np.uint8]] | None = None
    siblings: dict[str, NDArray[np.uint8] | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.content)

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file.

        Raises:
            ValueError: If ``first`` is negative or greater than ``stop``.
        """
        if not 0 <= first <= stop:
            raise ValueError(f"read({first}, {stop}): must be 0 <= first <= stop")
        return self.content[first:stop].tobytes()

    def sibling(self, name: str) -> FileReader:
        """Return a file next to it.

        Raises:
            MissingShardError: If it is not there.
        """
        folder, _, _ = self.name.rpartition("/")
        path = f"{folder}/{name}" if folder else name
        place = replace(self.place, file=path, file_kind=f"sibling of {self.name}", shard=None)
        if self.read_sibling is None or "/" in name or name.startswith("."):
            raise place.make_error(MissingShardError, "is not there. Restore it")
        self.siblings[path] = None  # that it is not there belongs to what the index was built with
        content = self.siblings[path] = self.read_sibling(path, place)
        return FileReader(path, content, place, self.read_sibling, self.siblings)


def sibling_facts(file: FileReader) -> dict[str, tuple[int, str]]:
    """Return the facts that identify the siblings that were read; see ``file_facts``."""
    return {name: file_facts(content) for name, content in file.siblings.items()}


def file_facts(content: NDArray[np.uint8] | None, using: str = "crc32") -> tuple[int, str]:
    """Return the facts that identify a sibling: its size, digest of both ends, and checksum.

    Args:
        content: The sibling; None: it is not there.
        using: Algorithm of the checksum; by default one that every process can compute.

    Returns:
        (-1, ``ABSENT``) where it is not there.
    """
    if content is None:
        return -1, ABSENT
    checksum = np.zeros(1, dtype=np.uint32)
    get_kernel().checksums(content, np.array([0, len(content)], dtype=np.int64), checksum, using)
    ends = digest_ends(content, max(0, len(content) - ENDS))
    return len(content), f"{ends} {using} {int(checksum[0]):08x}"


def has_facts(content: NDArray[np.uint8], facts: tuple[int, str]) -> bool:
    """Return whether a sibling has the facts of an index.

    Of an index whose checksum cannot be computed here, size and ends are compared.
    """
    words = facts[1].split()
    using = words[1] if len(words) == len(("ends", "algorithm", "checksum")) else "crc32"
    if using in get_kernel().algorithms():
        return file_facts(content, using) == facts
    size, found = file_facts(content)
    return size == facts[0] and found.split()[0] == words[0]


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """The extents of one field in one file.

    Attributes:
        begins: int64 (n,), the first byte of each sequence's values; -1 if it has none.
        ends: int64 (n,), one past the last.
        dtype: As stored, byte order included: ``"<f4"``; or ``"str"``, ``"bytes"``. Of decoded
            values: the dtype that the decoder returns.
        shape: Shape of one timestep, or of the whole value if there is no axis.
        axis: The axis that it runs along; None: one value per sequence.
        decoder: None: raw values, which are read in place. Otherwise a method of the format that
            turns the bytes of one sequence into an array; its name begins with ``decode``
            or ``_decode``.
        lengths: int64 (n,), timesteps; None: they follow from the extents; of decoded values they
            are counted once, by decoding.
        values: (n, *shape), small decoded values to keep in the index, for fields without an axis.
            They are returned only after the checksum of the bytes was compared.
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
    """The content of one file.

    Attributes:
        fields: Name -> extents of its values, for all sequences in the same order.
        ids: The ids of the sequences; None: the file's name, with a number if it holds several.
    """

    fields: Mapping[str, Extents]
    ids: Sequence[str] | None = None


class RandomAccessFile(Protocol):
    """A file that is being indexed, local or remote."""

    @property
    def name(self) -> str:
        """Its path below the folder that was opened."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
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
    """A format of files: all that most backends write. It must be picklable.

    Its options (the fields of a dataclass) are stored in its indexes: other options, or another
    ``version``, rebuild them. A text ``remedy_for_dtypes`` is the end of the error about files of
    several dtypes.
    """

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of such files, in lower case."""
        ...

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the index of a file.

        Raises:
            DataError: If it is damaged or not of this format; a ``ValueError`` is turned into one.
        """
        ...

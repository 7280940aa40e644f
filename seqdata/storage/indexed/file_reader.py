"""The files that a format reads while it indexes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import digest_ends


@dataclass(frozen=True, slots=True, eq=False)
class FileReader:
    """A file whose bytes are mapped: a ``RandomAccessFile``.

    Attributes:
        name: Its path below the folder that was opened.
        content: Its bytes, uint8.
        place: Its place, for errors.
        neighbour: Returns the bytes of a file next to it; None: it has no neighbours.
        siblings: The siblings that were read, by path.
    """

    name: str
    content: NDArray[np.uint8]
    place: DataLocation
    neighbour: Callable[[str, DataLocation], NDArray[np.uint8]] | None = None
    siblings: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

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
        if self.neighbour is None or "/" in name or name.startswith("."):
            raise place.make_error(MissingShardError, "is not there. Restore it")
        content = self.siblings[path] = self.neighbour(path, place)
        return FileReader(path, content, place, self.neighbour, self.siblings)


def sibling_facts(file: FileReader) -> dict[str, tuple[int, str]]:
    """Return the sizes and the digests of both ends of the siblings that were read."""
    return {name: file_facts(content) for name, content in file.siblings.items()}


def file_facts(content: NDArray[np.uint8]) -> tuple[int, str]:
    """Return the facts that identify a sibling: its size, and the digest of both ends."""
    return len(content), digest_ends(content, max(0, len(content) - 512))

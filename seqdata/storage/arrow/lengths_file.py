"""The file that holds the lengths of all sequences along one axis, over all shards.

The writer appends shard by shard; opening maps the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.data_location import _UINT32_VALUES
from seqdata.storage.integrity.checksums import choose_algorithm
from seqdata.storage.local_files import sync_file

_COPY_BYTES = 1 << 22  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsFile:
    """The lengths of all sequences along one axis: a raw little-endian array in one file."""

    file: str
    dtype: str
    sha256: str
    checksum: int | None = None  # of the whole file, by the manifest's algorithm


class LengthsWriter:
    """Writes the lengths along one axis: uint32, or uint64 if a length needs it.

    Args:
        folder: The folder to write to.
        axis: Part of the file's name.
    """

    __slots__ = ("_axis", "_bytes", "_folder")

    def __init__(self, folder: Path, axis: str) -> None:
        self._folder = folder
        self._axis = axis
        for self._bytes in (8, 4):
            self._path.unlink(missing_ok=True)  # left by a killed writer
        self._path.touch()

    @property
    def _path(self) -> Path:
        return self._folder / f"lengths-{self._axis}.u{8 * self._bytes}"

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Append the lengths of more sequences, int64 (n,)."""
        if self._bytes == 4 and int(lengths.max(initial=0)) >= _UINT32_VALUES:
            self._widen()
        with open(self._path, "ab") as file:
            file.write(lengths.astype(f"<u{self._bytes}").data)

    def _widen(self) -> None:
        before = self._path
        self._bytes = 8
        with open(before, "rb") as old, open(self._path, "wb") as new:
            while piece := old.read(_COPY_BYTES):
                new.write(np.frombuffer(piece, dtype="<u4").astype("<u8").data)
        before.unlink()

    def finish(self) -> LengthsFile:
        """Flush the file to the disk and return its entry for the manifest."""
        sync_file(self._path)
        content = np.fromfile(self._path, dtype=np.uint8)
        return LengthsFile(
            file=self._path.name,
            dtype=f"uint{8 * self._bytes}",
            sha256=hashlib.sha256(content.data).hexdigest(),
            checksum=compute_checksum(content),
        )


def compute_checksum(content: NDArray[np.uint8]) -> int:
    """Return one checksum of all bytes."""
    checksum = np.empty(1, dtype=np.uint32)
    get_kernel().checksums(content, np.array([0, len(content)]), checksum, choose_algorithm())
    return int(checksum[0])

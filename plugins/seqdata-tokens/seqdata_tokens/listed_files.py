"""Folders of shards whose names are listed in ``index.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileIndex, RandomAccessFile
from seqdata.errors import MissingShardError

LIST = "index.json"


@dataclass(frozen=True, slots=True)
class TokenExtents:
    """Positions in bytes of the tokens of each sequence of a file.

    Attributes:
        begins: int64 (n,), the first byte of each sequence.
        ends: int64 (n,), one past the last byte of each sequence.
        dtype: Dtype of a token, little-endian.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    dtype: str

    def to_index(self) -> FileIndex:
        """Return the index of the file, which has the field ``tokens``."""
        return FileIndex({"tokens": Extents(self.begins, self.ends, self.dtype)})


def read_list(file: RandomAccessFile, kind: str) -> Any:
    """Return a list in ``index.json`` next to a file; None if there is no ``index.json``.

    Args:
        file: The file.
        kind: Name of the list.

    Raises:
        ValueError: If ``index.json`` is damaged or does not have the list.
    """
    found = read_index(file)
    if found is None:
        return None
    if not isinstance(found.get(kind), list):
        raise ValueError(f"must have an {LIST} with a list {kind!r} next to it, but that has none")
    return found[kind]


def read_index(file: RandomAccessFile) -> dict[str, Any] | None:
    """Return the content of ``index.json`` next to a file; None if there is none.

    Raises:
        ValueError: If it is not a JSON object.
    """
    try:
        listed = file.sibling(LIST)
    except MissingShardError:
        return None
    try:
        found = json.loads(listed.read(0, listed.size))
    except ValueError as error:
        raise ValueError(f"has an {LIST} next to it that is damaged ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"has an {LIST} next to it that must be a JSON object, but is not")
    return found


def check_neighbor(file: RandomAccessFile, names: Sequence[str]) -> int:
    """Return the position of a file in a list; the next listed file must exist.

    Each file checks for the next one, and the last for the first, so a lost file is always noticed.

    Args:
        file: The file.
        names: Names of all files.

    Raises:
        ValueError: If the list does not have the file, or the next file is missing.
    """
    name = file.name.rpartition("/")[2]
    if name not in names:
        raise ValueError(f"is not listed in {LIST}. Move it out of the folder")
    at = list(names).index(name)
    following = names[(at + 1) % len(names)]
    if not file.has_sibling(following):
        raise ValueError(
            f"is listed in {LIST}, but {following!r}, which is also listed, is missing. Restore it"
        )
    return at

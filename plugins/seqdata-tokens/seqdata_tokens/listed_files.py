"""Folders of shards with a list of them, ``index.json``."""

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
    """The extents of the tokens of each sequence of a file.

    Attributes:
        begins: int64 (n,), first byte of each.
        ends: int64 (n,), one past the last.
        dtype: Dtype of a token, little-endian.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    dtype: str

    def to_index(self) -> FileIndex:
        """Return it as the index of a file with the field ``tokens``."""
        return FileIndex({"tokens": Extents(self.begins, self.ends, self.dtype)})


def read_list(file: RandomAccessFile, kind: str) -> Any:
    """Return what ``index.json`` next to a file has under a name; None if there is none.

    Raises:
        ValueError: If it cannot be read.
    """
    found = read_index(file)
    if found is None:
        return None
    if not isinstance(found.get(kind), list):
        raise ValueError(f"has an {LIST} next to it without a list {kind!r}")
    return found[kind]


def read_index(file: RandomAccessFile) -> dict[str, Any] | None:
    """Return the content of ``index.json`` next to a file; None if there is none.

    Raises:
        ValueError: If it is not JSON.
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
        raise ValueError(f"has an {LIST} next to it that is not an object")
    return found


def check_neighbor(file: RandomAccessFile, names: Sequence[str]) -> int:
    """Return the place of a file in a list; the next one listed must be there.

    Every file asks for the next one, the last for the first: so a lost one is always noticed.

    Args:
        file: The file.
        names: Names of all files.

    Raises:
        ValueError: If the list does not have it, or the next one is missing.
    """
    name = file.name.rpartition("/")[2]
    if name not in names:
        raise ValueError(f"is not in the list of {LIST}. Move it out of the folder")
    at = list(names).index(name)
    following = names[(at + 1) % len(names)]
    if not file.has_sibling(following):
        raise ValueError(
            f"is in the list of {LIST}, but {following!r}, which is, too, is not there. Restore it"
        )
    return at

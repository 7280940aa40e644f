"""Ids are names: no two sequences may have the same.

Only a hash per id is kept; ids themselves are looked at again where two hashes are equal. Place in
the flow: the writer and the memory store ask before they are done. Reads: hashes. Makes: an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError

Hashes = NDArray[np.int64] | NDArray[np.uint64]


def check_unique_ids(hashes: Hashes, id_for: Callable[[int], str], first: int = 0) -> None:
    """Refuse two sequences with one id.

    Args:
        hashes: uint64 or int64 (sequences,), of their ids.
        id_for: Gives the id of sequence ``first + i`` for i.
        first: Number of the first of these sequences, for the message.

    Raises:
        DecodeError: If there are such, naming both.
    """
    ordered = np.sort(hashes)  # much faster than the order itself, which is seldom needed
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    seen: dict[str, int] = {}
    is_repeated = np.isin(hashes, repeated, kind="sort")  # by tables NumPy 2.0 overflows
    for number in np.flatnonzero(is_repeated).tolist():
        name = id_for(number)
        first_number = seen.setdefault(name, number)
        if first_number != number:
            raise DecodeError.at(
                f"sequence {first + number}: has the id {name!r}, which sequence "
                f"{first + first_number} "
                "has, must be its own; make ids unique, or name another field as `key`",
                sequence=first + number,
            )

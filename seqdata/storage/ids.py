"""Ids are names: no two sequences may have the same.

Only a hash per id is kept; ids themselves are looked at again where two hashes are equal. Place in
the flow: the writer and the memory store ask before they are done. Reads: hashes. Makes: an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError


def check_ids(hashes: NDArray[np.int64], name_of: Callable[[int], str], first: int = 0) -> None:
    """Refuse two sequences with one id.

    Args:
        hashes: int64 (sequences,), of their ids.
        name_of: Gives the id of sequence ``first + i`` for i.
        first: Number of the first of these sequences, for the message.

    Raises:
        DecodeError: If there are such, naming both.
    """
    order = np.argsort(hashes, kind="stable")
    twice = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    seen: dict[str, int] = {}
    for number in np.unique(order[np.concatenate([twice, twice + 1])]).tolist():
        name = name_of(number)
        other = seen.setdefault(name, number)
        if other != number:
            raise DecodeError.at(
                f"sequence {first + number}: has the id {name!r}, which sequence {first + other} "
                "has, must be its own; make ids unique, or name another field as `key`",
                sequence=first + number,
            )

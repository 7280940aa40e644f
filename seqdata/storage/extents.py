"""Extents of values in a file: begins and ends, two arrays of int64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

ShardExtents = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begins and ends of the values of one shard's sequences, int64 (sequences,) each."""


def extents_of(offsets: Iterable[NDArray[np.int64]]) -> tuple[ShardExtents, ...]:
    """Return the extents of contiguous values; nothing is copied.

    Args:
        offsets: Per shard, int64 (sequences+1,).

    Examples:
        >>> extents_of([np.array([0, 2, 5])])
        ((array([0, 2]), array([2, 5])),)
    """
    return tuple((each[:-1], each[1:]) for each in offsets)

"""What a transform of one sequence is given: arrays of its own, and its own random numbers.

Place in the flow: columns of a batch -> one sequence after the other. Reads: columns. Makes: arrays
and a generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from seqdata.planning.randomness import Purpose

_AT_ONCE = 8 << 20  # bytes of a column up to which it is copied in one go


def pieces_of(column: Any, *, ragged: bool) -> Callable[[int], Any]:
    """Give the pieces of a column by number: arrays that may be written to, or texts.

    Args:
        column: A ``Column``, or a list.
        ragged: Whether it runs along an axis; else it has one value per sequence.

    Raises:
        DataError: Now or when a piece is asked for, if what is stored is damaged.
    """
    if isinstance(column, list):
        return column.__getitem__
    lengths = column.lengths
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    width = column.dtype.itemsize * math.prod(column.shape)
    if int(bounds[-1]) * width > _AT_ONCE:  # long ones: one at a time is in memory
        if ragged:
            return lambda number: np.array(column[number])
        return lambda number: np.array(column[number])[0]
    flat = np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype)
    column.fill(flat, bounds, None)
    if not ragged:
        return flat.__getitem__
    edges = bounds.tolist()
    return lambda number: flat[edges[number] : edges[number + 1]]


class Generator:
    """Random numbers of sequences, each keyed by (seed, epoch) and its own counter.

    One generator is set anew for each sequence, which costs a tenth of making it.

    Args:
        seed: Of the run.
        epoch: Of the plan.
    """

    __slots__ = ("_counter", "_generator", "_philox", "_state")

    def __init__(self, seed: int, epoch: int) -> None:
        key = np.array([seed, epoch], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=np.zeros(4, dtype=np.uint64))
        self._state: Any = self._philox.state
        self._counter = self._state["state"]["counter"]
        self._generator = np.random.Generator(self._philox)

    def at(self, occurrence: int, base: int) -> np.random.Generator:
        """Give the generator at the beginning of a sequence's numbers."""
        self._counter[:] = (0, occurrence, int(Purpose.TRANSFORM), base)
        self._philox.state = self._state
        return self._generator

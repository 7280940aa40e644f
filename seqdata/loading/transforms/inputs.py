"""What a transform of one sequence is given: arrays of its own, and its own random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from seqdata.planning.randomness import Purpose

_MAX_COPIED_BYTES = 8 << 20  # bytes of a column up to which it is copied in one go


def make_piece_getter(column: Any, *, ragged: bool) -> Callable[[int], Any]:
    """Return the pieces of a column by number: arrays that may be written to, or texts.

    Args:
        column: A ``Column``, or a list.
        ragged: Whether it runs along an axis; else it has one value per sequence.

    Raises:
        DataError: Now or when a piece is asked for, if what is stored is damaged.
    """
    if isinstance(column, list):
        return column.__getitem__
    lengths = column.lengths
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    timestep_bytes = column.dtype.itemsize * math.prod(column.shape)
    if (
        int(offsets[-1]) * timestep_bytes > _MAX_COPIED_BYTES
    ):  # long ones: one at a time is in memory
        if ragged:
            return lambda number: np.array(column[number])
        return lambda number: np.array(column[number])[0]
    flat = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
    column.fill(flat, offsets, None)
    if not ragged:
        return flat.__getitem__
    offset_list = offsets.tolist()
    return lambda number: flat[offset_list[number] : offset_list[number + 1]]


class SequenceGenerator:
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

    def seek(self, occurrence: int, sequence: int) -> np.random.Generator:
        """Return the generator at the beginning of a sequence's numbers."""
        self._counter[:] = (0, occurrence, int(Purpose.TRANSFORM), sequence)
        self._philox.state = self._state
        return self._generator

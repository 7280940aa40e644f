"""The input of a transform of one sequence: its own arrays and random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from seqdata.planning.randomness import Purpose

_MAX_COPIED_BYTES = 8 << 20  # largest column, in bytes, that is copied in one go


def make_piece_getter(column: Any, *, ragged: bool) -> Callable[[int], Any]:
    """Return a function that returns a column's pieces by number: writable arrays, or texts.

    Args:
        column: A ``Column``, or a list.
        ragged: Whether it runs along an axis; else it has one value per sequence.

    Raises:
        DataError: If stored data is damaged: here, or when the piece is read.
    """
    if isinstance(column, list):
        return column.__getitem__
    lengths = column.lengths
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    timestep_bytes = column.dtype.itemsize * math.prod(column.shape)
    if (
        int(offsets[-1]) * timestep_bytes > _MAX_COPIED_BYTES
    ):  # long pieces: only one at a time is in memory
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

    One generator is reset for each sequence, which costs a tenth of making one.

    Args:
        seed: Seed of the run.
        epoch: Epoch of the plan.
    """

    __slots__ = ("_counter", "_generator", "_philox", "_state")

    def __init__(self, seed: int, epoch: int) -> None:
        key = np.array([seed, epoch], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=np.zeros(4, dtype=np.uint64))
        self._state: Any = self._philox.state
        self._counter = self._state["state"]["counter"]
        self._generator = np.random.Generator(self._philox)

    def seek(self, occurrence: int, sequence: int) -> np.random.Generator:
        """Return the generator, reset to the start of a sequence's random numbers."""
        self._counter[:] = (0, occurrence, int(Purpose.TRANSFORM), sequence)
        self._philox.state = self._state
        return self._generator

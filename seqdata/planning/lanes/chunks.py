"""Chunks: the pieces in which a lane reads long sequences.

Chunk j begins at ``j * advance``; neighbours overlap by ``chunk - advance``, and every chunk but
the first ends with new timesteps. Uneven chunks have the same lengths in all lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of one length.

    Attributes:
        chunk: Most timesteps of a chunk.
        advance: Timesteps from the start of one to the start of the next.
    """

    chunk: int
    advance: int

    @property
    def overlap(self) -> int:
        """Timesteps that a chunk has in common with the one before."""
        return self.chunk - self.advance

    def count_chunks(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of sequences of at least one timestep, int64 (n,)."""
        return 1 + np.maximum(0, -((self.chunk - lengths) // self.advance))

    def count_scored(
        self, chunk_counts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the timesteps that the first ``chunk_counts`` chunks score, int64 (n,)."""
        reached = chunk_counts * self.advance + self.overlap
        return np.where(chunk_counts > 0, np.minimum(reached, lengths), 0)

    def offsets_before(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how far a lane was read before each of some steps, int64 (k,)."""
        return np.where(steps > 0, steps * self.advance + self.overlap, 0)

    def scale(self, step: int) -> float:
        """Return the length of a step's chunks over the usual one."""
        del step  # all are equal
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class UnevenChunks:
    """Chunks of various lengths, without overlap.

    Attributes:
        chunk: The usual length.
        offsets: int64 (steps+1,), running sums of the lengths.
    """

    chunk: int
    offsets: NDArray[np.int64]

    @property
    def overlap(self) -> int:
        """Timesteps that a chunk has in common with the one before: 0."""
        return 0

    def count_chunks(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of lanes of some lengths, int64 (n,)."""
        return np.searchsorted(self.offsets, lengths)

    def offsets_before(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how far a lane was read before each of some steps, int64 (k,)."""
        return self.offsets[steps]

    def scale(self, step: int) -> float:
        """Return the length of a step's chunks over the usual one."""
        return int(self.offsets[step + 1] - self.offsets[step]) / self.chunk

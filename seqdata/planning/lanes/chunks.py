"""Chunks: the pieces in which a lane reads what is long.

Chunk j begins at ``j * advance``; neighbours overlap by ``chunk - advance``, and every chunk but
the first ends with something new. Where chunks are uneven, all lanes share their lengths. Place in
the flow: below ``queued``, ``stream`` and policy ``tbptt``. Reads: lengths. Makes: counts, bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunks:
    """How sequences are cut.

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

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the chunks of sequences of at least one timestep, int64 (n,)."""
        return 1 + np.maximum(0, -((self.chunk - lengths) // self.advance))

    def scored(self, parts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the timesteps that the first ``parts`` chunks of sequences score, int64 (n,)."""
        reached = parts * self.advance + self.overlap
        return np.where(parts > 0, np.minimum(reached, lengths), 0)

    def edges(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give how far a lane was read before each of some steps, int64 (k,)."""
        return np.where(steps > 0, steps * self.advance + self.overlap, 0)

    def scale(self, step: int) -> float:
        """Give the length of a step's chunks over the usual one."""
        del step  # all are alike
        return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class UnevenChunks:
    """Chunks of many lengths, without overlap.

    Attributes:
        chunk: The usual length.
        ends: int64 (steps+1,), running sums of the lengths.
    """

    chunk: int
    ends: NDArray[np.int64]

    @property
    def overlap(self) -> int:
        """Timesteps that a chunk has in common with the one before: none."""
        return 0

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the chunks of lanes of some lengths, int64 (n,)."""
        return np.searchsorted(self.ends, lengths)

    def edges(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give how far a lane was read before each of some steps, int64 (k,)."""
        return self.ends[steps]

    def scale(self, step: int) -> float:
        """Give the length of a step's chunks over the usual one."""
        return int(self.ends[step + 1] - self.ends[step]) / self.chunk

"""Chunks: the pieces in which a lane reads a long sequence.

Chunk j of a sequence begins at ``j * advance``; neighbours overlap by ``chunk - advance``, and
every chunk but the first ends with something new. Place in the flow: below ``lanes`` and policy
``tbptt``. Reads: lengths. Makes: counts and bounds.
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

"""Randomness that no release of NumPy can change.

Only the raw 64-bit output of Philox4x64-10 is used (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC11), keyed by (seed, epoch) with the counter at (0, 0, purpose, block).
Permutations are a stable argsort of it; NumPy's own shuffles may change their streams (NEP 19).
Place in the flow: below the policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of every plan: never change or reuse one."""

    BLOCKS = 1  # order of the blocks
    MEMBERS = 2  # order of a block's sequences, and of ties
    NOISE = 3  # Bucketed's noise on lengths
    MIX = 4  # order of the rows inside a rung
    REMAINDER = 5  # where the remainder is cut out
    GROUPS = 6  # order of the groups
    HALVES = 7  # halves inside a group
    LAST_HALVES = 8  # halves inside the remainder
    TRANSFORM = 9  # what a transform's generator draws


@dataclass(frozen=True, slots=True)
class Draw:
    """The random numbers of one epoch.

    Args:
        seed: In ``[0, 2**64)``.
        epoch: Number of the epoch, from 0.

    Raises:
        ConfigError: If ``seed`` or ``epoch`` is out of range.
    """

    seed: int
    epoch: int

    def __post_init__(self) -> None:
        for name in ("seed", "epoch"):
            value = getattr(self, name)
            if not 0 <= value < 1 << 64:
                raise ConfigError(
                    f"plan: `{name}` is {value!r}, must be in [0, 2**64); pass another"
                )

    def raw(self, purpose: Purpose, count: int, block: int = 0) -> NDArray[np.uint64]:
        """Draw ``count`` uniform 64-bit integers, uint64 (count,)."""
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, 0, int(purpose), block], dtype=np.uint64)
        return np.random.Philox(key=key, counter=counter).random_raw(count)

    def permutation(self, purpose: Purpose, count: int, block: int = 0) -> NDArray[np.int64]:
        """Draw a permutation of ``range(count)``, int64 (count,)."""
        return np.argsort(self.raw(purpose, count, block), kind="stable")

    def below(self, purpose: Purpose, bound: int, block: int = 0) -> int:
        """Draw one integer in ``[0, bound)``."""
        return int(self.raw(purpose, 1, block)[0]) % bound

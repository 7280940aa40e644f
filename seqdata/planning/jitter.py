"""Chunk lengths that vary: drawn once from the seed, in a new order in every epoch.

Chunks then end at other timesteps in every epoch, which evens out how far gradients reach (AWD-
LSTM: S. Merity, N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models",
2018). Their number follows from the length of a lane alone. Only raw words of Philox are used, and
integers, so that no release of NumPy and no CPU changes a length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.plan_table import offsets_from_sizes
from seqdata.planning.lanes.step_table import UnevenChunks
from seqdata.planning.randomness import Draw, Purpose

_WORDS_PER_LENGTH = 4  # drawn per length
_SUMMED_UNIFORMS = (
    12  # uniform numbers of 16 bits whose sum is as good as normal, with a deviation of 2^16
)
_BIT_SHIFTS = np.array([0, 16, 32, 48], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Jitter:
    """How chunk lengths vary: normal around the usual length or, rarely, around half of it.

    Args:
        short: Share of chunks around half the usual length.
        spread: Standard deviation, in timesteps.
        least: Least timesteps of a chunk.

    Raises:
        ConfigError: If an argument is invalid.
    """

    short: float = 0.05
    spread: int = 5
    least: int = 5

    def __post_init__(self) -> None:
        is_number = isinstance(self.short, int | float) and not isinstance(self.short, bool)
        if not (is_number and 0 <= self.short <= 1):
            raise ConfigError(must_be("jitter: `short`", "a share from 0 to 1", f"{self.short!r}"))
        for name, least in (("spread", 0), ("least", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    must_be(f"jitter: `{name}`", f"an integer of at least {least}", f"{value!r}")
                )

    def count(self, chunk: int, timesteps: int) -> int:
        """Return how many chunks cover ``timesteps``: about as many as expected of the law."""
        rounded = 0.5 if self.spread else 0.0  # down
        mean = max(self.least, chunk * (1 - self.short / 2) - rounded)
        return math.ceil(timesteps / mean)

    def chunks(self, chunk: int, timesteps: int, seed: int, epoch: int | None) -> UnevenChunks:
        """Return an epoch's chunks, ``timesteps`` in total.

        Args:
            chunk: The usual length.
            timesteps: Timesteps of the longest lane.
            seed: The run's seed, which determines the lengths.
            epoch: Determines the order of the lengths; None for the order in which they were drawn.
        """
        count = self.count(chunk, timesteps)
        if not count:
            return UnevenChunks(chunk, np.zeros(1, dtype=np.int64))
        lengths = self._fit_lengths(self._draw_lengths(chunk, count, seed), timesteps)
        if epoch is not None:
            lengths = lengths[Draw(seed, epoch).permutation(Purpose.SCHEDULE, count)]
        return UnevenChunks(chunk, offsets_from_sizes(lengths))

    def _draw_lengths(self, chunk: int, count: int, seed: int) -> NDArray[np.int64]:
        words = (
            Draw(seed, 0)
            .raw(Purpose.LENGTHS, count * _WORDS_PER_LENGTH)
            .reshape(count, _WORDS_PER_LENGTH)
        )
        uniforms = (words[:, 1:, None] >> _BIT_SHIFTS) & np.uint64(0xFFFF)
        sums = uniforms.reshape(count, _SUMMED_UNIFORMS).sum(axis=1).astype(
            np.int64
        ) - _SUMMED_UNIFORMS * (1 << 15)
        short = words[:, 0] < np.uint64(min(int(self.short * 2**64), 2**64 - 1))
        middle = np.where(short, chunk << 15, chunk << 16)
        lengths: NDArray[np.int64] = (middle + self.spread * sums) >> 16
        return np.maximum(self.least, lengths)

    def _fit_lengths(self, lengths: NDArray[np.int64], timesteps: int) -> NDArray[np.int64]:
        """Return lengths changed by about the same amount each, ``timesteps`` in total."""
        count = len(lengths)
        each, remainder = divmod(timesteps - int(lengths.sum()), count)
        lengths = lengths + each
        lengths[:remainder] += 1
        least = min(self.least, timesteps // count)
        deficit = int(np.maximum(least - lengths, 0).sum())
        lengths = np.maximum(lengths, least)
        while deficit:  # few lengths, far from their total
            longest = int(lengths.argmax())
            moved = min(deficit, int(lengths[longest]) - least)
            lengths[longest] -= moved
            deficit -= moved
        return lengths

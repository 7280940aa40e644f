"""Random numbers for a model by owner: all ranks, one rank or one lane.

torch's own generator belongs to a process: whether two ranks draw equal numbers depends on how each
was seeded, and a resumed run draws other numbers. These generators have owners, and depend on the
position in the run only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from seqdata.planning.randomness import Draw, Purpose


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Generators of random numbers for a model, which are the same after every resume.

    Args:
        seed: Seed in ``[0, 2**64)``.
        device: Device on which tensors are drawn.

    Raises:
        ConfigError: If ``seed`` is out of range; its methods also raise it for ``epoch``.

    Examples:
        >>> streams = RandomStreams(seed=1)
        >>> noise = torch.randn(2, generator=streams.shared(epoch=0, step=5))
        >>> bool((noise == torch.randn(2, generator=streams.shared(epoch=0, step=5))).all())
        True
    """

    seed: int
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        Draw(self.seed, 0)

    def shared(self, *, epoch: int, step: int) -> torch.Generator:
        """Return the generator of a step that draws equal numbers on all ranks.

        Args:
            epoch: Epoch of the batch.
            step: Index of the batch.
        """
        return self._make_generator(Purpose.SHARED, epoch, step, 0)

    def per_rank(self, *, epoch: int, step: int, rank: int) -> torch.Generator:
        """Return the generator of a step on one rank; results depend on the number of ranks.

        Args:
            epoch: Epoch of the batch.
            step: Index of the batch.
            rank: Rank of the process.
        """
        return self._make_generator(Purpose.PER_RANK, epoch, step, rank)

    def per_lane(self, *, epoch: int, step: int, lanes: Iterable[int]) -> list[torch.Generator]:
        """Return the generators of a step for lanes or sequences, equal on any number of ranks.

        Args:
            epoch: Epoch of the batch.
            step: Index of the batch.
            lanes: Lanes of the rows, ``batch.lanes``, or ``batch.ids`` for a batch without lanes.

        Returns:
            One generator for each lane or sequence.
        """
        return [self._make_generator(Purpose.PER_LANE, epoch, step, int(lane)) for lane in lanes]

    def _make_generator(
        self, purpose: Purpose, epoch: int, step: int, owner: int
    ) -> torch.Generator:
        counters = np.array([[step], [owner]], dtype=np.int64)
        (generator_seed,) = Draw(self.seed, epoch).each(purpose, *counters)
        return torch.Generator(self.device).manual_seed(int(generator_seed))

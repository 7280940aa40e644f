"""The rank of a process among the data-parallel ranks.

``World`` is a value, made once from the Trainer, process group or argument, and passed down.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from seqdata.errors import ConfigError, must_be


@dataclass(frozen=True, slots=True)
class World:
    """A rank, and the number of ranks, of a data-parallel world.

    Args:
        rank: Number of this rank along the data-parallel dimension, from 0.
        size: Number of data-parallel ranks.

    Raises:
        ConfigError: If ``rank`` is not in ``[0, size)``.

    Examples:
        >>> World(1, 4)
        World(rank=1, size=4)
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                must_be("world: `size`", "at least 1", f"{self.size!r}", "Pass World(0, 1)")
            )
        if not 0 <= self.rank < self.size:
            raise ConfigError(
                must_be(
                    "world: `rank`", f"in [0, {self.size})", f"{self.rank!r}", "Ranks count from 0"
                )
            )

    @classmethod
    def current(cls) -> World:
        """Return the default process group's rank and size, or ``World(0, 1)`` if there is none.

        Environment variables are not read: a RANK without a process group means nothing.
        """
        distributed = sys.modules.get("torch.distributed")  # no group can exist before this import
        if (
            distributed is None
            or not distributed.is_available()
            or not distributed.is_initialized()
        ):
            return cls(0, 1)
        return cls(distributed.get_rank(), distributed.get_world_size())

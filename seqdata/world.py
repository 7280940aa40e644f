"""The rank of a process among the data-parallel ranks, and its part of each row's timesteps.

``World`` is a value, made once from the Trainer, process group or argument, and passed down.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from seqdata.errors import ConfigError, must_be


@dataclass(frozen=True, slots=True)
class World:
    """A rank, and the number of ranks, of a data-parallel world.

    The processes of a ring share a rank: each receives a part of the timesteps of the same rows.

    Args:
        rank: Number of this rank along the data-parallel dimension, from 0.
        size: Number of data-parallel ranks.
        time_part: Which part of each row's timesteps this process receives, from 0.
        time_parts: Number of parts; 1: rows are whole.

    Raises:
        ConfigError: If ``rank`` is not in ``[0, size)``, or ``time_part`` not in ``[0,
            time_parts)``.

    Examples:
        >>> World(1, 4)
        World(rank=1, size=4)
        >>> World(0, 1, time_part=1, time_parts=2).time_bounds(7)
        (3, 7)
    """

    rank: int = 0
    size: int = 1
    time_part: int = 0
    time_parts: int = 1

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
        if self.time_parts < 1:
            raise ConfigError(
                must_be("world: `time_parts`", "at least 1", f"{self.time_parts!r}", "Pass 1")
            )
        if not 0 <= self.time_part < self.time_parts:
            raise ConfigError(
                must_be(
                    "world: `time_part`",
                    f"in [0, {self.time_parts})",
                    f"{self.time_part!r}",
                    "Parts count from 0",
                )
            )

    def __repr__(self) -> str:
        part = f", time_part={self.time_part}, time_parts={self.time_parts}"
        return f"World(rank={self.rank}, size={self.size}{part if self.time_parts > 1 else ''})"

    def time_bounds(self, lengths: Any) -> tuple[Any, Any]:
        """Return where this process's part of rows begins and ends in them.

        The parts of a row are contiguous, and as equal as can be: a row with fewer timesteps than
        there are parts has empty ones.

        Args:
            lengths: Timesteps of rows: an integer, or an array or tensor of integers.
        """
        part, parts = self.time_part, self.time_parts
        return lengths * part // parts, lengths * (part + 1) // parts

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

"""Comparison of the arguments that the ranks of a plain loop have given their Loaders.

Ranks with another plan would take another number of steps and wait for each other, or train on
other batches. Values go through the store of the process group, not a collective operation: a
Loader that only one rank iterates over must not wait for others forever.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seqdata.errors import PlanError
from seqdata.sharing import World

RankValues = Mapping[str, str | float | None]
PATIENCE = 10.0
"""Seconds that an iteration of a Loader waits for those of the other ranks."""
_INTERVAL = 0.01  # seconds between two looks
_MAX_NAMED = 4  # most ranks whose numbers are in a message
_logger = logging.getLogger("seqdata")


def describe_differences(values: Sequence[RankValues]) -> str:
    """Return the names that have different values, with the ranks; empty if there are none.

    Args:
        values: Values of each rank, in order; a missing one is None.
    """
    descriptions = []
    for name in dict.fromkeys(name for rank_values in values for name in rank_values):
        ranks_of: dict[str, list[int]] = {}  # by text: a limit of 1 is not one of 1.0
        for rank, rank_values in enumerate(values):
            ranks_of.setdefault(repr(rank_values.get(name)), []).append(rank)
        if len(ranks_of) > 1:
            found = (f"{value} on {_format_ranks(ranks)}" for value, ranks in ranks_of.items())
            descriptions.append(f"`{name}` is {' but '.join(found)}")
    return "; ".join(descriptions)


def _format_ranks(ranks: list[int]) -> str:
    first = ", ".join(map(str, ranks[:_MAX_NAMED]))
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{more}"


class RankComparison:
    """Compares the values of one Loader over all ranks, once.

    Args:
        world: World of the Loader.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: list[str] | None = None  # where each rank puts its values
        self._is_done = world.size == 1

    def check(self, describe: Callable[[], RankValues]) -> None:
        """Compare the values of this rank with those of the others, if they arrive in time.

        If they do not, the next call looks for them again.

        Args:
            describe: Function that returns the values of this rank.

        Raises:
            PlanError: If values differ; the message has each name with the values of the ranks.
        """
        store = None if self._is_done else _find_store(self._world)
        if store is None:
            return
        if self._keys is None:
            number = store.add(f"seqdata/loaders of rank {self._world.rank}", 1)
            self._keys = [f"seqdata/loader {number}/{rank}" for rank in range(self._world.size)]
            store.set(self._keys[self._world.rank], json.dumps(describe()))
        wait_until = time.monotonic() + PATIENCE
        while not store.check(self._keys):
            if time.monotonic() >= wait_until:
                _logger.warning(
                    "loader: not all ranks have begun to iterate, so their arguments are compared "
                    "when this Loader begins its next epoch"
                )
                return
            time.sleep(_INTERVAL)
        self._is_done = True
        difference = describe_differences([json.loads(store.get(key)) for key in self._keys])
        if difference:
            raise PlanError(
                f"loader: ranks: {difference}, which must be equal. Give the Loader of every rank "
                "the same data and options"
            )


def _find_store(world: World) -> Any:
    """Return the store of the default process group; None if it is of another world."""
    if World.current() != world:
        return None
    distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
    return distributed._get_default_store()

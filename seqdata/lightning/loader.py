"""The loader that the Trainer sees: an own iterable, so that Lightning leaves it alone.

It owns nothing durable. Its length is a constant, its state a marker, and an iterator that nobody
draws from has no effect, since Lightning throws several away. Place in the flow: a ``Player``
below, the Trainer above. Reads: where to begin. Makes: batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from seqdata.lightning.cursor import Place
from seqdata.loading.options import Update
from seqdata.loading.player import Player

MARKER = {"seqdata": 1}
"""All that a loader puts into a checkpoint; the place is the DataModule's to know."""

_END = object()


@dataclass(frozen=True, slots=True)
class Start:
    """Where an iteration begins, and how its batches are gathered into updates."""

    place: Place
    update: Update


@dataclass(frozen=True, slots=True)
class Handed:
    """Which batch an iteration has handed out last.

    Attributes:
        begun: Where the iteration began.
        step: Of the rank's share from there.
    """

    begun: Place
    step: int


class TrainerLoader:
    """Batches of one data set for the Trainer.

    Args:
        player: What plays the epochs.
        begin: Called with this loader at an iteration's first ``next()``; says where it begins.
        name: Of its data set, where several were given by name.

    Attributes:
        handed: The batch that was handed out last; None: none was.
        waited: Seconds that iterations have waited for batches in all.
    """

    def __init__(
        self, player: Player, begin: Callable[[TrainerLoader], Start], name: str | None = None
    ) -> None:
        self.player = player
        self.name = name
        self.handed: Handed | None = None
        self.waited = 0.0
        self._begin = begin

    def __len__(self) -> int:
        return self.player.steps

    def __iter__(self) -> Iterator[Any]:
        start = self._begin(self)  # a generator: runs at the first next()
        place, clock = start.place, time.perf_counter
        step = self.player.share(place.epoch, place.position).first_step
        batches = self.player.play(place.epoch, place.position, start.update)
        while True:
            asked = clock()
            batch = next(batches, _END)
            self.waited += clock() - asked
            if batch is _END:
                return
            self.handed = Handed(place, step)
            yield batch
            step += 1

    def state_dict(self) -> dict[str, int]:
        """Give the constant marker, which tells the Trainer that resuming is taken care of."""
        return dict(MARKER)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the DataModule has loaded the place before."""
        del state

    def shutdown(self) -> None:
        """End the player's threads."""
        self.player.shutdown()

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

from seqdata.loading.engine import Player
from seqdata.loading.epoch_batches import Played
from seqdata.loading.options import Update
from seqdata.runs.run_state import Place

MARKER = {"seqdata": 1}
"""All that a loader puts into a checkpoint; the place is the DataModule's to know."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an iteration begins, and how its batches are gathered into updates.

    Attributes:
        place: Of its first batch.
        update: How batches make updates.
        looks: Whether somebody only looks into the loader, beside the loop that draws from it.
    """

    place: Place
    update: Update
    looks: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """Which batch an iteration has handed out last.

    Attributes:
        begun: Where the iteration began.
        step: Of the rank's share from there.
    """

    begun: Place
    step: int


Drawn = tuple[Handed | None, Any]
Agreed = Callable[["Iteration", Iterator[Drawn]], Iterator[Drawn]]


class TrainerLoader:
    """Batches of one data set for the Trainer.

    Args:
        player: What plays the epochs.
        begin: Called with an iteration at its first ``next()``; says where it begins.
        name: Of its data set, where several were given by name.
        agreed: Gives an iteration's batches where the other ranks have theirs; None: asks nobody.
        epoch: Whose length it has, where epochs differ.

    Attributes:
        handed: The batch that a loop was handed last; None: none was.
        waited: Seconds that iterations have waited for this rank's batches in all, not for others.
    """

    def __init__(
        self,
        player: Player,
        begin: Callable[[Iteration], Start],
        name: str | None = None,
        *,
        agreed: Agreed | None = None,
        epoch: int = 0,
    ) -> None:
        self.player = player
        self.epoch = epoch
        self.name = name
        self.handed: Handed | None = None
        self.waited = 0.0
        self._begin = begin
        self._agreed = agreed

    def __len__(self) -> int:
        return self.player.steps_of(self.epoch)

    def __iter__(self) -> Iteration:
        return Iteration(self)

    def play(self, iteration: Iteration) -> Iterator[Drawn]:
        """Give the batches of an iteration, each with which one it is; begins at the first."""
        drawn = _Drawing(self, iteration)
        return drawn if self._agreed is None else self._agreed(iteration, drawn)

    def begin(self, iteration: Iteration) -> Start:
        """Return where an iteration begins that is about to draw its first batch."""
        return self._begin(iteration)

    def state_dict(self) -> dict[str, int]:
        """Give the constant marker, which tells the Trainer that resuming is taken care of."""
        return dict(MARKER)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the DataModule has loaded the place before."""
        del state

    def shutdown(self) -> None:
        """End the player's threads."""
        self.player.shutdown()


class EpochAfterEpoch:
    """Where iterations of a loader begin that no Trainer counts for."""

    def __init__(self) -> None:
        self._epoch = 0

    def __call__(self, iteration: Iteration) -> Start:
        """Return the start of the next epoch."""
        del iteration
        self._epoch += 1
        return Start(Place(self._epoch - 1), Update())


def first_epoch(iteration: Iteration) -> Start:
    """Return the start of epoch 0, which evaluations play."""
    del iteration
    return Start(Place(), Update())


class _Drawing(Iterator[Drawn]):
    """What an iteration draws; it begins with its first batch.

    An error takes the place of its batch, and the next ``next()`` goes on with the one behind.

    Args:
        loader: Whose batches; how long they were waited for is added up there.
        iteration: Whose place is asked for. It holds this object, which must end with it.
    """

    def __init__(self, loader: TrainerLoader, iteration: Iteration) -> None:
        self._loader = loader
        self._iteration = iteration
        self._begun: tuple[Start, Played] | None = None

    def __next__(self) -> Drawn:
        start, played = self._begun or self._begin()
        asked = time.perf_counter()
        try:
            batch = next(played)
        finally:
            self._loader.waited += time.perf_counter() - asked
        return None if start.looks else Handed(start.place, played.step - 1), batch

    def _begin(self) -> tuple[Start, Played]:
        start = self._loader.begin(self._iteration)
        del self._iteration
        place = start.place
        self._begun = start, self._loader.player.play(place.epoch, place.position, start.update)
        return self._begun


class Iteration:
    """One iteration over a loader; it begins when its first batch is drawn.

    Args:
        loader: Whose.

    Attributes:
        loader: Whose.
        has_batch: Whether it handed out a batch and was not asked for another one.
    """

    def __init__(self, loader: TrainerLoader) -> None:
        self.loader = loader
        self.has_batch = False
        self._played: Iterator[Drawn] | None = None

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        self.has_batch = False
        if self._played is None:
            self._played = self.loader.play(self)
        handed, batch = next(self._played)
        self.loader.handed = handed or self.loader.handed
        self.has_batch = True
        return batch

"""How many errors in the training data a run has gone on from, over all ranks, at each place of it.

Ranks differ in their errors, and states do not differ between ranks: so ranks add their counts up
where they agree on batches. Place in the flow: beside the cursor. Reads: this rank's tally. Makes:
the count that a state holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seqdata.lightning.ranks.lockstep import Counting
from seqdata.lightning.trainer_loader import Drawn, Handed
from seqdata.loading.engine import Player
from seqdata.runs.run_state import Place

_KEPT = 2  # the batch in hand may be trained or not


@dataclass(slots=True, eq=False)
class ErrorCount:
    """Errors that a run went on from, before each of the latest places.

    Attributes:
        player: Of the training data.
        ranks: Processes that add up; a data-parallel rank may be several.
    """

    player: Player
    ranks: int
    _before: int = field(default=0, init=False)
    _known: list[tuple[Place, int]] = field(default_factory=list, init=False)

    def begin(self, before: int) -> None:
        """Count on from a state, or from 0."""
        self._before = before
        self._known.clear()
        self.player.options.tally.begin(before)

    @property
    def counting(self) -> Counting[Drawn] | None:
        """What ranks add up; None: the first error ends the run."""
        if self.player.options.on_error == "raise":
            return None
        return Counting(self._mine, self._told)

    def at(self, place: Place) -> int:
        """Give the errors in batches before a place that is close to the latest batch."""
        if self.player.options.world.size == 1:
            return self._before + self._until(place)
        wanted = place.epoch, place.position
        known = [count for at, count in self._known if (at.epoch, at.position) <= wanted]
        return known[-1] if known else self._before

    def _mine(self, drawn: Drawn) -> int:
        handed = drawn[0]
        return 0 if handed is None else self._until(self._after(handed))

    def _told(self, drawn: Drawn, total: int) -> None:
        if drawn[0] is None:
            return
        world, place = self.player.options.world, self._after(drawn[0])
        every = self._before + total * world.size // self.ranks
        self.player.options.tally.know(every - self._until(place))
        self._known = [*self._known, (place, every)][-_KEPT:]

    def _after(self, handed: Handed) -> Place:
        begun = handed.begun
        share = self.player.share(begun.epoch, begun.position)
        return Place(begun.epoch, share.position(handed.step + 1))

    def _until(self, place: Place) -> int:
        options = self.player.options
        return options.tally.until(options.name, place.epoch, place.position)

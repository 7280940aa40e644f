"""Which batch of a run is meant, and the batch itself, made again without a Trainer.

A batch is named by its epoch and its number in the plan. A step of a rank is translated by the
world of the run and by where it began. Place in the flow: a Player below, the command and the
DataModule above. Reads: a store. Makes: one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, PlanError
from seqdata.loading.engine import Player
from seqdata.loading.options import Update
from seqdata.sharing import RankPlan, share
from seqdata.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run began, and counts: what translates its steps, and gives batches their scales.

    Attributes:
        seed: Of order and transforms.
        frozen: Whether a small part was overfitted.
        world_size: Ranks.
        epoch: At which it began.
        position: Batches of that epoch's plan that were trained before.
        accumulate: Steps of an optimizer update.
        divided: Whether the Trainer divides losses by that.
        steps: Steps of an epoch that are trained; None: all.
    """

    seed: int = 0
    frozen: bool = False
    world_size: int = 1
    epoch: int = 0
    position: int = 0
    accumulate: int = 1
    divided: bool = False
    steps: int | None = None

    @property
    def of_evaluation(self) -> Course:
        """The course of an evaluation beside it: always from the start, no updates."""
        return Course(seed=self.seed, frozen=self.frozen, world_size=self.world_size)

    def first(self, epoch: int) -> int:
        """Give the batches of an epoch that were trained before the run came to it."""
        return self.position if epoch == self.epoch else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which batch is to be made again.

    Args:
        epoch: Of the plan.
        batch: Its number in the plan; or, instead:
        step: Of a rank.
        rank: Which one; without ``step`` only where a batch is dealt by lanes. None: 0.
        world: How many ranks there are; None: as in the run.
        from_position: Batches of the epoch's plan that were trained when steps began to count;
            None: as in the run.

    Raises:
        ConfigError: If these name no batch.
    """

    epoch: int
    batch: int | None = None
    step: int | None = None
    rank: int | None = None
    world: int | None = None
    from_position: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, least = getattr(self, name), 1 if name == "world" else 0
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(
                    f"replay: `{name}` is {value!r}, must be a whole number from {least}; take it "
                    "from the error's place"
                )
        if (self.batch is None) == (self.step is None):
            raise ConfigError(
                f"replay: `batch` is {self.batch!r} and `step` is {self.step!r}, must be one of "
                "them; pass the batch's number in the plan, or a step with its rank"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """Where a batch is made: a step of a rank's share.

    Attributes:
        epoch: Of the plan.
        share: Of the rank.
        step: Number of the step.
        update: How steps make optimizer updates.
    """

    epoch: int
    share: RankPlan
    step: int
    update: Update


def locate(player: Player, wanted: Wanted, course: Course) -> Found:
    """Find the step of the run that made a batch.

    Raises:
        PlanError: If the epoch, or the rank's share, has no such batch.
        ConfigError: If there is no such rank.
    """
    plan, size = player.plan(wanted.epoch), wanted.world or course.world_size
    first = course.first(wanted.epoch) if wanted.from_position is None else wanted.from_position
    update = Update(accumulate=course.accumulate, steps=course.steps, divided=course.divided)
    rank, number = wanted.rank or 0, wanted.batch
    if number is None:
        made = share(plan, World(rank, size), first=first, tail=player.options.tail)
        if not made.first_step <= (wanted.step or 0) < len(made):
            raise PlanError(
                f"replay: `step` is {wanted.step} in epoch {wanted.epoch}, must be in "
                f"[{made.first_step}, {len(made)}) of {size} ranks from position {first} on; pass "
                "the world and position of the run"
            )
        return Found(wanted.epoch, made, wanted.step or 0, update)
    if number >= len(plan):
        raise PlanError(
            f"replay: `batch` is {number} in epoch {wanted.epoch}, must be below {len(plan)}, the "
            "batches of its plan; take it from the error's place"
        )
    if number < first:  # trained by the run before this one
        first = 0
    if plan.lanes:
        world = World() if wanted.rank is None else World(rank, size)
    else:
        world = World((number - first) % size, size)
    made = share(plan, world, first=first, tail=player.options.tail)
    step = made.first_step + (number - first) // made.stride
    if step >= len(made):  # left out by tail="drop"
        made, step = share(plan, World()), number
    return Found(wanted.epoch, made, step, update)


def made_again(player: Player, found: Found) -> SequenceBatch:
    """Make the batch as the run made it, here and now.

    Raises:
        DataError: If what is stored is damaged.
    """
    return player.again(found.share, found.epoch, found.step, found.update)


def described(player: Player, found: Found) -> SequenceBatch:
    """Give the same batch without data: what was planned; nothing is read."""
    return player.again(found.share, found.epoch, found.step, found.update, data=False)

"""Which batch of a run is meant, and the batch itself, made again without a Trainer.

A batch is named by its epoch and its number in the plan. A step of a rank is translated by the
world of the run and by where it began.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, PlanError
from seqdata.loading.engine import EpochEngine
from seqdata.loading.options import UpdateSchedule
from seqdata.sharing import RankPlan, share
from seqdata.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGeometry:
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
    def for_evaluation(self) -> FitGeometry:
        """The course of an evaluation beside it: always from the start, no updates."""
        return FitGeometry(seed=self.seed, frozen=self.frozen, world_size=self.world_size)

    def get_first_position(self, epoch: int) -> int:
        """Return the batches of an epoch that were trained before the run came to it."""
        return self.position if epoch == self.epoch else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
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
            value, minimum = getattr(self, name), 1 if name == "world" else 0
            if value is not None and (type(value) is not int or value < minimum):
                raise ConfigError(
                    f"replay: `{name}` is {value!r}, must be a whole number from {minimum}; take "
                    "it "
                    "from the error's place"
                )
        if (self.batch is None) == (self.step is None):
            raise ConfigError(
                f"replay: `batch` is {self.batch!r} and `step` is {self.step!r}, must be one of "
                "them; pass the batch's number in the plan, or a step with its rank"
            )


@dataclass(frozen=True, slots=True)
class LocatedStep:
    """Where a batch is made: a step of a rank's share.

    Attributes:
        epoch: Of the plan.
        share: Of the rank.
        step: Number of the step.
        update_schedule: How steps make optimizer updates.
    """

    epoch: int
    share: RankPlan
    step: int
    update_schedule: UpdateSchedule


def locate_batch(engine: EpochEngine, request: ReplayRequest, geometry: FitGeometry) -> LocatedStep:
    """Find the step of the run that made a batch.

    Raises:
        PlanError: If the epoch, or the rank's share, has no such batch.
        ConfigError: If there is no such rank.
    """
    plan, size = engine.plan(request.epoch), request.world or geometry.world_size
    first_position = (
        geometry.get_first_position(request.epoch)
        if request.from_position is None
        else request.from_position
    )
    update_schedule = UpdateSchedule(
        accumulate=geometry.accumulate, steps=geometry.steps, is_loss_divided=geometry.divided
    )
    rank, number = request.rank or 0, request.batch
    if number is None:
        rank_plan = share(plan, World(rank, size), first=first_position, tail=engine.options.tail)
        if not rank_plan.first_step <= (request.step or 0) < len(rank_plan):
            raise PlanError(
                f"replay: `step` is {request.step} in epoch {request.epoch}, must be in "
                f"[{rank_plan.first_step}, {len(rank_plan)}) of {size} ranks from position "
                f"{first_position} on; pass "
                "the world and position of the run"
            )
        return LocatedStep(request.epoch, rank_plan, request.step or 0, update_schedule)
    if number >= len(plan):
        raise PlanError(
            f"replay: `batch` is {number} in epoch {request.epoch}, must be below {len(plan)}, the "
            "batches of its plan; take it from the error's place"
        )
    if number < first_position:  # trained by the run before this one
        first_position = 0
    if plan.lanes:
        world = World() if request.rank is None else World(rank, size)
    else:
        world = World((number - first_position) % size, size)
    rank_plan = share(plan, world, first=first_position, tail=engine.options.tail)
    step = rank_plan.first_step + (number - first_position) // rank_plan.stride
    if step >= len(rank_plan):  # left out by tail="drop"
        rank_plan, step = share(plan, World()), number
    return LocatedStep(request.epoch, rank_plan, step, update_schedule)


def remake_batch(engine: EpochEngine, located: LocatedStep) -> SequenceBatch:
    """Make the batch as the run made it, here and now.

    Raises:
        DataError: If what is stored is damaged.
    """
    return engine.remake_batch(located.share, located.epoch, located.step, located.update_schedule)


def remake_metadata(engine: EpochEngine, located: LocatedStep) -> SequenceBatch:
    """Return the same batch without data: what was planned; nothing is read."""
    return engine.remake_batch(
        located.share, located.epoch, located.step, located.update_schedule, fill=False
    )

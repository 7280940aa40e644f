"""Location of a batch in a run, and its reconstruction without a Trainer.

A batch is identified by its epoch and its index in the plan. A step of a rank is converted with the
number of ranks and the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqdata.errors import ConfigError, PlanError, must_be
from seqdata.loading.base_engine import BaseEngine, StepBatch
from seqdata.loading.options import UpdateSchedule
from seqdata.planning.policy import continues_passes
from seqdata.resume_state import RunPosition
from seqdata.sharing import RankPlan, World, share


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGeometry:
    """Start of a run and its counts, which determine its steps and the scales of batches.

    Attributes:
        seed: Seed of order and transforms.
        frozen: Whether the Trainer overfitted a few batches.
        world_size: Number of ranks.
        epoch: Epoch at which the run began.
        position: Number of batches of that epoch that were trained before the run began.
        accumulate: Number of steps of an optimizer update.
        divided: Whether the Trainer divides losses by ``accumulate``.
        steps: Number of steps of an epoch that are trained; None: all.
        segment: Number of batches between changes of weights by ``Feedback``; None without it.
        mixture: Positions at which parts of a mixture replaced others, as in a state; None: none
            did.
        balance_ranks: Number of ranks that the steps of ``epoch`` are balanced for; None: that of
            the run.
    """

    seed: int = 0
    frozen: bool = False
    world_size: int = 1
    epoch: int = 0
    position: int = 0
    accumulate: int = 1
    divided: bool = False
    steps: int | None = None
    segment: int | None = None
    mixture: str | None = None
    balance_ranks: int | None = None

    @property
    def run_position(self) -> RunPosition:
        """Position at which the run began."""
        return RunPosition(self.epoch, self.position)

    @property
    def for_evaluation(self) -> FitGeometry:
        """Geometry of an evaluation in the run: always from the start, without updates."""
        return FitGeometry(seed=self.seed, frozen=self.frozen, world_size=self.world_size)

    def get_first_position(self, epoch: int) -> int:
        """Return the number of batches of an epoch that were trained before the run."""
        return self.position if epoch == self.epoch else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Identity of the batch to rebuild.

    Args:
        epoch: Epoch of the plan.
        batch: Index of the batch in the plan; None if ``step`` is given.
        step: Step of a rank; None if ``batch`` is given.
        rank: Rank of the step, or of the lanes of a batch; None: 0.
        world: Number of ranks; None: as in the run.
        from_position: Number of batches of the epoch before its first step; None: as in the run.

    Raises:
        ConfigError: If they do not identify a batch.
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
            is_in_message = name in ("epoch", "batch")
            if value is not None and (type(value) is not int or value < minimum):
                raise ConfigError(
                    must_be(
                        f"replay: `{name}`",
                        f"an integer from {minimum}",
                        repr(value),
                        "Take it from the error message of the run" if is_in_message else "",
                    )
                )
        if (self.batch is None) == (self.step is None):
            raise ConfigError(
                f"replay: `batch` is {self.batch!r} and `step` is {self.step!r}, but exactly one "
                "must be given. Pass the batch's index in the plan, or a step with its rank."
            )


@dataclass(frozen=True, slots=True)
class LocatedStep:
    """Location of a batch: a step of a rank's share.

    Attributes:
        epoch: Epoch of the plan.
        share: Share of the rank.
        step: Index of the step.
        update_schedule: Schedule of optimizer updates.
    """

    epoch: int
    share: RankPlan
    step: int
    update_schedule: UpdateSchedule


def locate_batch(engine: BaseEngine, request: ReplayRequest, geometry: FitGeometry) -> LocatedStep:
    """Return the step of the run that made a batch.

    Raises:
        PlanError: If the epoch, or the rank's share, has no such batch.
        ConfigError: If there is no such rank, or the order of an earlier epoch is unknown.
    """
    if engine.depends_on_ranks:
        _set_order(engine, request, geometry)
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
                must_be(
                    "replay: `step`",
                    (
                        f"in [{rank_plan.first_step}, {len(rank_plan)}), the steps of {size} ranks "
                        f"from position {first_position} on"
                    ),
                    f"{request.step} in epoch {request.epoch}",
                    "Leave `world` and `from_position` out for those of the run",
                )
            )
        return LocatedStep(request.epoch, rank_plan, request.step or 0, update_schedule)
    if number >= len(plan):
        raise PlanError(
            must_be(
                "replay: `batch`",
                f"below {len(plan)}, the number of batches of the plan",
                f"{number} in epoch {request.epoch}",
                "Take both from the error message of the run",
            )
        )
    if number < first_position:  # trained by an earlier run
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


def _set_order(engine: BaseEngine, request: ReplayRequest, geometry: FitGeometry) -> None:
    """Set the order of an epoch that an earlier fit began, or that of an unknown run.

    Raises:
        ConfigError: If the number of ranks of the earlier fit is not given.
    """
    goes_on = continues_passes(engine.policy)
    if geometry.balance_ranks is None and request.world is not None:
        engine.set_order(None if goes_on else request.epoch, request.world)
        return
    if request.epoch >= geometry.epoch or goes_on:
        return
    if request.world is None:
        raise ConfigError(
            f"replay: epoch {request.epoch} was begun before this fit, which began with epoch "
            f"{geometry.epoch}, and the order of its batches depends on the number of ranks. Pass "
            "`world`, the ranks with which that epoch began, or the run file of that fit."
        )
    engine.set_order(request.epoch, request.world)


def remake_batch(engine: BaseEngine, located: LocatedStep) -> StepBatch:
    """Rebuild a batch, or those of zipped parts, as the run made it.

    Raises:
        DataError: If stored data is damaged.
    """
    return engine.remake_batch(located.share, located.epoch, located.step, located.update_schedule)


def remake_metadata(engine: BaseEngine, located: LocatedStep) -> StepBatch:
    """Return a batch as planned, without reading data."""
    return engine.remake_batch(
        located.share, located.epoch, located.step, located.update_schedule, fill=False
    )

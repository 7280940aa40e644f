"""One training run: its player, its cursor, and what it saves and loads.

Place in the flow: the DataModule makes one per Trainer in ``setup("fit")``. Reads: the Trainer's
counters through the adapter. Makes: where an epoch begins, and the DataModule's state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import SEE, ConfigError, ResumeError, SeqDataError, SeqDataWarning, step_line
from seqdata.lightning import adapter
from seqdata.lightning.counter_repair import CounterRepair, Resume, of_two_runs
from seqdata.lightning.cursor import Cursor
from seqdata.lightning.error_count import ErrorCount
from seqdata.lightning.ranks.collect import agree
from seqdata.lightning.trainer_loader import Iteration, Start
from seqdata.loading.engine import Player
from seqdata.loading.options import Update
from seqdata.runs.locate_batch import Course
from seqdata.runs.options import DataOptions
from seqdata.runs.run_state import Place, RunState, shortened
from seqdata.world import World


class TrainRun:
    """The training of one DataModule under one Trainer.

    Args:
        trainer: Who counts.
        player: Plays the training data.
        world: Who we are.
        options: What the DataModule was asked for.
        began: Called on every rank when a fit begins, with its course and the plan's fingerprint;
            and again, then alone, if its first batch is of another place.

    Raises:
        ConfigError: If epochs differ in length and the Trainer would ask for one only, or the
            module's training step draws its batches itself.
    """

    def __init__(
        self,
        trainer: Trainer,
        player: Player,
        world: World,
        options: DataOptions,
        began: Callable[[Course, str, bool], None],
    ) -> None:
        if player.varies and not adapter.asks_every_epoch(trainer):
            raise ConfigError(
                f"datamodule: epochs of {player.policy} differ in their number of steps, which the "
                "Trainer asks for once, must be asked for in every epoch; pass "
                "Trainer(reload_dataloaders_every_n_epochs=1)"
            )
        if adapter.draws_by_hand(trainer):
            raise ConfigError(
                "datamodule: `training_step` of the module takes `dataloader_iter`, must take "
                "`batch`: which batches are trained cannot be told where a step draws its own; "
                "write training_step(self, batch, batch_idx), batches are read ahead all the same"
            )
        self.trainer = trainer
        self.player = player
        self._transform = player.transform  # as it is before it is used
        self.errors = ErrorCount(player, trainer.world_size)
        self.errors.begin(0)
        self.callback = CounterRepair(lambda: self._resume, self._started)
        self._world = world
        self._options = options
        self._cursor = Cursor()
        self._resume: Resume | None = None
        self._warned = False
        self._began = began
        self._course: Course | None = None  # of a fit that has not drawn a batch yet

    def begin(self, iteration: Iteration) -> Start:
        """Give the start of an iteration that is about to draw its first batch.

        Only what the fit loop draws moves the cursor; whoever else looks into a loader does not.

        Raises:
            ConfigError: If the Trainer's epoch is longer than the data's.
            ResumeError: If the data and the Trainer do not stand at the same step.
        """
        counters = adapter.counters_of(self.trainer)
        if not adapter.trains_on(self.trainer, iteration):
            return Start(self.here(), self._update(counters), looks=True)
        lanes = self.player.plan(self.here().epoch).lanes
        stride = 1 if lanes else self._world.size
        first = self._cursor.trained is None
        cursor = self._cursor.begun(counters, stride=stride)
        place = cursor.start
        self._cursor = replace(cursor, batches=self.player.batches_of(place.epoch))
        self._refuse_longer_epochs(counters, place)
        self._guard(counters, place)
        if first and self._resume is not None:
            adapter.align_logged_steps(self.trainer)
        elif first and counters.total and adapter.is_resuming(self.trainer):
            _warn(
                "resume: the checkpoint brought no state of this DataModule, the data begins at "
                "epoch 0; resume with the class that saved it, not renamed"
            )
        self._resume = None
        if self._course is not None and self._course != self._course_from(place):
            self._record(place, again=True)  # an epoch was abandoned by the fit before
        self._course = None
        return Start(place, self._update(counters))

    def explain(self, exception: BaseException, see: Callable[[int, int], str]) -> None:
        """Say in an exception of a training step which batch it had.

        Args:
            exception: What went wrong.
            see: Says what shows a batch, by epoch and number.
        """
        if not isinstance(exception, Exception) or not adapter.is_in_step(self.trainer):
            return
        place, world = self.here(), self._world
        share = self.player.share(place.epoch, place.position)
        step = share.first_step
        if step == len(share):
            return
        batch = share[step].number
        line = step_line(
            epoch=place.epoch, batch=batch, step=step, rank=world.rank, size=world.size
        )
        exception.add_note(f"in {line}. {SEE}{see(place.epoch, batch)}")

    @property
    def epoch(self) -> int:
        """The epoch whose length the Trainer is told now; any, where all have one."""
        return self.here().epoch if self.player.varies else 0

    def here(self) -> Place:
        """Give the place of the batch that is trained next."""
        return self._cursor.here(adapter.counters_of(self.trainer))

    def state(self) -> RunState:
        """Give the present state; warns once in the middle of an update."""
        here = self.here()
        self._warn_in_mid_update(here)
        return self._state_at(here)

    def load(self, state: RunState) -> None:
        """Go on at a saved place.

        Raises:
            ResumeError: If the plan there is another one, or the Trainer's limits count otherwise.
            ConfigError: If this world's rest of the epoch has filler that the output cannot tell.
        """
        place = self._fitting(state)
        changed_transform = self.player.changed_transform(state.transform)
        if changed_transform:
            _warn(f"resume: {changed_transform}")
        shifted = (state.world_size, state.tail) != (self._world.size, self._options.tail)
        if state.world_size != self._world.size:
            self._refuse_limits(state.world_size)
        step = self._step_at(place)
        saved = None if shifted or place != state.place else step
        if place.position and step >= self._trained_steps(place):
            place, step = place.next_epoch, 0
        accumulate = self._accumulate()
        if step % accumulate:
            _warn(
                f"resume: step {step} lies inside an update of {accumulate} steps, whose gradients "
                "are not in checkpoints: this update differs; save at its end (every_n_train_steps)"
            )
        self._cursor = Cursor(place)
        self.errors.begin(state.errors)
        self._resume = Resume(place, step, shifted, self._trained_steps(place), saved)

    def _fitting(self, state: RunState) -> Place:
        now = self._state_at(state.place)
        changed = state.changed(now)
        if changed == ["data"] and self._options.on_changed == "next_epoch":
            return state.place.next_epoch if state.position else state.place
        if changed or state.fingerprint != now.fingerprint:
            raise state.refusal(now, changed)
        batches = self.player.batches_of(state.epoch)
        if state.position > batches:
            raise ResumeError(
                f"resume: `position` of the state is {state.position}, must be at most {batches}, "
                f"the batches of epoch {state.epoch}; it is damaged"
            )
        return state.place

    def _state_at(self, place: Place) -> RunState:
        described = self.player.describe()
        return RunState(
            epoch=place.epoch,
            position=place.position,
            fingerprint=self.player.fingerprint(place.epoch),
            data=str(described["data"]),
            policy=shortened(str(described["policy"])),
            seed=int(described["seed"]),
            shift=int(described["shift"]),
            tail=self._options.tail,
            world_size=self._world.size,
            accumulate=self._accumulate(),
            errors=self.errors.at(place),
            transform=self._transform,
        )

    def _accumulate(self) -> int:
        divides = adapter.divides_loss(self.trainer)
        return self.trainer.accumulate_grad_batches if divides else 1

    def _course_from(self, place: Place) -> Course:
        return Course(
            seed=self.player.options.seed,
            frozen=self.player.options.frozen_epoch,
            world_size=self._world.size,
            epoch=place.epoch,
            position=place.position,
            accumulate=self._accumulate(),
            divided=adapter.divides_loss(self.trainer),
            steps=self._trained_steps(place),
        )

    def _record(self, place: Place, *, again: bool = False) -> None:
        self._course = self._course_from(place)
        self._began(self._course, self.player.fingerprint(place.epoch), again)

    def _update(self, counters: adapter.Counters) -> Update:
        steps = int(min(counters.steps, self.player.steps_of(self._cursor.start.epoch)))
        divided = adapter.divides_loss(self.trainer)
        return Update(accumulate=self._accumulate(), steps=steps, divided=divided)

    def _trained_steps(self, place: Place) -> int:
        return adapter.trained_steps(self.trainer, self.player.steps_of(place.epoch))

    def _step_at(self, place: Place) -> int:
        return self.player.share(place.epoch, place.position).first_step

    def _refuse_longer_epochs(self, counters: adapter.Counters, place: Place) -> None:
        """Refuse an epoch that goes on after its end: it would begin in the middle of the epoch."""
        steps = self.player.steps_of(place.epoch)
        if len(adapter.playing(self.trainer)) > 1 and counters.steps > steps:
            raise ConfigError(
                f"datamodule: the Trainer's epoch has {counters.steps} steps, the training data "
                f"{steps}: of several loaders (a dict, list or CombinedLoader) ours must be the "
                "longest, since it is played once in an epoch; pass CombinedLoader(..., "
                '"min_size"), or make the other one shorter'
            )

    def _guard(self, counters: adapter.Counters, place: Place) -> None:
        step = self._step_at(place)
        if step == counters.ready:
            return
        if self._resume is not None:
            raise of_two_runs(counters.ready, step)
        raise ResumeError(
            f"resume: the Trainer stands at step {counters.ready}, the data at step {step}, must "
            "be the same: the checkpoint brought no state of this DataModule; resume with the "
            "class that saved it, not renamed, passed as `datamodule`"
        )

    def _started(self) -> None:
        """Compare the ranks, and warn of what will not be the same on another world."""
        error, facts, steps = None, dict[str, str | int](), 0
        try:
            here = self.here()
            steps = self.player.steps_of(here.epoch)
            facts = {
                "plan": self.player.fingerprint(here.epoch),
                "steps": steps,
                "epoch": here.epoch,
                "position": here.position,
                "tail": self._options.tail,
                "accumulate": self._accumulate(),
                "trained steps": self._trained_steps(here),
            }
        except SeqDataError as failure:
            error = failure
        agree(self._world, facts, error)
        self._record(self.here())
        self._warn_of_validations(steps)

    def _warn_of_validations(self, steps: int) -> None:
        seconds = adapter.validates_by_clock(self.trainer)
        if seconds is not None:
            _warn(
                f"datamodule: `val_check_interval` is a time of {seconds:g} seconds: validation "
                "falls on other batches in every run and after every resume, and ranks whose "
                "clocks differ may not validate together. Pass steps or a fraction of the epoch"
            )
        every, accumulate = adapter.validates_every(self.trainer), self._accumulate()
        if every and every < steps and every % accumulate:
            _warn(
                f"datamodule: validation every {every} steps, must be a multiple of the "
                f"{accumulate} steps of an update to fall on the same place in every world; change "
                "`val_check_interval`"
            )

    def _refuse_limits(self, world_size: int) -> None:
        for name in ("limit_train_batches", "val_check_interval"):
            value: Any = getattr(self.trainer, name, None)  # absent where the clock decides
            if isinstance(value, int):
                raise ResumeError(
                    f"resume: `{name}` is {value!r} steps, which hold other batches on "
                    f"{self._world.size} ranks than on the {world_size} that saved the state, must "
                    "be a fraction; pass a float"
                )

    def _warn_in_mid_update(self, here: Place) -> None:
        accumulate = self._accumulate()
        step = adapter.counters_of(self.trainer).processed
        if here.position and step % accumulate and not self._warned:
            self._warned = True
            _warn(
                f"datamodule: saved after step {step}, inside an update of {accumulate} steps, "
                "whose gradients are not in checkpoints: resuming here will differ; save at an "
                "update's end (every_n_train_steps)"
            )


def _warn(message: str) -> None:
    warnings.warn(message, SeqDataWarning, stacklevel=2)

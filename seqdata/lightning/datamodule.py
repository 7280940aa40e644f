"""The DataModule: named data, one policy, and a position that survives everything.

Place in the flow: the room between seqdata and the Trainer. Reads: stores. Makes: loaders, and the
state by which a run goes on exactly.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast, get_args

from lightning.pytorch import LightningDataModule

from seqdata.arguments import check_arguments
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, SeqDataError
from seqdata.lightning import accumulation, adapter, lane_checkpoint
from seqdata.lightning.error_context import explain_evaluation
from seqdata.lightning.policy_names import PolicyName, register
from seqdata.lightning.ranks import environment
from seqdata.lightning.ranks.collect import agree
from seqdata.lightning.ranks.coordinator import PartNotice, Together
from seqdata.lightning.train_run import TrainRun
from seqdata.lightning.trainer_loader import (
    Drawn,
    EpochAfterEpoch,
    Iteration,
    TrainerLoader,
    first_epoch,
)
from seqdata.loading.engine import Player
from seqdata.loading.error_log import MAX_ERRORS
from seqdata.loading.options import PREFETCH, STALL_TIMEOUT, OnError
from seqdata.loading.value_options import DTypes
from seqdata.policies.bucketed import Bucketed
from seqdata.protocols import Policy, Transform
from seqdata.resolve import CollatorLike
from seqdata.runs.data_sources import Circumstances, Stock
from seqdata.runs.locate_batch import Course, Wanted, locate, made_again
from seqdata.runs.options import DataOptions, Kind, Location, Locations, OnChanged
from seqdata.runs.run_file import RunFile
from seqdata.runs.run_record import RunRecord, installed_versions
from seqdata.runs.run_state import RunState
from seqdata.sharing import Tail
from seqdata.world import World

register()
_KINDS: dict[str, tuple[Kind, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class SequenceDataModule(LightningDataModule):
    """Loaders of sequences for the Trainer: equal steps on all ranks, exact after every resume.

    Args:
        train: A path, an opened store, or sequences in memory (arrays, dicts of fields, or a
            pandas, Polars or Arrow table); or a torch Dataset, with ``lengths``.
        val: One such location, or name -> location: then there is one loader for each.
        test: Likewise.
        predict: Likewise.
        batching: How epochs are batched: a policy, or its registered name; None: ``Bucketed(32)``.
        eval_batching: The same for val, test and predict, never shuffled; None: as ``batching``.
        batches_per_update: Batches of the plan, over all ranks, that one optimizer update holds;
            sets the Trainer's accumulation, so that any number of ranks gives the same run.
        lengths: Of a Dataset's items: integers (items,) for ``train``, or ``{"train": …}`` and
            so on; or a function item -> timesteps, run once over all items of every Dataset.
        fields: Names of the fields to read; None: all.
        as_tuple: Hand out these parts of a batch as a tuple, for models that know nothing of us.
        as_dict: The same as a dict.
        transform: Applied to each sequence between reading and collating; it keeps lengths, or says
            with ``.lengths`` how it changes them. A view made by ``measure_lengths`` brings its
            own: then measure every location, and pass none.
        eval_transform: The same for val, test and predict; None: as ``transform``.
        dtype: In which floats are delivered, such as ``"float32"``; or field -> dtype. Numbers that
            do not fit are an error. None: as they are.
        check_values: Whether a NaN or an infinity is an error that names its sequence.
        collator: How batches are laid out: an object, or its registered name; None: padded. A
            function of one argument is a torch ``collate_fn``, whose result is handed out.
        shift: Timesteps between inputs and ``batch["targets"]``; with several fields name -> shift.
        tail: What a rank without a batch in the last step gets: ``fill`` (a row of weight 0),
            ``drop`` (the last uneven step is left out), ``repeat`` (in training an earlier batch).
        on_error: What a sequence that cannot be read or transformed does: ``raise``; ``mask``: its
            row has weight 0; ``replace``: its row is the longest other row of the batch, cropped.
            Steps and rows stay as many; ids go to ``seqdata-errors-rank0.jsonl`` in the log folder.
        max_errors: How many of those a run may have, over all ranks and resumes, each counted once.
        on_changed: What happens when the training data is not what it was when a state was saved:
            ``error``, or ``next_epoch`` to begin the next epoch over it.
        seed: Of order and transforms; None: that of ``seed_everything``, else 0.
        num_workers: Processes of each rank and loader that read; 0: none. Batches stay the same.
        prefetch: Hand-overs that a thread makes ahead; 0: no thread.
        start_method: How workers are started: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` where there is one, else ``spawn``.
        stall_timeout: Seconds without progress after which a worker is given up.
        pin_memory: Whether batches go through pinned memory; None: where the Trainer uses CUDA.

    Raises:
        ConfigError: If an argument cannot be meant.
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        *,
        train: Location | None = None,
        val: Locations | None = None,
        test: Locations | None = None,
        predict: Locations | None = None,
        batching: Policy | PolicyName | str | None = None,
        eval_batching: Policy | PolicyName | str | None = None,
        batches_per_update: int | None = None,
        lengths: Any = None,
        fields: Sequence[str] | None = None,
        as_tuple: Sequence[str] | None = None,
        as_dict: Sequence[str] | None = None,
        transform: Transform | None = None,
        eval_transform: Transform | None = None,
        dtype: DTypes | None = None,
        check_values: bool = False,
        collator: CollatorLike | str | None = None,
        shift: int | Mapping[str, int] = 0,
        tail: Tail = "fill",
        on_error: OnError = "raise",
        max_errors: int = MAX_ERRORS,
        on_changed: OnChanged = "error",
        seed: int | None = None,
        num_workers: int = 0,
        prefetch: int = PREFETCH,
        start_method: str | None = None,
        stall_timeout: float = STALL_TIMEOUT,
        pin_memory: bool | None = None,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._options = DataOptions.of(
            given, batching=Bucketed(32) if batching is None else batching
        )
        self._record = RunRecord()
        self._stock = Stock(self._options, self._record.command)
        self._run: TrainRun | None = None
        self._together = Together()
        self._notice = PartNotice(self._together.part)
        if val is None and type(self).val_dataloader is SequenceDataModule.val_dataloader:
            # Lightning validates wherever this method is not its own
            absent: Any = functools.partial(LightningDataModule.val_dataloader, cast(Any, None))
            self.val_dataloader = absent  # type: ignore[method-assign]

    def __str__(self) -> str:
        """Say what data there is, opening none; Lightning would play an epoch of each loader."""
        given = [kind for kind in get_args(Kind) if self._options.locations(kind)]
        return f"SequenceDataModule({', '.join(given)}; {self._options.batching})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process or copy begins with: no run, no threads, the same data."""
        new = Together()
        return {**self.__dict__, "_run": None, "_together": new, "_notice": PartNotice(new.part)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that belongs to no Trainer."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy({**self.__getstate__(), "trainer": None}, memo))
        return made

    def setup(self, stage: str) -> None:
        """Open the stage's data, the same on every rank; called again it changes nothing.

        Raises:
            SeqDataError: What failed on any rank, on every rank.
        """
        error, facts = None, {}
        try:
            facts = self._prepare(stage)
        except SeqDataError as failure:
            error = failure
        world = adapter.world_of(self.trainer)
        if world.size == 1:
            agree(world, facts, error)
        else:
            device = None if self.trainer is None else self.trainer.strategy.root_device
            noted = environment.settings(device)
            agree(world, {**environment.versions(), **facts}, error, noted=noted)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a fit was saved; outside a fit nothing is kept.

        Raises:
            ResumeError: If the state does not fit, with the reason.
        """
        if self._run is not None and adapter.is_fitting(self.trainer):
            self._run.load(RunState.of_dict(state_dict))
            lane_checkpoint.restore(self._run.trainer, self._run.here(), state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the plan and what it is made from: equal on all ranks, 1 kB of JSON.

        With the training states of all ``LaneStates``, in mid-epoch: every rank must ask.
        """
        run = self._run
        if run is None:
            return {}
        lanes = lane_checkpoint.saved(run.trainer, run.here(), self._together)
        return {**run.state().as_dict(), **lanes}

    def train_dataloader(self) -> TrainerLoader:
        """Give the training loader.

        Raises:
            ConfigError: If there is no training data.
        """
        players = self._players("train")
        run = self._run
        if run is not None:
            return TrainerLoader(players[0], run.begin, agreed=self._agreed, epoch=run.epoch)
        return TrainerLoader(players[0], EpochAfterEpoch())

    def val_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Give the validation loaders: one, or a list in the order of the names."""
        return self._evaluation("val")

    def test_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Give the test loaders: one, or a list in the order of the names."""
        return self._evaluation("test")

    def predict_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Give the prediction loaders: one, or a list in the order of the names."""
        return self._evaluation("predict")

    def stop(self, why: str) -> None:
        """Make every rank raise ``Preempted`` before the same next batch of training or evaluation.

        It only takes note, so a signal handler may call it, on any rank.

        Args:
            why: Comes into the message; say, the signal's name.
        """
        self._together.stop(why)

    def replay(
        self,
        *,
        epoch: int,
        batch: int | None = None,
        step: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        from_position: int | None = None,
        kind: Kind = "train",
        name: str | None = None,
    ) -> SequenceBatch:
        """Make one batch of a run again, the same bit by bit; needs no Trainer.

        A batch is named by its epoch and number, which it carries, and every error in it: or by a
        rank's step. Worlds and positions are those of the latest fit, where there was one here.

        Args:
            epoch: Of the plan.
            batch: Its number in the plan.
            step: Instead of it: a step.
            rank: Whose step; with ``batch``: whose lanes, where a batch is dealt by lanes.
            world: How many ranks there were.
            from_position: Batches of the epoch's plan that were trained when the run began in it.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Of the data set, where there are several of that kind.

        Raises:
            ConfigError: If these name no batch.
            PlanError: If there is no such batch.
            DataError: What went wrong in the run, if it was that.
        """
        wanted = Wanted(
            epoch=epoch, batch=batch, step=step, rank=rank, world=world, from_position=from_position
        )
        course = self._record.course or Course(seed=self._seed())
        course = course if kind == "train" else course.of_evaluation
        alone = Circumstances(world=World(), seed=course.seed, frozen=course.frozen)
        player = self._stock.lone(kind, name, alone)
        return made_again(player, locate(player, wanted, course))

    def replay_command(
        self, *, epoch: int, batch: int, kind: Kind = "train", name: str | None = None
    ) -> str:
        """Give what shows a batch: a command, or a call where no command can.

        Args:
            epoch: Of the plan.
            batch: Its number in the plan.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Of the data set, where there are several of that kind.
        """
        return self._record.command(kind, name, epoch, batch)

    def on_exception(self, exception: BaseException) -> None:
        """End all threads; an exception of a step says which batch it had."""
        explain_evaluation(self.trainer, exception)
        if self._run is not None:
            self._run.explain(exception, functools.partial(self._record.command, "train", None))
        self._together.part(exception)
        self._leave()

    def teardown(self, stage: str) -> None:
        """End all threads, and leave the Trainer as it was found."""
        self._leave()
        if stage == "fit" and self.trainer is not None and self._options.batches_per_update:
            self.trainer.accumulate_grad_batches = 1

    def _prepare(self, stage: str) -> dict[str, str | int]:
        if stage not in _KINDS:
            raise ConfigError(
                f"datamodule: `stage` is {stage!r}, must be 'fit', 'validate', 'test' or 'predict'"
            )
        circumstances = self._circumstances()
        adapter.attach(self.trainer, self._notice, first=True)
        facts: dict[str, str | int] = {}
        for kind in _KINDS[stage]:
            for number, player in enumerate(self._stock.keep(kind, circumstances)):
                described = {**player.describe(), "batches": player.num_batches}
                facts.update({f"{what} of {kind} {number}": is_ for what, is_ in described.items()})
        if stage == "fit":
            self._prepare_fit(circumstances)
        return facts

    def _prepare_fit(self, circumstances: Circumstances) -> None:
        trainer, players = self.trainer, self._players("train")
        if trainer is None:
            return
        run = self._run
        again = run is not None and run.trainer is trainer and run.player is players[0]
        if run is None or not again:
            run = TrainRun(trainer, players[0], circumstances.world, self._options, self._began)
        wanted = self._options.batches_per_update
        if wanted is not None:
            accumulation.set_steps(trainer, wanted, players[0].plan(0).lanes, again=again)
        self._run = run
        adapter.attach(trainer, run.callback)

    def _began(self, course: Course, plan: str, again: bool) -> None:
        """Write the run file; every rank comes here."""
        trainer = self._run.trainer if self._run is not None else None
        if trainer is None:
            return
        fingerprints: dict[str, list[str]] = {
            kind: [player.index.fingerprint for player in self._stock.kept(kind)]
            for kind in _KINDS["fit"]
        }
        file = RunFile.of(
            self._options, course, fingerprints=fingerprints, plan=plan,
            versions=installed_versions(), trainer=adapter.settings_of(trainer),
        )  # fmt: skip
        folder = self._record.folder if again else adapter.run_folder(trainer)  # all ranks ask
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = None
        self._record.keep(file, folder, writes=trainer.is_global_zero)

    def _seed(self) -> int:
        seed = self._options.seed
        return int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed

    def _circumstances(self) -> Circumstances:
        world, frozen = adapter.world_of(self.trainer), adapter.overfits(self.trainer)
        folder = adapter.log_folder(self.trainer) if self._options.on_error != "raise" else None
        cuda, seed = adapter.is_on_cuda(self.trainer), self._seed()
        return Circumstances(world=world, seed=seed, frozen=frozen, folder=folder, cuda=cuda)

    def _players(self, kind: Kind) -> list[Player]:
        players = self._stock.kept(kind) or self._stock.make(kind, self._circumstances())
        if not players:
            raise ConfigError(f"datamodule: `{kind}` is None, must be a location; pass it")
        return players

    def _evaluation(self, kind: Kind) -> TrainerLoader | list[TrainerLoader]:
        loaders = [
            TrainerLoader(player, first_epoch, name, agreed=self._agreed)
            for player, name in zip(self._players(kind), self._options.names(kind), strict=True)
        ]
        return loaders if self._options.is_named(kind) else loaders[0]

    def _agreed(self, iteration: Iteration, drawn: Iterator[Drawn]) -> Iterator[Drawn]:
        """Give what a loop of the Trainer draws where all ranks have theirs; others ask nobody."""
        trainer = self.trainer
        if trainer is None or not adapter.draws(trainer, iteration):
            return drawn
        run, counting = self._run, None
        if run is not None and iteration.loader.player is run.player:
            counting = run.errors.counting
        return self._together.agreed(drawn, trainer.world_size, counting)

    def _leave(self) -> None:
        self._together.leave()
        self._stock.shutdown()
        if self._run is not None:
            adapter.detach(self._run.trainer, self._run.callback)
        adapter.detach(self.trainer, self._notice)

"""Predictions as a store: a callback that writes what ``predict_step`` gives, from all ranks.

Every rank appends its rows to files beside the output; at the end rank 0 puts them in order, while
the others wait. Place in the flow: behind the model. Reads: outputs. Makes: one Arrow store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, SeqDataError
from seqdata.lightning import adapter
from seqdata.lightning.predictions.merge import Target, left_out, write_pool
from seqdata.lightning.predictions.outputs import Per, Wanted, ambiguous, chosen_names, rows_of
from seqdata.lightning.predictions.spill import Spill, Spilled, pool_of
from seqdata.lightning.ranks.collect import agree, gather
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading.engine import Player
from seqdata.storage.local_files import is_plain_name, local_path
from seqdata.storage.writing.staging_dir import aside, check_free
from seqdata.world import World

PATIENCE = timedelta(days=1)
"""How long ranks wait for a slower one, and for rank 0 to write; one that died is noticed before"""


class PredictionWriter(Callback):
    """Writes predictions as one Arrow store: each sequence once, in the order of the data.

    Without filler rows, whatever the number of ranks. The store has the fields ``id``;
    ``position``, the number in the predicted store; the predictions, cut to their timesteps; and
    ``spans``, the timesteps that were predicted (start, stop), on an axis of that name. Where each
    sequence is there once, its id names it in the new store. Several data sets, given by name,
    become stores in folders of these names.

    ``predict_step`` gives a tensor with a row for each of ``batch`` or of ``batch.real()``, on any
    device, or a dict of such. The batch must be a SequenceBatch: not ``as_tuple``. The ranks must
    share the folder beside the location. Pass ``return_predictions=False`` to ``trainer.predict``,
    which else keeps everything in memory.

    Args:
        location: A folder, made where it is not there.
        field: The name of a tensor, or the entry of a dict; None: ``prediction``, or all entries.
        fields: Several entries of a dict.
        per: What there is one prediction for, for all fields or by name: ``sequence``; ``timestep``
            (the second dimension is the padded width), sequences that were split are put together;
            ``span``: one row of the store for each window or piece. None: ``timestep`` where the
            second dimension is that of every batch, else ``sequence``.
        overwrite: Whether stores that are there are replaced, at the end.
        partial: Whether some sequences may be missing, as with ``limit_predict_batches``.

    Raises:
        ConfigError: If an argument cannot be meant. While predicting: if outputs are not what can
            be written, or not all would be predicted.
        IncompleteEpochError: If rows are missing at the end.
        PlanError: If sequences are missing or there twice.

    Examples:
        >>> writer = PredictionWriter("out/", field="logits")
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        field: str | None = None,
        *,
        fields: Sequence[str] | None = None,
        per: Per | Mapping[str, Per] | None = None,
        overwrite: bool = False,
        partial: bool = False,
    ) -> None:
        self._root = local_path(location)
        self._wanted = Wanted(chosen_names(field, fields), per)
        self._overwrite = overwrite
        self._partial = partial
        self._run: _Run | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse to predict nothing."""
        del pl_module
        if stage == "predict" and trainer.limit_predict_batches == 0:
            raise ConfigError(
                "PredictionWriter: `limit_predict_batches` is 0, must leave something to predict; "
                "leave it out"
            )

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the folder that all ranks write to."""
        del pl_module
        self._run = _Run(World(trainer.global_rank, trainer.world_size), self._wanted)
        self._run.begin(self._root, adapter.world_of(trainer).rank, lambda: self._targets(trainer))

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Append the rows of a batch."""
        del trainer, pl_module
        if self._run is not None:
            self._run.add(outputs, batch, batch_idx, dataloader_idx)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the stores."""
        del trainer, pl_module
        if self._run is not None:
            self._run.finish()
            self._leave()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave nothing behind."""
        del trainer, pl_module, exception
        self._leave()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave nothing behind."""
        del trainer, pl_module, stage
        self._leave()

    def _leave(self) -> None:
        if self._run is not None:
            self._run.leave()
            self._run = None

    def _targets(self, trainer: Trainer) -> list[tuple[Player, Target]]:
        loaders = trainer.predict_dataloaders
        found = []
        for number, loader in enumerate(loaders if isinstance(loaders, list) else [loaders]):
            if not isinstance(loader, TrainerLoader):
                raise ConfigError(
                    f"PredictionWriter: the loader is a {type(loader).__name__}, must be that of a "
                    "SequenceDataModule; pass one as `datamodule`"
                )
            steps = trainer.num_predict_batches[number]
            found.append((loader.player, self._target(loader, int(steps))))
        return found

    def _target(self, loader: TrainerLoader, steps: int) -> Target:
        player, root = loader.player, self._root
        if loader.name is not None:
            if not is_plain_name(loader.name):
                raise ConfigError(
                    f"PredictionWriter: a data set is named {loader.name!r}, must be a plain file "
                    "name, as its predictions go to a folder of that name; rename it"
                )
            root = root / loader.name
        check_free(root, overwrite=self._overwrite)
        plan = player.plan(0)
        target = Target(
            store=player.store,
            root=root,
            axis=player.policy.axis,
            rows=plan.totals(0, len(plan))[1],
            spans=self._wanted.spans,
            partial=self._partial,
            overwrite=self._overwrite,
            last=getattr(player.policy, "keep", None) == "last",
        )
        if not self._partial:
            _check_all(player, target, steps)
        return target


def _check_all(player: Player, target: Target, steps: int) -> None:
    """Refuse what would not predict everything, before it begins."""
    planned = player.share(0, 0)
    will = planned.position(min(steps, len(planned)))
    if will < player.num_batches:
        raise ConfigError(
            f"PredictionWriter: {will} of {player.num_batches} batches would be predicted, must be "
            "all; leave out `limit_predict_batches`, `fast_dev_run` and `tail`='drop', or pass "
            "`partial`=True"
        )
    if not target.spans and target.rows < len(target.store):
        dropped = player.plan(0).report.dropped
        if len(dropped):
            raise left_out(target.store, dropped)


@dataclass(slots=True, eq=False)
class _Set:
    """One data set that is being predicted."""

    player: Player
    target: Target
    spill: Spill | None


class _Run:
    """One ``trainer.predict``, as one rank sees it.

    Args:
        world: All processes, which may be more than the data-parallel ranks.
        wanted: What is written.
    """

    def __init__(self, world: World, wanted: Wanted) -> None:
        self._world = world
        self._wanted = wanted
        self._sets: list[_Set] = []
        self._folder = Path()
        self._stack = ExitStack()

    def begin(
        self, root: Path, rank: int, targets: Callable[[], list[tuple[Player, Target]]]
    ) -> None:
        """Check all that can be checked before predicting, and make the folder for spills."""
        found = self._together(targets)
        folder = self._together(lambda: self._made(root) if self._world.rank == 0 else None)
        told = gather(self._world, (rank, str(folder)), patience=PATIENCE)
        self._folder = Path(told[0][1])
        self._together(self._check_seen)
        # of processes that hold the same rows (tensor parallel) the first writes
        first = [data_rank for data_rank, _ in told].index(rank)
        writes = first == (self._world.rank if len(told) > 1 else 0)
        for number, (player, target) in enumerate(found):
            spill = Spill(self._folder, number, self._world.rank) if writes else None
            self._sets.append(_Set(player, target, spill))

    def add(self, outputs: Any, batch: Any, step: int, number: int) -> None:
        """Append the rows of a batch; what is wrong with a first one is said on every rank."""
        if step:
            self._add(outputs, batch, number)
        else:
            self._together(lambda: self._add(outputs, batch, number))

    def finish(self) -> None:
        """Write the stores on rank 0; all ranks leave together."""
        mine = self._together(
            lambda: [one.spill.close() for one in self._sets if one.spill is not None]
        )
        told = gather(self._world, mine, patience=PATIENCE)
        self._together(lambda: self._write(told) if self._world.rank == 0 else None)

    def leave(self) -> None:
        """Remove what was written on the way."""
        for one in self._sets:
            if one.spill is not None:
                one.spill.remove()
        self._stack.close()

    def _made(self, root: Path) -> Path:
        beside = root.absolute().with_name(f".{root.absolute().name}.predicting")
        self._stack.callback(_remove_empty, beside)
        return self._stack.enter_context(aside(beside, overwrite=True))

    def _check_seen(self) -> None:
        if not self._folder.is_dir():
            raise ConfigError.at(
                f"PredictionWriter: rank {self._world.rank} cannot see {self._folder}, which rank "
                "0 made; give a location that all ranks share",
                rank=self._world.rank,
            )

    def _add(self, outputs: Any, batch: Any, number: int) -> None:
        one = self._sets[number]
        known = {} if one.spill is None else one.spill.fields
        rows = rows_of(outputs, batch, self._wanted, known, last=one.target.last)
        if rows is None or one.spill is None:
            return
        if not one.spill.fields and rows.guessed:
            longest = one.player.plan(0).measures.longest
            if longest.min() == longest.max():
                raise ambiguous(rows.guessed[0], int(longest.max()))
        one.spill.add(rows, f"in batch {batch.number}")

    def _write(self, told: list[list[Spilled]]) -> None:
        for number, one in enumerate(self._sets):
            spilled = [of_rank[number] for of_rank in told if of_rank]
            write_pool(pool_of(self._folder, spilled), one.target)

    def _together(self, work: Callable[[], Any]) -> Any:
        """Do this rank's work, and raise on every rank what failed on any."""
        made, error = None, None
        try:
            made = work()
        except SeqDataError as failure:
            error = failure
        except OSError as failure:
            error = ConfigError(
                f"PredictionWriter: {failure}, must be a folder that can be written; free space, "
                "or give another location"
            )
            error.__cause__ = failure
        agree(self._world, {}, error, patience=PATIENCE)
        return made


def _remove_empty(folder: Path) -> None:
    """Remove what a killed run has left of its folder, now that it is empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

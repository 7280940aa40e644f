"""Callback that writes the predictions of all ranks as a store or table.

Every rank appends its rows to files next to the output. At the end, rank 0 merges the files while
the other ranks wait.
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

from seqdata.errors import ConfigError, SeqDataError, check_flags, must_be
from seqdata.lightning import adapter
from seqdata.lightning.predictions.merge import (
    PredictionTarget,
    check_csv_fields,
    make_left_out_error,
    write_predictions,
)
from seqdata.lightning.predictions.outputs import (
    Per,
    PredictionSpec,
    choose_names,
    extract_rows,
    make_ambiguity_error,
)
from seqdata.lightning.predictions.spill import SpillManifest, SpillWriter, merge_spills
from seqdata.lightning.ranks.collect import all_gather, check_consistent
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading.base_engine import BaseEngine
from seqdata.sharing import World
from seqdata.storage.arrow.manifest import STORE_FILES
from seqdata.storage.local_files import is_plain_name, local_path
from seqdata.storage.writing.staging_dir import check_target, open_staging_dir
from seqdata.storage.writing.table_files import check_table_target, find_table_kind

WRITE_TIMEOUT = timedelta(days=1)
"""Maximum wait for a slower rank, and for rank 0 to write; a dead rank is detected earlier."""


class PredictionWriter(Callback):
    """Callback that writes predictions as one store or table, in the order of the data.

    The result has each sequence once and no padding rows, on any number of ranks. A store has these
    fields:

    - ``id``: id of the sequence, which is also its key in the new store if ids are unique.
    - ``position``: index of the sequence in the base of views and splits.
    - The predictions, without padding.
    - ``spans``: predicted timesteps of the sequence, int64 (n, 2), each (start, stop), on an axis
      of that name.

    If the DataModule has several datasets by name, each has its own store, in a folder of its name.

    A location that ends in ``.parquet``, ``.arrow``, ``.feather``, ``.jsonl`` or ``.csv`` is a
    table with the same columns, with lists for values of several numbers. CSV has no lists, so it
    has the columns ``start`` and ``stop`` instead of ``spans``. Several datasets have files such as
    ``NAME-DATASET.parquet``.

    ``predict_step`` must return a tensor with one row for each row of ``batch`` or of
    ``batch.real()``, on any device, or a dict of such tensors. The batch must be a SequenceBatch,
    not the result of ``as_tuple``. All ranks must share the parent folder of the location. Unless
    ``trainer.predict`` has ``return_predictions=False``, it also keeps all predictions in memory.

    Args:
        location: Folder of a store, which is created, or file of a table.
        field: Name for a tensor, or key of a dict; None: ``prediction``, or all entries.
        fields: Several keys of a dict; None: as ``field`` says.
        per: Unit of a prediction, for all fields or by name. ``sequence``: one row for each
            sequence. ``timestep``: the second dimension is the padded width, and parts of split
            sequences are joined. ``span``: one row of the store for each window or part. None:
            ``timestep`` if the second dimension is the width of every batch, else ``sequence``.
        overwrite: Whether to replace existing stores or files, at the end.
        partial: Whether some sequences may be missing, as with ``limit_predict_batches``.

    Raises:
        ConfigError: If an argument is invalid. In prediction, if outputs cannot be written, or if
            some batches would not be predicted.
        PlanError: If the policy drops sequences, or sequences are missing or were predicted twice.
        IncompleteEpochError: If rows are missing at the end.
        CorruptShardError: If the file of a rank changed before it was merged.

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
        check_flags("PredictionWriter", overwrite=overwrite, partial=partial)
        self._root = local_path(location)
        self._spec = PredictionSpec(choose_names(field, fields), per)
        self._overwrite = overwrite
        self._partial = partial
        self._session: _PredictionSession | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that batches will be predicted.

        Raises:
            ConfigError: If ``limit_predict_batches`` is 0.
        """
        del pl_module
        if stage == "predict" and trainer.limit_predict_batches == 0:
            raise ConfigError(
                "PredictionWriter: `limit_predict_batches` must be above 0, but is 0. Leave it out."
            )

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the location, and create the folder for the files of all ranks.

        Raises:
            ConfigError: If the location cannot be written, or some batches would not be predicted;
                every rank raises it.
            PlanError: If the policy drops sequences; every rank raises it.
        """
        del pl_module
        self._session = _PredictionSession(
            World(trainer.global_rank, trainer.world_size), self._spec
        )
        self._session.begin(
            self._root, adapter.get_world(trainer).rank, lambda: self._make_targets(trainer)
        )

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Append the rows of a batch.

        Raises:
            ConfigError: If the output cannot be written.
        """
        del trainer, pl_module
        if self._session is not None:
            self._session.add(outputs, batch, batch_idx, dataloader_idx)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the stores or tables on rank 0.

        Raises:
            IncompleteEpochError: If rows are missing.
            PlanError: If sequences are missing or were predicted twice.
            CorruptShardError: If the file of a rank changed before it was merged.
            ConfigError: If the location cannot be written, no row was predicted, or predictions of
                ranks differ in form.
        """
        del trainer, pl_module
        if self._session is not None:
            self._session.finish()
            self._clean_up()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the files of this rank."""
        del trainer, pl_module, exception
        self._clean_up()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the files of this rank."""
        del trainer, pl_module, stage
        self._clean_up()

    def _clean_up(self) -> None:
        if self._session is not None:
            self._session.clean_up()
            self._session = None

    def _make_targets(self, trainer: Trainer) -> list[tuple[BaseEngine, PredictionTarget]]:
        loaders = trainer.predict_dataloaders
        targets = []
        for index, loader in enumerate(loaders if isinstance(loaders, list) else [loaders]):
            if not isinstance(loader, TrainerLoader):
                raise ConfigError(
                    must_be(
                        "PredictionWriter: the loader",
                        "the loader of a SequenceDataModule",
                        f"a {type(loader).__name__}",
                        "Pass one as `datamodule`",
                    )
                )
            steps = trainer.num_predict_batches[index]
            targets.append((loader.engine, self._make_target(loader, int(steps))))
        return targets

    def _make_target(self, loader: TrainerLoader, steps: int) -> PredictionTarget:
        engine, root = loader.engine, self._root
        if loader.name is not None:
            if not is_plain_name(loader.name):
                raise ConfigError(
                    "PredictionWriter: the name of a dataset must be a plain file name, for "
                    f"the folder of its predictions, but is {loader.name!r}. Rename it."
                )
            is_file = find_table_kind(root) is not None
            name = f"{root.stem}-{loader.name}{root.suffix}" if is_file else loader.name
            root = root.with_name(name) if is_file else root / name
        if engine.options.on_error == "replace":
            raise ConfigError(
                "PredictionWriter: `on_error` of the DataModule must be 'raise' or 'mask', but is "
                "'replace', which predicts another sequence twice. Pass on_error='mask' to the "
                "DataModule and partial=True to PredictionWriter."
            )
        if find_table_kind(root) is None:
            check_target(root, STORE_FILES, overwrite=self._overwrite)
        else:
            check_table_target(root, overwrite=self._overwrite)
        plan = engine.plan(0)
        target = PredictionTarget(
            store=engine.store,
            root=root,
            axis=engine.policy.axis,
            rows=plan.totals(0, len(plan))[1],
            is_per_span=self._spec.has_spans,
            is_partial=self._partial,
            overwrite=self._overwrite,
            is_last_kept=getattr(engine.policy, "keep", None) == "last",
        )
        if not self._partial:
            _check_all_predicted(engine, target, steps)
        return target


def _check_all_predicted(engine: BaseEngine, target: PredictionTarget, steps: int) -> None:
    """Raise before predicting if some batches or sequences would be missing."""
    rank_plan = engine.share(0, 0)
    num_predicted = rank_plan.position(min(steps, len(rank_plan)))
    if num_predicted < engine.num_batches:
        raise ConfigError(
            f"PredictionWriter: only {num_predicted} of {engine.num_batches} batches would be "
            "predicted. Leave out `limit_predict_batches` and `fast_dev_run`, or pass "
            "`partial=True`."
        )
    if not target.is_per_span and target.rows < len(target.store):
        dropped = engine.plan(0).report.dropped
        if len(dropped):
            raise make_left_out_error(target.store, dropped)


@dataclass(slots=True, eq=False)
class _PredictedDataset:
    """Dataset that is being predicted."""

    engine: BaseEngine
    target: PredictionTarget
    spill_writer: SpillWriter | None


class _PredictionSession:
    """Session of ``trainer.predict`` on one rank.

    Args:
        world: This process and the number of processes, which may exceed that of ranks.
        spec: Outputs to write.
    """

    def __init__(self, world: World, spec: PredictionSpec) -> None:
        self._world = world
        self._spec = spec
        self._datasets: list[_PredictedDataset] = []
        self._root = self._folder = Path()
        self._stack = ExitStack()

    def begin(
        self,
        root: Path,
        rank: int,
        targets: Callable[[], list[tuple[BaseEngine, PredictionTarget]]],
    ) -> None:
        """Check the targets before predicting, and create the folder for spill files."""
        self._root = root
        targets_by_loader = self._run_on_all_ranks(targets)
        folder = self._run_on_all_ranks(
            lambda: self._make_folder(root) if self._world.rank == 0 else None
        )
        folder_by_rank = all_gather(self._world, (rank, str(folder)), timeout=WRITE_TIMEOUT)
        self._folder = Path(folder_by_rank[0][1])
        self._run_on_all_ranks(self._check_shared_folder)
        # Of several processes with the same rows (tensor parallel), the first one writes.
        first_writers = [data_rank for data_rank, _ in folder_by_rank].index(rank)
        writes = first_writers == (self._world.rank if len(folder_by_rank) > 1 else 0)
        for index, (engine, target) in enumerate(targets_by_loader):
            spill_writer = SpillWriter(self._folder, index, self._world.rank) if writes else None
            self._datasets.append(_PredictedDataset(engine, target, spill_writer))

    def add(self, outputs: Any, batch: Any, step: int, index: int) -> None:
        """Append the rows of a batch; an error in the first step is raised on every rank."""
        if step:
            self._add_rows(outputs, batch, index)
        else:
            self._run_on_all_ranks(lambda: self._add_rows(outputs, batch, index))

    def finish(self) -> None:
        """Write the stores on rank 0, while the other ranks wait."""
        own_manifests = self._run_on_all_ranks(
            lambda: [
                dataset.spill_writer.close()
                for dataset in self._datasets
                if dataset.spill_writer is not None
            ]
        )
        manifests_by_rank = all_gather(self._world, own_manifests, timeout=WRITE_TIMEOUT)
        self._run_on_all_ranks(
            lambda: self._write_stores(manifests_by_rank) if self._world.rank == 0 else None
        )

    def clean_up(self) -> None:
        """Remove the spill files."""
        with self._stack:
            for dataset in self._datasets:
                if dataset.spill_writer is not None:
                    dataset.spill_writer.remove()

    def _make_folder(self, root: Path) -> Path:
        spill_folder = root.absolute().with_name(f".{root.absolute().name}.predicting")
        self._stack.callback(_remove_empty, spill_folder)
        return self._stack.enter_context(
            open_staging_dir(spill_folder, STORE_FILES, overwrite=True)
        )

    def _check_shared_folder(self) -> None:
        if not self._folder.is_dir():
            raise ConfigError.at(
                f"PredictionWriter: rank {self._world.rank} cannot see {self._folder}, which "
                "rank 0 made. Pass a location that all ranks share",
                rank=self._world.rank,
            )

    def _add_rows(self, outputs: Any, batch: Any, index: int) -> None:
        dataset = self._datasets[index]
        earlier = {} if dataset.spill_writer is None else dataset.spill_writer.fields
        rows = extract_rows(
            outputs, batch, self._spec, earlier, is_last_kept=dataset.target.is_last_kept
        )
        if rows is None or dataset.spill_writer is None:
            return
        if not dataset.spill_writer.fields and find_table_kind(dataset.target.root) == "csv":
            check_csv_fields(dataset.target.root, rows.fields)
        if not dataset.spill_writer.fields and rows.guessed_names:
            max_lengths = dataset.engine.plan(0).measures.longest
            if max_lengths.min() == max_lengths.max():
                raise make_ambiguity_error(rows.guessed_names[0], int(max_lengths.max()))
        dataset.spill_writer.add(rows, f"in batch {batch.number}")

    def _write_stores(self, manifests_by_rank: list[list[SpillManifest]]) -> None:
        for index, dataset in enumerate(self._datasets):
            manifests = [
                rank_manifests[index] for rank_manifests in manifests_by_rank if rank_manifests
            ]
            write_predictions(merge_spills(self._folder, manifests), dataset.target)

    def _run_on_all_ranks(self, action: Callable[[], Any]) -> Any:
        """Run an action on this rank, and raise an error of any rank on every rank."""
        result, error = None, None
        try:
            result = action()
        except SeqDataError as failure:
            error = failure
        except OSError as failure:
            error = ConfigError(
                f"PredictionWriter: {self._root} cannot be written ({failure}), and nothing is "
                "saved there. Free space, or pass another location"
            )
            error.__cause__ = failure
        check_consistent(self._world, {}, error, timeout=WRITE_TIMEOUT)
        return result


def _remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

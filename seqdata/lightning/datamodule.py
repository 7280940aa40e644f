"""DataModule for the Trainer: data by kind, a policy, and a position in checkpoints."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from lightning.pytorch import LightningDataModule

from seqdata.arguments import check_arguments
from seqdata.code_digest import Description
from seqdata.errors import ConfigError, SeqDataError, must_be
from seqdata.fitting.estimator_names import resolve_estimators
from seqdata.fitting.statistics import Statistics
from seqdata.lightning import adapter
from seqdata.lightning.policy_names import PolicyName, register_policy_names
from seqdata.lightning.predictions.table import predict_table
from seqdata.lightning.ranks.collect import check_consistent
from seqdata.lightning.ranks.coordinator import ExceptionNotifier, RankCoordinator
from seqdata.lightning.ranks.settings import describe_settings, get_environment, get_versions
from seqdata.lightning.safe_classes import register_safe_classes
from seqdata.lightning.train_run import TrainRun, make_run_context
from seqdata.lightning.trainer_loader import (
    EpochCounter,
    LoaderIterator,
    TaggedBatch,
    TrainerLoader,
    add_evaluation_context,
    start_first_epoch,
)
from seqdata.lightning.trainer_settings import get_seed
from seqdata.loading.base_engine import BaseEngine, StepBatch
from seqdata.loading.error_log import MAX_ERRORS
from seqdata.loading.options import (
    DEFAULT_PREFETCH,
    DEFAULT_STALL_TIMEOUT,
    DTypes,
    OnChanged,
    OnError,
)
from seqdata.policies.fixed import Bucketed
from seqdata.protocols import Policy, Transform
from seqdata.readers.missing import Missing
from seqdata.resolve import CollatorLike
from seqdata.runs import descriptions
from seqdata.runs.data_sources import DataSources, RunContext
from seqdata.runs.locate_batch import FitGeometry, ReplayRequest, remake_batch
from seqdata.runs.options import DataKind, DataOptions, Locations, StatisticsFor
from seqdata.runs.replay import locate_drawn, make_replay_context
from seqdata.runs.run_record import RunRecord
from seqdata.sharing import Tail
from seqdata.storage.remote.options import Remote

register_policy_names()
register_safe_classes()
_KINDS_BY_STAGE: dict[str, tuple[DataKind, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}

_OTHER_NAME = "pytorch_lightning"  # the code of lightning.pytorch, as a package of its own
_IMPORTED_LATE = (
    "datamodule: the Trainer must be of lightning.pytorch, but is of pytorch_lightning, which was "
    "imported after SequenceDataModule. Write `import pytorch_lightning` above the first import of "
    "seqdata's DataModule"
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

if TYPE_CHECKING or _OTHER_NAME not in sys.modules:
    _Base = LightningDataModule
else:  # a Trainer looks for the class of its own package

    class _Base(LightningDataModule, importlib.import_module(_OTHER_NAME).LightningDataModule):
        """A DataModule under both names of Lightning."""


class SequenceDataModule(_Base):
    """DataModule for sequences, with equal steps on all ranks and exact resumes.

    Args:
        train: Training data: a path, an opened store, sequences in memory (arrays, dicts of fields,
            or a pandas, Polars or Arrow table), or a torch Dataset with ``lengths``. With a ``Mix``
            or ``Zip``: name -> one of these.
        val: Validation data: one of these, or name -> one of these for several loaders.
        test: Test data, in the same forms as ``val``.
        predict: Data to predict, in the same forms as ``val``.
        batching: Policy of the batches, or its registered name; None: ``Bucketed(32)``.
        eval_batching: Policy of val, test and predict, never shuffled; None: ``batching``, or the
            inner policy of a ``Weighted`` or ``Mix``, so that each sequence is evaluated once.
        batches_per_update: Number of batches of the plan, over all ranks, in one optimizer update.
            It sets the accumulation of the Trainer and the groups of a ``Mix``, so that a run is
            the same on any number of ranks. None: the accumulation of the Trainer applies.
        lengths: Lengths of the items of a Dataset: integers (items,) for ``train``, or kind ->
            integers, or a function item -> timesteps that runs once over all items.
        rates: Field or axis -> sampling rate, as in ``open_store``, for all locations. Axes with
            rates are linked: a window or chunk covers the same time on each of them.
        axes: Field or axis -> ``Axis(rate, offset)``, for all locations; for sequences in memory
            also field -> name of its axis.
        fields: Names of the fields to read; None: all.
        whole: Names of fields along other axes that each window or chunk includes completely. Other
            fields along such axes raise an error, unless the axes are linked.
        as_tuple: Names of fields and attributes of the batch to return as a tuple.
        as_dict: Names of fields and attributes of the batch to return as a dict.
        as_batch: Function of the batch whose result the model receives. On several ranks, the
            result must include ``batch.weight`` (or ``score``) if there may be padding batches.
        transform: ``transform(sequence, rng) -> dict``, or a ``columnar`` one. It keeps lengths, or
            declares the changed ones with ``.lengths``. It must be None for views made by
            ``measure_lengths``, which have their own; all locations must then be such views.
        eval_transform: Transform of val, test and predict; None: ``transform``.
        dtype: Dtype of floating fields, such as ``"float32"``; or field -> dtype. Numbers that do
            not fit raise an error. None: as stored.
        check_values: Whether to raise an error for a NaN or an infinity.
        collator: A collator, or its registered name; None: padded.
        collate_fn: A torch ``collate_fn``, whose result for a list of items is returned. The items
            of a Dataset, or of a list with ``lengths``, may be of any type.
        padding: Value of padding, for all fields or by name, including ``targets``; None: 0.
        shift: Timesteps between inputs and ``batch["targets"]``; with several fields name -> shift.
        sort_within_batch: Whether to sort the rows of a batch by descending length, except lanes.
        tail: Treatment of ranks without a batch in the last step of training: ``fill`` (a row of
            weight 0), ``drop`` (no uneven step) or ``repeat``. Evaluation always uses ``fill``.
        on_error: Treatment of a sequence that cannot be read or transformed: ``raise``; ``mask``:
            its row has weight 0; ``replace``: its row is the longest other row, cropped. Each rank
            lists the ids in a file in the log folder, such as ``seqdata-errors-rank0.jsonl``.
        max_errors: Maximum number of masked or replaced errors in a run, over ranks and resumes.
        on_changed: Treatment of training data that changed since a state was saved. ``error``
            raises. ``next_epoch`` begins the next epoch with the new data; at the end of an epoch,
            policy or seed may differ too. ``next_segment``, with
            ``Segments(Mix(...), batches=...)`` or ``Feedback``, continues with other parts or
            shares of the mixture from the next segment on.
        seed: Seed of order and transforms; None: the seed of ``seed_everything``, or else 0.
        num_workers: Number of worker processes of each rank and loader; 0: none.
        prefetch: Number of groups of batches that a thread reads ahead; 0: no thread.
        start_method: Start method of workers; None: ``forkserver`` if available, else ``spawn``.
        stall_timeout: Seconds without progress of a worker after which ``StallError`` is raised.
        persistent_workers: Whether to keep workers of an evaluation alive for the next evaluation.
            Workers of training live until the end of the fit.
        pin_memory: Whether to copy batches into pinned memory; None: if the Trainer uses CUDA.
        group: Column that identifies the sequence of a row, for tables with a row per timestep, as
            in ``open_store``. It applies to all locations, as do ``order``, ``id`` and ``backend``.
        order: Column by which the rows of each group are sorted.
        id: Field that names sequences.
        backend: Backend that opens the locations, as in ``open_store``.
        remote: Access to the URLs among the locations, as in ``open_store``.
        split: Parts of ``train``: ``{"train": 0.8, "val": 0.2}``, with ``test`` and ``predict`` if
            needed, as fractions of the sequences, or as ranges such as ``"..2024-01-01"`` with
            ``along``. Other keys are the options ``by``, ``along``, ``seed``, ``stratify``,
            ``exact``, ``context`` and ``unit`` of ``split``. Without a part ``predict``, the part
            ``test``, or else ``val``, is the data to predict.
        statistics: Field -> estimator, such as ``MeanStd()``, its name, or in YAML its
            ``class_path`` and ``init_args``; or the result of ``fit``; or a function of the
            training part that returns such a mapping. Estimators are fitted in ``setup``, on the
            training part only, and applied before ``transform``. Checkpoints include the fitted
            statistics, which resumed runs and evaluations use again.
        where: Selection of sequences: field -> a value, a list of values, or a range
            ``"start..stop"`` of numbers or dates, where ``length`` is the number of timesteps; or a
            function of a sequence that returns a bool.
        rename: Field -> new name, which all other arguments use.
        prepare: Function that runs before the split. It takes an opened store, and returns the
            store to use, or this store and a list of notes for ``describe``.
        missing: Rule for missing values of tables with ``group``, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import MeanStd
        >>> rows = [{"x": [float(number)] * 4} for number in range(10)]
        >>> data = SequenceDataModule(
        ...     train=rows, split={"train": 0.8, "val": 0.2}, statistics={"x": MeanStd()}
        ... )
        >>> data.setup("fit")
        >>> data.sizes["features"]
        {'x': 1}
    """

    _label: str | None = None  # a field that is not a feature

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        *,
        train: Locations | None = None,
        val: Locations | None = None, test: Locations | None = None,
        predict: Locations | None = None,
        batching: Policy | PolicyName | str | None = None,
        eval_batching: Policy | PolicyName | str | None = None,
        batches_per_update: int | None = None,
        lengths: Any = None,
        rates: Mapping[str, Any] | None = None,
        axes: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        whole: Sequence[str] | None = None,
        as_tuple: Sequence[str] | None = None, as_dict: Sequence[str] | None = None,
        as_batch: Callable[..., Any] | None = None,
        transform: Transform | None = None,
        eval_transform: Transform | None = None,
        dtype: DTypes | None = None,
        check_values: bool = False,
        collator: CollatorLike | str | None = None,
        collate_fn: Callable[..., Any] | None = None,
        padding: float | dict[str, float] | None = None,
        shift: int | Mapping[str, int] = 0, sort_within_batch: bool = False,
        tail: Tail = "fill",
        on_error: OnError = "raise",
        max_errors: int = MAX_ERRORS,
        on_changed: OnChanged = "error",
        seed: int | None = None,
        num_workers: int = 0,
        prefetch: int = DEFAULT_PREFETCH, start_method: str | None = None,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        persistent_workers: bool = False, pin_memory: bool | None = None,
        group: str | None = None, order: str | None = None,
        id: str | None = None, backend: Any = None, remote: Remote | str | None = None,
        split: dict[str, Any] | None = None,
        statistics: Statistics | dict[str, Any] | StatisticsFor | None = None,
        where: Callable[[Any], bool] | dict[str, Any] | None = None,
        rename: dict[str, str] | None = None,
        prepare: Callable[..., Any] | None = None,
        missing: Missing | None = None,
    ) -> None:  # fmt: skip
        given = {**locals()}
        super().__init__()
        given["batching"] = Bucketed(32) if batching is None else batching
        given["statistics"] = resolve_estimators(statistics)
        options = {each.name: given[each.name] for each in fields_of(DataOptions)}
        self._options = DataOptions(**options)
        self._run_record = RunRecord()
        self._folder: Path | None = None  # of the run
        self._sources = DataSources(self._options, self._run_record.make_command)
        self._train_run: TrainRun | None = None
        self._coordinator = RankCoordinator()
        self._notifier = self._make_notifier(self._coordinator)
        has_val = self._options.get_given("val") is not None
        if not has_val and type(self).val_dataloader is SequenceDataModule.val_dataloader:
            self._hide_validation()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a Trainer must be of a package that the class inherits from.

        Raises:
            ConfigError: If the Trainer is of ``pytorch_lightning``, which was imported too late.
        """
        other: Any = sys.modules.get(_OTHER_NAME)
        if name == "trainer" and value is not None:
            is_of_other = other is not None and isinstance(value, other.Trainer)
            if is_of_other and not isinstance(self, other.LightningDataModule):
                raise ConfigError(_IMPORTED_LATE)
            if "val_dataloader" in vars(self):
                self._hide_validation(other.LightningDataModule if is_of_other else None)
        super().__setattr__(name, value)

    def _hide_validation(self, other_base: Any = None) -> None:
        """Hide ``val_dataloader``, without which a Trainer does not validate."""
        base = other_base or LightningDataModule
        absent: Any = functools.partial(base.val_dataloader, cast(Any, None))
        self.val_dataloader = absent  # type: ignore[method-assign]

    def __iter__(self) -> NoReturn:
        """Raise an error, because a Trainer of the other package iterates over it as a loader.

        Raises:
            ConfigError: Always.
        """
        if _OTHER_NAME in sys.modules and _Base is LightningDataModule:
            raise ConfigError(_IMPORTED_LATE)
        raise ConfigError(
            f"datamodule: a {type(self).__name__} cannot be iterated over. Iterate over its "
            "`train_dataloader()`, or pass it to the Trainer as `datamodule`"
        )

    def __str__(self) -> str:
        """Return the class, kinds of data and policy; Lightning would iterate over each loader."""
        return descriptions.format_title(type(self).__name__, self._options)

    def __repr__(self) -> str:
        return descriptions.describe_opened(str(self), self._sources)

    def _repr_html_(self) -> str:
        return descriptions.format_opened(str(self), self._options, self._sources)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without Trainer, run and threads."""
        coordinator = RankCoordinator()
        return {
            **self.__dict__,
            "trainer": None,
            "_train_run": None,
            "_folder": None,
            "_coordinator": coordinator,
            "_notifier": self._make_notifier(coordinator),
        }

    def _make_notifier(self, coordinator: RankCoordinator) -> ExceptionNotifier:
        return ExceptionNotifier(coordinator.leave_by_exception, self._sources.end_evaluation)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that belongs to no Trainer."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def setup(self, stage: str = "fit") -> None:
        """Open the data of a stage (by default of a fit) once, and compare it over all ranks.

        Raises:
            SeqDataError: If a rank cannot open or plan the data, or ranks differ; raised on all.
        """
        error, values, noted = None, dict[str, Any](), dict[str, Any]()
        self._folder = adapter.get_run_folder(self.trainer)  # collective: before a rank can fail
        try:
            values, noted = self._prepare(stage)
        except SeqDataError as failure:
            error = failure
        world, advisory = adapter.get_world(self.trainer), None
        if world.size > 1:
            device = None if self.trainer is None else self.trainer.strategy.root_device
            values, advisory = {**get_versions(), **values}, {**get_environment(device), **noted}
        check_consistent(world, values, error, advisory=advisory)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a saved fit; outside a fit, only its statistics.

        Raises:
            ResumeError: If the state does not match this run; the message has the reason.
            ConfigError: If the rest of the epoch has padding rows that the output does not mark.
        """
        if self._train_run is not None and adapter.is_fitting(self.trainer):
            if self._sources.restore_fitted(state_dict):
                self._options = self._sources.options
                self._prepare_fit(make_run_context(self.trainer, self._options, self._folder))
            self._train_run.load_state_dict(state_dict)
        else:
            self._sources.restore_statistics(state_dict)
            self._options = self._sources.options

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the fit, equal on all ranks; empty without a fit.

        All ranks must call it. The state has the position, everything that determines the plan
        (about 1 kB of JSON), the statistics of transforms, the weights of ``Feedback``, and, in the
        middle of an epoch, the training states of all ``LaneStates``.
        """
        return {} if self._train_run is None else self._train_run.state_dict()

    def train_dataloader(self) -> TrainerLoader:
        """Return the training loader.

        Raises:
            ConfigError: If there is no training data, or ``setup`` of a subclass did not open it.
        """
        engine, run = self._get_engines("train")[0], self._train_run
        if run is None:
            return TrainerLoader(engine, EpochCounter())
        start, epoch = run.begin_iteration, run.epoch
        return TrainerLoader(engine, start, synchronize=self._synchronize, epoch=epoch)

    def val_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Return the validation loader, or a list of loaders in the order of ``val``."""
        return self._make_evaluation_loaders("val")

    def test_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Return the test loader, or a list of loaders in the order of ``test``."""
        return self._make_evaluation_loaders("test")

    def predict_dataloader(self) -> TrainerLoader | list[TrainerLoader]:
        """Return the prediction loader, or a list of loaders in the order of ``predict``."""
        return self._make_evaluation_loaders("predict")

    def stop(self, why: str) -> None:
        """Make every rank raise ``PreemptedError`` before the same next batch.

        The batch may be of training or of an evaluation. The call only sets a flag, so that a
        signal handler of any rank may call it.

        Args:
            why: Reason in the message, such as the name of the signal.
        """
        self._coordinator.stop(why)

    def replay(
        self,
        *,
        epoch: int,
        batch: int | None = None,
        step: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        from_position: int | None = None,
        kind: DataKind = "train",
        name: str | None = None,
    ) -> StepBatch:
        """Rebuild one batch of a run bit for bit; for a ``Zip``, name -> batch of each part.

        No Trainer is needed. A batch is identified by its epoch and index, which are attributes of
        the batch and of every error in it, or by a step of a rank. Ranks and positions default to
        those of the latest fit.

        Args:
            epoch: Epoch of the plan.
            batch: Index of the batch in the plan.
            step: Index of a step of a rank, if ``batch`` is None.
            rank: Rank of the step; with ``batch``, rank of the lanes.
            world: Number of ranks.
            from_position: Number of batches of the epoch that were trained before the run began.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Name of the dataset, if there are several of that kind.

        Raises:
            ConfigError: If the arguments do not identify a batch, or its weights are unknown.
            PlanError: If the batch does not exist.
            DataError: If a sequence of the batch cannot be read or transformed, as in the run.
        """
        request = ReplayRequest(
            epoch=epoch, batch=batch, step=step, rank=rank, world=world, from_position=from_position
        )
        geometry = self._run_record.geometry or FitGeometry(seed=get_seed(self._options))
        geometry = geometry if kind == "train" else geometry.for_evaluation
        context = make_replay_context(geometry, kind)
        engine = self._sources.make_replay_engine(kind, name, context)
        engine.continue_order(geometry.run_position, geometry.balance_ranks)
        located = locate_drawn(engine, request, geometry, self._run_record.folder)
        return remake_batch(engine, located)

    def replay_command(
        self, *, epoch: int, batch: int, kind: DataKind = "train", name: str | None = None
    ) -> str:
        """Return the command that replays a batch, or a Python call if there is no command.

        Args:
            epoch: Epoch of the plan.
            batch: Index of the batch in the plan.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Name of the dataset, if there are several of that kind.
        """
        return self._run_record.make_command(kind, name, epoch, batch)

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the data; None if there are none, or before ``setup`` has fitted them."""
        found = self._options.statistics
        return found if isinstance(found, Statistics) else None

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Sizes that a model needs: kind -> field -> size; opens the data, and fits statistics.

        ``features`` is the number of features of a timestep, or of a value per sequence, for fields
        of floats or with statistics, except labels. ``vocabulary`` is the number of ids of tokens,
        including padding and unknown ones, or of categories. ``classes`` is the number of labels.

        Raises:
            SeqDataError: If the data cannot be opened.
        """
        self._fit_statistics()
        return descriptions.measure_sizes(self._options, self._sources, self._label)

    def describe(self) -> str:
        """Return lines of text about the opened, sorted, filled, skipped, split and fitted data.

        Raises:
            SeqDataError: If the data cannot be opened.
        """
        self._fit_statistics()
        return descriptions.describe_sources(str(self), self._options, self._sources)

    def predict(
        self, trainer: Any, model: Any, *, ckpt_path: Any = None, per: Any = None
    ) -> pa.Table:
        """Predict with a model, and return the predictions as an Arrow table, equal on every rank.

        The data is ``predict``, or, without it, the part ``predict``, ``test`` or ``val`` of
        ``split``. A row is a timestep (of the horizon, for windows with one), or, if no prediction
        is per timestep, a sequence or window. Columns are the id, any date, the ``position`` in the
        data, ``timestep``, any ``step``, and predictions: ``<field>_pred`` in the unit of a field.

        Args:
            trainer: A Trainer.
            model: Model whose ``predict_step`` returns a tensor (rows, ...), or a dict of them.
            ckpt_path: Checkpoint, as in ``trainer.predict``.
            per: Unit of a prediction, as in ``PredictionWriter``.

        Raises:
            ConfigError: If there is no data to predict, or several datasets.
        """
        return predict_table(trainer, model, self, self._sources, ckpt_path, per)

    def _fit_statistics(self) -> None:
        if self._sources.fit_statistics():
            self._options = self._sources.options

    def on_exception(self, exception: BaseException) -> None:
        """Stop threads and workers, and add a note about the batch to an exception of a step."""
        add_evaluation_context(self.trainer, exception)
        if self._train_run is not None:
            self._train_run.add_context(
                exception, functools.partial(self._run_record.make_command, "train", None)
            )
            self._train_run.restore_trainer()
        self._coordinator.leave_by_exception(exception)
        self._shut_down()

    def teardown(self, stage: str) -> None:
        """Stop threads and workers, and, after a fit, restore the Trainer's settings."""
        self._shut_down()
        if stage == "fit" and self._train_run is not None:
            self._train_run.restore_trainer()

    def _prepare(self, stage: str) -> Description:
        """Create the engines of a stage, and return the description that ranks compare."""
        if stage not in _KINDS_BY_STAGE:
            stages = "'fit', 'validate', 'test' or 'predict'"
            raise ConfigError(must_be("datamodule: `stage`", stages, repr(stage)))
        context = make_run_context(self.trainer, self._options, self._folder)
        adapter.attach(self.trainer, self._notifier, first=True)
        given = self._sources.given_description
        values, noted = {"stage": stage, **given.fixed}, given.changing
        self._fit_statistics()
        if isinstance(self._options.statistics, Statistics):
            values["fitted statistics"] = self._options.statistics.digest
        for kind in _KINDS_BY_STAGE[stage]:
            for index, engine in enumerate(self._sources.prepare_engines(kind, context)):
                described = {**engine.describe(), "batches": engine.num_batches}
                values |= {f"{name} of {kind} {index}": value for name, value in described.items()}
        if stage == "fit":
            self._prepare_fit(context)
        if self.trainer is not None:
            settings = describe_settings(self.trainer)
            values, noted = {**values, **settings.fixed}, {**noted, **settings.changing}
        return Description(values, noted)

    def _prepare_fit(self, context: RunContext) -> None:
        trainer, engines = self.trainer, self._get_engines("train")
        if trainer is None:
            return
        train_run = self._train_run
        if train_run is None or not train_run.is_of(trainer, engines[0]):
            train_run = TrainRun(
                trainer, engines[0], context.world, self._sources, self._run_record,
                self._coordinator, is_other=train_run is not None,
            )  # fmt: skip
        train_run.prepare_fit()
        self._train_run = train_run

    def _get_engines(self, kind: DataKind) -> list[BaseEngine]:
        due = _KINDS_BY_STAGE.get(adapter.get_running_stage(self.trainer), ())
        if kind in due and kind not in self._sources.prepared_kinds:
            raise ConfigError(
                f"datamodule: `{type(self).__qualname__}.setup` must call `super().setup(stage)`, "
                "which opens the data, but does not. Add the call"
            )
        if kind not in self._sources.prepared_kinds:
            self._fit_statistics()
        engines = self._sources.get_engines(kind) or self._sources.make_engines(
            kind, make_run_context(self.trainer, self._options, self._folder)
        )
        if not engines:
            raise ConfigError(must_be(f"datamodule: `{kind}`", "a location", "None", "Pass it"))
        return engines

    def _make_evaluation_loaders(self, kind: DataKind) -> TrainerLoader | list[TrainerLoader]:
        start = EpochCounter(is_evaluation=True) if self.trainer is None else start_first_epoch
        names = self._options.get_names(kind)
        loaders = [
            TrainerLoader(engine, start, name, synchronize=self._synchronize)
            for engine, name in zip(self._get_engines(kind), names, strict=True)
        ]
        return loaders if self._options.is_named(kind) else loaders[0]

    def _synchronize(
        self, iteration: LoaderIterator, batches: Iterator[TaggedBatch]
    ) -> Iterator[TaggedBatch]:
        """Synchronize the batches of a Trainer's loop over all ranks; return others unchanged."""
        trainer = self.trainer
        if trainer is None or not adapter.is_drawn_from(trainer, iteration):
            return batches
        train_run, counter, is_last = self._train_run, None, None
        if train_run is not None and iteration.loader.engine is train_run.engine:
            counter, feedback = train_run.errors.counter, train_run.feedback
            is_last = None if feedback is None else feedback.ends_segment
        return self._coordinator.iterate_synchronized(batches, trainer.world_size, counter, is_last)

    def _shut_down(self) -> None:
        self._coordinator.leave()
        self._sources.shutdown()
        if self._train_run is not None:
            adapter.detach(self._train_run.trainer, self._train_run.callback)
        adapter.detach(self.trainer, self._notifier)

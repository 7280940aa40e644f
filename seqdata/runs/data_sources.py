"""Stores and engines of a DataModule, opened once, and made again only in another context."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from seqdata.code_digest import Description
from seqdata.errors import ConfigError, ResumeError, SeqDataError, warn
from seqdata.fitting.compose import then_transform
from seqdata.fitting.fit import fit
from seqdata.fitting.statistics import Statistics
from seqdata.host import default_host
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.engine import make_engine
from seqdata.loading.error_log import LOG, ErrorLog
from seqdata.loading.options import EngineOptions
from seqdata.logical_types import Categories
from seqdata.planning.policy import disable_shuffle, group_updates, has_draws
from seqdata.policies.segments import Segments
from seqdata.protocols import Policy, Store
from seqdata.resolve import (
    is_collate_fn,
    resolve_collator,
    resolve_parts,
    resolve_policy,
    takes_lengths,
)
from seqdata.runs.options import DataKind, DataOptions, choose_eval_policy
from seqdata.runs.source import OpenedSource, describe_shares, open_source, split_source
from seqdata.sharing import World
from seqdata.storage.views import View

STATISTICS = "statistics"
"""Key of fitted statistics in the state of a DataModule."""

ReplayHintFn = Callable[[DataKind, str | None, int, int], str]
_UNLISTED = (
    "no folder was set for the run, so that errors in the data are logged and counted, but not "
    "listed in a file. Pass `default_root_dir`, such as '.', or a logger to the Trainer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Settings of a run on which engines depend.

    Attributes:
        world: This rank and the number of ranks.
        seed: Seed of order and transforms.
        overfit: Whether the Trainer overfits a few batches: always epoch 0, not shuffled.
        folder: Folder of the list of errors in the data; None: no list.
        is_on_cuda: Whether batches go to a CUDA device.
        segment_batches: Number of training batches after which the run changes weights; None: it
            does not change them.
        balance_ranks: Number of ranks that steps are balanced for; None: that of ``world``.
    """

    world: World
    seed: int
    overfit: bool
    folder: Path | None = None
    is_on_cuda: bool = False
    segment_batches: int | None = None
    balance_ranks: int | None = None


class DataSources:
    """Cache of the opened stores and engines of a DataModule, by kind.

    Args:
        options: Options of the DataModule.
        replay_hint: Function of kind, name of the location, epoch and batch index that returns the
            command that replays a batch; None: there is no command.
    """

    def __init__(self, options: DataOptions, replay_hint: ReplayHintFn | None = None) -> None:
        self._options = options
        self._replay_hint = replay_hint
        self._stores: dict[DataKind, list[Store]] = {}
        self._vocabularies: dict[str, tuple[DataKind, Categories]] = {}
        self._engines: dict[DataKind, list[BaseEngine]] = {}
        self._contexts: dict[DataKind, RunContext] = {}
        self._error_log: ErrorLog | None = None  # of all engines of this process
        self._given_description: Description | None = None
        self._parts: dict[DataKind, dict[str | None, Store]] = {}
        self._notes: dict[DataKind, tuple[str, ...]] = {}
        self._split_notes: list[str] = []
        self._is_split_logged = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: without engines, which have threads."""
        return {**self.__dict__, "_engines": {}, "_contexts": {}, "_error_log": None}

    def prepare_engines(self, kind: DataKind, context: RunContext) -> list[BaseEngine]:
        """Return the engines of a kind, cached until their context changes."""
        if kind != "train":
            context = replace(context, segment_batches=None)  # only training has segments
        if context != self._contexts.get(kind):
            engines = self.make_engines(kind, context)  # if that fails, the others stay
            for engine in self._engines.pop(kind, ()):
                engine.shutdown()
            self._engines[kind], self._contexts[kind] = engines, context
        return self._engines[kind]

    @property
    def options(self) -> DataOptions:
        """Options of the DataModule."""
        return self._options

    @property
    def given_description(self) -> Description:
        """Description of the options before they are used, which ranks compare."""
        if self._given_description is None:
            self._given_description = self._options.describe()
        return self._given_description

    @property
    def notes(self) -> dict[DataKind, tuple[str, ...]]:
        """Kind -> notes on the opening of its data."""
        return dict(self._notes)

    @property
    def split_notes(self) -> list[str]:
        """Notes on the split of the source."""
        return list(self._split_notes)

    @property
    def prepared_kinds(self) -> list[DataKind]:
        """Kinds whose engines are cached."""
        return list(self._engines)

    def change_options(self, options: DataOptions) -> None:
        """Replace the options; cached engines are made again."""
        self.shutdown()
        self._options, self._given_description = options, None
        for kind in self.prepared_kinds:
            self._engines[kind] = self.make_engines(kind, self._contexts[kind])

    def fit_statistics(self) -> bool:
        """Fit the statistics on the training data, unless they are fitted.

        Return whether the options changed; a function may return no estimators, which removes it.

        They are the same bit for bit on every rank: sums are exact.
        """
        options = self._options
        if options.statistics is None or isinstance(options.statistics, Statistics):
            return False
        if not options.statistics or options.train is None:
            return False
        (store,) = self._get_stores("train")
        estimators: Any = options.statistics
        if callable(estimators):
            estimators = estimators(store)
        if not estimators:
            self._options = replace(options, statistics=None)
            return True
        fitted = fit(store, estimators, num_workers=options.num_workers, progress=False)
        self._options = replace(options, statistics=fitted)
        return True

    def restore_fitted(self, state: Mapping[str, Any]) -> bool:
        """Replace fitted statistics by saved ones with a warning; return whether they differed.

        Args:
            state: The saved state.

        Raises:
            ResumeError: If the saved statistics are damaged.
        """
        current = self._options.statistics
        if STATISTICS not in state or not isinstance(current, Statistics):
            return False
        saved = _load_statistics(state)
        if saved.digest == current.digest:
            return False
        warn(
            f"resume: the statistics of the data are {current.digest}, but the model was trained "
            f"with {saved.digest}, which are used",
        )
        self.change_options(replace(self._options, statistics=saved))
        return True

    def get_store(self, kind: DataKind) -> Store | None:
        """Return the first store of a kind, opened if it is not; None if there is none."""
        return next(iter(self._get_stores(kind)), None)

    def make_statistics_state(self) -> dict[str, Any]:
        """Return the statistics of the training transform as an entry of a state, or no entry."""
        statistics = _find_statistics(self._options, "train")
        return {} if statistics is None else {STATISTICS: statistics.state_dict()}

    def restore_statistics(self, state: Mapping[str, Any]) -> None:
        """Transform the data with the saved statistics, unless ``transform`` was passed.

        Saved statistics replace those of the option ``statistics``. A warning is issued if the
        statistics of the data differ from the saved ones.

        Args:
            state: The saved state.

        Raises:
            ResumeError: If the saved statistics are damaged.
        """
        if STATISTICS not in state:
            return
        saved = _load_statistics(state)
        options, kinds = self._options, self.prepared_kinds
        if isinstance(options.statistics, Statistics):
            self.restore_fitted(state)
            return
        if options.statistics is not None:
            self.change_options(replace(options, statistics=saved))
            return
        for kind in kinds:
            own = _find_statistics(options, kind)
            if own is not None and own.digest != saved.digest:
                warn(
                    f"datamodule: `transform` of {kind!r} has the statistics {own.digest}, but the "
                    f"model was trained with {saved.digest}. Leave `transform` out to use those of "
                    "the checkpoint.",
                )
        if all(_find_transform(options, kind) is None for kind in kinds):
            self.change_options(replace(options, transform=saved.transform()))

    def get_engines(self, kind: DataKind) -> list[BaseEngine]:
        """Return the cached engines; none before ``setup``."""
        return self._engines.get(kind, [])

    def list_fingerprints(self, kinds: Iterable[DataKind]) -> dict[str, list[str]]:
        """Return kind -> fingerprints of its locations; no fingerprints before ``setup``."""
        return {kind: [e.index.fingerprint for e in self.get_engines(kind)] for kind in kinds}

    def make_engines(self, kind: DataKind, context: RunContext) -> list[BaseEngine]:
        """Make the engines of a kind, one per location."""
        engine_options = replace(
            self._make_engine_options(kind, context),
            error_log=self._get_error_log(context),
            on_plan_ready=default_host().plan_ready,
        )
        self._check_vocabularies(kind)
        if not self._is_split_logged and context.world.rank == 0:
            for note in self._split_notes:
                LOG.warning("datamodule: %s", note)
            self._is_split_logged = True
        return [
            make_engine(
                store, self._resolve_policy(kind, context, name),
                self._add_loader_name(engine_options, kind, name),
            )
            for store, name in zip(
                self._get_stores(kind), self._options.get_names(kind), strict=True
            )
        ]  # fmt: skip

    def _check_vocabularies(self, kind: DataKind) -> None:
        """Raise if codes of a field stand for other strings than in data that was opened before.

        Fields that statistics encode are omitted: they go by the strings.

        Raises:
            ConfigError: If so; the message names both kinds of data, and a string.
        """
        encoded = _find_statistics(self._options, kind) or ()
        chosen = self._options.fields
        for store in self._get_stores(kind):
            for name, field in store.fields.items():
                is_read = chosen is None or name in chosen
                if not isinstance(field.logical, Categories) or name in encoded or not is_read:
                    continue
                first, known = self._vocabularies.setdefault(name, (kind, field.logical))
                if known == field.logical:
                    continue
                pairs = itertools.zip_longest(known.values, field.logical.values)
                code, both = next((at, pair) for at, pair in enumerate(pairs) if len(set(pair)) > 1)
                raise ConfigError(
                    f"datamodule: codes of field {name!r} must stand for the same strings in all "
                    f"data, but {code} is {both[0]!r} in {first!r} and {both[1]!r} in {kind!r}. "
                    f"Pass statistics={{{name!r}: Vocabulary()}}, which encodes the strings, leave "
                    "the field out by `fields`, or split one table"
                )

    def make_replay_engine(
        self, kind: DataKind, name: str | None, context: RunContext
    ) -> BaseEngine:
        """Make an engine that rebuilds single batches, in this process and without hooks.

        Args:
            kind: Kind of the data.
            name: Name of the location, if there are several.
            context: Context of the run.

        Raises:
            ConfigError: If there is no such location.
        """
        names = self._options.get_names(kind) if kind in get_args(DataKind) else []
        if name not in names:
            raise ConfigError(
                f"replay: there is no data for `kind` {kind!r} and `name` {name!r}. {kind} has "
                f"{', '.join(map(repr, names)) or 'none'}."
            )
        engine_options = self._make_engine_options(kind, context)
        engine_options = replace(engine_options, num_workers=0, prefetch=0, pin_memory=False)
        store = self._get_stores(kind)[names.index(name)]
        engine_options = replace(engine_options, name=_make_loader_name(kind, name))
        return make_engine(store, self._resolve_policy(kind, context, name), engine_options)

    def _add_loader_name(
        self, engine_options: EngineOptions, kind: DataKind, name: str | None
    ) -> EngineOptions:
        hint = (
            None if self._replay_hint is None else functools.partial(self._replay_hint, kind, name)
        )
        return replace(engine_options, replay_hint=hint, name=_make_loader_name(kind, name))

    def find_policy(self, kind: DataKind) -> Policy:
        """Return the policy of the first location of an evaluation."""
        options = self._options
        name = next(iter(options.get_names(kind)), None)
        batching = options.batching if options.eval_batching is None else options.eval_batching
        return choose_eval_policy(resolve_policy(batching), kind, name)

    def _resolve_policy(self, kind: DataKind, context: RunContext, name: str | None) -> Policy:
        options, is_evaluation = self._options, kind != "train"
        batching = options.batching
        if is_evaluation and options.eval_batching is not None:
            batching = options.eval_batching
        policy = resolve_policy(batching)
        if is_evaluation:
            policy = choose_eval_policy(policy, kind, name)
        elif options.batches_per_update is not None:
            policy = group_updates(policy, options.batches_per_update)
        if is_evaluation and batching is options.eval_batching and has_draws(policy):
            raise ConfigError(
                "datamodule: `eval_batching` must return each sequence once, but draws some of "
                "them several times. Pass the inner policy, or leave it out: evaluation then "
                "takes the inner policy of `batching`."
            )
        if is_evaluation or context.overfit:
            policy = disable_shuffle(policy)
        elif context.segment_batches is not None:
            policy = Segments(policy, context.segment_batches)
        return policy

    def _make_engine_options(self, kind: DataKind, context: RunContext) -> EngineOptions:
        options = self._options
        transform = options.transform
        if kind != "train" and options.eval_transform is not None:
            transform = options.eval_transform
        if options.statistics is not None and self._get_stores(kind):
            store = self._get_stores(kind)[0]
            transform = then_transform(options.statistics, transform, store.fields)
        world = context.world
        if kind != "train":  # rows are not split in time
            world = World(world.rank, world.size)
        return options.make_engine_options(
            world=world,
            seed=context.seed,
            error_log=ErrorLog(options.max_errors),
            tail=options.tail if kind == "train" else "fill",  # an evaluation leaves out no row
            is_evaluation=kind != "train",
            persistent_workers=options.persistent_workers or kind == "train",
            transform=transform,
            collator=None if options.collator is None else resolve_collator(options.collator),
            overfit=context.overfit,
            batches_per_update=options.batches_per_update,
            balance_ranks=context.balance_ranks,
            pin_memory=context.is_on_cuda if options.pin_memory is None else options.pin_memory,
        )

    def _get_error_log(self, context: RunContext) -> ErrorLog:
        name = f"seqdata-errors-rank{context.world.rank}.jsonl"
        folder = context.folder
        path = None if folder is None else folder / name
        if self._error_log is None or self._error_log.path != path:
            if path is None and self._options.on_error != "raise" and context.world.rank == 0:
                LOG.warning("datamodule: %s", _UNLISTED)
            self._error_log = ErrorLog(self._options.max_errors, path, count_listed=False)
        return self._error_log

    def end_evaluation(self) -> None:
        """End the workers of evaluations, unless they are persistent."""
        for kind, engines in self._engines.items():
            for engine in engines:
                if kind != "train" and not engine.options.persistent_workers:
                    engine.end_workers()

    def shutdown(self) -> None:
        """Stop all threads and worker processes of the engines."""
        for engines in self._engines.values():
            for engine in engines:
                engine.shutdown()
        if self._error_log is not None:
            self._error_log.report_missing()

    def _get_stores(self, kind: DataKind) -> list[Store]:
        if kind not in self._stores:
            options, part = self._options, self._options.find_part(kind)
            opened = self._split()[part] if part is not None else self._open_kind(kind)
            locations = options.get_locations(kind)
            if kind == "train" and locations and isinstance(locations[0], Mapping):
                policy, as_items = resolve_policy(options.batching), is_collate_fn(options.collator)
                parts = {str(name): part for name, part in opened.items()}
                self._stores[kind] = [resolve_parts(parts, policy, as_items=as_items)]
            else:
                self._stores[kind] = list(opened.values())
        return self._stores[kind]

    def _split(self) -> Mapping[DataKind, dict[str | None, Store]]:
        """Return the parts of the split source: kind -> name -> store."""
        if not self._parts:
            sources = self._open_kind("train")
            split_sources = {
                name: split_source(self._options, store) for name, store in sources.items()
            }
            for name, store in sources.items():
                for note in describe_shares(self._options, store, split_sources[name]):
                    self._split_notes.append(note if name is None else f"{name}: {note}")
            for kind in self._options.split_parts:
                self._parts[kind] = {name: parts[kind] for name, parts in split_sources.items()}
        return self._parts

    def _open_kind(self, kind: DataKind) -> dict[str | None, Store]:
        """Open the locations of a kind: name -> store; of one location without a name, by None."""
        options = self._options
        locations, lengths = options.get_locations(kind), options.get_lengths(kind)
        names = options.get_names(kind)
        if kind == "train" and locations and isinstance(locations[0], Mapping):
            parts, given = locations[0], lengths[0]
            names, locations = list(parts), list(parts.values())
            lengths = [given.get(name) if isinstance(given, Mapping) else given for name in names]
        found: dict[str | None, Store] = {}
        notes: list[str] = []
        for name, location, own_lengths in zip(names, locations, lengths, strict=True):
            source = self._open(name, location, own_lengths)
            found[name] = source.store
            notes += [note if name is None else f"{name}: {note}" for note in source.notes]
        self._notes[kind] = tuple(notes)
        return found

    def _open(self, name: str | None, location: Any, lengths: Any) -> OpenedSource:
        """Open one location; an error names the part of a mixture."""
        as_items = is_collate_fn(self._options.collator)
        if callable(lengths) and not takes_lengths(location, as_items=as_items):
            lengths = None
        try:
            return open_source(self._options, location, lengths)
        except SeqDataError as error:
            if name is None:
                raise
            raise type(error).at(f"data: part {name!r}: {error}", **error.details) from error


def _load_statistics(state: Mapping[str, Any]) -> Statistics:
    try:
        return Statistics.from_state_dict(state[STATISTICS])
    except (ConfigError, AttributeError) as error:
        raise ResumeError(f"resume: the checkpoint's statistics cannot be read. {error}") from error


def _find_statistics(options: DataOptions, kind: DataKind) -> Statistics | None:
    """Return the statistics of the transform of a kind of data; None if there are none.

    They are the option ``statistics`` once it is fitted, else the attribute ``statistics`` of the
    transform, which ``Statistics.transform()`` has and a function around it may have.
    """
    if isinstance(options.statistics, Statistics):
        return options.statistics
    found = getattr(_find_transform(options, kind), "statistics", None)
    return found if isinstance(found, Statistics) else None


def _find_transform(options: DataOptions, kind: DataKind) -> Any:
    if kind != "train" and options.eval_transform is not None:
        return options.eval_transform
    if options.transform is not None:
        return options.transform
    for location in options.get_locations(kind):
        parts: Any = location.values() if isinstance(location, Mapping) else [location]
        for part in parts:  # the parts of a mixture carry the same transform
            carried = part.measured_transform if isinstance(part, View) else None
            if carried is not None:
                return carried.transform
    return None


def _make_loader_name(kind: DataKind, name: str | None) -> str:
    return kind if name is None else f"{kind}/{name}"

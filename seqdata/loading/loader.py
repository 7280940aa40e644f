"""The public Loader: batches of sequences for plain PyTorch and Fabric loops.

It is an iterable, not a torch DataLoader, and has a position: the epoch, and the number of
delivered batches of its plan.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from seqdata.arguments import check_arguments
from seqdata.code_digest import describe_code
from seqdata.errors import ConfigError, as_integer, must_be, warn
from seqdata.host import default_host
from seqdata.loading.engine import make_engine
from seqdata.loading.error_log import MAX_ERRORS, ErrorLog
from seqdata.loading.mixture_changes import check_next_segment, describe_parts, find_start
from seqdata.loading.options import (
    DEFAULT_PREFETCH,
    DEFAULT_STALL_TIMEOUT,
    DTypes,
    EngineOptions,
    OnChanged,
    OnError,
    UpdateSchedule,
    check_on_changed,
)
from seqdata.loading.pictures import chart_epoch, describe_engine
from seqdata.loading.rank_comparison import RankComparison
from seqdata.plan import Plan
from seqdata.plotting.axes import draw
from seqdata.plotting.page import render_figure, render_object
from seqdata.protocols import Policy, Store, Transform
from seqdata.resolve import (
    CollatorLike,
    choose_collator,
    is_collate_fn,
    resolve_collator,
    resolve_parts,
    resolve_policy,
    resolve_store,
)
from seqdata.resume_state import EpochProgress, ResumeState, RunPosition
from seqdata.sharing import Tail, World

_COMPARED = (  # over ranks
    "dtype", "check_values", "padding", "fields",
    "as_tuple", "as_dict", "shift", "sort_within_batch",
    "tail", "on_error",
)  # fmt: skip


class Loader:
    """Iterate over batches of sequences; all ranks take the same number of steps.

    ``iter()`` alone has no effect. The first ``next()`` continues at the loaded position if a state
    was loaded, and otherwise begins the next epoch. If a loop is left early, the rest of the epoch
    is skipped.

    Args:
        store: A store, the location of one, sequences in memory (a list of arrays as field ``x``, a
            list of dicts, a pandas, Polars or Arrow table), or a torch Dataset with ``lengths``.
            With a ``Mix`` or ``Zip``: name -> one of these. Steps of a ``Zip`` are dicts.
        batching: Policy of the epochs, or its registered name.
        world: This rank and the number of ranks, and for a ring the time part of each row; None:
            those of the default process group, else ``World(0, 1)``. A loader that was made for one
            process raises if a process group of several was initialised later.
        seed: Seed of the order and of transforms.
        fields: Names of the fields to read; None: all, or those of the output.
        whole: Names of fields on other axes to return completely with every window or chunk. With
            such a policy, other fields on these axes raise an error, unless the axes are linked
            (``open_store(rates=)``).
        as_tuple: Names of fields and attributes of the batch to return as a tuple: ``lengths``,
            ``weight``, …
        as_dict: Names of fields and attributes of the batch to return as a dict.
        as_batch: Function ``as_batch(batch) -> Any``; the loader returns its result for each batch.
            On several ranks, the result must include ``batch.weight`` (or ``batch.score``) if there
            may be padding batches. The loader tests the function with a padding batch before the
            first step.
        transform: ``transform(sequence, rng) -> dict``, one sequence at a time, or a ``columnar``
            one; it keeps lengths, or declares the changed ones with ``.lengths``. None: that of a
            view made by ``measure_lengths``, if ``store`` is one.
        dtype: Dtype of floating fields, such as ``"float32"``; or field -> dtype. Numbers that do
            not fit raise an error. None: as stored.
        check_values: Whether to raise an error that names the sequence for a NaN or an infinity.
        collator: A collator or its name; None: padded. A function of one argument is used as a
            ``collate_fn``.
        collate_fn: A torch ``collate_fn``, whose result for a list of items is returned. The items
            of a Dataset, or of a list with ``lengths``, may be of any type.
        padding: Value of padding, for all fields or by name, including the ``targets`` of a shift;
            None: that of the collator, by default 0.
        shift: Timesteps between inputs and ``batch["targets"]``; ``{field: steps}`` if several
            fields are ragged.
        sort_within_batch: Whether to sort the rows of every batch by descending length, for
            ``pack_padded_sequence(enforce_sorted=True)``. Rows that are lanes keep their positions.
        lengths: Lengths of the items of a torch Dataset, or of a list for a ``collate_fn``:
            integers (items,), or a function item -> timesteps that is run once over all of them.
        tail: Treatment of ranks without a batch in the last step: ``fill``, ``drop`` or ``repeat``.
        accumulate: Number of steps of an optimizer update, for ``loss_scale``.
        on_error: Treatment of a sequence that cannot be read or transformed: ``raise``;
            ``mask``: its row has weight 0; ``replace``: its row is the longest other row of the
            batch, cropped, and ``mask`` if there is none or rows hold several sequences. The number
            and size of batches do not change.
        max_errors: Maximum number of masked or replaced errors in a run; the next error is raised.
        error_log: File that lists the masked or replaced errors, one line of JSON each. Errors that
            the file already lists count for ``max_errors``.
        num_workers: Number of worker processes that read and transform, for transforms written in
            Python and slow Datasets; 0: use this process. Batches do not depend on ``num_workers``.
        prefetch: Number of groups of batches, each of about 1 MiB or 16 batches, that a thread
            reads ahead; 0: no thread.
        start_method: Start method of workers: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` if available, else ``spawn``.
        stall_timeout: Seconds without progress of a worker after which ``StallError`` is raised.
        persistent_workers: Whether to keep workers alive between epochs.
        pin_memory: Whether to copy the output into pinned memory (in the prefetch thread, if there
            is one), so that ``batch.to("cuda")`` does not wait.
        epoch: Index of the first epoch.
        name: Name of the loader, for ``batch.loader``: recurrent states are kept by it.

    Raises:
        ConfigError: If an argument is invalid.
        PlanError: If no sequence is left, or lengths and policy do not fit.
        DataError: If stored data is incomplete or damaged.

    Examples:
        >>> from seqdata.policies.fixed import Bucketed
        >>> loader = Loader([[1, 2, 3], [4], [5, 6]], Bucketed(2))
        >>> [tuple(batch["x"].shape) for batch in loader]
        [(2, 3), (1, 1)]
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        store: Any,
        batching: Policy | str | None = None,
        *,
        world: World | None = None,
        seed: int = 0,
        fields: Sequence[str] | None = None,
        whole: Sequence[str] | None = None,
        as_tuple: Sequence[str] | None = None, as_dict: Sequence[str] | None = None,
        as_batch: Callable[[Any], Any] | None = None,
        transform: Transform | None = None,
        dtype: DTypes | None = None,
        check_values: bool = False,
        collator: CollatorLike | str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        padding: float | Mapping[str, float] | None = None,
        shift: int | Mapping[str, int] = 0, sort_within_batch: bool = False,
        lengths: Any = None,
        tail: Tail = "fill",
        accumulate: int = 1,
        on_error: OnError = "raise",
        max_errors: int = MAX_ERRORS, error_log: str | Path | None = None,
        num_workers: int = 0,
        prefetch: int = DEFAULT_PREFETCH,
        start_method: str | None = None,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        persistent_workers: bool = True, pin_memory: bool = False,
        epoch: int = 0, name: str = "",
    ) -> None:  # fmt: skip
        self._next_position = _begin_at(epoch)  # of the next iteration
        self._is_single_process = World.current().size == 1  # no process group yet
        collator = choose_collator(collator, collate_fn)
        options = EngineOptions(
            world=World.current() if world is None else world,
            seed=seed,
            fields=fields, whole=whole, as_tuple=as_tuple, as_dict=as_dict,
            as_batch=as_batch, padding=padding, transform=transform,
            dtype=dtype,
            check_values=check_values,
            collator=None if collator is None else resolve_collator(collator),
            shift=shift, sort_within_batch=sort_within_batch,
            tail=tail,
            on_error=on_error,
            error_log=ErrorLog(max_errors, error_log),
            prefetch=prefetch,
            num_workers=num_workers,
            start_method=start_method,
            stall_timeout=stall_timeout,
            persistent_workers=persistent_workers,
            pin_memory=pin_memory,
            on_plan_ready=_notify_plugins,
            name=name,
        )  # fmt: skip
        self._update_schedule = UpdateSchedule(accumulate)
        rule = _resolve_batching(batching)
        data = _resolve_data(store, rule, lengths, fields, as_items=is_collate_fn(collator))
        self._engine = make_engine(data, rule, options)
        self._active: EpochProgress | None = None  # of the newest iteration, which updates it

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: its next iteration continues at the position of this one."""
        own = {name: value for name, value in self.__dict__.items() if name != "_comparison"}
        return {**own, "_next_position": self._get_position(), "_active": None}

    def __len__(self) -> int:
        """Return the number of steps of the next iteration's epoch."""
        self._check_single_process()
        return self._engine.count_steps(self.epoch)

    def __repr__(self) -> str:
        now = self._get_position()
        place = f"epoch {now.epoch}, batch {now.position:,} of {self._engine.num_batches:,}"
        return f"Loader({describe_engine(self._engine)}; {place})"

    def _repr_html_(self) -> str:
        charts = chart_epoch(self._engine, None, self._get_position(), is_quick=True)
        return render_object(repr(self), map(render_figure, charts))

    def plot(self, ax: Any = None, *, kind: str | None = None, epoch: int | None = None) -> Any:
        """Draw an epoch with matplotlib, as ``Plan.plot`` does, and the position in it.

        Args:
            ax: Axes to draw into, for a ``Zip`` one for each part; None: those of a new figure.
            kind: A kind of ``Plan.plot``; or ``ranks``: real timesteps and padding of each rank.
                None: the usual one of the plan.
            epoch: Index of the epoch; None: that of the position.

        Returns:
            The axes; for a ``Zip`` the figure, with a panel for each part, except for ``ranks``.

        Raises:
            ConfigError: If matplotlib is not installed, or ``kind`` is unknown.

        Examples:
            >>> from seqdata.policies.fixed import Bucketed
            >>> loader = Loader([[1, 2, 3], [4], [5, 6]], Bucketed(2))
            >>> loader.plot().get_title()
            '2 batches: 14.3 % padding'
        """
        run_position = self._get_position() if epoch is None else _begin_at(epoch)
        charts = chart_epoch(self._engine, kind, run_position)
        return draw(charts[0] if len(charts) == 1 else charts, ax)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise TypeError: batches are only available in order.

        Raises:
            TypeError: Always, with advice.
        """
        raise TypeError(
            "a Loader makes batches itself and cannot be indexed: iterate over it, without a "
            "torch DataLoader around it. A batch is next(iter(loader)), a sequence "
            "loader.store[7]"
        )

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch's batches, or over the rest of a loaded epoch.

        An error takes the place of its batch: ``next()`` then continues with the next one.

        Raises:
            ConfigError: If ``next()`` is called while another call makes a batch, or a process
                group was initialised after the loader was made for one process.
            IncompleteEpochError: If the loader is shut down before all batches were delivered.
            PlanError: If the Loaders of several ranks have different data or options.
            DataError: If stored data is damaged; it names epoch, batch, step and rank.
        """

        def begin() -> EpochProgress:
            progress = self._begin_epoch()
            announce_epoch(progress, batches_ref())
            return progress

        batches = self._engine.iterate_from(begin, self._update_schedule)
        batches_ref = weakref.ref(batches)
        return batches

    def _begin_epoch(self) -> EpochProgress:
        """Begin the next epoch, or continue a loaded one."""
        self._check_single_process()
        self._comparison.check(self._describe)
        _ = self._engine.transform_label  # before it is used
        start = self._next_position
        self._active = self._engine.begin(start.epoch, start.position)
        self._next_position = start.next_epoch
        return self._active

    @functools.cached_property
    def _comparison(self) -> RankComparison:
        return RankComparison(self._engine.options.world)

    def _describe(self) -> dict[str, str | float | None]:
        """Return the values that must be equal on all ranks, by the names of the arguments."""
        options, start = self._engine.options, self._next_position
        described: dict[str, Any] = {
            **self._engine.describe(),
            "batches": self._engine.num_batches,
            "epoch": start.epoch,
            "position": start.position,
            "accumulate": self._update_schedule.accumulate,
            "max_errors": options.error_log.max_errors,
            **{name: getattr(options, name) for name in _COMPARED},
        }
        values: dict[str, str | float | None] = {
            name: value if isinstance(value, str | int | None) else repr(value)
            for name, value in described.items()
        }
        for name in ("transform", "collator", "as_batch"):
            value = getattr(options, name)
            values.update({name: None} if value is None else describe_code(name, value).fixed)
        return values

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next_position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, as ``DistributedSampler.set_epoch`` does.

        This is seldom needed: each iteration begins the next epoch. A loaded position in the middle
        of that epoch is kept: the iteration continues with its rest. A ``SeqDataWarning`` says if a
        loaded position is left for another epoch.

        Args:
            epoch: Index of the epoch, from 0.

        Raises:
            ConfigError: If ``epoch`` is not an integer from 0.
        """
        start, position = _begin_at(epoch), self._next_position
        if start.epoch == position.epoch:
            return
        if position.position:
            warn(
                f"loader: set_epoch({epoch}) discards the loaded position, batch "
                f"{position.position} of epoch {position.epoch}. Begin the loop over epochs with "
                "`loader.epoch`.",
            )
        self._next_position = start

    @property
    def batch_sampler(self) -> EpochSetter:
        """Object by which a Trainer sets the epoch: a resume after an epoch begins the next one."""
        return EpochSetter(self._skip_to)

    @property
    def store(self) -> Store:
        """The store; ``store.keys(batch)`` returns the ids of a batch's sequences."""
        return self._engine.store

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Errors that this rank skipped, after those that the ``error_log`` listed before.

        Each is a dict; see ``ErrorLog.entries``.
        """
        return self._engine.options.error_log.entries

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running worker processes, which the first batch starts."""
        return self._engine.worker_pids

    def set_weights(self, weights: Any) -> None:
        """Set the weights of draws from the next batch on, with a policy ``Segments``.

        This is possible where a segment begins: before the first batch, or after the last one of a
        segment was delivered. Every rank must set the same weights.

        Args:
            weights: Weights in the form of the policy within ``Segments``: float64 (sequences,) in
                the order of the store; for a ``Mix`` part -> weight.

        Raises:
            ConfigError: If no segment begins here (the message has the batch at which the next one
                does), the policy has no segments, or the weights are invalid.
        """
        if self._engine.segments is None:
            raise ConfigError(
                "loader: `batching` must be a policy `Segments` for weights to be set, but is "
                f"{self._engine.policy!r:.200}. Pass e.g. Segments(Weighted(Bucketed(64)), "
                "batches=1_000)."
            )
        self._engine.segments.set_weights(self._get_position(), weights)

    def state_dict(self) -> dict[str, int | str | None]:
        """Return the position: a few primitives, equal on all ranks, about 1 kB as JSON.

        It includes the positions of a ``Mix``'s parts, 20 bytes each. Of weights that were set it
        has only the digest, so they must be saved as well.
        """
        run_position, engine = self._get_position(), self._engine
        state = self._make_state_at(run_position)
        weights, parts = engine.describe_weights(run_position), describe_parts(engine, run_position)
        return replace(state, weights=weights, parts=parts).as_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], weights: Any = None, on_changed: OnChanged = "error"
    ) -> None:
        """Continue a saved position in the next iteration; the number of ranks may differ.

        A ``SeqDataWarning`` is shown if the transform has changed, or the data where ``on_changed``
        allows it.

        Args:
            state: A result of ``state_dict``.
            weights: The weights of the last call of ``set_weights``, if there was one.
            on_changed: Treatment of changed data: ``error``; ``next_epoch`` to begin the
                next epoch with it, at an epoch's end also with another policy or seed;
                ``next_segment``, with ``Segments(Mix(...), batches=...)``, to continue with other
                parts or weights of the mixture where the next segment begins.

        Raises:
            ResumeError: If the state belongs to other data, policy, seed, shift or weights, is
                outside the plan, or was written by another version.
            ConfigError: If there will be padding rows that the output does not mark, the weights
                are invalid, or ``on_changed`` is unknown or needs segments of a mixture.
            PlanError: If ``tail="drop"`` leaves no step in the epoch on this number of ranks.
        """
        engine = self._engine
        check_on_changed(on_changed, "loader")
        if on_changed == "next_segment":
            check_next_segment(engine, "loader")
        saved = ResumeState.from_dict(state)
        start = find_start(engine, saved, self._make_state_at, on_changed)
        run_position = start.run_position
        if start.warning:
            warn(f"loader: {start.warning}")
        changed_transform = engine.describe_transform_change(saved.transform)
        if changed_transform:
            warn(f"loader: {changed_transform}")
        # raises if this world cannot continue it
        engine.share(run_position.epoch, run_position.position)
        changed_parts = start.load_weights(engine, run_position, saved.weights, weights)
        if changed_parts:
            warn(changed_parts)
        self._next_position, self._active = run_position, None

    def shutdown(self) -> None:
        """Stop threads and workers; an iteration that still needs them ends with an error."""
        self._engine.shutdown()

    def _check_single_process(self) -> None:
        """Raise ConfigError if a process group was initialised after this loader was made."""
        ranks = count_later_ranks(self._engine.options.world, self._is_single_process)
        if ranks:
            raise ConfigError(
                f"loader: it was made for one process, before the process group of {ranks} ranks "
                "was initialised, so that every rank would read all data. Make it once the "
                "ranks exist (in `train_dataloader` of the LightningModule), pass "
                f"`world=World(rank, {ranks})`, or give the data to a SequenceDataModule"
            )

    def _skip_to(self, epoch: int) -> None:
        if self._next_position.epoch < epoch:
            self._next_position = RunPosition(epoch)

    def _get_position(self) -> RunPosition:
        active = self._active
        if active is None or active.is_delivered:
            return self._next_position
        return RunPosition(*active.position)

    def _make_state_at(self, run_position: RunPosition) -> ResumeState:
        engine = self._engine
        return ResumeState.from_plan(
            engine.describe(), run_position, engine.fingerprint(run_position.epoch),
            world_size=engine.options.world.size, transform=engine.transform_label,
            balance_ranks=engine.find_ranks(run_position.epoch),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EpochSetter:
    """Object by which Lightning's Trainer sets the epoch of a loader: a batch sampler's sampler.

    Attributes:
        set_epoch: Called with the index of an epoch before it begins.
    """

    set_epoch: Callable[[int], None]

    @property
    def sampler(self) -> EpochSetter:
        """This object itself."""
        return self

    @property
    def batch_size(self) -> int:
        """Number that DeepSpeed's strategy logs: 1, as without a batch sampler."""
        return 1


def count_later_ranks(world: World, is_single_process: bool) -> int:
    """Return the number of ranks of a process group that was made after a loader; else 0.

    Args:
        world: The world of the loader.
        is_single_process: Whether there was no process group of several ranks when it was made.
    """
    ranks = World.current().size
    is_for_one = is_single_process and world.size == world.time_parts == 1
    return ranks if is_for_one and ranks > 1 else 0


def _begin_at(epoch: int) -> RunPosition:
    number = as_integer(epoch)
    if number is None or number < 0:
        raise ConfigError(must_be("loader: `epoch`", "an integer from 0", repr(epoch)))
    return RunPosition(number, 0)


def _resolve_data(
    store: Any, rule: Policy, lengths: Any, names: Sequence[str] | None, *, as_items: bool
) -> Any:
    """Return the store, or the parts of a mixture by name."""
    if isinstance(store, Mapping):
        return resolve_parts(store, policy=rule, lengths=lengths, names=names, as_items=as_items)
    return resolve_store(store, lengths=lengths, names=names, as_items=as_items)


def _resolve_batching(batching: Policy | str | None) -> Policy:
    if batching is None:
        raise ConfigError(
            "loader: `batching` must be a policy or its name, but is None. Pass e.g. Bucketed(32)."
        )
    return resolve_policy(batching)


def _notify_plugins(plan: Plan) -> None:
    default_host().plan_ready(plan)


class EpochEnd:
    """Attributes that Accelerate reads from the loader in use.

    Args:
        progress: Progress of the epoch.
    """

    def __init__(self, progress: EpochProgress) -> None:
        self._progress = progress

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the epoch has been delivered."""
        return self._progress.is_delivered

    @property
    def remainder(self) -> int:
        """Number of repeated rows of the last batch: 0, or -1 if ranks may have padding rows."""
        return 0 if self._progress.share.world.size == 1 else -1


def announce_epoch(progress: EpochProgress, iteration: object) -> None:
    """Make an epoch known to Accelerate, as long as its iteration lives.

    Args:
        progress: Progress of the epoch, updated with each delivered batch.
        iteration: Iterator that delivers the batches.
    """
    module = sys.modules.get("accelerate.state")
    gradient_state: Any = getattr(module, "GradientState", None)
    if gradient_state is None or not gradient_state._shared_state:  # no Accelerator was made
        return
    epoch_end, shared = EpochEnd(progress), gradient_state()
    shared._add_dataloader(epoch_end)
    weakref.finalize(iteration, shared._remove_dataloader, epoch_end).atexit = False

"""The public Loader: batches of sequences for plain PyTorch and Fabric loops.

It is an iterable of its own, no torch DataLoader, and owns one position: the epoch, and the batches
of its plan that were delivered.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seqdata.arguments import check_arguments
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.host import default_host
from seqdata.loading.engine import EpochEngine
from seqdata.loading.epoch_batches import EpochProgress
from seqdata.loading.error_log import MAX_ERRORS, ErrorLog
from seqdata.loading.options import (
    DEFAULT_PREFETCH,
    DEFAULT_STALL_TIMEOUT,
    EngineOptions,
    OnError,
    UpdateSchedule,
)
from seqdata.loading.value_options import DTypes, ValueOptions
from seqdata.plan import Plan
from seqdata.protocols import Policy, Store, Transform
from seqdata.resolve import (
    CollatorLike,
    resolve_collator,
    resolve_parts,
    resolve_policy,
    resolve_store,
)
from seqdata.resume_state import ResumeState, RunPosition
from seqdata.sharing import Tail
from seqdata.world import World


class Loader:
    """Batches of sequences, epoch after epoch; every rank gets the same number of steps.

    ``iter()`` alone does nothing. At its first ``next()`` an iteration plays the position that was
    loaded, if one was, else the next epoch; leaving it early abandons its epoch.

    Args:
        store: A store, the location of one, or sequences in memory (a list of arrays: field ``x``;
            dicts; a pandas, Polars or Arrow table); or a torch Dataset, with ``lengths``. Several
            by name, with a policy that draws from them (``Mix``).
        batching: How epochs are batched: a policy, or its registered name.
        world: Who we are; None: the default process group's rank, else ``World(0, 1)``. A loader
            of one process that was made before the process group of several refuses to play.
        seed: Of the order and of transforms.
        fields: Names of the fields to read; None: all, or those that the output names.
        as_tuple: Parts of the batch to hand out as a tuple: fields, ``lengths``, ``weight``, …
        as_dict: The same as a dict.
        transform: ``transform(sequence, rng) -> dict``, one sequence at a time, or a ``columnar``
            one; it keeps lengths, or says with ``.lengths`` how it changes them. None: that of a
            view made by ``measure_lengths``, if ``store`` is one.
        dtype: In which floats are delivered, such as ``"float32"``; or field -> dtype. Numbers that
            do not fit are an error. None: as they are.
        check_values: Whether a NaN or an infinity is an error that names its sequence.
        collator: How rows are laid out, or the name of a collator; None: padded. A function of one
            argument is a torch ``collate_fn``: what it makes of a list of samples is handed out.
        shift: Timesteps between inputs and ``batch["targets"]``; ``{field: steps}`` where several
            fields are ragged.
        lengths: Of a torch Dataset's items, integers (items,), or a function item -> timesteps that
            is run once over all of them.
        tail: What a rank without a batch in the last step gets: ``fill``, ``drop`` or ``repeat``.
        accumulate: Steps of an optimizer update, for ``loss_scale``.
        on_error: What a sequence that cannot be read or transformed does: ``raise``; ``mask``: its
            row has weight 0; ``replace``: its row is the longest other row of the batch, cropped,
            and ``mask`` where there is none. Batches stay as many and as large.
        max_errors: How many of those a run may have; one more is raised.
        error_log: File that lists them, a line of JSON each; those in it already count.
        num_workers: Processes that read and transform, for transforms written in Python and slow
            Datasets; 0: this one does. Batches are the same for any number.
        prefetch: How far a thread reads ahead, in hand-overs of about 1 MiB or 16 batches; 0: no
            thread.
        start_method: How workers are started: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` where there is one, else ``spawn``.
        stall_timeout: Seconds without progress after which a worker is given up.
        pin_memory: Whether what is handed out is copied into pinned memory, by the thread that
            reads ahead, so that ``batch.to("cuda")`` waits for nothing.
        epoch: The first epoch to play.
        name: Of the loader, for ``batch.loader``: what keeps states by lane tells loaders apart.

    Raises:
        ConfigError: If an argument cannot be meant.
        PlanError: If no sequence is left to play, or lengths and policy make no plan.
        DataError: If the store cannot be opened.

    Examples:
        >>> from seqdata.policies.bucketed import Bucketed
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
        as_tuple: Sequence[str] | None = None,
        as_dict: Sequence[str] | None = None,
        transform: Transform | None = None,
        dtype: DTypes | None = None,
        check_values: bool = False,
        collator: CollatorLike | str | None = None,
        shift: int | Mapping[str, int] = 0,
        lengths: Any = None,
        tail: Tail = "fill",
        accumulate: int = 1,
        on_error: OnError = "raise",
        max_errors: int = MAX_ERRORS,
        error_log: str | Path | None = None,
        num_workers: int = 0,
        prefetch: int = DEFAULT_PREFETCH,
        start_method: str | None = None,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        pin_memory: bool = False,
        epoch: int = 0,
        name: str = "",
        policy: Policy | str | None = None,
    ) -> None:
        if not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"loader: `epoch` is {epoch!r}, must be a whole number from 0")
        self._is_single_process = World.current().size == 1  # no process group, so far
        options = EngineOptions(
            world=World.current() if world is None else world,
            seed=seed,
            fields=fields,
            as_tuple=as_tuple,
            as_dict=as_dict,
            transform=transform,
            value_options=ValueOptions(dtype, check_values),
            collator=None if collator is None else resolve_collator(collator),
            shift=shift,
            tail=tail,
            on_error=on_error,
            error_log=ErrorLog(max_errors, None if error_log is None else Path(error_log)),
            prefetch=prefetch,
            num_workers=num_workers,
            start_method=start_method,
            stall_timeout=stall_timeout,
            pin_memory=pin_memory,
            on_plan_ready=_notify_plugins,
            name=name,
        )
        self._update_schedule = UpdateSchedule(accumulate)
        rule = resolve_policy(_resolve_batching(batching, policy))
        is_mapping = isinstance(store, Mapping)
        resolve = functools.partial(resolve_parts, policy=rule) if is_mapping else resolve_store
        self._engine = EpochEngine(resolve(store, lengths=lengths, names=fields), rule, options)
        self._next_position = RunPosition(epoch, 0)  # what the next iteration plays
        self._active: EpochProgress | None = None  # of the newest iteration, which moves it

    def __len__(self) -> int:
        """Steps of the epoch that the next iteration plays; of all, but where a policy says so."""
        self._check_single_process()
        return self._engine.count_steps(self.epoch)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise: batches come in their order.

        Raises:
            TypeError: Always; it names what to write.
        """
        raise TypeError(
            "a Loader makes batches itself and cannot be indexed: iterate it, without a torch "
            "DataLoader around it. One batch is next(iter(loader)), one sequence loader.store[7]"
        )

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of one epoch, or of what is left of a loaded one.

        An error takes the place of its batch: where it is caught, the next ``next()`` goes on with
        the batch behind.

        Raises:
            IncompleteEpochError: If fewer batches came than were planned.
            DataError: If what is stored is damaged; with epoch, batch, step and rank.
        """
        return self._engine.iterate_from(self._begin_epoch, self._update_schedule)

    def _begin_epoch(self) -> EpochProgress:
        """Begin the next epoch, or what is left of a loaded one."""
        self._check_single_process()
        _ = self._engine.transform_label  # as it is before it is used
        start = self._next_position
        self._active = self._engine.begin(start.epoch, start.position)
        self._next_position = start.next_epoch
        return self._active

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration plays."""
        return self._next_position.epoch

    @property
    def store(self) -> Store:
        """What is read; ``store.keys(batch.ids)`` names sequences."""
        return self._engine.store

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What this rank went on from: dicts with ``error``, ``message``, ``sequence`` and more."""
        return self._engine.options.error_log.entries

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the worker processes that run; they are started by the first batch."""
        return self._engine.worker_pids

    def state_dict(self) -> dict[str, int | str | None]:
        """Return what was delivered: a few primitives, equal on all ranks, under 1 kB as JSON."""
        active = self._active
        here = self._next_position if active is None else RunPosition(*active.position)
        return self._make_state_at(here).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration play what a state has left; the world size may be another.

        Where the transform is another one than it was, a ``SeqDataWarning`` names both.

        Raises:
            ResumeError: If the state belongs to other data, policy, seed or shift, is outside the
                plan, or was written by another version.
            ConfigError: If there will be filler rows that the output cannot tell.
        """
        saved = ResumeState.from_dict(state)
        saved.check_plan(self._make_state_at(saved.run_position))
        saved.check_position(self._engine.count_batches(saved.epoch))
        changed_transform = self._engine.describe_transform_change(saved.transform)
        if changed_transform:
            warnings.warn(f"loader: {changed_transform}", SeqDataWarning, stacklevel=2)
        self._engine.share(saved.epoch, saved.position)  # refuses what this world cannot play
        self._next_position, self._active = saved.run_position, None

    def shutdown(self) -> None:
        """End threads and workers; an iteration that runs ends with an error."""
        self._engine.shutdown()

    def _check_single_process(self) -> None:
        """Raise ConfigError if a process group came after this loader, made for one process."""
        ranks = World.current().size
        if self._is_single_process and ranks > 1 and self._engine.options.world.size == 1:
            raise ConfigError(
                f"loader: was made for one process before the process group of {ranks} ranks was "
                "initialised, must know its rank: every rank would play all the data. Make it when "
                "the ranks are there (in `train_dataloader` of the LightningModule), pass "
                f"`world=World(rank, {ranks})`, or give the data to a SequenceDataModule"
            )

    def _make_state_at(self, here: RunPosition) -> ResumeState:
        described = self._engine.describe()
        return ResumeState(
            epoch=here.epoch,
            position=here.position,
            fingerprint=self._engine.fingerprint(here.epoch),
            data=str(described["data"]),
            policy=ResumeState.shorten_policy(str(described["policy"])),
            seed=int(described["seed"]),
            shift=int(described["shift"]),
            world_size=self._engine.options.world.size,
            transform=self._engine.transform_label,
        )


def _resolve_batching(batching: Policy | str | None, policy: Policy | str | None) -> Policy | str:
    """Return the policy that was passed, under its name of today or of 0.1."""
    if policy is not None:
        advice = "`policy` is deprecated: write `batching`, or pass the policy by position"
        if batching is not None:
            raise ConfigError(f"loader: `batching` and `policy` are both given. {advice}.")
        warnings.warn(f"loader: {advice}", DeprecationWarning, stacklevel=4)
        return policy
    if batching is None:
        raise ConfigError(
            "loader: `batching` must be a policy or its name. Pass e.g. Bucketed(32)."
        )
    return batching


def _notify_plugins(plan: Plan) -> None:
    default_host().plan_ready(plan)

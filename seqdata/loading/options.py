"""The options of playing epochs, as one frozen object; they travel from the edge to the Player."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from seqdata.errors import ConfigError
from seqdata.loading.error_log import ErrorLog
from seqdata.loading.value_options import ValueOptions
from seqdata.plan import Plan
from seqdata.protocols import Collator, Transform
from seqdata.sharing import Tail
from seqdata.world import World

DEFAULT_PREFETCH = 2
"""Hand-overs that wait for the consumer, by default."""

OnError = Literal["raise", "mask", "replace"]

DEFAULT_STALL_TIMEOUT = 120.0
"""Seconds without progress after which a worker is given up, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How epochs are played.

    Args:
        world: Who we are.
        seed: Of plans and transforms, in ``[0, 2**64)``.
        fields: Names of the fields to read; None: all, or those that the output names.
        as_tuple: Parts of the batch that are handed out as a tuple.
        as_dict: The same as a dict.
        transform: Applied between reading and collating; None: what the store carries, if it does.
        value_options: What is asked of the values that are delivered.
        collator: Lays columns out; None: ``Padded()``.
        shift: Timesteps between inputs and targets: of the ragged field, or by name.
        tail: What a rank without a batch in the last step gets.
        on_error: What a sequence that cannot be read or transformed does: ``raise``; ``mask``: its
            row has weight 0; ``replace``: its row is the longest other one, cropped.
        error_log: Counts those, and ends a run that has too many.
        prefetch: Hand-overs of about 1 MiB or 16 batches that a thread makes ahead; 0: no thread.
        num_workers: Processes that read and transform; 0: this one does.
        start_method: How they are started: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` where there is one, else ``spawn``.
        stall_timeout: Seconds without progress after which a worker is given up.
        pin_memory: Whether what is handed out is copied into pinned memory.
        frozen_epoch: Whether every epoch is played with the plan of epoch 0.
        on_plan_ready: Called with each plan, before its first batch.
        replay_hint: Says what shows a batch, by epoch and number, for errors in it; None: nothing
            does.
        name: Of the loader, for ``batch.loader``.

    Raises:
        ConfigError: If a value cannot be meant.
    """

    world: World = field(default_factory=World)
    seed: int = 0
    fields: Sequence[str] | None = None
    as_tuple: Sequence[str] | None = None
    as_dict: Sequence[str] | None = None
    transform: Transform | None = None
    value_options: ValueOptions = field(default_factory=ValueOptions)
    collator: Collator | None = None
    shift: int | Mapping[str, int] = 0
    tail: Tail = "fill"
    on_error: OnError = "raise"
    error_log: ErrorLog = field(default_factory=ErrorLog)
    prefetch: int = DEFAULT_PREFETCH
    num_workers: int = 0
    start_method: str | None = None
    stall_timeout: float = DEFAULT_STALL_TIMEOUT
    pin_memory: bool = False
    frozen_epoch: bool = False
    on_plan_ready: Callable[[Plan], None] | None = None
    replay_hint: Callable[[int, int], str] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.world, World):
            raise ConfigError(
                f"loader: `world` must be a World, but is {self.world!r}. Pass World(rank, size), "
                "or leave it out for the process group's"
            )
        if isinstance(self.fields, str) or (self.fields is not None and not self.fields):
            raise ConfigError(
                f"loader: `fields` is {self.fields!r}, must be a tuple of names or None for all"
            )
        if self.tail not in get_args(Tail):
            raise ConfigError(
                f"loader: `tail` is {self.tail!r}, must be 'fill', 'drop' or 'repeat'"
            )
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                f"loader: `on_error` is {self.on_error!r}, must be 'raise', 'mask' or 'replace'"
            )
        if not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ConfigError(
                f"loader: `prefetch` is {self.prefetch!r}, must be a whole number, 0 for no thread"
            )
        self._check_workers()
        if not isinstance(self.pin_memory, bool):
            raise ConfigError(f"loader: `pin_memory` is {self.pin_memory!r}, must be True or False")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"loader: `seed` is {self.seed!r}, must be in [0, 2**64)")

    def _check_workers(self) -> None:
        if not isinstance(self.num_workers, int) or self.num_workers < 0:
            raise ConfigError(
                f"loader: `num_workers` is {self.num_workers!r}, must be a whole number, 0 for no "
                "processes"
            )
        methods = multiprocessing.get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ConfigError(
                f"loader: `start_method` is {self.start_method!r}, must be one of "
                f"{', '.join(methods)}, or None"
            )
        if not isinstance(self.stall_timeout, int | float) or not self.stall_timeout > 0:
            raise ConfigError(
                f"loader: `stall_timeout` is {self.stall_timeout!r}, must be a number of seconds "
                "above 0"
            )


@dataclass(frozen=True, slots=True)
class UpdateSchedule:
    """How steps make optimizer updates: what ``loss_scale`` and ``update_num_tokens`` follow from.

    Args:
        accumulate: Steps of an update.
        steps: Steps of the epoch that are trained, if fewer than all; the last update ends there.
        is_loss_divided: Whether somebody divides every loss by ``accumulate``, as the Trainer does.

    Raises:
        ConfigError: If ``accumulate`` is less than 1.
    """

    accumulate: int = 1
    steps: int | None = None
    is_loss_divided: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ConfigError(
                f"loader: `accumulate` is {self.accumulate!r}, must be a whole number of at least 1"
            )

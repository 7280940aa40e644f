"""The options of an engine, as one frozen object."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from seqdata.errors import ConfigError, must_be
from seqdata.loading.error_log import ErrorLog
from seqdata.loading.value_options import ValueOptions
from seqdata.plan import Plan
from seqdata.protocols import Collator, Transform
from seqdata.sharing import Tail
from seqdata.world import World

DEFAULT_PREFETCH = 2
"""Groups of batches that a thread makes ahead, by default."""

OnError = Literal["raise", "mask", "replace"]

DEFAULT_STALL_TIMEOUT = 120.0
"""Seconds without progress after which a worker raises ``StallError``, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of an ``EpochEngine``.

    Args:
        world: This rank and the number of ranks.
        seed: Seed of plans and transforms, in ``[0, 2**64)``.
        fields: Names of the fields to read; None: all, or those of the output.
        as_tuple: Parts of the batch that are returned as a tuple.
        as_dict: Parts of the batch that are returned as a dict.
        transform: Applied between reading and collating; None: that of the store, if it carries
            one.
        value_options: Dtype and checks of the values.
        collator: Lays out columns; None: ``Padded()``.
        shift: Timesteps between inputs and targets, of the only ragged field or by name.
        tail: What a rank without a batch in the last step receives.
        on_error: What to do about a sequence that cannot be read or transformed: ``raise``;
            ``mask``: its row has weight 0; ``replace``: its row is the longest other one, cropped.
        error_log: Counts these errors, and raises when there are too many.
        prefetch: Groups of about 1 MiB or 16 batches that a thread makes ahead; 0: no thread.
        num_workers: Number of processes that read and transform; 0: this process.
        start_method: How workers are started: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` if available, else ``spawn``.
        stall_timeout: Seconds without progress after which a worker raises ``StallError``.
        pin_memory: Whether the output is copied into pinned memory.
        frozen_epoch: Whether every epoch has the plan of epoch 0.
        on_plan_ready: Called with each plan, before its first batch.
        replay_hint: Returns the command that replays a batch, from epoch and number, for its
            errors; None if there is no such command.
        name: Name of the loader, for ``batch.loader``.

    Raises:
        ConfigError: If a value is invalid.
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
                must_be("loader: `fields`", "a tuple of names or None for all", repr(self.fields))
            )
        if self.tail not in get_args(Tail):
            raise ConfigError(
                must_be("loader: `tail`", "'fill', 'drop' or 'repeat'", repr(self.tail))
            )
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                must_be("loader: `on_error`", "'raise', 'mask' or 'replace'", repr(self.on_error))
            )
        if not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ConfigError(
                must_be(
                    "loader: `prefetch`", "a whole number, 0 for no thread", repr(self.prefetch)
                )
            )
        self._check_workers()
        if not isinstance(self.pin_memory, bool):
            raise ConfigError(
                must_be("loader: `pin_memory`", "True or False", repr(self.pin_memory))
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 64:
            raise ConfigError(must_be("loader: `seed`", "in [0, 2**64)", repr(self.seed)))

    def _check_workers(self) -> None:
        if not isinstance(self.num_workers, int) or self.num_workers < 0:
            raise ConfigError(
                must_be(
                    "loader: `num_workers`",
                    "a whole number, 0 for no processes",
                    repr(self.num_workers),
                )
            )
        methods = multiprocessing.get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ConfigError(
                must_be(
                    "loader: `start_method`",
                    f"one of {', '.join(methods)}, or None",
                    repr(self.start_method),
                )
            )
        if not isinstance(self.stall_timeout, int | float) or not self.stall_timeout > 0:
            raise ConfigError(
                must_be(
                    "loader: `stall_timeout`",
                    "a number of seconds above 0",
                    repr(self.stall_timeout),
                )
            )


@dataclass(frozen=True, slots=True)
class UpdateSchedule:
    """How steps make optimizer updates, which determines ``loss_scale`` and ``update_num_tokens``.

    Args:
        accumulate: Number of steps of an update.
        steps: Number of steps of the epoch that are trained, if not all; the last update ends
            there.
        is_loss_divided: Whether the caller divides every loss by ``accumulate``, as the Trainer
            does.

    Raises:
        ConfigError: If ``accumulate`` is less than 1.
    """

    accumulate: int = 1
    steps: int | None = None
    is_loss_divided: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ConfigError(
                must_be(
                    "loader: `accumulate`", "a whole number of at least 1", repr(self.accumulate)
                )
            )

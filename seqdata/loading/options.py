"""The options of an engine, as one frozen object; among them dtype and checks of the values."""

from __future__ import annotations

import multiprocessing
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqdata.arguments import to_plain
from seqdata.batch.axes import TARGETS, Axes, are_names, format_unknown_name
from seqdata.errors import ConfigError, DecodeError, Detail, as_integer, check_flags, must_be
from seqdata.loading.error_log import ErrorLog
from seqdata.loading.step_requests import StepRequest
from seqdata.plan import Plan
from seqdata.protocols import Collator, Column, Columns, Store, Transform
from seqdata.resolve import choose_collator
from seqdata.sharing import Tail, World
from seqdata.storage.packing import NUMBER_DTYPES
from seqdata.storage.views import locate_sequence

if TYPE_CHECKING:
    from seqdata.resolve import CollatorLike

DTypes = str | Mapping[str, str]
"""A dtype for all floating fields, or field -> dtype."""


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The dtype and checks of the delivered values.

    Args:
        dtype: Dtype of all floating fields, or field -> dtype; None: as stored.
        check: Whether a NaN or an infinity raises an error.

    Raises:
        ConfigError: If a dtype is unknown, that of all fields is not one of floats, or ``check`` is
            not a bool.
    """

    dtype: DTypes | None = None
    check: bool = False

    def __post_init__(self) -> None:
        dtypes = self.dtype if isinstance(self.dtype, Mapping) else {"": self.dtype}
        for name, dtype in dtypes.items():
            if dtype is None and self.dtype is None:
                continue
            if not isinstance(dtype, str) or dtype not in NUMBER_DTYPES:
                where = f"`dtype[{name!r}]`" if name else "`dtype`"
                raise ConfigError(
                    f"loader: {where} must be one of {', '.join(NUMBER_DTYPES)}, but is "
                    f"{dtype!r}. Pass "
                    "its name, such as 'float32'."
                )
        if isinstance(self.dtype, str) and np.dtype(self.dtype).kind != "f":
            raise ConfigError(
                f"loader: `dtype` for all fields must be a dtype of floats, but is {self.dtype!r}. "
                f"Name the fields: dtype={{'x': {self.dtype!r}}}."
            )
        check_flags("loader", check_values=self.check)

    def resolve_dtype(self, name: str, dtype: Any, shifted: str | None = None) -> np.dtype[Any]:
        """Return the dtype of a field; targets default to that of the shifted field."""
        stored_dtype: np.dtype[Any] = np.dtype(dtype)
        if isinstance(self.dtype, Mapping):
            if name == TARGETS and name not in self.dtype and shifted is not None:
                name = shifted
            return np.dtype(self.dtype.get(name, stored_dtype))
        return (
            stored_dtype if self.dtype is None or stored_dtype.kind != "f" else np.dtype(self.dtype)
        )

    def convert_columns(
        self, columns: Columns, axes: Axes, request: StepRequest, store: Store
    ) -> Columns:
        """Return columns that convert and check values as they are copied.

        Args:
            columns: The columns that were read and transformed.
            axes: Axis of each field.
            request: The request of the columns.
            store: Store that names sequences in errors.

        Raises:
            ConfigError: If ``dtype`` names a field that does not exist, or for ``targets`` differs
                from that of the inputs in the same column.
        """
        self._check_names(columns, axes)
        shifted = next(iter(axes.shift), None)
        converted: dict[str, Any] = {}
        for name, column in columns.items():
            if isinstance(column, list):
                converted[name] = column
                continue
            array_column: Any = column
            dtype = self.resolve_dtype(name, array_column.dtype, shifted)
            if dtype != array_column.dtype or (self.check and dtype.kind in "fc"):
                axis, linked = axes.along(name) or "", request.linked or {}
                begins = request.spans[:, 1] if axis == axes.axis else None
                if axis in linked:
                    begins = linked[axis][:, 1]
                if begins is not None and name == TARGETS and shifted is not None:
                    begins = begins + axes.shift[shifted]
                converted[name] = ConvertedColumn(
                    array_column, name, dtype, self.check, request.ids, begins, store, bool(axis)
                )
            else:
                converted[name] = array_column
        return converted

    def _check_names(self, columns: Mapping[str, Any], axes: Axes) -> None:
        given = self.dtype if isinstance(self.dtype, Mapping) else {}
        for name, dtype in given.items():
            if name in columns:
                continue
            if name != TARGETS or not axes.shift:
                raise ConfigError(f"loader: `dtype`: {format_unknown_name(name, columns)}")
            shifted = next(iter(axes.shift))  # one column has both
            found = self.resolve_dtype(shifted, columns[shifted].dtype).name
            if found != dtype:
                raise ConfigError(
                    f"loader: `dtype[{name!r}]` must be that of {shifted!r}, {found}, but is "
                    f"{dtype!r}. Leave it out"
                )


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedColumn:
    """A column whose values are converted and checked as they are copied.

    Attributes:
        column: The column that was read.
        name: Name of the field.
        dtype: Dtype of an element.
        check: Whether values must be finite.
        ids: int64 (n,), base index of each piece's sequence.
        first_timesteps: int64 (n,), first timestep of each piece in its sequence; None: 0.
        store: Store that names sequences in errors.
        is_ragged: Whether the field runs along an axis.
    """

    column: Column
    name: str
    dtype: np.dtype[Any]
    check: bool
    ids: NDArray[np.int64]
    first_timesteps: NDArray[np.int64] | None
    store: Store
    is_ragged: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a timestep."""
        return self.column.shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        return self.column.lengths

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape)."""
        return self._convert(self.column[number], number)

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad; see ``Column.fill``.

        Raises:
            DecodeError: If a value is not finite, or does not fit the dtype; it names the sequence.
        """
        stored = out if self.dtype == self.column.dtype else np.empty(out.shape, self.column.dtype)
        self.column.fill(stored, bounds, None)
        if self._is_valid(stored):
            if stored is not out:
                out[:] = stored
        else:  # one piece at a time is slow, but names the sequence
            for number, (begin, length) in enumerate(self._list_pieces(bounds)):
                piece = stored[begin : begin + length]
                out[begin : begin + length] = self._convert(piece, number)
        if padding is not None:
            value = np.frombuffer(padding, self.dtype)[0]
            for (begin, length), stop in zip(
                self._list_pieces(bounds), bounds[1:].tolist(), strict=True
            ):
                out[begin + length : stop] = value

    def _list_pieces(self, bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
        return list(zip(bounds[:-1].tolist(), self.lengths.tolist(), strict=True))

    def _is_valid(self, values: NDArray[Any]) -> bool:
        """Return whether all values are finite where they must be, and fit the dtype."""
        if self.check and values.dtype.kind in "fc" and not np.isfinite(values).all():
            return False
        return self.dtype == values.dtype or _is_representable(values, self.dtype)

    def _convert(self, piece: NDArray[Any], number: int) -> NDArray[Any]:
        if not self._is_valid(piece):
            raise self._make_error(piece, number)
        return piece.astype(self.dtype, copy=False)

    def _make_error(self, piece: NDArray[Any], number: int) -> DecodeError:
        timesteps = piece.reshape(len(piece), -1)
        finite = (
            np.isfinite(timesteps) if piece.dtype.kind in "fc" else np.ones(timesteps.shape, bool)
        )
        if self.check and not finite.all():
            is_bad, rule = ~finite, "must be finite. Repair the data, or pass on_error='mask'"
        else:
            is_bad = np.array(
                [
                    [not _is_representable(element[None], self.dtype) for element in row]
                    for row in timesteps
                ]
            )
            rule = f"does not fit {self.dtype}. Pass another `dtype`"
        timestep = int(np.flatnonzero(is_bad.any(axis=1))[0])
        value = timesteps[timestep][is_bad[timestep]][0].item()
        timestep += 0 if self.first_timesteps is None else int(self.first_timesteps[number])
        location = locate_sequence(self.store, int(self.ids[number]))
        details: dict[str, Detail] = {**location.details, "field": self.name}
        place = ""
        if self.is_ragged:
            details["timestep"], place = timestep, f": timestep {timestep}"
        return DecodeError.at(
            f"{location}, field {self.name!r}{place} is {value!r}, which {rule}.",
            **{name: value for name, value in details.items() if name != "remedy"},
        )


def _is_representable(values: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether values keep their meaning: floats may be rounded, integers not changed."""
    if values.dtype.kind == "c" != dtype.kind:
        return False
    with np.errstate(all="ignore"):
        cast_values = values.astype(dtype)
        if dtype.kind in "fc" and values.dtype.kind not in "fc":
            return bool((cast_values.astype(values.dtype) == values).all())
    if dtype.kind in "fc":
        return bool((np.isinf(cast_values) == np.isinf(values)).all())
    return bool((cast_values == values).all())


DEFAULT_PREFETCH = 2
"""Number of groups of batches that a thread makes ahead, by default."""

OnChanged = Literal["error", "next_epoch", "next_segment"]
"""Behavior of a resumed run whose data has changed: raise, or begin the next epoch or segment."""
OnError = Literal["raise", "mask", "replace"]

DEFAULT_STALL_TIMEOUT = 120.0
"""Seconds without progress of a worker after which ``StallError`` is raised, by default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderOptions:
    """The options that Loader, DataModule and engines have in common.

    Args:
        seed: Seed of plans and transforms, in ``[0, 2**64)``; None: not chosen yet.
        fields: Names of the fields to read; None: all, or those of the output.
        whole: Names of fields of other axes that come whole with each window or chunk.
        as_tuple: Names of fields and attributes of the batch that are returned as a tuple.
        as_dict: Names of fields and attributes of the batch that are returned as a dict.
        as_batch: Function of the batch whose result is returned.
        transform: Transform between reading and collating; None: that of the store, if it carries
            one.
        dtype: Dtype of floating fields, or field -> dtype; None: as stored.
        check_values: Whether a NaN or an infinity raises an error.
        collator: A collator, or its registered name; None: ``Padded()``.
        collate_fn: A torch ``collate_fn``, which then becomes the ``collator``.
        padding: Value of padding, for all fields or by name; None: that of the collator.
        shift: Timesteps between inputs and targets, of the only ragged field or by name.
        sort_within_batch: Whether rows are in descending length, where they are not lanes.
        tail: Batch of a rank that has none left in the last step.
        on_error: Treatment of a sequence that cannot be read or transformed: ``raise``;
            ``mask``: its row has weight 0; ``replace``: its row is the longest other one, cropped.
        num_workers: Number of processes that read and transform; 0: this process.
        prefetch: Number of groups, of about 1 MiB or 16 batches, that a thread reads ahead; 0: no
            thread.
        start_method: Start method of workers: ``fork``, ``forkserver`` or ``spawn``; None:
            ``forkserver`` if available, else ``spawn``.
        stall_timeout: Seconds without progress of a worker after which ``StallError`` is raised.
        persistent_workers: Whether workers stay for the next epoch when one has ended.
        pin_memory: Whether the output is copied into pinned memory; None: not chosen yet.

    Raises:
        ConfigError: If a value is invalid.
    """

    seed: int | None = 0
    fields: Sequence[str] | None = None
    whole: Sequence[str] | None = None
    as_tuple: Sequence[str] | None = None
    as_dict: Sequence[str] | None = None
    as_batch: Callable[[Any], Any] | None = None
    transform: Transform | None = None
    dtype: DTypes | None = None
    check_values: bool = False
    collator: CollatorLike | str | None = None
    collate_fn: Callable[..., Any] | None = None
    padding: float | Mapping[str, float] | None = None
    shift: int | Mapping[str, int] = 0
    sort_within_batch: bool = False
    tail: Tail = "fill"
    on_error: OnError = "raise"
    num_workers: int = 0
    prefetch: int = DEFAULT_PREFETCH
    start_method: str | None = None
    stall_timeout: float = DEFAULT_STALL_TIMEOUT
    persistent_workers: bool = True
    pin_memory: bool | None = False

    def __post_init__(self) -> None:
        for name in ("fields", "whole", "as_tuple", "as_dict", "dtype", "padding", "shift"):
            object.__setattr__(self, name, to_plain(getattr(self, name)))
        object.__setattr__(self, "collator", choose_collator(self.collator, self.collate_fn))
        object.__setattr__(self, "collate_fn", None)
        _ = self.value_options  # raises
        if self.fields is not None and not are_names(self.fields):
            raise ConfigError(
                must_be("loader: `fields`", "a tuple of names or None for all", repr(self.fields))
            )
        if self.whole is not None and not are_names(self.whole):
            needed = "a tuple of names, or None for none"
            raise ConfigError(must_be("loader: `whole`", needed, repr(self.whole)))
        self._check_padding()
        if self.tail not in get_args(Tail):
            raise ConfigError(
                must_be("loader: `tail`", "'fill', 'drop' or 'repeat'", repr(self.tail))
            )
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                must_be("loader: `on_error`", "'raise', 'mask' or 'replace'", repr(self.on_error))
            )
        self._check_count("prefetch", "an integer in [0, 2**31), 0 for no thread")
        self._check_workers()
        check_flags(
            "loader", persistent_workers=self.persistent_workers,
            sort_within_batch=self.sort_within_batch,
        )  # fmt: skip
        if self.pin_memory is not None:
            check_flags("loader", pin_memory=self.pin_memory)
        if self.seed is not None:
            self._check_count("seed", "an integer in [0, 2**64)", most=1 << 64)

    @property
    def value_options(self) -> ValueOptions:
        """Dtype and checks of the values."""
        return ValueOptions(self.dtype, self.check_values)

    def make_engine_options(self, **others: Any) -> EngineOptions:
        """Return the options of an engine.

        Args:
            **others: Options that only engines have, and those that differ from these.

        Raises:
            ConfigError: If a value is invalid.
        """
        shared = {
            option.name: getattr(self, option.name) for option in dataclass_fields(LoaderOptions)
        }
        return EngineOptions(**(shared | others))

    def _check_padding(self) -> None:
        padding = self.padding
        values = padding.values() if isinstance(padding, Mapping) else (padding,)
        is_number = [isinstance(each, numbers.Number | np.generic) for each in values]
        if padding is not None and not all(is_number):
            needed = "a number, or field -> number"
            raise ConfigError(must_be("loader: `padding`", needed, repr(padding)))

    def _check_count(self, name: str, needed: str, most: int = 1 << 31) -> None:
        """Make an option a plain integer, or raise."""
        count = as_integer(getattr(self, name))
        if count is None or not 0 <= count < most:
            raise ConfigError(must_be(f"loader: `{name}`", needed, repr(getattr(self, name))))
        object.__setattr__(self, name, count)

    def _check_workers(self) -> None:
        self._check_count("num_workers", "an integer in [0, 2**31), 0 for no processes")
        methods = multiprocessing.get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ConfigError(
                must_be(
                    "loader: `start_method`",
                    f"one of {', '.join(methods)}, or None",
                    repr(self.start_method),
                )
            )
        is_number = isinstance(self.stall_timeout, int | float) and self.stall_timeout is not True
        if not is_number or not self.stall_timeout > 0:
            raise ConfigError(
                must_be(
                    "loader: `stall_timeout`",
                    "a number of seconds above 0",
                    repr(self.stall_timeout),
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(LoaderOptions):
    """The options of an ``EpochEngine``.

    Args:
        world: This rank and the number of ranks.
        batches_per_update: Number of batches of an optimizer update, over all ranks; their rows
            have similar lengths if the policy orders by length. None: that of a step.
        balance_ranks: Number of ranks whose batches in a step have similar lengths; None: that of
            ``world``.
        error_log: Log of errors in the data, which raises if there are too many.
        overfit: Whether every epoch has the plan of epoch 0.
        is_evaluation: Whether the engine evaluates, so that no row may be left out.
        on_plan_ready: Called with each plan, before its first batch.
        replay_hint: Called with the epoch and index of a batch; returns the command that replays
            it, for messages. None: there is no such command.
        name: Name of the loader, for ``batch.loader``.

    Raises:
        ConfigError: If a value is invalid.
    """

    world: World = field(default_factory=World)
    seed: int = 0
    collator: Collator | None = None
    pin_memory: bool = False
    batches_per_update: int | None = None
    balance_ranks: int | None = None
    error_log: ErrorLog = field(default_factory=ErrorLog)
    overfit: bool = False
    is_evaluation: bool = False
    on_plan_ready: Callable[[Plan], None] | None = None
    replay_hint: Callable[[int, int], str] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.world, World):
            raise ConfigError(
                f"loader: `world` must be a World, but is {self.world!r}. Pass World(rank, size), "
                "or leave it out to use the process group"
            )
        LoaderOptions.__post_init__(self)
        self._check_count("seed", "an integer in [0, 2**64)", most=1 << 64)
        check_flags("loader", pin_memory=self.pin_memory)


@dataclass(frozen=True, slots=True)
class UpdateSchedule:
    """Grouping of steps into optimizer updates, for ``loss_scale`` and ``update_num_tokens``.

    Args:
        accumulate: Number of steps of an update.
        steps: Number of steps of the epoch that are trained, if not all; the last update ends
            there.
        is_loss_divided: Whether the caller divides every loss by ``accumulate``, as the Trainer
            does.

    Raises:
        ConfigError: If ``accumulate`` is not an integer of at least 1.
    """

    accumulate: int = 1
    steps: int | None = None
    is_loss_divided: bool = False

    def __post_init__(self) -> None:
        count = as_integer(self.accumulate)
        if count is None or count < 1:
            raise ConfigError(
                must_be("loader: `accumulate`", "an integer of at least 1", repr(self.accumulate))
            )
        object.__setattr__(self, "accumulate", count)


def check_on_changed(on_changed: OnChanged, owner: str) -> None:
    """Raise if ``on_changed`` is not a valid choice.

    Args:
        on_changed: The argument of a user.
        owner: Name of its receiver, for messages.

    Raises:
        ConfigError: If ``on_changed`` is not one of ``OnChanged``.
    """
    if on_changed not in get_args(OnChanged):
        choices = "'error', 'next_epoch' or 'next_segment'"
        raise ConfigError(must_be(f"{owner}: `on_changed`", choices, repr(on_changed)))

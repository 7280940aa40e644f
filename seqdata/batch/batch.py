"""The batch type: tensors by field name, and metadata of their rows.

Lengths, ids and starts stay on the CPU, where ``pack_padded_sequence`` and bookkeeping need them;
masks are computed at each access. Place in the flow: the loader makes the metadata, a collator
fills ``data``, the model reads both.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from seqdata.batch.axes import Axes, AxisMap, FieldMap, format_unknown_name
from seqdata.batch.layouts import (
    LAYOUTS,
    LayoutName,
    check_layout,
    cut_windows,
    format_shape,
    offsets_from_lengths,
    pack,
    select_spans,
    select_values,
)
from seqdata.batch.pictures import format_html, plot_batch
from seqdata.errors import ConfigError, UnknownNameError, must_be

ON_CPU = ("lengths", "ids", "start", "positions")
"""int64 (r,), on the CPU wherever the data is."""
ON_DEVICE = ("weight", "lanes", "reset", "burn_in")
"""(r,), where the data is."""
_LANE_ATTRIBUTES = ("weight", "lanes", "reset")
_OPTIONAL_ATTRIBUTES = ("lanes", "reset", "burn_in", "positions")
_DEFAULT_AXES = Axes()

RowArrays = tuple[Mapping[str, NDArray[Any]], slice]
"""Attribute -> array of the rows of consecutive batches, and the rows of one batch in them."""


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceBatch:
    """One batch of sequences. Axis order: batch, time, feature.

    ``r`` is the number of rows, and ``T`` the number of timesteps of padded rows.

    Attributes:
        data: Field -> tensor (r, T, *shape) in the layout ``padded``, with a horizon
            (r, T + horizon, *shape); (r, *shape) for a per-sequence field, or a list for ``str`` or
            ``bytes``. ``batch["x"]`` is short for ``batch.data["x"]``.
        lengths: int64 (r,), number of real timesteps of each row; always on the CPU.
        ids: int64 (r,), indices in the base store; on the CPU. ``store.keys(batch)`` names them.
        weight: float32 (r,), weight in the loss; 0 for a padding row or an idle lane.
        start: int64 (r,), first timestep of each row in its sequence; on the CPU.
        epoch: Epoch of the plan.
        number: Index of the batch in the plan; if this rank has only a padding row, that of the
            first batch of the step.
        num_tokens: ``score.sum()`` of this rank, as planned.
        global_num_tokens: Sum of ``num_tokens`` over all ranks of the step.
        update_num_tokens: Sum of ``num_tokens`` over all ranks and steps of the optimizer update.
        loss_scale: Factor that makes a sum over timesteps an exact mean.
        sequence_scale: Factor that makes a sum over rows an exact mean.
        ends_update: Whether the optimizer steps after this batch, because it is the last batch of
            its update. The last batch of an epoch always ends an update.
        lanes: int64 (r,), lane of each row; None without lanes.
        reset: bool (r,), whether the state of each lane is reset: at the start of a sequence, or
            with ``carry`` only of a stream; None without lanes.
        burn_in: int64 (r,), number of timesteps at the beginning of each row that are context; None
            without lanes and overlap.
        carry: Whether the state of a lane is carried over the ends of sequences.
        overlap: Number of timesteps before the end of a row that the next chunk of the lane reads
            again, with the state before them.
        lr_scale: Factor of the learning rate: ratio of this step's chunk length to the usual one.
        loader: Name of the loader of the batch, such as ``train`` or ``val``; empty without a name.
        part: Name of the part of a mixture, to whose store ``ids`` refer; a list with
            ``rows=True``.
        part_epoch: Epoch of the part, or for each row the index of its draw; None without parts.
        lengths_of: Axis -> int64 (r,), lengths along each axis; on the CPU.
        positions: int64 (r,), indices of the sequences in the passed store, not its base, by the
            first span of each row; -1 without a span; on the CPU. None in a batch made by hand.
        segments: int64 (n, 4), row, id, start, stop of spans, on the CPU; None: a row is one span.
        padded_length: T; 0: the longest length.
        horizon: Number of timesteps of the future of a window, which follow ``lengths`` in
            ``data``.
        layout: Layout of ragged fields: ``padded``; ``packed``, a PackedSequence; ``jagged``, a
            nested tensor; ``varlen``, flat (N, *shape), row after row.
        axes: Axis of each field.
        linked: Linked axis -> NumPy array, int64 (2, r): first timestep, and number of timesteps of
            the context, of each row; see ``start_of``.
        whole: Batch of the whole rows, without data, if this batch has only a time part of each (on
            a ring of ranks); else None.

    Examples:
        >>> from seqdata import Loader, Sorted
        >>> (batch,) = Loader([[1, 2, 3], [4]], Sorted(2, shuffle=False))
        >>> batch["x"].tolist(), batch.lengths.tolist()
        ([[1, 2, 3], [4, 0, 0]], [3, 1])
    """

    data: dict[str, Any]
    lengths: Tensor
    ids: Tensor
    weight: Tensor
    start: Tensor
    epoch: int = 0
    number: int = 0
    num_tokens: int = 0
    global_num_tokens: int = 0
    update_num_tokens: int = 0
    loss_scale: float = 0.0
    sequence_scale: float = 0.0
    ends_update: bool = True
    lanes: Tensor | None = None
    reset: Tensor | None = None
    burn_in: Tensor | None = None
    carry: bool = False
    overlap: int = 0
    lr_scale: float = 1.0
    loader: str = ""
    part: str | list[str] | None = None
    part_epoch: int | list[int] | None = None
    lengths_of: dict[str, Tensor] = field(default_factory=AxisMap)
    positions: Tensor | None = None
    segments: Tensor | None = None
    padded_length: int = 0
    horizon: int = 0
    layout: LayoutName = "padded"
    axes: Axes = _DEFAULT_AXES
    whole: SequenceBatch | None = None
    linked: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _moved: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _rows: ClassVar[RowArrays | None] = None  # of a batch made by `described`

    @classmethod
    def described(cls, lengths: NDArray[np.int64], rows: RowArrays, axes: Axes) -> SequenceBatch:
        """Return a batch without data, whose attributes except those of rows have their defaults.

        Args:
            lengths: int64 (r,), number of timesteps of each row.
            rows: Other attributes of rows, C-contiguous; only this batch uses its slice of them.
                Tensors are made when they are first read.
            axes: Axis of each field.
        """
        batch = cls.__new__(cls)
        row_lengths = torch.from_numpy(lengths)
        batch.__dict__ = {
            "data": {}, "lengths": row_lengths, "lengths_of": AxisMap({axes.axis: row_lengths}),
            "axes": axes, "_moved": {}, "_rows": rows, "linked": {},
        }  # fmt: skip
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return self._materialize().__dict__

    def __len__(self) -> int:
        return len(self.lengths)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of fields, as a dict does."""
        return iter(self.data)

    def keys(self) -> KeysView[str]:
        """Return the names of fields."""
        return self.data.keys()

    def items(self) -> ItemsView[str, Any]:
        """Return the names and values of fields."""
        return self.data.items()

    def __getitem__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise UnknownNameError(f"batch: {format_unknown_name(name, self.data)}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a field, as ``batch.data[name] = value`` does.

        Raises:
            ConfigError: If ``name`` is not a string, such as the index of a row.
        """
        if not isinstance(name, str):
            raise ConfigError(
                f"batch: the name of a field must be a str, but is {name!r:.100}. Write "
                "batch['x'] = value; a row is batch['x'][0]"
            )
        self.data[name] = value

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {format_shape(value)}" for name, value in self.data.items())
        return f"SequenceBatch({len(self)} rows: {shown}; epoch {self.epoch}, batch {self.number})"

    def _repr_html_(self) -> str:
        return format_html(self)

    def plot(self, ax: Any = None, *, field: str | None = None, row: int | None = None) -> Any:
        """Draw the mask and weights of rows, or the values of a field, with matplotlib.

        Args:
            ax: Axes to draw into; None: those of a new figure.
            field: Field whose values are drawn (the mean of its features); None: the mask.
            row: Row whose features are drawn over time, with ``field``; None: all rows.

        Returns:
            The axes.

        Raises:
            ConfigError: If matplotlib is not installed, or the field or row cannot be drawn.
        """
        return plot_batch(self, ax, field, row)

    @property
    def start_of(self) -> dict[str, Tensor]:
        """Axis -> int64 (r,), first timestep of each row: planned and linked axes; on the CPU."""
        linked = {axis: torch.from_numpy(rows[0].copy()) for axis, rows in self.linked.items()}
        return AxisMap({self.axes.axis: self.start, **linked})

    @property
    def mask(self) -> Tensor:
        """Mask of real timesteps, including those of padding rows, on the device of the data.

        bool (r, T), without the horizon; in layouts without rows bool (N,), with one entry per
        value, and False for timesteps of a horizon.
        """
        return self._to_layout(self._timesteps() < self._as_column(self.lengths))

    @property
    def score(self) -> Tensor:
        """Mask of timesteps that losses and metrics count: real, of weight > 0, not burn-in.

        bool (r, T), without the horizon; in layouts without rows bool (N,), with one entry per
        value, and False for timesteps of a horizon.
        """
        timesteps = self._timesteps()
        scored = (timesteps < self._as_column(self.lengths)) & (self.weight > 0)[:, None]
        if self.burn_in is not None:
            scored = scored & (timesteps >= self._as_column(self.burn_in))
        return self._to_layout(scored)

    @property
    def cu_seqlens(self) -> Tensor:
        """Offsets of spans in flat values, horizon included, int32 (spans+1,), for attention."""
        return offsets_from_lengths(self._span_lengths()).to(
            self.weight.device, torch.int32, non_blocking=True
        )

    @property
    def position_ids(self) -> Tensor:
        """Timestep of each flat value in its span, int64 (N,), from 0 in every span."""
        lengths = self._span_lengths()
        offsets = offsets_from_lengths(lengths)
        values = torch.arange(int(offsets[-1]), device=lengths.device)
        flat = values - offsets[:-1].repeat_interleave(lengths)
        return flat.to(self.weight.device, non_blocking=True)

    @property
    def context(self) -> dict[str, Any]:
        """Fields of windows up to their horizon, (r, size, *shape); padded with 0 if uneven.

        Fields along a linked axis are included if all windows have equally many timesteps there.
        """
        return self._slice_windows(is_future=False)

    @property
    def future(self) -> dict[str, Any]:
        """Fields of windows after their context, (r, horizon, *shape); otherwise as ``context``."""
        return self._slice_windows(is_future=True)

    def as_layout(self, layout: LayoutName, padding: float = 0) -> SequenceBatch:
        """Return the batch with its ragged fields in another layout; padding is not kept.

        Args:
            layout: ``padded``, ``packed``, ``jagged`` or ``varlen``.
            padding: Value of padding, if the layout has any.

        Raises:
            ConfigError: If the layout is unknown, or a row of length 0 would be packed.
        """
        check_layout(layout)
        if layout == self.layout:
            return self
        result = self._copy()
        result.data, result.layout = dict(self.data), layout
        for name, value in self.data.items():
            axis = self.axes.along(name)
            if axis is None or isinstance(value, list):
                continue
            lengths, width = self.extent(axis)
            flat = LAYOUTS[self.layout].flatten(value, lengths)
            result.data[name] = LAYOUTS[layout].arrange(flat, lengths, width=width, padding=padding)
        return result

    def packed(self, name: str) -> PackedSequence:
        """Return a field as a PackedSequence without padding, for rows in any order.

        Raises:
            ConfigError: If the field is unknown or runs along no axis, or a row has length 0.
        """
        values = self[name]
        axis = self.axes.along(name)
        if axis is None or isinstance(values, list):
            raise ConfigError(
                f"batch: field {name!r} has one value per sequence and cannot be packed. Use "
                f"batch[{name!r}]."
            )
        if self.layout != "padded":
            if self.horizon:  # whose future is not packed
                return self.as_layout("padded").packed(name)
            packed_values: PackedSequence = self.as_layout("packed")[name]
            return packed_values
        return pack(values, self.lengths_of.get(axis, self.lengths))

    def real(self) -> SequenceBatch:
        """Return the batch without rows of weight 0: padding rows, idle lanes, masked errors."""
        is_counted = self.weight > 0
        if bool(is_counted.all()):
            return self
        if not LAYOUTS[self.layout].has_rows:
            return self.as_layout("padded").real().as_layout(self.layout)
        result = self._copy()
        result.__dict__.update(select_rows(self, is_counted), padded_length=self._width())
        return result

    def to(self, device: torch.device | str, non_blocking: bool | None = None) -> SequenceBatch:
        """Return the batch on a device: ``data``, ``weight``, ``lanes``, ``reset`` and ``burn_in``.

        Other tensors, such as ``lengths``, stay on the CPU.

        Args:
            device: The device.
            non_blocking: As in ``Tensor.to``; None: as Lightning does, True except to CPU and MPS.
        """
        target = torch.device(device)
        is_async = target.type not in ("cpu", "mps") if non_blocking is None else non_blocking
        result = self._map_tensors(
            lambda tensor: tensor.to(target, non_blocking=is_async), ON_DEVICE
        )
        if self.lanes is not None and target.type != "cpu":
            result._moved = {
                name: (getattr(result, name), self.on_cpu(name)) for name in _LANE_ATTRIBUTES
            }
        return result

    def on_cpu(self, name: str) -> Tensor:
        """Return ``weight``, ``lanes`` or ``reset`` on the CPU.

        In a batch with lanes, ``to`` keeps these tensors, so that nothing waits for the device; one
        that was replaced since is copied from it.

        Raises:
            ConfigError: If it is None, as ``lanes`` and ``reset`` are without lanes.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ConfigError(
                f"batch: `{name}` must come from a batch with lanes, but is None. Plan with a "
                "policy that has lanes, such as TBPTT."
            )
        moved = self._moved.get(name)
        return moved[1] if moved is not None and moved[0] is value else value.cpu()

    def pin_memory(self) -> SequenceBatch:
        """Return the batch with the tensors that ``to`` moves in pinned memory."""
        return self._map_tensors(lambda tensor: tensor.pin_memory(), ON_DEVICE)

    def validate(self) -> Self:
        """Return the batch itself if its attributes are consistent; for tests.

        Raises:
            ConfigError: If an attribute is inconsistent; the message names the first one.
        """
        fault = next(find_faults(self), None)
        if fault is not None:
            raise ConfigError(f"batch: {fault}. Check the collator.")
        return self

    def _timesteps(self) -> Tensor:
        return torch.arange(self._width(), device=self.weight.device)  # (T,)

    def _width(self) -> int:
        return self.padded_length or max(1, int(self.lengths.max()) if len(self) else 1)

    def extent(self, axis: str) -> tuple[Tensor, int]:
        """Return the number of timesteps of each row on an axis, with horizon, and the width."""
        lengths = self.lengths_of.get(axis, self.lengths)
        if axis == self.axes.axis:
            return lengths + self.horizon, self._width() + self.horizon
        return lengths, max(1, int(lengths.max()) if len(lengths) else 1)

    def _span_lengths(self) -> Tensor:
        if self.segments is None:
            return self.lengths + self.horizon
        return self.segments[:, 3] - self.segments[:, 2]

    def _slice_windows(self, *, is_future: bool) -> dict[str, Any]:
        if self.layout != "padded":
            return self.as_layout("padded")._slice_windows(is_future=is_future)
        own = self._width() if self.horizon or is_future else None
        sizes: dict[str | None, int | None] = {self.axes.axis: own}
        for axis, rows in self.linked.items():
            context = rows[1]
            if len(context) and (context == context[0]).all():
                sizes[axis] = int(context[0])
        found = FieldMap()
        for name, value in self.data.items():
            along = self.axes.along(name)
            if along in sizes and not isinstance(value, list):
                if along == self.axes.axis and self.horizon:
                    found[name] = cut_windows(value, self.lengths, self.horizon, is_future)
                    continue
                cut = slice(sizes[along], None) if is_future else slice(sizes[along])
                found[name] = value[:, cut]
        return found

    def _to_layout(self, padded: Tensor) -> Tensor:
        """Return marks of timesteps, bool (r, T), in the layout of the values."""
        lengths, layout = self.lengths, LAYOUTS[self.layout]
        if self.horizon and not layout.has_rows:
            marks = torch.nn.functional.pad(padded, (0, self.horizon))
            return layout.arrange_marks(marks, lengths + self.horizon)
        return layout.arrange_marks(padded, lengths)

    def _as_column(self, per_row: Tensor) -> Tensor:
        return per_row.to(self.weight.device, non_blocking=True)[:, None]  # (r, 1)

    def _copy(self) -> SequenceBatch:
        """Return a copy with the same tensors."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self._materialize().__dict__)
        return copy

    def _materialize(self) -> Self:
        """Return the batch itself, after making all its tensors."""
        if "_rows" in self.__dict__:
            for name in (*ON_CPU, *ON_DEVICE):
                getattr(self, name)
            del self.__dict__["_rows"]
        return self

    def _map_tensors(self, function: Callable[[Any], Any], names: tuple[str, ...]) -> SequenceBatch:
        result = self._copy()
        result.data = {
            name: function(value) if isinstance(value, Tensor | PackedSequence) else value
            for name, value in self.data.items()
        }
        for name in names:
            value = getattr(self, name)
            if value is not None:
                setattr(result, name, function(value))
        if self.whole is not None:
            result.whole = self.whole._map_tensors(function, names)
        return result


class _RowAttribute:
    """An attribute of rows, whose tensor is made when it is first read.

    A value that is set hides it, as that of a ``cached_property``.

    Args:
        name: Name of the attribute.
        is_optional: Whether a batch without it has None.
    """

    def __init__(self, name: str, *, is_optional: bool) -> None:
        self._name = name
        self._is_optional = is_optional

    def __get__(self, batch: SequenceBatch | None, owner: type[SequenceBatch]) -> Any:
        if batch is None:
            return self
        arrays, own_rows = batch._rows or ({}, slice(0))
        if self._name in arrays:
            tensor = torch.from_numpy(arrays[self._name][own_rows])
            return batch.__dict__.setdefault(self._name, tensor)
        if self._is_optional:
            return None
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")


for _name in (*ON_CPU, *ON_DEVICE):
    if _name != "lengths":
        _is_optional = _name in _OPTIONAL_ATTRIBUTES
        setattr(SequenceBatch, _name, _RowAttribute(_name, is_optional=_is_optional))


def batch_size_fn(batch: SequenceBatch) -> int:
    """Return the number of rows of weight above 0, for Lightning's ``ThroughputMonitor``.

    Examples:
        >>> from seqdata import Fixed, Loader
        >>> batch_size_fn(next(iter(Loader([[1, 2, 3], [4]], Fixed(2)))))
        2
    """
    return int((batch.weight > 0).sum())


def length_fn(batch: SequenceBatch) -> int:
    """Return the number of scored timesteps, for Lightning's ``ThroughputMonitor``.

    Examples:
        >>> from seqdata import Fixed, Loader
        >>> length_fn(next(iter(Loader([[1, 2, 3], [4]], Fixed(2)))))
        4
    """
    return batch.num_tokens


def select_rows(batch: SequenceBatch, selected: Tensor) -> dict[str, Any]:
    """Return the attributes of a batch that change if only some of its rows are selected.

    Args:
        batch: A batch of a layout with rows.
        selected: bool (r,), mask of the rows with weight > 0, on the device of ``batch.weight``.

    Returns:
        Attribute -> value: ``data``, ``whole``, what has one value per row, and ``segments``, with
        the row indices of the smaller batch.
    """
    on_device, on_cpu = selected.nonzero().flatten(), selected.cpu().nonzero().flatten()
    changed: dict[str, Any] = {
        name: select_values(getattr(batch, name), on_device, on_cpu)
        for name in (*ON_CPU, *ON_DEVICE)
    }
    changed["data"] = {
        name: select_values(_crop(batch, name, on_cpu), on_device, on_cpu) for name in batch.data
    }
    for name in ("part", "part_epoch"):  # lists, where rows are of several parts
        if isinstance(getattr(batch, name), list):
            changed[name] = select_values(getattr(batch, name), on_device, on_cpu)
    changed["lengths_of"] = AxisMap(
        {axis: lengths[on_cpu] for axis, lengths in batch.lengths_of.items()}
    )
    own_rows = on_cpu.numpy()
    changed["linked"] = {axis: rows[:, own_rows] for axis, rows in batch.linked.items()}
    if batch.whole is not None:
        changed["whole"] = batch.whole.real()  # of the same weights
    if batch.segments is not None:
        changed["segments"] = select_spans(batch.segments, on_cpu, len(batch))
    return changed


def _crop(batch: SequenceBatch, name: str, rows: Tensor) -> Any:
    """Return a field, cropped to the longest of some rows if it is not of the planned axis."""
    value, axis = batch.data[name], batch.axes.along(name)
    lengths = None if axis in (None, batch.axes.axis) else batch.lengths_of.get(str(axis))
    if lengths is None or batch.layout != "padded" or not isinstance(value, Tensor):
        return value
    return value[:, : max(1, int(lengths[rows].max()) if len(rows) else 1)]


def find_faults(batch: SequenceBatch) -> Iterator[str]:
    """Yield descriptions of the attributes of a batch that are inconsistent."""
    rows, width = len(batch), batch.extent(batch.axes.axis)[1] - batch.horizon
    for name in ON_CPU:
        value = getattr(batch, name)
        if value is None:
            continue
        if value.dtype != torch.int64 or value.shape != (rows,) or value.device.type != "cpu":
            yield (
                must_be(
                    f"`{name}`",
                    f"int64 ({rows},) on the CPU",
                    f"{value.dtype} {format_shape(value)}",
                )
            )
    for name in ON_DEVICE:
        value = getattr(batch, name)
        if value is not None and value.shape != (rows,):
            yield f"`{name}` must have shape ({rows},), but has {format_shape(value)}"
    if rows and int(batch.lengths.max()) > width:
        yield f"`lengths` must be at most {width}, but go up to {int(batch.lengths.max())}"
    padded = batch if batch.layout == "padded" else batch.as_layout("padded")
    for name, value in padded.data.items():
        if len(value) != rows:
            yield f"field {name!r} must have {rows} rows, but has {len(value)}"
        axis = batch.axes.along(name)
        if isinstance(value, Tensor) and axis is not None:
            longest = batch.extent(axis)[1]
            if value.shape[1] != longest:
                yield (
                    f"field {name!r} must have {longest} timesteps, but has shape "
                    f"{format_shape(value)}"
                )
    if batch.segments is not None and batch.segments.shape[1:] != (4,):
        yield f"`segments` must have shape (spans, 4), but has {format_shape(batch.segments)}"
    counted = int(batch.score.sum())
    if counted != batch.num_tokens:
        yield must_be("`num_tokens`", f"score.sum() = {counted}", f"{batch.num_tokens}")

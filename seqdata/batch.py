"""The one batch type: padded tensors by field name, and what is known of their rows.

Lengths, ids and starts stay on the CPU, where ``pack_padded_sequence`` and bookkeeping want them;
masks are computed when asked. Place in the flow: a Loader makes the head, a Collator fills
``data``, the model reads it. Reads: nothing. Makes: masks, packed sequences, copies on a device.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seqdata.errors import ConfigError
from seqdata.index import DEFAULT_AXIS

_ON_DEVICE = ("weight", "lanes", "reset", "burn_in")
_ON_CPU = ("lengths", "ids", "start")


class Axes:
    """Which field runs along which axis: one object for all batches of a loader, never changed.

    Not a dataclass: Lightning walks through those inside a batch.

    Args:
        axis: The axis that is planned on: ``batch.lengths`` and ``batch.mask`` are about it.
        axis_of: Field -> its axis; None: one value per sequence. A field that is not here, and is
            not a list, runs along ``axis``.
        shift: Field -> timesteps between an input and its target.
    """

    __slots__ = ("axis", "axis_of", "shift")

    def __init__(
        self,
        axis: str = DEFAULT_AXIS,
        axis_of: Mapping[str, str | None] | None = None,
        shift: Mapping[str, int] | None = None,
    ) -> None:
        self.axis = axis
        self.axis_of = axis_of or {}
        self.shift = shift or {}

    def __repr__(self) -> str:
        return f"Axes({self.axis!r}, {dict(self.axis_of)}, shift={dict(self.shift)})"

    def along(self, name: str) -> str | None:
        """Give the axis of a field; None where it has one value per sequence."""
        return self.axis_of.get(name, self.axis)


_PLAIN = Axes()


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceBatch:
    """One batch of sequences, padded to its longest row. Axis order: batch, time, feature.

    ``r`` is the number of rows, ``T`` the timesteps of ``padded_length``.

    Attributes:
        data: Field -> tensor (r, T, *shape), or (r, *shape) of a per-sequence field, or a list of
            str or bytes. ``batch["x"]`` is short for ``batch.data["x"]``.
        lengths: int64 (r,), real timesteps of each row; always on the CPU.
        ids: int64 (r,), numbers in the base store; on the CPU. ``store.keys(ids)`` names them.
        weight: float32 (r,), multiplies the loss; 0 = filler or idle lane.
        start: int64 (r,), the row's first timestep in its sequence; on the CPU.
        epoch: Of the plan.
        number: Batch of the plan; for a filler that of its step's first batch.
        num_tokens: ``score.sum()`` of this rank, as planned.
        global_num_tokens: The same over all ranks of the step.
        update_num_tokens: The same over all ranks and steps of the optimizer update.
        loss_scale: What a sum over timesteps is multiplied with to be an exact mean.
        sequence_scale: What a sum over rows is multiplied with to be an exact mean.
        lanes: int64 (r,), lane of each row; None without lanes.
        reset: bool (r,), where a lane begins a sequence; None without lanes.
        burn_in: int64 (r,), timesteps at the head of each row that are context; None: none are.
        lengths_of: Axis -> int64 (r,), lengths along each axis; on the CPU.
        segments: int64 (n, 4), row, id, start, stop of every span, on the CPU; None: a row is one.
        padded_length: T; 0: the longest length.
        axes: Which field runs along which axis.
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
    lanes: Tensor | None = None
    reset: Tensor | None = None
    burn_in: Tensor | None = None
    lengths_of: dict[str, Tensor] = field(default_factory=dict)
    segments: Tensor | None = None
    padded_length: int = 0
    axes: Axes = _PLAIN

    def __len__(self) -> int:
        return len(self.lengths)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise ConfigError(f"batch: {unknown_name(name, self.data)}") from None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {_shape(value)}" for name, value in self.data.items())
        return f"SequenceBatch({len(self)} rows: {shown}; epoch {self.epoch}, batch {self.number})"

    @property
    def mask(self) -> Tensor:
        """Real timesteps, bool (r, T), on the device of the data; a filler row keeps its own."""
        return self._places() < self._beside(self.lengths)

    @property
    def score(self) -> Tensor:
        """Timesteps that losses and metrics count, bool (r, T): real, weight > 0, not burn-in."""
        places = self._places()
        scored = (places < self._beside(self.lengths)) & (self.weight > 0)[:, None]
        return scored if self.burn_in is None else scored & (places >= self._beside(self.burn_in))

    def packed(self, name: str) -> PackedSequence:
        """Give a field as a PackedSequence, rows in any order; padding is left out.

        Raises:
            ConfigError: If there is no such field, it is not padded, or a row has length 0.
        """
        values = self[name]
        axis = self.axes.along(name)
        if axis is None or not isinstance(values, Tensor):
            raise ConfigError(
                f"batch: field {name!r} has one value per sequence, must run along an axis to be "
                f"packed; use batch[{name!r}]"
            )
        lengths = self.lengths_of.get(axis, self.lengths)
        if len(lengths) and not int(lengths.min()):
            rows = (lengths == 0).nonzero().flatten().tolist()
            raise ConfigError(
                f"batch: rows {rows} of batch {self.number} have length 0, must have at least 1 to "
                "be packed; leave idle lanes out with `real()` or run them through `LaneStates`"
            )
        return pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)

    def real(self) -> SequenceBatch:
        """Give the batch without filler rows and idle lanes: all that has a row is cut."""
        keep = self.weight > 0
        if bool(keep.all()):
            return self
        there, here = keep.nonzero().flatten(), keep.cpu().nonzero().flatten()
        cut = copy.copy(self)
        cut.data = {name: _rows(value, there, here) for name, value in self.data.items()}
        for name in (*_ON_CPU, *_ON_DEVICE):
            setattr(cut, name, _rows(getattr(self, name), there, here))
        cut.lengths_of = {axis: lengths[here] for axis, lengths in self.lengths_of.items()}
        if self.segments is not None:
            place = torch.full((len(self),), -1)
            place[here] = torch.arange(len(here))
            kept = self.segments[place[self.segments[:, 0]] >= 0]
            kept[:, 0] = place[kept[:, 0]]
            cut.segments = kept
        return cut

    def to(self, device: torch.device | str, non_blocking: bool | None = None) -> SequenceBatch:
        """Give the batch with data and weights on a device; lengths, ids and start stay on the CPU.

        Args:
            device: Where to.
            non_blocking: As in ``Tensor.to``; None: as Lightning moves tensors (not to CPU, MPS).
        """
        target = torch.device(device)
        free = target.type not in ("cpu", "mps") if non_blocking is None else non_blocking
        return self._changed(lambda tensor: tensor.to(target, non_blocking=free), _ON_DEVICE)

    def pin_memory(self) -> SequenceBatch:
        """Give the batch with what ``to`` moves in pinned memory."""
        return self._changed(lambda tensor: tensor.pin_memory(), _ON_DEVICE)

    def validate(self) -> Self:
        """Give the batch itself if all its parts fit together; for tests.

        Raises:
            ConfigError: If they do not, naming the first part that does not.
        """
        wrong = next(_faults(self), None)
        if wrong is not None:
            raise ConfigError(f"batch: {wrong}; check the collator")
        return self

    def _places(self) -> Tensor:
        return torch.arange(self._width(), device=self.weight.device)  # (T,)

    def _width(self) -> int:
        return self.padded_length or max(1, int(self.lengths.max()) if len(self) else 1)

    def _beside(self, per_row: Tensor) -> Tensor:
        return per_row.to(self.weight.device, non_blocking=True)[:, None]  # (r, 1)

    def _changed(self, change: Callable[[Any], Any], names: tuple[str, ...]) -> SequenceBatch:
        made = copy.copy(self)
        made.data = {
            name: change(value) if isinstance(value, Tensor | PackedSequence) else value
            for name, value in self.data.items()
        }
        for name in names:
            value = getattr(self, name)
            if value is not None:
                setattr(made, name, change(value))
        return made


def batch_size_fn(batch: SequenceBatch) -> int:
    """Give the rows of a batch that count; for Lightning's ``ThroughputMonitor``."""
    return int((batch.weight > 0).sum())


def length_fn(batch: SequenceBatch) -> int:
    """Give the timesteps of a batch that count; for Lightning's ``ThroughputMonitor``."""
    return batch.num_tokens


def unknown_name(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """Say that a field is not there, which one may be meant, and which there are."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no field {name!r}; {hint}There are: {', '.join(known) or 'none'}"


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"({len(value)},)"


def _rows(value: Any, there: Tensor, here: Tensor) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value[there if value.device == there.device else here]
    return [value[row] for row in here.tolist()]


def _faults(batch: SequenceBatch) -> Iterator[str]:
    rows, width = len(batch), batch._width()
    for name in _ON_CPU:
        value = getattr(batch, name)
        if value.dtype != torch.int64 or value.shape != (rows,) or value.device.type != "cpu":
            yield f"`{name}` is {value.dtype} {_shape(value)}, must be int64 ({rows},) on the CPU"
    for name in _ON_DEVICE:
        value = getattr(batch, name)
        if value is not None and value.shape != (rows,):
            yield f"`{name}` has shape {_shape(value)}, must be ({rows},)"
    if rows and int(batch.lengths.max()) > width:
        yield f"`lengths` go up to {int(batch.lengths.max())}, must be at most {width}"
    for name, value in batch.data.items():
        if len(value) != rows:
            yield f"field {name!r} has {len(value)} rows, must have {rows}"
        axis = batch.axes.along(name)
        longest = width
        if axis is not None and axis != batch.axes.axis:
            longest = max(1, int(batch.lengths_of[axis].max()) if rows else 0)
        if isinstance(value, Tensor) and axis is not None and value.shape[1] != longest:
            yield f"field {name!r} has shape {_shape(value)}, must have {longest} timesteps"
    if batch.segments is not None and batch.segments.shape[1:] != (4,):
        yield f"`segments` has shape {_shape(batch.segments)}, must be (spans, 4)"
    counted = int(batch.score.sum())
    if counted != batch.num_tokens:
        yield f"`num_tokens` is {batch.num_tokens}, must be score.sum() = {counted}"

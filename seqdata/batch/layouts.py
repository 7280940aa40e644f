"""The layouts of ragged values as tensors, and conversions between them without loss.

``padded`` is (r, T, *shape); ``varlen`` is flat, (N, *shape), row after row; ``jagged`` is torch's
nested tensor over the same flat values; ``packed`` is a PackedSequence. Lengths stay on the CPU, so
no size has to be read from a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from seqdata.errors import ConfigError

LayoutName = Literal["padded", "packed", "jagged", "varlen"]
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Layout(ABC):
    """Arrangement of the ragged values of a batch in tensors; ``LAYOUTS`` has all, by name.

    Attributes:
        name: Name of the layout.
        has_rows: Whether tensors are (r, T, *shape), with padding where rows are shorter.
    """

    name: ClassVar[LayoutName]
    has_rows: ClassVar[bool] = False

    @abstractmethod
    def flatten(self, values: Any, lengths: Tensor) -> Tensor:
        """Return the values of this layout flat, row after row.

        Args:
            values: Values in this layout.
            lengths: int64 (r,), number of timesteps of each row, on the CPU.

        Returns:
            (N, *shape), N = ``lengths.sum()``.
        """

    @abstractmethod
    def arrange(self, flat: Tensor, lengths: Tensor, *, width: int, padding: float = 0) -> Any:
        """Return flat values in this layout.

        Args:
            flat: Flat values (N, *shape), row after row.
            lengths: int64 (r,), number of timesteps of each row, on the CPU; their sum is N.
            width: Number of timesteps of a padded row.
            padding: Value of padding.

        Raises:
            ConfigError: If a row of length 0 would be packed.
        """

    def arrange_marks(self, marks: Tensor, lengths: Tensor) -> Tensor:
        """Return marks of timesteps, bool (r, T), in the order of the flat values, bool (N,)."""
        return LAYOUTS["padded"].flatten(marks, lengths)


class PaddedLayout(Layout):
    """Rows of equal width: (r, T, *shape)."""

    name = "padded"
    has_rows = True

    def flatten(self, values: Any, lengths: Tensor) -> Tensor:
        """Return values without their padding."""
        rows, width = values.shape[:2]
        flat_rows: Tensor = values.reshape(rows * width, *values.shape[2:])
        return select_flat(
            flat_rows, find_padded_positions(lengths, width).to(values.device, non_blocking=True)
        )

    def arrange(self, flat: Tensor, lengths: Tensor, *, width: int, padding: float = 0) -> Tensor:
        """Return values with padding at the end of each row."""
        rows = len(lengths)
        flat_rows = flat.new_full((rows * width, *flat.shape[1:]), padding)
        view_signed(flat_rows).index_copy_(
            0,
            find_padded_positions(lengths, width).to(flat.device, non_blocking=True),
            view_signed(flat),
        )
        return flat_rows.reshape(rows, width, *flat.shape[1:])

    def arrange_marks(self, marks: Tensor, lengths: Tensor) -> Tensor:
        """Return the marks unchanged."""
        del lengths
        return marks


class PackedLayout(Layout):
    """Values as a PackedSequence."""

    name = "packed"

    def flatten(self, values: Any, lengths: Tensor) -> Tensor:
        """Return the values row after row, reordered from timestep after timestep."""
        dtype, signed = values.data.dtype, view_signed(values.data)
        if signed.dtype != dtype:
            values = PackedSequence(signed, *values[1:])
        padded = pad_packed_sequence(values, batch_first=True)[0]
        return view_dtype(LAYOUTS["padded"].flatten(padded, lengths), dtype)

    def arrange(
        self, flat: Tensor, lengths: Tensor, *, width: int, padding: float = 0
    ) -> PackedSequence:
        """Return the values as a PackedSequence."""
        padded = LAYOUTS["padded"].arrange(flat, lengths, width=width, padding=padding)
        return pack(padded, lengths)

    def arrange_marks(self, marks: Tensor, lengths: Tensor) -> Tensor:
        """Return the marks in the order of ``PackedSequence.data``."""
        packed: Tensor = pack(marks, lengths).data
        return packed


class JaggedLayout(Layout):
    """Values as torch's nested tensor, over flat values."""

    name = "jagged"

    def flatten(self, values: Any, lengths: Tensor) -> Tensor:
        """Return the values of the nested tensor, without a copy."""
        del lengths
        inner: Tensor = values.values()
        return inner

    def arrange(self, flat: Tensor, lengths: Tensor, *, width: int, padding: float = 0) -> Tensor:
        """Return a nested tensor over the values, without a copy."""
        del width, padding
        offsets = offsets_from_lengths(lengths).to(flat.device, non_blocking=True)
        nested_tensor: Tensor = torch.nested.nested_tensor_from_jagged(flat, offsets)
        return nested_tensor


class VarlenLayout(Layout):
    """Flat values, row after row: (N, *shape)."""

    name = "varlen"

    def flatten(self, values: Any, lengths: Tensor) -> Tensor:
        """Return the values unchanged: they are flat."""
        del lengths
        flat: Tensor = values
        return flat

    def arrange(self, flat: Tensor, lengths: Tensor, *, width: int, padding: float = 0) -> Tensor:
        """Return the values unchanged: they are flat."""
        del lengths, width, padding
        return flat


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (PaddedLayout(), PackedLayout(), JaggedLayout(), VarlenLayout())
}


def check_layout(name: str) -> TypeGuard[LayoutName]:
    """Raise if a layout is unknown.

    Raises:
        ConfigError: If it is not in ``LAYOUTS``.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"batch: layout {name!r} is unknown. Layouts: {', '.join(LAYOUTS)}.")
    return True


def pack(padded: Tensor, lengths: Tensor) -> PackedSequence:
    """Return padded values as a PackedSequence, for rows in any order.

    Raises:
        ConfigError: If a row has length 0, or there are no rows.
    """
    if not len(lengths):
        raise ConfigError(
            "batch: must have at least one row to be packed, but has none. Check `weight` before "
            "calling `real()`."
        )
    if not int(lengths.min()):
        rows = (lengths == 0).nonzero().flatten().tolist()
        raise ConfigError(
            f"batch: rows {rows} of length 0 cannot be packed. Leave idle "
            "lanes out with `real()` or run them through `LaneStates`"
        )
    signed = view_signed(padded)
    packed = pack_padded_sequence(signed, lengths, batch_first=True, enforce_sorted=False)
    if signed.dtype == padded.dtype:
        return packed
    return PackedSequence(view_dtype(packed.data, padded.dtype), *packed[1:])


def select_flat(flat: Tensor, positions: Tensor) -> Tensor:
    """Return values of any dtype at positions of their first dimension.

    Args:
        flat: Values (n, *shape).
        positions: int64 (m,), on the same device.

    Returns:
        The selected values, (m, *shape).
    """
    return view_dtype(view_signed(flat).index_select(0, positions), flat.dtype)


def view_signed(values: Tensor) -> Tensor:
    """Return uint16, uint32 and uint64 as signed integers over the same memory; others unchanged.

    Torch has no operation that selects or copies rows of these dtypes, or not on every device.
    """
    dtype = _SIGNED.get(values.dtype)
    return values if dtype is None else values.view(dtype)


def view_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values as another dtype of the same width over the same memory."""
    return values if values.dtype == dtype else values.view(dtype)


def offsets_from_lengths(lengths: Tensor) -> Tensor:
    """Return the offsets of rows in flat values, int64 (r+1,), from 0 to N."""
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def find_padded_positions(lengths: Tensor, width: int) -> Tensor:
    """Return the position of each flat value in the flattened padded rows, int64 (N,)."""
    rows = torch.arange(len(lengths), device=lengths.device)
    offsets = offsets_from_lengths(lengths)
    padding_before = rows * width - offsets[:-1]  # shift of a row's values by the padding before it
    values = torch.arange(int(offsets[-1]), device=lengths.device)
    return values + padding_before.repeat_interleave(lengths)


def format_shape(value: Any) -> str:
    """Return the shape of a value as a string."""
    if isinstance(value, PackedSequence):
        return f"packed {tuple(value.data.shape)}"
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"({len(value)},)"


def select_values(value: Any, on_device: Tensor, on_cpu: Tensor) -> Any:
    """Return some rows of a tensor or a list, by their indices on each device; None for None."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        rows = on_device if value.device == on_device.device else on_cpu
        return view_dtype(view_signed(value)[rows], value.dtype)
    return [value[row] for row in on_cpu.tolist()]


def select_spans(segments: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Return the segments of some rows, int64 (m, 4), with the rows numbered from 0."""
    new_rows = torch.full((num_rows,), -1, dtype=torch.int64, device=rows.device)
    new_rows[rows] = torch.arange(len(rows), device=rows.device)
    selected_segments = segments[new_rows[segments[:, 0]] >= 0]
    selected_segments[:, 0] = new_rows[selected_segments[:, 0]]
    return selected_segments


def cut_windows(value: Tensor, lengths: Tensor, horizon: int, is_future: bool) -> Tensor:
    """Return the context or future of windows: views, or copies if contexts differ in length.

    Args:
        value: (r, T, *shape), each row its context and then its horizon.
        lengths: int64 (r,), number of timesteps of each context, on the CPU.
        horizon: Timesteps of the future.
        is_future: Whether the future is returned; else the context, padded with 0.
    """
    width = value.shape[1] - horizon
    if bool((lengths == width).all()):
        return value[:, width:] if is_future else value[:, :width]
    if is_future:
        steps = torch.arange(horizon, dtype=torch.int64, device="cpu")
        columns = (lengths[:, None] + steps).to(value.device)
        rows = torch.arange(len(lengths), dtype=torch.int64, device=value.device)
        return value[rows[:, None], columns]
    steps = torch.arange(width, dtype=torch.int64, device="cpu")
    is_after = (steps >= lengths[:, None]).to(value.device)
    shape = (*is_after.shape, *[1] * (value.dim() - 2))
    return value[:, :width].masked_fill(is_after.reshape(shape), 0)

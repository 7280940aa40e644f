"""The layouts of ragged values as tensors, and conversions between them without loss.

``padded`` is (r, T, *shape); ``varlen`` is flat, (N, *shape), row after row; ``jagged`` is torch's
nested tensor over the same flat values; ``packed`` is a PackedSequence. Lengths stay on the CPU, so
nothing here waits for a device.
"""

from __future__ import annotations

from typing import Any, Literal, TypeGuard, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from seqdata.errors import ConfigError

LayoutName = Literal["padded", "packed", "jagged", "varlen"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)


def check_layout(name: str) -> TypeGuard[LayoutName]:
    """Raise if a layout is unknown.

    Raises:
        ConfigError: If it is not in ``LAYOUTS``.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"batch: layout {name!r} is unknown. Layouts: {', '.join(LAYOUTS)}.")
    return True


def flatten(values: Any, lengths: Tensor, layout: LayoutName) -> Tensor:
    """Return values flat, row after row.

    Args:
        values: In ``layout``.
        lengths: int64 (r,), timesteps of each row, on the CPU.
        layout: Their layout.

    Returns:
        (N, *shape), N = ``lengths.sum()``.
    """
    if layout == "varlen":
        flat: Tensor = values
        return flat
    if layout == "jagged":
        inner: Tensor = values.values()
        return inner
    if layout == "packed":
        values = pad_packed_sequence(values, batch_first=True)[0]
    rows, width = values.shape[:2]
    flat_rows: Tensor = values.reshape(rows * width, *values.shape[2:])
    return flat_rows.index_select(
        0, find_padded_positions(lengths, width).to(values.device, non_blocking=True)
    )


def to_layout(
    flat: Tensor, lengths: Tensor, layout: LayoutName, *, width: int, padding: float = 0
) -> Any:
    """Return flat values in a layout.

    Args:
        flat: (N, *shape), row after row.
        lengths: int64 (r,), timesteps of each row, on the CPU; their sum is N.
        layout: The layout of the result.
        width: T, if the layout is padded.
        padding: Value of padding.

    Raises:
        ConfigError: If a row of length 0 would be packed.
    """
    if layout == "varlen":
        return flat
    if layout == "jagged":
        return make_nested(flat, lengths)
    rows = len(lengths)
    flat_rows = flat.new_full((rows * width, *flat.shape[1:]), padding)
    flat_rows.index_copy_(
        0, find_padded_positions(lengths, width).to(flat.device, non_blocking=True), flat
    )
    padded = flat_rows.reshape(rows, width, *flat.shape[1:])
    return padded if layout == "padded" else pack(padded, lengths)


def make_nested(flat: Tensor, lengths: Tensor) -> Tensor:
    """Return a jagged nested tensor over flat values, without a copy."""
    offsets = offsets_from_lengths(lengths).to(flat.device, non_blocking=True)
    nested_tensor: Tensor = torch.nested.nested_tensor_from_jagged(flat, offsets)
    return nested_tensor


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
    return pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)


def offsets_from_lengths(lengths: Tensor) -> Tensor:
    """Return where each row begins in flat values, int64 (r+1,), from 0 to N."""
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def find_padded_positions(lengths: Tensor, width: int) -> Tensor:
    """Return the position of each flat value in the flattened padded rows, int64 (N,)."""
    rows = torch.arange(len(lengths))
    offsets = offsets_from_lengths(lengths)
    padding_before = rows * width - offsets[:-1]  # shift of a row's values by the padding before it
    return torch.arange(int(offsets[-1])) + padding_before.repeat_interleave(lengths)

"""Selecting rows of a batch: its fields, its per-row tensors and its segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqdata.batch.axes import AxisMap
from seqdata.batch.layouts import view_dtype, view_signed
from seqdata.batch.validation import ON_CPU, ON_DEVICE

if TYPE_CHECKING:
    from seqdata.batch.batch import SequenceBatch


def select_rows(batch: SequenceBatch, selected: Tensor) -> dict[str, Any]:
    """Return the attributes of a batch that differ if it keeps some of its rows only.

    Args:
        batch: A batch of a layout with rows.
        selected: bool (r,), the rows to keep, on the device of ``batch.weight``.

    Returns:
        Attribute -> value: ``data``, the tensors with one value per row, ``lengths_of`` and
        ``segments``, whose row numbers are those of the smaller batch.
    """
    on_device, on_cpu = selected.nonzero().flatten(), selected.cpu().nonzero().flatten()
    changed: dict[str, Any] = {
        name: _select(getattr(batch, name), on_device, on_cpu) for name in (*ON_CPU, *ON_DEVICE)
    }
    changed["data"] = {
        name: _select(_crop(batch, name, on_cpu), on_device, on_cpu) for name in batch.data
    }
    for name in ("part", "part_epoch"):  # lists, where rows are of several parts
        if isinstance(getattr(batch, name), list):
            changed[name] = _select(getattr(batch, name), on_device, on_cpu)
    changed["lengths_of"] = AxisMap(
        {axis: lengths[on_cpu] for axis, lengths in batch.lengths_of.items()}
    )
    if batch.whole is not None:
        changed["whole"] = batch.whole.real()  # of the same weights
    if batch.segments is not None:
        changed["segments"] = _select_segments(batch.segments, on_cpu, len(batch))
    return changed


def _crop(batch: SequenceBatch, name: str, rows: Tensor) -> Any:
    """Return a field; of another axis than that of the plan, as wide as these rows need it."""
    value, axis = batch.data[name], batch.axes.along(name)
    lengths = None if axis in (None, batch.axes.axis) else batch.lengths_of.get(str(axis))
    if lengths is None or batch.layout != "padded" or not isinstance(value, Tensor):
        return value
    return value[:, : max(1, int(lengths[rows].max()) if len(rows) else 1)]


def _select(value: Any, on_device: Tensor, on_cpu: Tensor) -> Any:
    """Return the rows of a tensor, by their numbers on its device, or of a list of texts."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        rows = on_device if value.device == on_device.device else on_cpu
        return view_dtype(view_signed(value)[rows], value.dtype)
    return [value[row] for row in on_cpu.tolist()]


def _select_segments(segments: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Return the segments of some rows, int64 (m, 4), with the rows numbered from 0."""
    new_rows = torch.full((num_rows,), -1, dtype=torch.int64, device=rows.device)
    new_rows[rows] = torch.arange(len(rows), device=rows.device)
    selected_segments = segments[new_rows[segments[:, 0]] >= 0]
    selected_segments[:, 0] = new_rows[selected_segments[:, 0]]
    return selected_segments

"""Validation of batches, for tests of collators and of batches made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from seqdata.errors import must_be

if TYPE_CHECKING:
    from seqdata.batch.batch import SequenceBatch

ON_CPU = ("lengths", "ids", "start", "positions")
"""int64 (r,), on the CPU wherever the data is."""
ON_DEVICE = ("weight", "lanes", "reset", "burn_in")
"""(r,), where the data is."""


def find_faults(batch: SequenceBatch) -> Iterator[str]:
    """Yield the parts of a batch that do not fit together."""
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
            yield f"`{name}` has shape {format_shape(value)}, but must be ({rows},)"
    if rows and int(batch.lengths.max()) > width:
        yield f"`lengths` go up to {int(batch.lengths.max())}, but must be at most {width}"
    padded = batch if batch.layout == "padded" else batch.as_layout("padded")
    for name, value in padded.data.items():
        if len(value) != rows:
            yield f"field {name!r} has {len(value)} rows, but must have {rows}"
        axis = batch.axes.along(name)
        if isinstance(value, Tensor) and axis is not None:
            longest = batch.extent(axis)[1]
            if value.shape[1] != longest:
                yield (
                    f"field {name!r} must have {longest} timesteps, but has shape "
                    f"{format_shape(value)}"
                )
    if batch.segments is not None and batch.segments.shape[1:] != (4,):
        yield f"`segments` has shape {format_shape(batch.segments)}, but must be (spans, 4)"
    counted = int(batch.score.sum())
    if counted != batch.num_tokens:
        yield must_be("`num_tokens`", f"score.sum() = {counted}", f"{batch.num_tokens}")


def format_shape(value: Any) -> str:
    """Return the shape of a value as text."""
    if isinstance(value, PackedSequence):
        return f"packed {tuple(value.data.shape)}"
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"({len(value)},)"

"""Parts of a batch: some of its rows, or some timesteps of each row.

A loader that reads time parts returns the same data as ``split_time`` does for whole rows. Place in
the flow: the engines split a batch into the parts that one process runs at a time. Reads: padded
batches. Makes: batches with the same metadata, so that masks and states of a part are correct.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqdata import ConfigError, SequenceBatch, World


@dataclass(frozen=True, slots=True, eq=False)
class BatchPart:
    """Some timesteps of some rows of a batch.

    Attributes:
        batch: The part, padded, with the ``loss_scale`` of the whole batch.
        rows: Range [first, stop) of its rows in the whole batch.
        offsets: int64 (r,), position of each row's first timestep in the row of the whole batch.
        restarts: bool (r,), True if a part begins inside a row of the whole batch, exactly at the
            beginning of a sequence.
    """

    batch: SequenceBatch
    rows: tuple[int, int]
    offsets: Tensor
    restarts: Tensor


def split_rows(batch: SequenceBatch, groups: int) -> list[BatchPart]:
    """Return the rows of a batch in contiguous groups of nearly equal size.

    Args:
        batch: Batch of r rows, in any layout.
        groups: Number of groups; empty groups are omitted.
    """
    batch = batch.as_layout("padded")
    bounds = [len(batch) * number // groups for number in range(groups + 1)]
    pairs = [(first, stop) for first, stop in itertools.pairwise(bounds) if stop > first]
    return [_select_rows(batch, first, stop) for first, stop in pairs]


def split_time(part: BatchPart, number: int, parts: int) -> BatchPart:
    """Return one of several equal parts of the timesteps of each row.

    Part d of D parts of a row of n timesteps is [d n / D, (d + 1) n / D). Rows of fewer timesteps
    than parts have empty parts.

    Args:
        part: Whole rows of a batch, or the time parts that the loader has read.
        number: Index of the part, from 0.
        parts: Number of parts.

    Raises:
        ConfigError: If the ``overlap`` or ``horizon`` of the batch is not 0, or if the loader has
            read another part.
    """
    loaded = part.batch
    batch = find_whole_batch(loaded)
    if batch.overlap or batch.horizon:
        raise ConfigError(
            "ring: `overlap` and `horizon` of a batch must be 0, but are "
            f"{batch.overlap} and {batch.horizon}. Use chunks or whole sequences, or another "
            "strategy for overlapping windows."
        )
    starts, stops = World(0, 1, number, parts).time_bounds(batch.lengths)  # (r,) each
    if loaded is not batch and not torch.equal(loaded.lengths, stops - starts):
        raise ConfigError(
            f"ring: the batch must hold part {number} of {parts} of its rows' timesteps, or whole "
            "rows, but holds others. Pass world=World(mesh.replica, mesh.data, mesh.position, "
            "mesh.size) to the Loader."
        )
    width = max(1, int((stops - starts).max()))
    begins = starts if loaded is batch else torch.zeros_like(starts)  # in the data
    data = {name: _slice_time(loaded, name, begins, width) for name in loaded.data}
    segments, restarts = _cut_segments(batch, starts, stops)
    fields = {
        "data": data,
        "lengths": stops - starts,
        "start": batch.start + starts,
        "burn_in": None
        if batch.burn_in is None
        else (batch.burn_in - starts.to(batch.burn_in.device)).clamp(min=0),
        "reset": batch.reset if number == 0 or batch.reset is None else batch.reset & False,
        "segments": segments,
        "padded_length": width,
    }
    return BatchPart(_replace(batch, fields), part.rows, starts, restarts)


def find_whole_batch(batch: SequenceBatch) -> SequenceBatch:
    """Return the metadata of the whole rows of a batch: the batch itself if it has whole rows."""
    return batch if batch.whole is None else batch.whole


def _select_rows(batch: SequenceBatch, first: int, stop: int) -> BatchPart:
    def rows_of(value: Any) -> Any:
        return None if value is None else value[first:stop]

    segments = batch.segments
    if segments is not None:
        segments = segments[(segments[:, 0] >= first) & (segments[:, 0] < stop)].clone()
        segments[:, 0] -= first
    fields = {
        "data": {name: rows_of(value) for name, value in batch.data.items()},
        "segments": segments,
        "padded_length": padded_length(batch),
        "whole": None if batch.whole is None else _select_rows(batch.whole, first, stop).batch,
    }
    for name in ("lengths", "ids", "start", "weight", "lanes", "reset", "burn_in", "positions"):
        fields[name] = rows_of(getattr(batch, name))
    none = torch.zeros(stop - first, dtype=torch.int64, device="cpu")
    return BatchPart(_replace(batch, fields), (first, stop), none, none.bool())


def padded_length(batch: SequenceBatch) -> int:
    """Return the number of timesteps of a padded batch, including padding; at least 1."""
    return batch.padded_length or max(1, int(batch.lengths.max()) if len(batch) else 1)


def _replace(batch: SequenceBatch, fields: dict[str, Any]) -> SequenceBatch:
    """Return a padded batch with other fields; its counts of tokens are those of the whole."""
    names = (
        "weight", "lanes", "reset", "burn_in", "lengths", "ids", "start", "positions", "epoch",
        "number", "num_tokens", "global_num_tokens", "update_num_tokens", "loss_scale",
        "sequence_scale", "carry", "overlap", "lr_scale", "loader", "horizon", "axes", "data",
    )  # fmt: skip
    return SequenceBatch(**{**{name: getattr(batch, name) for name in names}, **fields})


def _slice_time(batch: SequenceBatch, name: str, starts: Tensor, width: int) -> Any:
    """Return the timesteps of a field from ``starts``, (r, width, ...); other fields unchanged."""
    value = batch.data[name]
    if not isinstance(value, Tensor) or batch.axes.along(name) != batch.axes.axis:
        return value
    steps = starts[:, None] + torch.arange(width, device=starts.device)  # (r, width)
    steps = steps.clamp(max=value.shape[1] - 1).to(value.device)
    return value[torch.arange(len(value), device=value.device)[:, None], steps]


def _cut_segments(
    batch: SequenceBatch, starts: Tensor, stops: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Return the spans of parts of rows, and a mask of the parts that begin where a span does."""
    restarts = torch.zeros(len(batch), dtype=torch.bool, device="cpu")
    if batch.segments is None:
        return None, restarts
    found, offsets = [], [0] * len(batch)
    for row, sequence, first, stop in batch.segments.tolist():
        begin = offsets[row]
        offsets[row] = end = begin + stop - first
        low, high = max(begin, int(starts[row])), min(end, int(stops[row]))
        if high > low:
            found.append((row, sequence, first + low - begin, first + high - begin))
            if low == begin == int(starts[row]) > 0 and not batch.carry:
                restarts[row] = True
    return torch.tensor(found, dtype=torch.int64, device="cpu").view(-1, 4), restarts

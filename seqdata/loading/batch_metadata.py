"""The head of a batch: all that is known of its rows before a byte of data is read.

Place in the flow: Step -> SequenceBatch without data -> collator. Reads: a step. Makes: the head.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.loading.lane_metadata import (
    compute_context,
    describe_first_spans,
    make_lane_metadata,
    make_segments,
)
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable
from seqdata.sharing import Step, Steps


def make_metadata(step: Step, ids: NDArray[np.int64], plan: Plan, axes: Axes) -> SequenceBatch:
    """Describe the rows of a step.

    Args:
        step: Its spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        plan: Where the step is from.
        axes: Which field runs along which axis.
    """
    if step.lanes is not None:
        steps = _as_single_window(step, step.lanes)
        return next(make_lane_metadata(steps, ids, [step.rows is None], plan, axes))
    spans, rows = step.spans, step.rows
    count = len(step.weights)
    row_numbers = np.empty((4, count), dtype=np.int64)  # lengths, ids, start, positions
    row_numbers[0] = step.lengths
    if rows is None:
        row_numbers[1], row_numbers[2], row_numbers[3] = ids, spans[:, 1], spans[:, 0]
    else:
        row_numbers[1:] = describe_first_spans(spans, rows, ids)
    described = {
        "lengths": row_numbers[0],
        "ids": row_numbers[1],
        "weight": step.weights,
        "start": row_numbers[2],
        "positions": row_numbers[3],
        "segments": None if rows is None else make_segments(spans, rows, ids),
    }
    timesteps = row_numbers[0].tolist()  # 64 numbers are added up faster in Python
    width = max(timesteps, default=1) or 1
    known = {"number": step.number, "padded_length": width, "axes": axes}
    metadata = SequenceBatch.described(described, known)
    if plan.overlap:
        metadata.overlap, metadata.lr_scale = plan.overlap, plan.lr_scale(step.number)
        context = compute_context(row_numbers[:1], row_numbers[2:3], plan, step.number)[0]
        metadata.burn_in = torch.from_numpy(context)
        metadata.num_tokens = int((row_numbers[0] - context) @ (step.weights > 0))
    elif count and step.weights[0]:  # a batch that is dealt whole has filler everywhere or nowhere
        metadata.num_tokens = sum(timesteps)
    return metadata


def _as_single_window(step: Step, lanes: NDArray[np.int64]) -> Steps:
    """Return a step of lanes as the only one of a run."""
    table = ArrayTable(step.spans, step.rows, np.array([0, len(step.weights)]))
    return Steps(step.number, table, None, step.weights[None], step.lengths[None], lanes)


def count_scored(batch: SequenceBatch) -> int:
    """Count the timesteps that are scored in the rows of weight above 0."""
    is_counted = batch.weight > 0
    timesteps = batch.lengths[is_counted].sum()
    if batch.burn_in is not None:
        timesteps = timesteps - batch.burn_in[is_counted].sum()
    return int(timesteps)

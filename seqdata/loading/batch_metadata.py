"""The head of a batch: all that is known of its rows before a byte of data is read.

Place in the flow: Step -> SequenceBatch without data -> collator. Reads: a step. Makes: the head.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.loading.lane_metadata import context_of, firsts_of, heads_of, segments_of
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable
from seqdata.sharing import Step, Steps


def head_of(step: Step, ids: NDArray[np.int64], plan: Plan, axes: Axes) -> SequenceBatch:
    """Describe the rows of a step.

    Args:
        step: Its spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        plan: Where the step is from.
        axes: Which field runs along which axis.
    """
    if step.lanes is not None:
        steps = _alone(step, step.lanes)
        return next(heads_of(steps, ids, [step.rows is None], plan, axes))
    spans, rows = step.spans, step.rows
    count = len(step.weights)
    base = np.empty((4, count), dtype=np.int64)  # lengths, ids, start, positions
    base[0] = step.lengths
    if rows is None:
        base[1], base[2], base[3] = ids, spans[:, 1], spans[:, 0]
    else:
        base[1:] = firsts_of(spans, rows, ids)
    described = {
        "lengths": base[0], "ids": base[1], "weight": step.weights, "start": base[2],
        "positions": base[3], "segments": None if rows is None else segments_of(spans, rows, ids),
    }  # fmt: skip
    timesteps = base[0].tolist()  # 64 numbers are added up faster in Python
    width = max(timesteps, default=1) or 1
    known = {"number": step.number, "padded_length": width, "axes": axes}
    head = SequenceBatch.described(described, known)
    if plan.overlap:
        head.overlap, head.lr_scale = plan.overlap, plan.lr_scale(step.number)
        context = context_of(base[:1], base[2:3], plan, step.number)[0]
        head.burn_in = torch.from_numpy(context)
        head.num_tokens = int((base[0] - context) @ (step.weights > 0))
    elif count and step.weights[0]:  # a batch that is dealt whole has filler everywhere or nowhere
        head.num_tokens = sum(timesteps)
    return head


def _alone(step: Step, lanes: NDArray[np.int64]) -> Steps:
    """Give a step of lanes as the only one of a run."""
    table = ArrayTable(step.spans, step.rows, np.array([0, len(step.weights)]))
    return Steps(step.number, table, None, step.weights[None], step.lengths[None], lanes)


def delivered(batch: SequenceBatch) -> int:
    """Count the timesteps that are scored in the rows of weight above 0."""
    counted = batch.weight > 0
    steps = batch.lengths[counted].sum()
    if batch.burn_in is not None:
        steps = steps - batch.burn_in[counted].sum()
    return int(steps)

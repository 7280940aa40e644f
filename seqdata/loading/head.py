"""The head of a batch: all that is known of its rows before a byte of data is read.

Place in the flow: Step -> SequenceBatch without data -> collator. Reads: a step. Makes: the head.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.axes import Axes
from seqdata.batch import SequenceBatch
from seqdata.plan import Plan
from seqdata.sharing import Step


def head_of(step: Step, ids: NDArray[np.int64], plan: Plan, axes: Axes) -> SequenceBatch:
    """Describe the rows of a step.

    Args:
        step: Its spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        plan: Where the step is from.
        axes: Which field runs along which axis.
    """
    spans, rows = step.spans, step.rows
    count = len(step.weights)
    base = np.empty((4, count), dtype=np.int64)  # lengths, ids, start, positions
    if rows is None:
        np.subtract(spans[:, 2], spans[:, 1], out=base[0])
        base[1], base[2], base[3] = ids, spans[:, 1], spans[:, 0]
    else:
        _of_rows(step, ids, rows, base)
    known = base[0].tolist()  # 64 numbers are added up faster in Python
    lengths = torch.from_numpy(base[0])  # a row of an array costs less than a view of a tensor
    head = SequenceBatch(
        data={},
        lengths=lengths,
        ids=torch.from_numpy(base[1]),
        weight=torch.from_numpy(step.weights),
        start=torch.from_numpy(base[2]),
        number=step.number,
        lengths_of={axes.axis: lengths},
        positions=torch.from_numpy(base[3]),
        padded_length=max(known, default=1) or 1,
        axes=axes,
    )
    if rows is not None:
        head.segments = _segments(spans, ids, rows)
    if step.lanes is not None:
        head.lanes = torch.from_numpy(step.lanes)
        head.reset = torch.from_numpy(_resets(step, base, plan))
        head.carry = plan.carry
    if plan.overlap or step.lanes is not None:
        head.overlap, head.lr_scale = plan.overlap, plan.lr_scale(step.number)
        context = _context(step, base, plan)
        head.burn_in = torch.from_numpy(context)
        scored = base[0] - context if plan.overlap else base[0]
        head.num_tokens = int(scored[step.weights > 0].sum())
    elif count and step.weights[0]:  # a batch that is dealt whole has filler everywhere or nowhere
        head.num_tokens = sum(known)
    return head


def delivered(batch: SequenceBatch) -> int:
    """Count the timesteps that are scored in the rows of weight above 0."""
    counted = batch.weight > 0
    steps = batch.lengths[counted].sum()
    if batch.burn_in is not None:
        steps = steps - batch.burn_in[counted].sum()
    return int(steps)


def _of_rows(
    step: Step, ids: NDArray[np.int64], rows: NDArray[np.int64], base: NDArray[np.int64]
) -> None:
    sums = np.zeros(len(step.spans) + 1, dtype=np.int64)
    np.cumsum(step.spans[:, 2] - step.spans[:, 1], out=sums[1:])
    base[0] = sums[rows[1:]] - sums[rows[:-1]]
    base[1], base[2], base[3] = -1, 0, -1
    filled = np.flatnonzero(rows[1:] > rows[:-1])
    firsts = rows[:-1][filled]
    base[1, filled], base[2, filled] = ids[firsts], step.spans[firsts, 1]
    base[3, filled] = step.spans[firsts, 0]


def _segments(
    spans: NDArray[np.int64], ids: NDArray[np.int64], rows: NDArray[np.int64]
) -> torch.Tensor:
    made = np.empty((len(spans), 4), dtype=np.int64)
    made[:, 0] = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    made[:, 1], made[:, 2:] = ids, spans[:, 1:]
    return torch.from_numpy(made)


def _context(step: Step, base: NDArray[np.int64], plan: Plan) -> NDArray[np.int64]:
    """Give the timesteps at the head of each row that the row before it in its lane scored."""
    if not plan.overlap or (plan.carry and not step.number):
        return np.zeros_like(base[0])
    context: NDArray[np.int64] = np.minimum(base[0], plan.overlap)
    return context if plan.carry else np.where(base[2] > 0, context, 0)


def _resets(step: Step, base: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    """Say where a lane begins a sequence; a carried state begins only with the epoch."""
    begins = np.full(len(base[0]), step.number == 0) if plan.carry else base[2] == 0
    resets: NDArray[np.bool_] = begins & (base[0] > 0)
    return resets

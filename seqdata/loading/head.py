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
    base[0] = step.lengths
    if rows is None:
        base[1], base[2], base[3] = ids, spans[:, 1], spans[:, 0]
    else:
        _of_rows(spans, ids, rows, base)
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
        head.num_tokens = int(scored @ (step.weights > 0))
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
    spans: NDArray[np.int64], ids: NDArray[np.int64], rows: NDArray[np.int64],
    base: NDArray[np.int64],
) -> None:  # fmt: skip
    """Say of each row what its first span is: id, start, position; of one without any nothing."""
    firsts, filled = rows[:-1], rows[1:] > rows[:-1]
    if not filled.all():
        base[1], base[2], base[3] = -1, 0, -1
        firsts = firsts[filled]
        base[1, filled], base[2, filled] = ids[firsts], spans[firsts, 1]
        base[3, filled] = spans[firsts, 0]
        return
    first = spans.take(firsts, axis=0)
    base[1], base[2], base[3] = ids.take(firsts), first[:, 1], first[:, 0]


def _segments(
    spans: NDArray[np.int64], ids: NDArray[np.int64], rows: NDArray[np.int64]
) -> torch.Tensor:
    made = np.empty((len(spans), 4), dtype=np.int64)
    made[:, 0] = np.arange(len(rows) - 1).repeat(rows[1:] - rows[:-1])
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
    if plan.carry and step.number:
        return np.zeros(len(base[0]), dtype=np.bool_)
    resets: NDArray[np.bool_] = base[0] > 0
    return resets if plan.carry else resets & (base[2] == 0)

"""The heads of many steps of lanes at once: a batch takes rows of arrays that are made already.

Every tensor has its row of memory to itself, so what a user does to one reaches no other batch.
Place in the flow: Steps -> SequenceBatches without data -> collator. Reads: steps. Makes: heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable
from seqdata.sharing import Steps


def heads_of(
    steps: Steps,
    ids: NDArray[np.int64],
    whole: Sequence[bool],
    plan: Plan,
    axes: Axes,
    bounds: Iterable[NDArray[np.int64] | None] = repeat(None),
) -> Iterator[SequenceBatch]:
    """Describe the rows of many steps.

    Args:
        steps: Their spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        whole: Which of them say nothing of segments: a row is a span.
        plan: Where the steps are from.
        axes: Which field runs along which axis.
        bounds: Where the spans of each begin in flat padded rows; None: that is worked out later.
    """
    lengths, table = steps.lengths, steps.table
    if table.rows is None:
        firsts = np.stack([ids, table.spans[:, 1], table.spans[:, 0]])
    else:
        firsts = firsts_of(table.spans, table.rows, ids)
    base = firsts.reshape(3, *lengths.shape)  # ids, start, positions
    context = context_of(lengths, base[1], plan, steps.number)
    scored = ((lengths - context) * (steps.weights > 0)).sum(axis=1).tolist()
    of_rows = zip(
        lengths, base[0], steps.weights, base[1], base[2], _resets(steps, base[1], plan),
        np.tile(steps.lanes, (len(lengths), 1)), context, _segments(table, ids, whole),
        strict=True,
    )  # fmt: skip
    rest = zip(bounds, scored, widths_of(steps).tolist())  # noqa: B905 - bounds may have no end
    shared = {"carry": plan.carry, "overlap": plan.overlap, "axes": axes}
    for number, (mine, one) in enumerate(zip(of_rows, rest, strict=True), steps.number):
        length, first, weight, start, position, reset, lane, burn_in, segments = mine
        edges, tokens, width = one
        described = {
            "lengths": length, "ids": first, "weight": weight, "start": start,
            "positions": position, "reset": reset, "lanes": lane, "burn_in": burn_in,
            "segments": segments,
        }  # fmt: skip
        known = {
            **shared, "number": number, "num_tokens": tokens, "padded_length": width,
            "lr_scale": plan.lr_scale(number), "bounds": edges,
        }  # fmt: skip
        yield SequenceBatch.described(described, known)


def widths_of(steps: Steps) -> NDArray[np.int64]:
    """Give the padded length of each step, int64 (k,)."""
    widths: NDArray[np.int64] = np.maximum(steps.lengths.max(axis=1), 1)
    return widths


def firsts_of(
    spans: NDArray[np.int64], rows: NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Say of each row what its first span is: id, start, position, int64 (3, r).

    Of a row without any it is -1, 0, -1.
    """
    firsts, filled = rows[:-1], rows[1:] > rows[:-1]
    made = np.empty((3, len(firsts)), dtype=np.int64)
    if filled.all():
        found = spans.take(firsts, axis=0)
        made[0], made[1], made[2] = ids.take(firsts), found[:, 1], found[:, 0]
        return made
    made.T[:] = -1, 0, -1
    firsts = firsts[filled]
    made[:, filled] = ids[firsts], spans[firsts, 1], spans[firsts, 0]
    return made


def segments_of(
    spans: NDArray[np.int64], rows: NDArray[np.int64], ids: NDArray[np.int64], lanes: int = 0
) -> NDArray[np.int64]:
    """Give row, id, start and stop of every span, int64 (n, 4); with lanes rows begin anew."""
    sizes = np.diff(rows)
    numbers = np.arange(lanes or len(sizes))
    if lanes:
        numbers = np.broadcast_to(numbers, (len(sizes) // lanes, lanes)).reshape(-1)
    made = np.empty((len(spans), 4), dtype=np.int64)
    made[:, 0] = numbers.repeat(sizes)
    made[:, 1], made[:, 2:] = ids, spans[:, 1:]
    return made


def _segments(
    table: ArrayTable, ids: NDArray[np.int64], whole: Sequence[bool]
) -> Iterator[NDArray[np.int64] | None]:
    """Give the segments of each step, int64 (n, 4); None where a row is one."""
    if table.rows is None or all(whole):
        yield from (None for _ in whole)
        return
    made = segments_of(table.spans, table.rows, ids, int(table.offsets[1]))
    edges = pairwise(table.rows[table.offsets].tolist())
    for (low, high), alone in zip(edges, whole, strict=True):
        yield None if alone else made[low:high]


def context_of(
    lengths: NDArray[np.int64], start: NDArray[np.int64], plan: Plan, number: int
) -> NDArray[np.int64]:
    """Give the timesteps at the head of each row that the row before it in its lane scored.

    Args:
        lengths: int64 (k, r), timesteps of the rows of k batches.
        start: int64 (k, r), the first of each in its sequence.
        plan: Where they are from.
        number: The first of the batches.
    """
    if not plan.overlap:
        return np.zeros_like(lengths)
    context: NDArray[np.int64] = np.minimum(lengths, plan.overlap)
    if not plan.carry:
        return np.where(start > 0, context, 0)
    if not number:
        context[0] = 0
    return context


def _resets(steps: Steps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    """Say where a lane begins a sequence; a carried state begins only with the epoch."""
    resets: NDArray[np.bool_] = steps.lengths > 0
    if not plan.carry:
        resets &= start == 0
        return resets
    resets[0 if steps.number else 1 :] = False
    return resets

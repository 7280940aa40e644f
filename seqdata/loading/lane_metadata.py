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


def make_lane_metadata(
    steps: Steps,
    ids: NDArray[np.int64],
    has_whole_rows: Sequence[bool],
    plan: Plan,
    axes: Axes,
    bounds: Iterable[NDArray[np.int64] | None] = repeat(None),
) -> Iterator[SequenceBatch]:
    """Describe the rows of many steps.

    Args:
        steps: Their spans, rows and weights.
        ids: int64 (n,), base number of each span's sequence.
        has_whole_rows: Which of them say nothing of segments: a row is a span.
        plan: Where the steps are from.
        axes: Which field runs along which axis.
        bounds: Where the spans of each begin in flat padded rows; None: that is worked out later.
    """
    lengths, table = steps.lengths, steps.table
    if table.rows is None:
        first_spans = np.stack([ids, table.spans[:, 1], table.spans[:, 0]])
    else:
        first_spans = describe_first_spans(table.spans, table.rows, ids)
    first_values = first_spans.reshape(3, *lengths.shape)  # ids, start, positions
    context = compute_context(lengths, first_values[1], plan, steps.number)
    scored = ((lengths - context) * (steps.weights > 0)).sum(axis=1).tolist()
    row_arrays = zip(
        lengths,
        first_values[0],
        steps.weights,
        first_values[1],
        first_values[2],
        _find_resets(steps, first_values[1], plan),
        np.tile(steps.lanes, (len(lengths), 1)),
        context,
        _split_segments(table, ids, has_whole_rows),
        strict=True,
    )
    step_values = zip(bounds, scored, compute_widths(steps).tolist())  # noqa: B905 - bounds may have no end
    shared = {"carry": plan.carry, "overlap": plan.overlap, "axes": axes}
    for number, (row_values, values) in enumerate(
        zip(row_arrays, step_values, strict=True), steps.number
    ):
        length, first, weight, start, position, reset, lane, burn_in, segments = row_values
        step_bounds, tokens, width = values
        described = {
            "lengths": length, "ids": first, "weight": weight, "start": start,
            "positions": position, "reset": reset, "lanes": lane, "burn_in": burn_in,
            "segments": segments,
        }  # fmt: skip
        known = {
            **shared, "number": number, "num_tokens": tokens, "padded_length": width,
            "lr_scale": plan.lr_scale(number), "bounds": step_bounds,
        }  # fmt: skip
        yield SequenceBatch.described(described, known)


def compute_widths(steps: Steps) -> NDArray[np.int64]:
    """Return the padded length of each step, int64 (k,)."""
    widths: NDArray[np.int64] = np.maximum(steps.lengths.max(axis=1), 1)
    return widths


def describe_first_spans(
    spans: NDArray[np.int64], rows: NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Say of each row what its first span is: id, start, position, int64 (3, r).

    Of a row without any it is -1, 0, -1.
    """
    firsts, filled = rows[:-1], rows[1:] > rows[:-1]
    described = np.empty((3, len(firsts)), dtype=np.int64)
    if filled.all():
        first_spans = spans.take(firsts, axis=0)
        described[0], described[1], described[2] = (
            ids.take(firsts),
            first_spans[:, 1],
            first_spans[:, 0],
        )
        return described
    described.T[:] = -1, 0, -1
    firsts = firsts[filled]
    described[:, filled] = ids[firsts], spans[firsts, 1], spans[firsts, 0]
    return described


def make_segments(
    spans: NDArray[np.int64], rows: NDArray[np.int64], ids: NDArray[np.int64], lanes: int = 0
) -> NDArray[np.int64]:
    """Return row, id, start and stop of every span, int64 (n, 4); with lanes rows begin anew."""
    sizes = np.diff(rows)
    numbers = np.arange(lanes or len(sizes))
    if lanes:
        numbers = np.broadcast_to(numbers, (len(sizes) // lanes, lanes)).reshape(-1)
    segments = np.empty((len(spans), 4), dtype=np.int64)
    segments[:, 0] = numbers.repeat(sizes)
    segments[:, 1], segments[:, 2:] = ids, spans[:, 1:]
    return segments


def _split_segments(
    table: ArrayTable, ids: NDArray[np.int64], has_whole_rows: Sequence[bool]
) -> Iterator[NDArray[np.int64] | None]:
    """Yield the segments of each step, int64 (n, 4); None where a row is one."""
    if table.rows is None or all(has_whole_rows):
        yield from (None for _ in has_whole_rows)
        return
    segments = make_segments(table.spans, table.rows, ids, int(table.offsets[1]))
    bounds = pairwise(table.rows[table.offsets].tolist())
    for (low, high), is_whole_row in zip(bounds, has_whole_rows, strict=True):
        yield None if is_whole_row else segments[low:high]


def compute_context(
    lengths: NDArray[np.int64], start: NDArray[np.int64], plan: Plan, number: int
) -> NDArray[np.int64]:
    """Return the timesteps at the head of each row that the row before it in its lane scored.

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


def _find_resets(steps: Steps, start: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    """Say where a lane begins a sequence; a carried state begins only with the epoch."""
    resets: NDArray[np.bool_] = steps.lengths > 0
    if not plan.carry:
        resets &= start == 0
        return resets
    resets[0 if steps.number else 1 :] = False
    return resets

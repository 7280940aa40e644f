"""Figures in the reports of ``seqdata stats`` and ``seqdata plan``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.logical_types import Timestamp
from seqdata.plan import Plan
from seqdata.plotting.lengths import HistogramBin, histogram
from seqdata.policies.fixed import Fixed
from seqdata.protocols import Store
from seqdata.report import BatchMeasures
from seqdata.sharing import Tail, World, share
from seqdata.storage.fields import default_axis
from seqdata.storage.row_chunks import flatten_column

MAX_BYTES_UNASKED = 1 << 30  # most bytes that are read without ``--values``
_CHUNK_TIMESTEPS = 1 << 18  # timesteps that are read together
_CHUNK_SEQUENCES = 1 << 12  # sequences that are read together
_MAX_COMPARED = 1 << 20  # about as many rows are put in random batches, to compare with


@dataclass(slots=True)
class ValueCounts:
    """Counts of the values of one field that are not finite.

    Attributes:
        nan: Number of NaN values.
        inf: Number of infinite values, of either sign.
        sequences: Number of sequences with such a value; a sequence that is read in chunks may be
            counted more than once.
    """

    nan: int = 0
    inf: int = 0
    sequences: int = 0


def count_float_bytes(store: Store) -> int:
    """Return the number of bytes of all floating fields."""
    total = 0
    for field in store.fields.values():
        if _is_float(field.dtype):
            along = None if field.axis is None else store.lengths_of[field.axis]
            steps = len(store) if along is None else int(along.sum(dtype=np.int64))
            total += steps * np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=int))
    return total


def count_values(store: Store) -> dict[str, ValueCounts]:
    """Return the counts of values that are not finite, by floating field.

    Raises:
        DataError: If stored data is damaged.
    """
    floats = {
        name: float_field
        for name, float_field in store.fields.items()
        if _is_float(float_field.dtype)
    }
    counts = {name: ValueCounts() for name in floats}
    for axis in store.lengths_of:
        names = [name for name, field in floats.items() if field.axis == axis]
        for spans in _iter_spans(store.lengths_of[axis], with_values=True) if names else ():
            _count_columns(counts, store.read(spans, names, axis=axis))
    names = [name for name, field in floats.items() if field.axis is None]
    axis = default_axis(store.lengths_of)
    for spans in _iter_spans(store.lengths_of[axis], with_values=False) if names else ():
        _count_columns(counts, store.read(spans, names, axis=axis))
    return counts


def find_date_ranges(store: Store) -> dict[str, tuple[str, str]]:
    """Return the first and the last date of each field of dates that has any, as strings in UTC.

    Raises:
        DataError: If stored data is damaged.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, field in store.fields.items():
        if not isinstance(field.logical, Timestamp):
            continue
        axis = field.axis or default_axis(store.lengths_of)
        bounds: list[int] = []
        for spans in _iter_spans(store.lengths_of[axis], with_values=field.axis is not None):
            values = flatten_column(store.read(spans, [name], axis=axis)[name])
            bounds += [int(values.min()), int(values.max())] if values.size else []
        if bounds:
            dates = field.logical.decode(np.array([min(bounds), max(bounds)], dtype=np.int64))
            found[name] = (str(dates[0]), str(dates[1]))
    return found


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "complex"))


def _iter_spans(lengths: NDArray[Any], *, with_values: bool) -> Iterator[NDArray[np.int64]]:
    """Yield spans of all sequences, whole or in chunks; without ``with_values`` empty ones."""
    spans: list[tuple[int, int, int]] = []
    timesteps = 0
    for number, length in enumerate(lengths.tolist() if with_values else [0] * len(lengths)):
        for start in range(0, max(length, 1), _CHUNK_TIMESTEPS):
            stop = min(start + _CHUNK_TIMESTEPS, length)
            spans.append((number, start, stop))
            timesteps += stop - start
            if timesteps >= _CHUNK_TIMESTEPS or len(spans) >= _CHUNK_SEQUENCES:
                yield np.array(spans, dtype=np.int64)
                spans, timesteps = [], 0
    if spans:
        yield np.array(spans, dtype=np.int64)


def _count_columns(counts: dict[str, ValueCounts], columns: dict[str, Any]) -> None:
    for name, column in columns.items():
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(column.lengths, out=offsets[1:])
        values = np.empty((int(offsets[-1]), *column.shape), dtype=column.dtype)
        column.fill(values, offsets, None)
        flat = values.reshape(len(values), math.prod(column.shape))
        is_bad = ~np.isfinite(flat)
        if is_bad.any():
            counts[name].nan += int(np.isnan(flat).sum())
            counts[name].inf += int(np.isinf(flat).sum())
            steps = np.flatnonzero(is_bad.any(axis=1))
            counts[name].sequences += len(np.unique(np.searchsorted(offsets, steps, side="right")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    """Statistics of the lengths along one axis, in timesteps."""

    total: int
    empty: int
    shortest: int
    median: float
    mean: float
    p95: float
    longest: int
    histogram: tuple[HistogramBin, ...]


def compute_length_stats(lengths: NDArray[Any]) -> LengthStats:
    """Return statistics of lengths, integers (n,) of at least one sequence."""
    return LengthStats(
        total=int(lengths.sum(dtype=np.int64)),
        empty=int(np.count_nonzero(lengths == 0)),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        p95=float(np.percentile(lengths, 95)),
        longest=int(lengths.max()),
        histogram=histogram(lengths),
    )


def compute_idle_share(plan: Plan) -> float:
    """Return the fraction of a plan's rows that are idle lanes; 0 if the plan has no lanes."""
    rows = len(plan) * plan.lanes
    return 1.0 - plan.totals(0, len(plan))[1] / rows if rows else 0.0


def compute_random_padding(plan: Plan, measures: BatchMeasures, seed: int) -> float | None:
    """Return the padding of a plan's own rows in random batches, as a fraction in [0, 1].

    Batches have as many rows as those of the plan on average. Of many rows, about a million evenly
    spaced ones are used.

    Args:
        plan: The plan of an epoch.
        measures: Its measures.
        seed: Seed of the random batches.

    Returns:
        None for lanes and rows of several sequences, which are not padded to the longest of a
        batch, and for a plan without batches.
    """
    total = int(measures.rows.sum())
    if plan.lanes or not total:
        return None
    step = -(-total // _MAX_COMPARED)
    lengths, first = list[NDArray[np.int64]](), 0
    while first < len(plan):
        stop = plan.prepare(first)
        table = plan.slice(first, stop)
        if table.rows is not None:
            return None
        lengths.append(table.row_lengths()[::step])
        first = stop
    index = SequenceIndex.from_lengths(np.concatenate(lengths))
    batch_size = max(1, round(total / len(plan)))
    report = Fixed(batch_size).plan(index, seed=seed, epoch=0).report
    return 1.0 - 1.0 / report.waste


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldStats:
    """Distribution of a plan over a number of ranks.

    Attributes:
        size: Number of ranks.
        steps: Steps of every rank.
        filler: Number of padding batches in the last step.
        left_out: Number of batches of the plan that are not trained.
        repeated: Number of batches that are trained again in the last step.
        balance: sum(max)/sum(mean) over the steps of the longest row of each rank: 1.0 is even.
    """

    size: int
    steps: int
    filler: int
    left_out: int
    repeated: int
    balance: float


def compute_world_stats(
    plan: Plan, batches: BatchMeasures, sizes: Sequence[int], tail: Tail = "fill"
) -> list[WorldStats]:
    """Return steps and balance of a plan for several world sizes.

    Raises:
        PlanError: If ``drop`` would leave out everything.
    """
    stats = []
    for count in sizes:
        steps = len(share(plan, World(0, count), tail=tail))
        full_steps = 0 if plan.lanes else len(plan) // count * count  # batches of full steps
        missing = 0 if plan.lanes else steps * count - len(plan)
        longest_by_step = batches.longest[:full_steps].reshape(-1, count)
        mean = float(longest_by_step.mean(axis=1).sum())
        stats.append(
            WorldStats(
                size=count,
                steps=steps,
                filler=missing if tail == "fill" else 0,
                left_out=-missing if tail == "drop" else 0,
                repeated=missing if tail == "repeat" else 0,
                balance=float(longest_by_step.max(axis=1).sum()) / mean if mean else 1.0,
            )
        )
    return stats

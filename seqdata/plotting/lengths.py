"""Histograms of lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.plotting.charts import BLUE, Bars

_MAX_BINS = 12
_FINE_BINS = 40
_CHUNK = 1 << 22  # lengths that are counted together


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBin:
    """Number of sequences whose length is in ``[first, last]``."""

    first: int
    last: int
    count: int


def histogram(lengths: NDArray[Any]) -> tuple[HistogramBin, ...]:
    """Count lengths in bins that double in width, or of equal width if lengths are close together.

    Args:
        lengths: Integers (n,) of at least one sequence.
    """
    edges = _make_edges(int(lengths.min()), int(lengths.max()), is_fine=False)
    counts = _count(lengths, edges)
    return tuple(
        HistogramBin(first=first, last=stop - 1, count=int(count))
        for first, stop, count in zip(edges[:-1], edges[1:], counts, strict=True)
    )


def chart_lengths(
    lengths: Any,
    axis: str | None,
    *,
    items: str = "sequences",
    skip_empty: bool = False,
    name: str = "",
    note: str = "",
) -> Bars:
    """Return a histogram of lengths, in at most about 40 bins.

    Args:
        lengths: Integers (n,), or an object with ``len()`` that returns them for a slice.
        axis: Name of their axis; None: they are rows of a plan.
        items: Plural name of the items that have the lengths.
        skip_empty: Whether items of length 0, such as idle rows, are counted in the title only.
        name: Name of the data, before the title.
        note: Note after the title.
    """
    total, counted = len(lengths), 0
    low, high, timesteps = np.iinfo(np.int64).max, 0, 0
    for chunk in _iter_chunks(lengths, skip_empty):
        low, high = min(low, int(chunk.min())), max(high, int(chunk.max()))
        timesteps += int(chunk.sum(dtype=np.int64))
        counted += len(chunk)
    where = "of a row" if axis is None else f"along {axis!r}"
    if not counted:
        edges, counts = [0, 1], np.zeros(1, dtype=np.int64)
    else:
        edges = _make_edges(low, high, is_fine=True)
        counts = np.zeros(len(edges) - 1, dtype=np.int64)
        for chunk in _iter_chunks(lengths, skip_empty):
            counts += _count(chunk, edges)
    mean = timesteps / counted if counted else 0.0
    facts = f", {low:,} to {high:,} timesteps, mean {mean:,.1f}" if counted else ""
    is_wide = bool(counted) and high >= 8 * max(low, 1)
    empty = total - counted
    left_out = f" and {empty:,} empty ones" if empty else ""
    return Bars(
        edges=np.array(edges, dtype=np.float64),
        series={items: counts},
        colors={items: BLUE},
        x_label=f"length {where}, timesteps",
        y_label=items,
        title=f"{name}{': ' if name else ''}{counted:,} {items}{left_out}{facts}{note}",
        scale="log" if is_wide else "linear",
    )


def _iter_chunks(lengths: Any, skip_empty: bool) -> Any:
    for first in range(0, len(lengths), _CHUNK):
        chunk = np.asarray(lengths[first : first + _CHUNK])
        if skip_empty:
            chunk = chunk[chunk > 0]
        if len(chunk):
            yield chunk


def _make_edges(low: int, high: int, *, is_fine: bool) -> list[int]:
    """Return the bounds of bins, integers that rise from at most ``low`` to ``high + 1``."""
    if high < 8 * max(low, 1):
        width = -(-(high - low + 1) // (_FINE_BINS if is_fine else _MAX_BINS))
        return [*range(low, high + 1, width), high + 1]
    first, last = max(low, 1).bit_length() - 1, high.bit_length()
    by = max(1, _FINE_BINS // (last - first)) if is_fine else 1  # bins of an octave
    powers = {int(2 ** (number / by)) for number in range(first * by, last * by)}
    return [
        *([0] if low == 0 else []),
        *sorted(power for power in powers if power <= high),
        high + 1,
    ]


def _count(lengths: NDArray[Any], edges: list[int]) -> NDArray[np.int64]:
    bins = np.searchsorted(np.array(edges, dtype=np.int64), lengths, side="right") - 1
    return np.bincount(bins, minlength=len(edges) - 1)[: len(edges) - 1]

"""Charts of the batches of a plan: sizes, padding, ranks, parts and lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import PartLabel, PlanBatch
from seqdata.plotting.charts import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    Bars,
    Category,
    Curves,
    Strips,
    sample_rows,
)
from seqdata.report import BatchMeasures

_MAX_BARS = 60
_MAX_STEPS = 40
_MAX_LANES = 64
_MAX_POINTS = 1000
_MAX_RANKS = 64

REAL, PADDING = "real timesteps", "padding"
_SIZE_COLORS = {REAL: BLUE, PADDING: GREY}
_LANE_COLORS = (BLUE, GREEN, ORANGE)
_COLORS = len(_LANE_COLORS)
_CONTEXT, _IDLE, _LANE_PADDING = _COLORS, 2 * _COLORS, 2 * _COLORS + 1
_LANE_CATEGORIES = (
    *(Category(name="a sequence (colours alternate)", color=c) for c in _LANE_COLORS),
    *(Category(name="context, not scored (pale)", color=c, opacity=0.4) for c in _LANE_COLORS),
    Category(name="idle", color=GREY, opacity=0.9),
    Category(name="padding", color=GREY, opacity=0.3),
)


def _prefix(name: str) -> str:
    return f"{name}: " if name else ""


def format_padding(timesteps: int, padded: int) -> str:
    """Return the fraction of padding of batches in percent."""
    return f"{100 * (1 - timesteps / padded) if padded else 0.0:.1f} % padding"


def _average(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of the values of each bar."""
    return np.add.reduceat(values, starts) / np.diff([*starts, len(values)])


def _label_average(quantity: str, every: int) -> str:
    return quantity if every == 1 else f"{quantity}, mean of {every:,}"


def chart_sizes(
    measures: BatchMeasures,
    *,
    total: int | None = None,
    position: int | None = None,
    name: str = "",
) -> Bars:
    """Return the real and the padded timesteps of batches, in the order of the epoch.

    Neighbouring batches share a bar, of their mean, so that there are at most 60 bars.

    Args:
        measures: Sizes of the batches.
        total: Number of batches of the epoch; None: those measured.
        position: Number of delivered batches, for a line; None: no line.
        name: Name of the plan, before the title.
    """
    count = len(measures.rows)
    every = max(1, -(-count // _MAX_BARS))
    starts = np.arange(0, count, every)
    real, padded = measures.timesteps, measures.padded
    series = {
        series_name: _average(values, starts) if count else np.zeros(1)
        for series_name, values in ((REAL, real), (PADDING, padded - real))
    }
    some = f" (the first {count:,} of {total:,})" if total not in (None, count) else ""
    share = format_padding(int(real.sum()), int(padded.sum()))
    return Bars(
        edges=np.array([*starts, count] if count else [0, 1], dtype=np.float64),
        series=series,
        colors=_SIZE_COLORS,
        x_label="batch of the epoch",
        y_label=_label_average("timesteps per batch", every),
        title=f"{_prefix(name)}{count if not some else total:,} batches{some}: {share}",
        mark=None if position is None else (position, f"position: batch {position:,}"),
    )


def chart_padding(plans: Mapping[str, BatchMeasures]) -> Curves:
    """Return the padding of batches, most padded first, a line for each plan.

    Args:
        plans: Name -> sizes of the batches.
    """
    lines = {}
    for name, measures in plans.items():
        fractions = 100 * np.sort(measures.padding)[::-1]
        chosen = sample_rows(len(fractions), _MAX_POINTS)
        if len(chosen):
            chosen[-1] = len(fractions) - 1
        where = 100 * (chosen / max(1, len(fractions) - 1))
        share = format_padding(int(measures.timesteps.sum()), int(measures.padded.sum()))
        lines[f"{name}: {share}" if name else share] = (where, fractions[chosen])
    return Curves(
        lines=lines,
        x_label="batches, % (most padded first)",
        y_label="padding, % of the batch",
        title="Padding per batch",
        limits=(0.0, 100.0),
    )


def chart_ranks(real: NDArray[np.int64], padded: NDArray[np.int64]) -> Bars:
    """Return the number of timesteps of each rank in an epoch.

    Args:
        real: int64 (steps, ranks), number of real timesteps of each rank in each step.
        padded: int64 (steps, ranks), timesteps after padding.
    """
    steps, ranks = real.shape
    every = max(1, -(-ranks // _MAX_RANKS))
    starts = np.arange(0, ranks, every)
    own, room = real.sum(axis=0), padded.sum(axis=0)
    return Bars(
        edges=np.array([*starts, ranks], dtype=np.float64) - 0.5,
        series={REAL: _average(own, starts), PADDING: _average(room - own, starts)},
        colors=_SIZE_COLORS,
        x_label="rank",
        y_label=_label_average("timesteps per epoch", every),
        title=f"{ranks:,} {'ranks' if ranks > 1 else 'rank'}, {steps:,} steps each",
        names=tuple(map(str, starts.tolist())),
    )


def chart_parts(labels: Sequence[PartLabel]) -> Bars:
    """Return the share of each part of a mixture in the batches, or rows, in order of the epoch.

    Args:
        labels: The part of each batch, or of each of its rows.
    """
    count = len(labels)
    every = max(1, -(-count // _MAX_BARS))
    bars = max(1, -(-count // every))
    counts: dict[str, NDArray[np.int64]] = {}
    items = "batches"
    for number, label in enumerate(labels):
        parts = label.part if isinstance(label.part, list) else [str(label.part)]
        items = "rows" if isinstance(label.part, list) else items
        for part in parts:
            counts.setdefault(part, np.zeros(bars, dtype=np.int64))[number // every] += 1
    totals = np.maximum(1, sum(counts.values(), np.zeros(bars, dtype=np.int64)))
    total = max(1, sum(int(each.sum()) for each in counts.values()))
    series = {
        f"{name}: {100 * each.sum() / total:.1f} %": 100 * each / totals
        for name, each in sorted(counts.items())
    }
    edges = [*range(0, count, every), count] if count else [0, 1]
    return Bars(
        edges=np.array(edges, dtype=np.float64),
        series=series,
        colors={name: CYCLE[at % len(CYCLE)] for at, name in enumerate(series)},
        x_label="batch of the epoch",
        y_label=f"share of {items}, %",
        title=f"{len(counts):,} parts, {count:,} batches",
    )


def chart_lanes(
    read_batch: Callable[[int], PlanBatch],
    *,
    steps: int,
    lanes: int,
    overlap: int = 0,
    carry: bool = False,
    position: int | None = None,
    name: str = "",
) -> Strips:
    """Return the sequences that each lane reads in at most 40 steps, and their beginnings.

    Args:
        read_batch: Function of the index of a step that returns its batch, a row for each lane.
        steps: Number of steps of the epoch.
        lanes: Number of lanes.
        overlap: Timesteps at the head of a span that are context, when it does not begin its
            sequence.
        carry: Whether only the first step begins again.
        position: Number of delivered steps, for a line, near which steps are drawn; None: no line.
        name: Name of the plan, before the title.
    """
    drawn = min(steps, _MAX_STEPS)
    first = 0 if position is None else min(max(0, position - drawn // 2), steps - drawn)
    chosen = sample_rows(lanes, _MAX_LANES)
    painter = _LanePainter(overlap, carry)
    for step in range(first, first + drawn):
        batch = read_batch(step)
        rows = np.arange(len(batch.spans) + 1) if batch.rows is None else batch.rows
        longest = max(1, int(batch.lengths.max(initial=0)))
        for at, lane in enumerate(chosen.tolist()):
            painter.add(at, step, batch.spans[rows[lane] : rows[lane + 1]].tolist(), longest)
    runs = np.array(painter.runs, dtype=np.float64).reshape(-1, 4)
    some = f", of which {len(chosen):,} are drawn" if len(chosen) < lanes else ""
    shown = f" (steps {first:,} to {first + drawn - 1:,} drawn)" if drawn < steps else ""
    used = np.unique(runs[:, 3].astype(np.int64))
    return Strips(
        rows=runs[:, 0].astype(np.int64),
        starts=runs[:, 1],
        stops=runs[:, 2],
        kinds=np.searchsorted(used, runs[:, 3].astype(np.int64)),
        categories=tuple(_LANE_CATEGORIES[kind] for kind in used.tolist()),
        row_names=tuple(map(str, chosen.tolist())),
        first=float(first),
        width=float(max(1, first + drawn)),
        x_label="step (as wide as its longest chunk)",
        y_label="lane",
        title=f"{_prefix(name)}{lanes:,} lanes{some}, {steps:,} steps{shown}",
        marks=(
            np.array(painter.marks, dtype=np.float64).reshape(-1, 2),
            "reset, with the epoch" if carry else "reset: a sequence begins",
        ),
        line=None if position is None else (position, f"position: step {position:,}"),
    )


class _LanePainter:
    """Builder of the coloured runs of lanes.

    Args:
        overlap: Timesteps of context at the head of a span.
        carry: Whether only the first step begins again.

    Attributes:
        runs: Row, start, end and category of each run.
        marks: Row and position of each reset.
    """

    def __init__(self, overlap: int, carry: bool) -> None:
        self.runs: list[tuple[float, float, float, int]] = []
        self.marks: list[tuple[float, float]] = []
        self._overlap = overlap
        self._carry = carry
        self._latest: dict[int, tuple[int, int]] = {}  # row -> its sequence and colour

    def add(self, row: int, step: int, spans: list[list[int]], longest: int) -> None:
        """Add one step of a lane: its spans side by side, as wide as they are long."""
        timestep = 0
        for sequence, start, stop in spans:
            if stop == start:
                continue
            color = self._choose_color(row, sequence)
            begin, timestep = timestep, timestep + stop - start
            is_first = step == 0 and begin == 0
            if is_first if self._carry else start == 0:
                self.marks.append((row, step + begin / longest))
            has_context = (step > 0 and begin == 0) if self._carry else start > 0
            scored = begin
            if self._overlap and has_context:
                scored = min(timestep, begin + self._overlap)
                self._add(row, step, begin / longest, scored / longest, _CONTEXT + color)
            self._add(row, step, scored / longest, timestep / longest, color)
        rest = _LANE_PADDING if timestep else _IDLE
        self._add(row, step, timestep / longest, 1.0, rest)

    def _choose_color(self, row: int, sequence: int) -> int:
        known, color = self._latest.get(row, (sequence, row % _COLORS))
        if known != sequence:
            color = (color + 1) % _COLORS
        self._latest[row] = sequence, color
        return color

    def _add(self, row: int, step: int, start: float, stop: float, kind: int) -> None:
        if stop > start:
            self.runs.append((row, step + start, step + stop, kind))


def list_worst(measures: BatchMeasures, most: int) -> list[dict[str, Any]]:
    """Return the batches with the most timesteps after padding, the largest first.

    Args:
        measures: Sizes of the batches.
        most: Maximum number of batches.
    """
    padded = measures.padded
    order = np.argsort(-padded, kind="stable")[:most]
    return [
        {
            "batch": number,
            "rows": int(measures.rows[number]),
            "longest": int(measures.longest[number]),
            "timesteps": int(measures.timesteps[number]),
            "padded": int(padded[number]),
        }
        for number in order.tolist()
    ]

"""The charts of a plan, by kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.plan_table import ArrayTable
from seqdata.plotting.batches import chart_lanes, chart_padding, chart_parts, chart_sizes
from seqdata.plotting.charts import Chart
from seqdata.plotting.lengths import chart_lengths
from seqdata.report import BatchMeasures, measure_batches

if TYPE_CHECKING:
    from seqdata.plan import Plan

KINDS = ("batches", "padding", "lengths", "lanes", "parts")


def chart_plan(
    plan: Plan,
    kind: str | None = None,
    *,
    label: str = "",
    position: int | None = None,
    most: int | None = None,
) -> Chart:
    """Return one chart of a plan.

    Args:
        plan: Plan of an epoch.
        kind: One of ``KINDS``; None: ``lanes`` of a plan with lanes, else ``batches``.
        label: Name of the plan in a legend.
        position: Number of delivered batches, for a line; None: no line.
        most: Maximum number of batches that are measured, for a quick look; None: all.

    Raises:
        ConfigError: If the kind is unknown, or the plan has no lanes or no parts to draw.
    """
    own_kind = kind or ("lanes" if plan.lanes else "batches")
    if own_kind == "batches":
        return chart_sizes(
            measure_first(plan, most), total=len(plan), position=position, name=label
        )
    if own_kind == "padding":
        return chart_padding({label: measure_first(plan, most)})
    if own_kind == "lengths":
        lengths = [table.row_lengths() for table in _iter_tables(plan)]
        joined = np.concatenate([np.empty(0, dtype=np.int64), *lengths])
        return chart_lengths(joined, None, items="rows", skip_empty=bool(plan.lanes), name=label)
    if own_kind == "lanes":
        if not plan.lanes:
            raise ConfigError(
                "plan: `kind` must not be 'lanes' for a plan without lanes. Draw 'batches', or "
                "plan with TBPTT."
            )
        return chart_lanes(
            plan.batch, steps=len(plan), lanes=plan.lanes, overlap=plan.overlap, carry=plan.carry,
            position=position, name=label,
        )  # fmt: skip
    if own_kind == "parts":
        labels = plan.label_parts(range(len(plan)))
        if labels is None or any(found.part is None for found in labels[:1]):
            raise ConfigError(
                "plan: `kind` must not be 'parts' for a plan of one store. Draw 'batches', or plan "
                "with Mix."
            )
        return chart_parts(labels)
    needed = f"one of {', '.join(map(repr, KINDS))}, or None"
    raise ConfigError(must_be("plan: `kind`", needed, repr(kind)))


def measure_first(plan: Plan, most: int | None) -> BatchMeasures:
    """Return the sizes of the first ``most`` batches of a plan; None: of all batches."""
    if most is None or len(plan) <= most:
        return plan.measures
    found: list[BatchMeasures] = []
    for table in _iter_tables(plan):
        found.append(measure_batches(table))
        if sum(len(each.rows) for each in found) >= most:
            break
    names = ("rows", "longest", "timesteps")
    return BatchMeasures(
        *(np.concatenate([getattr(each, name) for each in found])[:most] for name in names)
    )


def _iter_tables(plan: Plan) -> Iterator[ArrayTable]:
    """Yield all batches in order, those of a block at a time."""
    first = 0
    while first < len(plan):
        stop = max(first + 1, min(len(plan), plan.prepare(first)))
        yield plan.slice(first, stop)
        first = stop

"""Pictures of what a loader reads: the epochs of an engine, for one store or several."""

from __future__ import annotations

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.engine import ZipEngine
from seqdata.planning.build import describe_policy
from seqdata.plotting.batches import chart_ranks
from seqdata.plotting.charts import Bars, Chart
from seqdata.plotting.lengths import chart_lengths
from seqdata.plotting.plans import KINDS, chart_plan
from seqdata.resume_state import RunPosition
from seqdata.sharing import measure_ranks

_MOST_IN_HTML = 1 << 15  # batches that are measured for a notebook
_MOST_LENGTHS = 1 << 20  # lengths that are counted for a notebook


def chart_epoch(
    engine: BaseEngine,
    kind: str | None,
    run_position: RunPosition,
    *,
    is_quick: bool = False,
) -> list[Chart]:
    """Return the charts of an epoch: one; of zipped parts one for each, except for ``ranks``.

    Args:
        engine: The engine.
        kind: Kind of a plan's chart, or ``ranks``; None: the usual one of the plan.
        run_position: The epoch, and the number of its delivered batches.
        is_quick: Whether only the first batches of a very long epoch are measured.

    Raises:
        ConfigError: If there is no such chart.
    """
    if kind not in (None, "ranks", *KINDS):
        needed = f"one of {', '.join(map(repr, (*KINDS, 'ranks')))}"
        raise ConfigError(must_be("loader: `kind`", needed, repr(kind)))
    engines = engine.engines if isinstance(engine, ZipEngine) else {"": engine}
    position = run_position.position or None
    if kind == "ranks":
        world, tail = engine.options.world, engine.options.tail
        plans = [each.plan(run_position.epoch) for each in engines.values()]
        measured = [measure_ranks(plan, world.size, tail) for plan in plans]
        real, padded = np.sum(measured, axis=0)  # a step of zipped parts has a batch of each
        return [chart_ranks(real, padded)]
    most = _MOST_IN_HTML if is_quick else None
    return [
        chart_plan(each.plan(run_position.epoch), kind, label=name, position=position, most=most)
        for name, each in engines.items()
    ]


def chart_planned(engine: BaseEngine) -> list[Bars]:
    """Return a histogram of the planned lengths, or one for each zipped part.

    Args:
        engine: The engine.
    """
    engines = engine.engines.values() if isinstance(engine, ZipEngine) else [engine]
    charts = []
    for each in engines:
        total, axis = len(each.index), each.policy.axis
        count = min(total, _MOST_LENGTHS)
        note = "" if count == total else f" (the first of {total:,})"
        lengths = each.index.run(axis, 0, count)
        charts.append(chart_lengths(lengths, axis, name=each.options.name, note=note))
    return charts


def describe_engine(engine: BaseEngine) -> str:
    """Return the number of sequences, the policy and the world of an engine as a string."""
    world = engine.options.world
    policy = describe_policy(engine.policy, brief=True)
    ranks = f", rank {world.rank} of {world.size}" if world.size > 1 else ""
    return f"{len(engine.index):,} sequences, {policy}{ranks}, seed {engine.options.seed}"

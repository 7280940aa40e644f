"""Pictures of plans for ``seqdata plan``: a PNG of lengths and padding, or of lanes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.plotting.axes import draw, find_size, make_figure
from seqdata.plotting.batches import chart_padding
from seqdata.plotting.charts import Curves
from seqdata.plotting.lengths import chart_lengths
from seqdata.plotting.plans import chart_plan
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.zip import Zip
from seqdata.protocols import Policy
from seqdata.report import BatchMeasures
from seqdata.storage.local_files import open_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (11.0, 4.0)  # inches


def draw_plan(
    path: Path, rule: Policy, index: SequenceIndex, plan: Plan, *, label: str, seed: int = 0
) -> None:
    """Draw a plan: its lanes, or lengths and the padding next to other policies.

    Args:
        path: Path of the PNG file.
        rule: Policy of the plan.
        index: Lengths of the planned sequences.
        plan: Plan of one epoch.
        label: Name of the plan.
        seed: Seed of the other plans.

    Raises:
        ConfigError: If matplotlib is not installed, stores are zipped, or the path has another
            suffix.
        OSError: If the file cannot be written.
    """
    if isinstance(rule, Zip):
        raise ConfigError(
            "plan: `--plot` cannot be combined with `--zip`. Plot each store by itself, or write "
            "`--report`."
        )
    if plan.lanes:
        lanes = chart_plan(plan, "lanes")
        figure = make_figure(find_size([lanes]), "plan")
        draw(lanes, figure.subplots())
    else:
        figure = make_figure(_SIZE, "plan")
        lengths = chart_lengths(index.run(rule.axis, 0, len(index)), rule.axis)
        curves = compare_padding(rule, index, plan.measures, label=label, seed=seed)
        draw([lengths, curves], figure.subplots(1, 2))
    save_figure(figure, path)


def compare_padding(
    rule: Policy, index: SequenceIndex, own: BatchMeasures, *, label: str, seed: int
) -> Curves:
    """Return the padding of a plan next to random, bucketed and token-budget batches of its size.

    Args:
        rule: Policy of the plan.
        index: Lengths of the planned sequences.
        own: Sizes of the batches of the plan.
        label: Name of the plan.
        seed: Seed of the other plans.
    """
    others = {
        name: policy.plan(index, seed=seed, epoch=0).measures
        for name, policy in _comparison_policies(own, rule.axis).items()
        if name != label
    }
    names = {"fixed": "fixed (random)"}
    plans = dict(sorted((others | {label: own}).items()))
    return chart_padding({names.get(name, name): measures for name, measures in plans.items()})


def _comparison_policies(own: BatchMeasures, axis: str) -> dict[str, Any]:
    """Return policies whose batches have as many rows, or timesteps, as those of a plan."""
    rows = max(1, round(float(own.rows.mean()))) if len(own.rows) else 1
    most = max(1, int(own.longest.max(initial=1)))
    tokens = max(most, int(np.median(own.padded))) if len(own.rows) else most
    return {
        "fixed": Fixed(rows, axis=axis, max_length=most, too_long="split"),
        "bucketed": Bucketed(rows, axis=axis, max_length=most, too_long="split"),
        "token-budget": TokenBudget(tokens, axis=axis, max_length=most, too_long="split"),
    }


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, and create its folder.

    Raises:
        ConfigError: If the path has another suffix.
        OSError: If it cannot be written.
    """
    if path.suffix.lower() not in ("", ".png"):
        needed = "a path that ends in .png"
        raise ConfigError(must_be("`--plot`", needed, repr(str(path)), "Choose another"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(path.resolve()) as file:  # the target of a link
        figure.savefig(file, dpi=120, format="png")

"""A plot of a plan: the lengths of sequences, and the padding of several ways of batching."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.fixed import Fixed
from seqdata.policies.token_budget import TokenBudget
from seqdata.report import BatchMeasures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 60


def draw_plan(
    path: Path, index: SequenceIndex, plan: Plan, *, label: str, axis: str = "time", seed: int = 0
) -> None:
    """Plot a plan next to random, bucketed and token-budget batches of its size.

    Args:
        path: The file to write, a PNG.
        index: The lengths that are planned.
        plan: The plan of one epoch, dealt by batches.
        label: Name of the plan in the picture.
        axis: The axis that is planned on.
        seed: Seed of the other plans.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = make_figure((11, 4))
    left, right = figure.subplots(1, 2)
    _draw_lengths(left, index, axis)
    own = plan.measures
    others = {
        name: policy.plan(index, seed=seed, epoch=0).measures
        for name, policy in _comparison_policies(own, axis).items()
        if name != label
    }
    _draw_padding(right, dict(sorted((others | {label: own}).items())))
    save_figure(figure, path)


def _comparison_policies(own: BatchMeasures, axis: str) -> dict[str, Any]:
    """Return policies whose batches have as many rows, or timesteps, as the plan's."""
    rows = max(1, round(float(own.rows.mean()))) if len(own.rows) else 1
    most = max(1, int(own.longest.max(initial=1)))
    tokens = max(most, int(np.median(own.rows * own.longest))) if len(own.rows) else most
    return {
        "fixed": Fixed(rows, axis=axis, max_length=most, too_long="split"),
        "bucketed": Bucketed(rows, axis=axis, max_length=most, too_long="split"),
        "token-budget": TokenBudget(tokens, axis=axis, max_length=most, too_long="split"),
    }


def _draw_lengths(axes: Any, index: SequenceIndex, axis: str) -> None:
    lengths = index.run(axis, 0, len(index))
    real = lengths[lengths > 0]
    low = int(real.min()) if len(real) else 1
    edges = np.geomspace(low, max(low + 1, int(real.max(initial=1))), _BINS)
    axes.hist(real, bins=edges, color="tab:gray")
    axes.set(xscale="log", xlabel=f"length along {axis!r}, timesteps", ylabel="sequences")
    empty = f" and {len(lengths) - len(real):,} empty ones" if len(real) < len(lengths) else ""
    axes.set_title(f"{len(real):,} sequences{empty}")


def _draw_padding(axes: Any, curves: dict[str, BatchMeasures]) -> None:
    names = {"fixed": "fixed (random)"}
    for name, batches in curves.items():
        shares = 100 * np.sort(batches.padding)[::-1]
        padded = int((batches.rows * batches.longest).sum())
        total_padding = 100 * (1 - int(batches.timesteps.sum()) / padded) if padded else 0.0
        where = np.linspace(0, 100, num=len(shares))
        axes.plot(where, shares, label=f"{names.get(name, name)}: {total_padding:.1f} % in all")
    axes.set(xlabel="batches, % (most padded first)", ylabel="padding, % of the batch")
    axes.set(ylim=(0, 100))
    axes.set_title("Padding per batch")
    axes.legend()


def make_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of a size in inches.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plan: drawing needs matplotlib, which is not installed; "
            "pip install 'lightning-seqdata[plot]'"
        ) from error
    return Figure(figsize=size, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")

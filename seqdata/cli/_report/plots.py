"""Plots of plans: the padding of policies, and the sequences of lanes in each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.cli._report.statistics import compute_idle_share
from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.token_budget import TokenBudget
from seqdata.report import BatchMeasures
from seqdata.storage.local_files import open_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 60  # bins of the histogram of lengths
_WIDTH = 1800  # pixels for all steps
_MAX_STEP_PIXELS = 48
_HEIGHT = 1100  # pixels for all lanes
_MAX_LANE_PIXELS = 24
_MIN_MARK_PIXELS = 3  # least width of a step, in pixels, at which resets are visible
_GOLDEN = 0.61803398875  # gives neighbouring sequences distant hues

Image = NDArray[np.uint8]
_BACKGROUND, _IDLE, _RESET = (255, 255, 255), (176, 176, 176), (0, 0, 0)


def draw_plan(
    path: Path, index: SequenceIndex, plan: Plan, *, label: str, axis: str = "time", seed: int = 0
) -> None:
    """Plot a plan next to random, bucketed and token-budget batches of its size.

    Args:
        path: Path of the PNG file.
        index: Lengths of the planned sequences.
        plan: Plan of one epoch, without lanes.
        label: Name of the plan in the plot.
        axis: Axis that is planned on.
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
    """Return policies whose batches have as many rows, or timesteps, as those of a plan."""
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


def draw_lanes(path: Path, plan: Plan) -> None:
    """Plot lanes as rows and steps as columns, with a colour for each sequence.

    The rest of a row that is shorter than the longest of its step is white. Idle rows are grey,
    resets have a black edge, and context is pale.

    Args:
        path: Path of the PNG file.
        plan: The plan of one epoch, dealt by rows.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = make_figure((13, min(9.0, 2.2 + 0.16 * plan.lanes)))
    axes = figure.subplots()
    count = len(plan)
    steps = np.arange(count)
    if count > _WIDTH:
        steps = np.arange(_WIDTH) * count // _WIDTH
    image, has_resets = paint_lanes(plan, steps)
    axes.imshow(
        image,
        aspect="auto",
        interpolation="nearest",
        extent=(0, max(1, count), plan.lanes - 0.5, -0.5),
    )
    axes.set(xlabel="step", ylabel="lane")
    _use_integer_ticks(axes)
    _draw_legend(figure, plan, has_resets)
    axes.set_title(_format_title(plan, len(steps)), fontsize=10)
    save_figure(figure, path)


def _format_title(plan: Plan, drawn: int) -> str:
    measures, count = plan.measures, len(plan)
    room = int((measures.longest * plan.lanes).sum())
    idle = 100 * compute_idle_share(plan)
    padding = 100 * (1 - int(measures.timesteps.sum()) / room) if room else 0.0
    longest = int(measures.longest.max(initial=0))
    some = f" ({drawn:,} of them drawn)" if drawn < count else ""
    return (
        f"{plan.lanes:,} lanes, {count:,} steps{some}, chunks of up to {longest:,} timesteps: "
        f"{idle:.2f} % of the rows are idle, {padding:.2f} % of all timesteps are padding"
    )


def paint_lanes(plan: Plan, steps: NDArray[np.int64]) -> tuple[Image, bool]:
    """Return the picture, uint8 (height, width, 3), and whether resets are marked."""
    width = max(1, min(_MAX_STEP_PIXELS, _WIDTH // max(1, len(steps))))
    height = max(1, min(_MAX_LANE_PIXELS, _HEIGHT // plan.lanes))
    has_resets = width >= _MIN_MARK_PIXELS
    image = np.full((plan.lanes, max(1, len(steps)) * width, 3), _BACKGROUND, dtype=np.uint8)
    for column, step in enumerate(steps.tolist()):
        cells = image[:, column * width : (column + 1) * width]
        _paint_step(cells, plan, step, marked=has_resets)
    image = np.repeat(image, height, axis=0)
    if height >= 4:
        image[height - 1 :: height] = _BACKGROUND  # a line between lanes
    return image, has_resets


def _paint_step(cells: Image, plan: Plan, number: int, *, marked: bool) -> None:
    """Paint one step: its spans side by side, each as wide as it is long."""
    batch = plan.batch(number)
    spans = batch.spans
    rows = np.arange(len(spans) + 1) if batch.rows is None else batch.rows
    lengths = spans[:, 2] - spans[:, 1]
    cumulative = np.cumsum(lengths)
    width = cells.shape[1]
    longest = max(
        1, int((cumulative[rows[1:] - 1] - cumulative[rows[:-1]] + lengths[rows[:-1]]).max())
    )
    colours = _sequence_colours(spans[:, 0])
    for lane in range(plan.lanes):
        timestep = 0
        for span in range(int(rows[lane]), int(rows[lane + 1])):
            first, timestep = timestep, timestep + int(lengths[span])
            pixels = cells[lane, first * width // longest : -(-timestep * width // longest)]
            pixels[:] = colours[span]
            begins = spans[span, 1] == 0 and not plan.carry
            if marked and len(pixels) and (begins or (plan.carry and not number and not first)):
                pixels[: 1 + width // 16] = _RESET
        if not timestep:
            cells[lane] = _IDLE
        elif plan.overlap and (number if plan.carry else spans[rows[lane], 1]):
            context = cells[lane, : plan.overlap * width // longest]
            context[:] = 255 - (255 - context) // 3


def _sequence_colours(numbers: NDArray[np.int64]) -> Image:
    """Return the colour of each sequence, uint8 (n, 3)."""
    hues = 6 * (numbers * _GOLDEN % 1.0)
    lightness = 0.72 + 0.24 * (numbers * _GOLDEN * 7 % 1.0)
    parts = [np.clip(np.abs((hues + turn) % 6 - 3) - 1, 0, 1) for turn in (0, 4, 2)]
    pure = np.stack(parts, axis=-1)
    mixed = lightness[:, None] * (0.25 + 0.75 * pure)
    return (255 * mixed).astype(np.uint8)


def _use_integer_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))


def _draw_legend(figure: Figure, plan: Plan, marked: bool) -> None:
    from matplotlib.patches import Patch

    def to_rgb(colour: Any) -> tuple[float, float, float]:
        red, green, blue = (float(part) / 255 for part in colour)
        return red, green, blue

    samples = _sequence_colours(np.arange(3))
    colours = {
        "a sequence, each in another colour": samples[1],
        "idle": _IDLE,
        "padding": _BACKGROUND,
    }
    if marked:
        colours["reset" if not plan.carry else "reset, with the epoch"] = _RESET
    if plan.overlap:
        colours["context, not scored (pale)"] = 255 - (255 - samples[1]) // 3
    patches = [
        Patch(facecolor=to_rgb(colour), edgecolor="gray", label=name)
        for name, colour in colours.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False)

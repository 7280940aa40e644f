"""One picture of a plan of lanes: which sequence each lane reads in each step.

Place in the flow: plan -> a PNG. Needs matplotlib, imported when it draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.cli._report.padding_plot import figure_of, save
from seqdata.cli._report.statistics import idle_share
from seqdata.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 1800  # pixels for all steps
_MOST_OF_A_STEP = 48
_HEIGHT = 1100  # pixels for all lanes
_MOST_OF_A_LANE = 24
_MARKED = 3  # pixels of a step from which on resets can be told from one another
_GOLDEN = 0.61803398875  # neighbours in a queue get hues far apart

Image = NDArray[np.uint8]
_PAPER, _IDLE, _RESET = (255, 255, 255), (176, 176, 176), (0, 0, 0)


def draw_lanes(path: Path, plan: Plan) -> None:
    """Draw lanes down and steps across, a colour for each sequence.

    A row that is shorter than its step's longest leaves white, an idle one is grey; a black edge is
    a reset; what is context is pale.

    Args:
        path: The file to write, a PNG.
        plan: The plan of one epoch, dealt by rows.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = figure_of((13, min(9.0, 2.2 + 0.16 * plan.lanes)))
    axes = figure.subplots()
    count = len(plan)
    steps = np.arange(count)
    if count > _WIDTH:
        steps = np.arange(_WIDTH) * count // _WIDTH
    image, marked = paint(plan, steps)
    axes.imshow(
        image,
        aspect="auto",
        interpolation="nearest",
        extent=(0, max(1, count), plan.lanes - 0.5, -0.5),
    )
    axes.set(xlabel="step", ylabel="lane")
    _whole_ticks(axes)
    _legend(figure, plan, marked)
    axes.set_title(_title(plan, len(steps)), fontsize=10)
    save(figure, path)


def _title(plan: Plan, drawn: int) -> str:
    measures, count = plan.measures, len(plan)
    room = int((measures.longest * plan.lanes).sum())
    idle = 100 * idle_share(plan)
    padding = 100 * (1 - int(measures.timesteps.sum()) / room) if room else 0.0
    longest = int(measures.longest.max(initial=0))
    some = f" ({drawn:,} of them drawn)" if drawn < count else ""
    return (
        f"{plan.lanes:,} lanes, {count:,} steps{some}, chunks of up to {longest:,} timesteps: "
        f"{idle:.2f} % of the rows are idle, {padding:.2f} % of all is padding"
    )


def paint(plan: Plan, steps: NDArray[np.int64]) -> tuple[Image, bool]:
    """Paint the lanes, uint8 (height, width, 3); say whether resets are marked."""
    wide = max(1, min(_MOST_OF_A_STEP, _WIDTH // max(1, len(steps))))
    high = max(1, min(_MOST_OF_A_LANE, _HEIGHT // plan.lanes))
    marked = wide >= _MARKED
    image = np.full((plan.lanes, max(1, len(steps)) * wide, 3), _PAPER, dtype=np.uint8)
    for column, number in enumerate(steps.tolist()):
        _paint_step(image[:, column * wide : (column + 1) * wide], plan, number, marked=marked)
    image = np.repeat(image, high, axis=0)
    if high >= 4:
        image[high - 1 :: high] = _PAPER  # a line between lanes
    return image, marked


def _paint_step(cells: Image, plan: Plan, number: int, *, marked: bool) -> None:
    """Paint one step: its spans side by side, as wide as they are long."""
    batch = plan.batch(number)
    spans = batch.spans
    rows = np.arange(len(spans) + 1) if batch.rows is None else batch.rows
    lengths = spans[:, 2] - spans[:, 1]
    ends = np.cumsum(lengths)
    wide = cells.shape[1]
    longest = max(1, int((ends[rows[1:] - 1] - ends[rows[:-1]] + lengths[rows[:-1]]).max()))
    colours = _colours(spans[:, 0])
    for lane in range(plan.lanes):
        at = 0
        for span in range(int(rows[lane]), int(rows[lane + 1])):
            first, at = at, at + int(lengths[span])
            here = cells[lane, first * wide // longest : -(-at * wide // longest)]
            here[:] = colours[span]
            begins = spans[span, 1] == 0 and not plan.carry
            if marked and len(here) and (begins or (plan.carry and not number and not first)):
                here[: 1 + wide // 16] = _RESET
        if not at:
            cells[lane] = _IDLE
        elif plan.overlap and (number if plan.carry else spans[rows[lane], 1]):
            context = cells[lane, : plan.overlap * wide // longest]
            context[:] = 255 - (255 - context) // 3


def _colours(numbers: NDArray[np.int64]) -> Image:
    """Give each sequence its colour, uint8 (n, 3)."""
    hues = 6 * (numbers * _GOLDEN % 1.0)
    lightness = 0.72 + 0.24 * (numbers * _GOLDEN * 7 % 1.0)
    parts = [np.clip(np.abs((hues + turn) % 6 - 3) - 1, 0, 1) for turn in (0, 4, 2)]
    pure = np.stack(parts, axis=-1)
    mixed = lightness[:, None] * (0.25 + 0.75 * pure)
    return (255 * mixed).astype(np.uint8)


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))


def _legend(figure: Figure, plan: Plan, marked: bool) -> None:
    from matplotlib.patches import Patch

    def shown(colour: Any) -> tuple[float, float, float]:
        red, green, blue = (float(part) / 255 for part in colour)
        return red, green, blue

    some = _colours(np.arange(3))
    known = {"a sequence, each its own colour": some[1], "idle": _IDLE, "padding": _PAPER}
    if marked:
        known["reset" if not plan.carry else "reset, with the epoch"] = _RESET
    if plan.overlap:
        known["context, not scored (pale)"] = 255 - (255 - some[1]) // 3
    patches = [
        Patch(facecolor=shown(colour), edgecolor="gray", label=name)
        for name, colour in known.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False)

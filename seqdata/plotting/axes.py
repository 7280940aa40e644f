"""Charts drawn by matplotlib, into given axes or new ones; its settings are not changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.plotting.charts import CYCLE, Bars, Chart, Curves, Strips

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 7.4, 3.2  # inches of one panel
_ROW_HEIGHT, _MAX_HEIGHT = 0.16, 8.0
_LEGEND_OFFSET = 0.42  # inches from the axes to a legend below
_MAX_ROW_NAMES = 16
_MAX_CELLS = 2000  # pixels of a heat map along each axis
_NAMED_WIDTH = 0.8  # fraction of the room of a bar with a name
_SYMLOG_ROOM = 0.35  # of a decade, for lengths of 0


def draw(charts: Chart | Sequence[Chart], ax: Any = None) -> Any:
    """Draw a chart, or several below each other.

    Args:
        charts: The charts.
        ax: Axes of matplotlib, or a sequence of axes for several charts; None: a new figure.

    Returns:
        The axes of a single chart. For several charts, the new figure, or the list of given axes.

    Raises:
        ConfigError: If matplotlib is not installed, or ``ax`` does not fit the charts.
    """
    listed = [charts] if isinstance(charts, Bars | Curves | Strips) else list(charts)
    axes, result = _get_axes(ax, listed)
    for chart, own_axes in zip(listed, axes, strict=True):
        _draw_chart(chart, own_axes)
    return result


def draw_values(
    values: NDArray[Any], ax: Any = None, *, x_label: str, y_label: str, label: str, title: str
) -> Any:
    """Draw a heat map of values with a colour bar.

    Args:
        values: Floating (rows, columns); NaN is left blank.
        ax: Axes of matplotlib; None: a new figure.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        label: Label of the colour bar.
        title: Title.

    Raises:
        ConfigError: If matplotlib is not installed, or ``ax`` is not axes.
    """
    axes, result = _get_axes(ax, [None])
    rows, columns = values.shape
    steps = [max(1, -(-size // _MAX_CELLS)) for size in values.shape]
    shown = np.ma.masked_invalid(values[:: steps[0], :: steps[1]])
    image = axes[0].imshow(
        shown, aspect="auto", interpolation="nearest", extent=(0, columns, rows - 0.5, -0.5)
    )
    axes[0].set(xlabel=x_label, ylabel=y_label)
    axes[0].set_title(title, fontsize="medium")
    _use_integer_ticks(axes[0])
    axes[0].figure.colorbar(image, ax=axes[0], label=label)
    return result


def _get_axes(ax: Any, charts: Sequence[Chart | None]) -> tuple[list[Axes], Any]:
    """Return the axes of each chart, and the result of the call."""
    if ax is None:
        return _make_axes(charts)
    given = list(np.ravel(np.asarray(ax, dtype=object)))
    if not all(hasattr(each, "add_patch") for each in given) or len(given) != len(charts):
        needed = "axes of matplotlib" if len(charts) == 1 else f"{len(charts)} axes of matplotlib"
        found = type(given[0]).__name__ if len(given) == 1 else f"{len(given)} objects"
        raise ConfigError(
            must_be("plot: `ax`", needed, found, "Pass e.g. figure.subplots(), or leave it out")
        )
    return given, given[0] if len(charts) == 1 else given


def _make_axes(charts: Sequence[Chart | None]) -> tuple[list[Axes], Any]:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise _make_missing_error("plot") from error
    heights = [_find_height(chart) for chart in charts]
    figure, axes = pyplot.subplots(
        len(charts), squeeze=False, figsize=(_WIDTH, min(sum(heights), 4 * _MAX_HEIGHT)),
        layout="constrained", height_ratios=heights,
    )  # fmt: skip
    listed = list(axes[:, 0])
    return listed, listed[0] if len(charts) == 1 else figure


def make_figure(size: tuple[float, float], caller: str) -> Any:
    """Return an empty figure of a size in inches, unknown to pyplot.

    Args:
        size: Width and height.
        caller: Name that begins the message of an error.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _make_missing_error(caller) from error
    return Figure(figsize=size, layout="constrained")


def find_size(charts: Sequence[Chart]) -> tuple[float, float]:
    """Return the width and height in inches of charts below each other."""
    return _WIDTH, sum(map(_find_height, charts))


def _make_missing_error(caller: str) -> ConfigError:
    return ConfigError(
        f"{caller}: drawing needs matplotlib, which is not installed; "
        "pip install 'lightning-seqdata[plot]'"
    )


def _find_height(chart: Chart | None) -> float:
    if not isinstance(chart, Strips):
        return _HEIGHT
    return min(_MAX_HEIGHT, 1.5 + max(0.5, _ROW_HEIGHT * len(chart.row_names)))


def _draw_chart(chart: Chart, axes: Axes) -> None:
    if isinstance(chart, Bars):
        _draw_bars(chart, axes)
    elif isinstance(chart, Curves):
        _draw_curves(chart, axes)
    else:
        _draw_strips(chart, axes)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.title:
        axes.set_title(chart.title, fontsize="medium")


def _draw_bars(chart: Bars, axes: Axes) -> None:
    widths = np.diff(chart.edges) * (_NAMED_WIDTH if chart.names else 1.0)
    middles = (chart.edges[:-1] + chart.edges[1:]) / 2
    bottom = np.zeros(len(widths))
    for name, heights in chart.series.items():
        axes.bar(
            middles, heights, width=widths, bottom=bottom,
            color=chart.colors[name], edgecolor="none", label=name,
        )  # fmt: skip
        bottom = bottom + np.asarray(heights)
    if chart.scale == "log" and chart.edges[0] > 0:
        axes.set_xscale("log")
    elif chart.scale == "log":
        axes.set_xscale("symlog", linthresh=1, linscale=_SYMLOG_ROOM)
    if chart.scale == "log":
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(chart.edges[0], chart.edges[-1])
    if chart.scale == "linear":
        _use_integer_ticks(axes)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if chart.names:
        step = -(-len(chart.names) // _MAX_ROW_NAMES)
        axes.set_xticks(middles[::step], chart.names[::step])
    if chart.mark is not None:
        axes.axvline(chart.mark[0], color=_text_color(axes), linestyle="--", label=chart.mark[1])
    if len(chart.series) > 1 or chart.mark is not None:
        axes.legend(fontsize="small")


def _draw_curves(chart: Curves, axes: Axes) -> None:
    for name, (x, y) in chart.lines.items():
        color = CYCLE[len(axes.lines) % len(CYCLE)]  # also of an earlier call
        axes.plot(x, y, label=name, color=color)
    if chart.limits is not None:
        axes.set_ylim(*chart.limits)
    if chart.lines:
        axes.legend(fontsize="small")


def _draw_strips(chart: Strips, axes: Axes) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.transforms import ScaledTranslation

    named: set[str] = set()
    for kind, category in enumerate(chart.categories):
        is_own = chart.kinds == kind
        rows, starts, stops = chart.rows[is_own], chart.starts[is_own], chart.stops[is_own]
        low, high = rows - 0.45, rows + 0.45
        corners = [(starts, low), (stops, low), (stops, high), (starts, high)]
        shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
        runs = PolyCollection(
            list(shapes), facecolor=category.color, alpha=category.opacity, linewidths=0,
            label=f"_{kind}" if category.name in named else category.name,
        )  # fmt: skip
        named.add(category.name)
        weights = None if chart.weights is None else chart.weights[is_own]
        if weights is not None and not np.isnan(weights).any() and len(weights):
            _color_by_weight(runs, weights, chart, axes)
        axes.add_collection(runs, autolim=False)
    if len(chart.marks[0]):
        axes.vlines(
            chart.marks[0][:, 1], chart.marks[0][:, 0] - 0.45, chart.marks[0][:, 0] + 0.45,
            color=_text_color(axes), linewidth=1.5, label=chart.marks[1],
        )  # fmt: skip
    if chart.line is not None:
        axes.axvline(chart.line[0], color=_text_color(axes), linestyle="--", label=chart.line[1])
    axes.set(xlim=(chart.first, chart.width), ylim=(max(1, len(chart.row_names)) - 0.5, -0.5))
    _use_integer_ticks(axes)
    names = chart.row_names if any(chart.row_names) else ()
    step = -(-max(1, len(names)) // _MAX_ROW_NAMES)
    axes.set_yticks(np.arange(len(names))[::step], names[::step])
    if len(chart.kinds):
        below = ScaledTranslation(0, -_LEGEND_OFFSET, axes.figure.dpi_scale_trans)
        axes.legend(
            fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False,
            bbox_transform=axes.transAxes + below, borderaxespad=0,
        )  # fmt: skip


def _color_by_weight(runs: Any, weights: NDArray[np.float64], chart: Strips, axes: Axes) -> None:
    """Colour runs by their weight, and add a colour bar once."""
    from matplotlib.colors import Normalize

    known = chart.weights[~np.isnan(chart.weights)] if chart.weights is not None else weights
    runs.set(array=weights, cmap="viridis", norm=Normalize(float(known.min()), float(known.max())))
    if not any(mappable.get_array() is not None for mappable in axes.collections):
        axes.figure.colorbar(runs, ax=axes, label="weight in the loss")


def _text_color(axes: Axes) -> Any:
    """Return the colour of the labels of axes, which fits their background."""
    return axes.xaxis.label.get_color()


def _use_integer_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))

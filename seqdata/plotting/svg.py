"""Charts as inline SVG, for notebooks and reports: no scripts, no fonts, no network.

Text and axes have the colour of the text around the picture, so that it is legible on a light and
on a dark page. Everything that is not a number is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from seqdata.plotting.charts import CYCLE, Bars, Chart, Curves, Strips

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 74, 12, 8, 40
_PLOT_HEIGHT, _ROW_HEIGHT, _LINE = 130, 11, 16
_TICKS = 6
_NAMED_GAP = 0.1  # fraction of the room of a bar with a name, on each side
_MAX_ROW_NAMES = 16
_FONT = 'font-family="system-ui, sans-serif" font-size="11"'


def render_svg(chart: Chart) -> str:
    """Return a chart as an SVG element, with its legend below and its title as ``aria-label``."""
    if isinstance(chart, Bars):
        return _render_bars(chart)
    if isinstance(chart, Curves):
        return _render_curves(chart)
    return _render_strips(chart)


class _Frame:
    """The area of a plot: positions of values, and its axes.

    Args:
        x_range: Bounds of the horizontal axis.
        y_range: Bounds of the vertical axis, bottom first.
        height: Height of the plot area in pixels.
        is_log: Whether the horizontal axis is logarithmic, and linear from 0 to 1.
    """

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        height: float = _PLOT_HEIGHT,
        is_log: bool = False,
    ) -> None:
        self.height = height
        self._is_log = is_log
        self._x_bounds = self._scale(x_range[0]), self._scale(x_range[1])
        self.x_range, self.y_range = x_range, y_range

    def _scale(self, value: float) -> float:
        if not self._is_log:
            return value
        return math.log2(value) if value >= 1 else value - 1.0

    def x(self, value: float) -> float:
        """Return the horizontal position of a value, in pixels."""
        low, high = self._x_bounds
        fraction = (self._scale(value) - low) / (high - low) if high > low else 0.0
        return _LEFT + fraction * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical position of a value, in pixels."""
        low, high = self.y_range
        fraction = (value - low) / (high - low) if high != low else 0.0
        return _TOP + (1 - fraction) * self.height

    def x_ticks(self) -> list[float]:
        """Return round values along the horizontal axis."""
        low, high = self.x_range
        if not self._is_log:
            return find_ticks(low, high)
        powers = range(
            math.ceil(max(0.0, self._scale(max(low, 1)))), math.floor(self._scale(high)) + 1
        )
        step = max(1, -(-len(powers) // (_TICKS + 2)))
        return [0.0] * (low <= 0) + [float(2**power) for power in powers[::step]]

    def axes(self, x_label: str, y_label: str, *, x_names: dict[float, str] | None = None,
             y_names: dict[float, str] | None = None) -> Iterator[str]:  # fmt: skip
        """Yield the axes with ticks and labels."""
        bottom, right = _TOP + self.height, _WIDTH - _RIGHT
        yield (
            f'<path d="M{_LEFT} {_TOP}V{bottom:.1f}H{right}" fill="none" stroke="currentColor" '
            'stroke-opacity="0.6"/>'
        )
        if x_names is None:
            x_names = {value: format_number(value) for value in self.x_ticks()}
        if y_names is None:
            ticks = find_ticks(*self.y_range)
            y_names = {value: format_number(value) for value in ticks}
        for value, name in x_names.items():
            yield _text(self.x(value), bottom + 13, name, anchor="middle")
        for value, name in y_names.items():
            yield _text(_LEFT - 6, self.y(value) + 4, name, anchor="end")
        yield _text((_LEFT + right) / 2, bottom + 30, x_label, anchor="middle")
        middle = _TOP + self.height / 2
        yield (
            f'<text transform="translate(11 {middle:.1f}) rotate(-90)" text-anchor="middle">'
            f"{html.escape(y_label)}</text>"
        )


def find_ticks(low: float, high: float) -> list[float]:
    """Return about six round values between two: integers between integers."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    if low == int(low) and high == int(high):
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def format_number(value: float) -> str:
    """Return a number as text: an integer with thousands separators, or at most four digits."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def _render_bars(chart: Bars) -> str:
    top = chart.top or 1.0
    first, last = float(chart.edges[0]), float(chart.edges[-1])
    frame = _Frame((first, last), (0.0, top), is_log=chart.scale == "log")
    parts = []
    bottom = np.zeros(len(chart.edges) - 1)
    for name, heights in chart.series.items():
        rects = []
        for at in np.flatnonzero(np.asarray(heights)).tolist():
            left, right = chart.edges[at : at + 2].tolist()
            gap = _NAMED_GAP * (right - left) if chart.names else 0.0
            low, height = float(bottom[at]), float(heights[at])
            bar = chart.names[at] if chart.names else _format_range(left, right)
            tip = f"{bar}: {format_number(height)} {name}"
            rects.append(
                _rect(
                    frame.x(left + gap),
                    frame.y(low + height),
                    frame.x(right - gap),
                    frame.y(low),
                    tip,
                )
            )
        bottom = bottom + np.asarray(heights)
        parts.append(f'<g fill="{chart.colors[name]}">{"".join(rects)}</g>')
    x_names = None
    if chart.names:
        step = -(-len(chart.names) // _MAX_ROW_NAMES)
        middles = ((chart.edges[:-1] + chart.edges[1:]) / 2).tolist()
        x_names = dict(zip(middles[::step], chart.names[::step], strict=True))
    parts += frame.axes(chart.x_label, chart.y_label, x_names=x_names)
    legend = [(name, chart.colors[name], 1.0) for name in chart.series]
    if chart.mark is not None:
        parts.append(_vertical(frame, chart.mark[0]))
        legend.append((f"┊ {chart.mark[1]}", "currentColor", 0.0))
    return _wrap(chart, parts, legend if len(legend) > 1 else [], frame.height)


def _render_curves(chart: Curves) -> str:
    all_x = [value for x, _ in chart.lines.values() for value in x.tolist()] or [0.0, 1.0]
    all_y = [value for _, y in chart.lines.values() for value in y.tolist()] or [0.0, 1.0]
    limits = chart.limits or (min(all_y), max(all_y))
    frame = _Frame((min(all_x), max(max(all_x), min(all_x) + 1e-9)), limits)
    parts, legend = [], []
    for at, (name, (x, y)) in enumerate(chart.lines.items()):
        color = CYCLE[at % len(CYCLE)]
        points = " ".join(
            f"{frame.x(a):.1f},{frame.y(b):.1f}"
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        legend.append((name, color, 1.0))
    parts += frame.axes(chart.x_label, chart.y_label)
    return _wrap(chart, parts, legend, frame.height)


def _render_strips(chart: Strips) -> str:
    count = max(1, len(chart.row_names))
    height = max(24, _ROW_HEIGHT * count)
    frame = _Frame((chart.first, chart.width), (count - 0.5, -0.5), height=height)
    top = 0.0 if chart.weights is None else float(np.nanmax(chart.weights, initial=0.0))
    parts = []
    for kind, category in enumerate(chart.categories):
        rects = []
        for at in np.flatnonzero(chart.kinds == kind).tolist():
            row, weight = int(chart.rows[at]), np.nan
            if chart.weights is not None:
                weight = float(chart.weights[at])
            rects.append(
                _rect(
                    frame.x(float(chart.starts[at])), frame.y(row - 0.43),
                    frame.x(float(chart.stops[at])), frame.y(row + 0.43),
                    opacity=None if math.isnan(weight) or not top else 0.2 + 0.8 * weight / top,
                )
            )  # fmt: skip
        parts.append(
            f'<g fill="{category.color}" fill-opacity="{category.opacity}">{"".join(rects)}</g>'
        )
    marks = "".join(
        f"M{frame.x(where):.1f} {frame.y(row - 0.45):.1f}V{frame.y(row + 0.45):.1f}"
        for row, where in chart.marks[0].tolist()
    )
    if marks:
        parts.append(f'<path d="{marks}" stroke="currentColor" stroke-width="1.5"/>')
    if chart.line is not None:
        parts.append(_vertical(frame, chart.line[0]))
    step = -(-count // _MAX_ROW_NAMES)
    names = {float(at): name for at, name in enumerate(chart.row_names) if at % step == 0}
    parts += frame.axes(chart.x_label, chart.y_label, y_names=names)
    return _wrap(chart, parts, list(_list_legend(chart)), height)


def _list_legend(chart: Strips) -> Iterator[tuple[str, str, float]]:
    first_of_name = {category.name: category for category in reversed(chart.categories)}
    for category in chart.categories:
        if first_of_name[category.name] is category:
            yield category.name, category.color, category.opacity
    if len(chart.marks[0]):
        yield f"| {chart.marks[1]}", "currentColor", 0.0
    if chart.line is not None:
        yield f"┊ {chart.line[1]}", "currentColor", 0.0
    if chart.weights is not None:
        low, high = np.nanmin(chart.weights), np.nanmax(chart.weights)
        yield f"weight in the loss {low:.3g} (pale) to {high:.3g}", "currentColor", 0.0


def _wrap(
    chart: Chart, parts: Iterable[str], legend: Sequence[tuple[str, str, float]], height: float
) -> str:
    """Return an SVG element of a plot, with its legend in lines below."""
    bottom = _TOP + height + _BOTTOM
    keys, x, y = [], float(_LEFT), bottom + 4
    for name, color, opacity in legend:
        room = 22 + 6.3 * len(name)
        if x > _LEFT and x + room > _WIDTH:
            x, y = float(_LEFT), y + _LINE
        if opacity:
            keys.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="10" height="10" fill="{color}" '
                f'fill-opacity="{opacity}"/>'
            )
        keys.append(_text(x + (14 if opacity else 0), y + 9, name))
        x += room
    total = (y + _LINE if legend else bottom) + 2
    title = html.escape(chart.title or chart.y_label)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {total:.0f}" role="img" '
        f'aria-label="{title}" style="width: 100%; max-width: {_WIDTH}px; height: auto; '
        f'display: block" fill="currentColor" {_FONT}>{"".join(parts)}{"".join(keys)}</svg>'
    )


def _rect(
    left: float, top: float, right: float, bottom: float, tip: str = "",
    *, opacity: float | None = None,
) -> str:  # fmt: skip
    width, height = max(0.3, right - left), bottom - top
    own = "" if opacity is None else f' fill-opacity="{opacity:.2f}"'
    box = f'<rect x="{left:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}"{own}'
    return f"{box}><title>{html.escape(tip)}</title></rect>" if tip else f"{box}/>"


def _vertical(frame: _Frame, value: float) -> str:
    return (
        f'<path d="M{frame.x(value):.1f} {_TOP}v{frame.height:.1f}" stroke="currentColor" '
        'stroke-dasharray="4 3"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _format_range(left: float, right: float) -> str:
    """Return the integers of a bar: ``[left, right)``."""
    if right - left <= 1:
        return format_number(left)
    return f"{format_number(left)} to {format_number(right - 1)}"
